"""`bench --breakdown --device ascend`: what every part takes on the card, on the host, in copies and in waiting."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from test_ascend import SHAPES, runtime_of, tokens_of

from edge_llm.bench.breakdown import Clock
from edge_llm.bench.synthetic import write_random
from edge_llm.cli.bench.options import bench_runtime
from edge_llm.config import RuntimeConfig
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.auto_device import AutoDevice
from edge_llm.opening.machine import this_machine
from edge_llm.opening.runner import load_runner

pytestmark = pytest.mark.thorough(file=1)

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setenv("EDGE_LLM_NPU_OPS", "emulated")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    write_random(folder, SHAPES["qk norms"], seed=3)
    return open_bundle(folder)


def answers(runner, tokens):
    sequence = runner.open()
    rows = [runner.forward(sequence, tokens[:-4], wanted=3), *(runner.forward(sequence, [token]) for token in tokens[-4:])]
    sequence.close()
    return np.concatenate(rows)


@pytest.mark.parametrize("options", [{}, {"keys": "int8"}, {"chunk": 16, "window": 2}, {"card_memory": "10440000"}], ids=str)
def test_a_watched_card_gives_the_same_and_tells_of_every_part(bundle, options):
    tokens = tokens_of(bundle, 60)
    clock = Clock()
    watched = load_runner(bundle, runtime_of(placement="card", **options), 100, clock.watch)[0]
    answers(watched, tokens)
    clock.take()
    counters = watched._device.runtime.counters
    before = counters.copies_in, counters.copies_out, counters.waits
    found = answers(watched, tokens)
    spent = clock.take()
    copies_in, copies_out, waits = (new - old for new, old in zip(
        (counters.copies_in, counters.copies_out, counters.waits), before, strict=True))  # fmt: skip

    def calls(kind):
        return sum(one.calls for (part, name), one in spent.items() if name == kind and part != "weights")

    parts = {part for part, _ in spent} - {"weights"}
    assert parts == {"embedding", "layers", "head"} | (set() if "card_memory" in options else {"step"})
    for part in parts:
        assert (part, "card") in spent and (part, "host") in spent
    assert calls("copy out") == copies_out
    assert calls("wait") <= waits
    if "card_memory" not in options:
        assert calls("copy in") == copies_in
        assert spent["step", "wait"].calls == spent["step", "copy in"].calls == spent["step", "copy out"].calls == 4
    assert all(one.seconds >= 0 for one in spent.values())
    plain = load_runner(bundle, runtime_of(placement="card", **options), 100)[0]
    assert np.array_equal(found, answers(plain, tokens))


@pytest.mark.parametrize("test", [("-p", "32", "-n", "0"), ("-p", "0", "-n", "8")], ids=["prompt", "answer"])
def test_the_rows_of_the_host_are_the_whole(test, tmp_path):
    command = [sys.executable, "-m", "edge_llm", "bench", "builtin", "--device", "ascend", "--breakdown", "-r", "1", *test]
    environment = {**os.environ, "EDGE_LLM_HOME": str(tmp_path)}
    ran = subprocess.run([*command, "-o", "json"], env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    (row,) = [one for one in json.loads(ran.stdout) if "breakdown" in one]
    found = row["breakdown"]
    sides = {True: 0.0, False: 0.0}
    for part in found["parts"]:
        sides[part["operation"] in ("card", "copy in", "copy out")] += part["ms"]
    assert sides[False] == pytest.approx(found["ms"], rel=0.02)
    assert sides[True] == pytest.approx(found["card_ms"])
    assert 0 < sides[True] <= 1.02 * found["ms"]
    assert found["non_gemm_share"] is None
    other = next(part for part in found["parts"] if part["part"] == "other")
    assert other["share"] < 0.5
    table = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120).stdout
    assert "the card busy" in table and "| wait " in table and "| copy in " in table


def test_what_a_lane_waits_that_loads_is_not_the_hosts(bundle):
    """Layers that are streamed are waited for by another thread, while the host goes on."""
    told = []
    options = {"placement": "card", "card_memory": "10440000"}
    watch = lambda ops, _, seconds: told.append((ops[0].op.kind, seconds[0]))  # noqa: E731
    watched = load_runner(bundle, runtime_of(**options), 100, watch)[0]
    for _ in range(5):
        told.clear()
        began = time.perf_counter()
        answers(watched, tokens_of(bundle, 60))
        whole = time.perf_counter() - began
        assert min(seconds for _, seconds in told) >= 0
        assert sum(seconds for kind, seconds in told if kind in ("host", "wait")) <= whole


@pytest.mark.parametrize(("found", "chunk"), [("ascend", 1024), ("host", 256)])
def test_a_batch_is_of_the_chunks_of_the_device_that_auto_finds(monkeypatch, found, chunk):
    machine = replace(this_machine(), auto=AutoDevice(found, "for the test"))
    monkeypatch.setattr("edge_llm.cli.bench.options.this_machine", lambda: machine)
    options = {"device": "auto", "batch_size": 4096, "ubatch_size": None, "chunk": None}
    monkeypatch.setattr("edge_llm.cli.bench.options.runtime_config", lambda options: RuntimeConfig(device="auto"))
    given = bench_runtime(options)
    assert (given.chunk, given.window) == (chunk, 4096 // chunk)


def test_the_batch_that_would_be_chosen_anyway_changes_no_chunk(tmp_path):
    command = [*(sys.executable, "-m", "edge_llm", "bench", "builtin"), *"--device ascend -p 8 -n 0 -r 1 -o json".split()]  # noqa: SIM905
    environment = {**os.environ, "EDGE_LLM_HOME": str(tmp_path)}
    sizes = []
    for batch in ((), ("-b", "4096")):
        ran = subprocess.run([*command, *batch], env=environment, capture_output=True, text=True, timeout=120, check=True)
        (row,) = json.loads(ran.stdout)
        sizes.append((row["n_batch"], row["n_ubatch"]))
    assert sizes == [(4096, 1024)] * 2
