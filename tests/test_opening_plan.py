"""A plan says beforehand what an opened model takes; making it changes nothing, and its facts are those of the faces."""

import logging
import os
import shutil
import threading
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import tiny_config, write_model

from edge_llm.ascend.devices.emulated import EmulatedDevice
from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.errors import DeviceError, EdgeLLMError, OutOfMemory, UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.kv.pages import kv_bytes
from edge_llm.models.rope import RopeTables
from edge_llm.opening.auto_device import AutoDevice
from edge_llm.opening.carry_out import open_runner
from edge_llm.opening.ledger import Ledger
from edge_llm.opening.load import open_engine
from edge_llm.opening.machine import Machine, NumaNodes
from edge_llm.opening.plan import plan_rows
from edge_llm.opening.resolve import resolve

GIB = 1 << 30
TASKS = Path("/proc/self/task")
"""The threads of this process, those of C++ too."""
MACHINE = Machine({0: "a", 1: "b", 2: "a", 3: "b"}, None, 8 * GIB, NumaNodes({"0": "0-3"}))
"""Two cores of two hyper-threads each."""
WAYS = {
    "resident": {},
    "streamed": {"memory": "80%"},
    "pages": {"kv_memory": "1MiB"},
    "split": {"device": "emulated:310p"},
    "card": {"device": "emulated:310p", "placement": "card"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    write_model(folder / "source", tiny_config("llama", num_hidden_layers=6))
    return import_model(folder / "source", target=folder / "bundle", keep_float=True)


@pytest.fixture
def bundle(folder):
    with open_bundle(folder) as bundle:
        yield bundle


def options(**given):
    return RuntimeConfig(**{"threads": 1, "context": 128, "chunk": 32, **given})


def test_defaults_come_from_the_machine_and_the_model(bundle):
    plan = resolve(RuntimeConfig(), MACHINE, bundle)
    assert (plan.threads, plan.context, plan.cpus) == (2, bundle.config.context, None)
    assert resolve(RuntimeConfig(), replace(MACHINE, quota=1), bundle).threads == 1
    bound = resolve(RuntimeConfig(cpus="0,2,9"), MACHINE, bundle)
    assert (bound.threads, bound.cpus) == (1, {0, 2})
    with pytest.raises(FrozenInstanceError):
        plan.prefix_bytes = 1


def test_to_resolve_changes_nothing(bundle, edge_llm_home, caplog):
    machine = replace(MACHINE, auto=AutoDevice("host", "the card cannot be used", "install its driver"))
    before = os.sched_getaffinity(0), threading.active_count(), sorted(edge_llm_home.rglob("*"))
    native = len([*TASKS.iterdir()])
    with caplog.at_level(logging.DEBUG):
        for way in WAYS.values():
            resolve(options(cpus="0", prefix_cache="1GiB", **way), machine, bundle)
        plan = resolve(RuntimeConfig(), machine, bundle)
    assert (os.sched_getaffinity(0), threading.active_count(), sorted(edge_llm_home.rglob("*"))) == before
    assert len([*TASKS.iterdir()]) == native
    assert caplog.records == []
    assert plan.notices == ("--device auto uses the host: the card cannot be used; install its driver",)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_planned_is_what_an_open_model_takes(bundle, way):
    plan = resolve(options(kv_tokens=1024, **WAYS[way]), MACHINE, bundle)
    runner = open_runner(replace(plan, cpus=None))
    runner.forward(runner.open(), list(range(40)))
    pages = runner.memory.pages
    assert pages.pages * pages.page_tokens >= plan.kv_tokens > (pages.pages - 1) * pages.page_tokens
    assert runner.site == plan.site
    assert runner.model.kv.nbytes == plan.memory.pages or plan.site.placement == "card"
    if way in ("resident", "streamed", "pages"):
        nbytes = runner.model.weights.nbytes
        assert nbytes <= plan.memory.weights <= 1.1 * nbytes + (1 << 16)  # blocks begin on disk pages
        assert set(runner.model.weights.streamed) == set(plan.facts["streamed_layers"])
        assert bool(plan.facts["streamed_layers"]) == (way == "streamed")
    else:
        assert isinstance(plan.device, EmulatedDevice)
        assert 0 < plan.device.chip.memory.peak <= plan.memory.card == plan.weights.card.held


def test_sizes_become_bytes(bundle):
    plan = resolve(options(memory="80%", kv_memory="10%", prefix_cache="3MiB"), MACHINE, bundle)
    assert plan.weights.budget == int(0.8 * plan.weights.total)
    assert plan.memory.weights <= plan.weights.budget
    assert plan.prefix_bytes == 3 << 20
    assert kv_bytes(bundle.decoder.attentions, plan.kv_tokens) == plan.memory.pages <= 8 * GIB // 10
    memory = plan.memory
    assert plan.facts["memory"]["main"] == memory.weights + memory.pages + memory.work + memory.texts
    assert sum(count for _, count in memory.parts) == memory.main
    tables = RopeTables(plan.context)
    ropes = {one.rope for one in bundle.decoder.attentions}
    position_bytes = sum(table.nbytes for rope in ropes for table in tables[rope])
    longer = resolve(options(context=256, chunk=32), MACHINE, bundle)
    assert position_bytes == 128 * 4 * sum(rope.dim for rope in ropes)
    assert longer.memory.work - resolve(options(), MACHINE, bundle).memory.work == position_bytes  # of 128 more
    assert memory.texts >= (bundle.folder / "tokenizer.json").stat().st_size


@pytest.mark.parametrize(
    ("chosen", "param"),
    [
        ({"memory": "much"}, "memory"),
        ({"memory": "1KiB"}, "memory"),
        ({"kv_memory": "1"}, "kv_memory"),
        ({"prefix_cache": "a lot"}, "prefix_cache"),
        ({"card_memory": "1GiB"}, "card_memory"),
        ({"context": 10**6}, "context"),
        ({"cpus": "4000"}, "cpus"),
        ({"numa": "7"}, "numa"),
        ({"device": "nowhere"}, "device"),
        ({"activations": "none"}, "activations"),
        ({"policy": "none"}, "policy"),
        ({"kv_tokens": 0}, "kv_tokens"),
        ({"kv_tokens": -16}, "kv_tokens"),
        ({"context": "64"}, "context"),
        ({"chunk": 2.5}, "chunk"),
        ({"threads": 1.5}, "threads"),
        ({"float_path": True, "memory": "50%"}, "memory"),
    ],
)
def test_bad_options_are_refused_before_anything_is_read(bundle, chosen, param):
    with pytest.raises(UsageError) as refused:
        resolve(options(**chosen), MACHINE, bundle)
    assert refused.value.param == param


def test_a_draft_model_is_planned_and_counted(folder, bundle):
    alone = resolve(options(), MACHINE, bundle)
    plan = resolve(options(draft=str(folder), memory="80%"), MACHINE, bundle, draft=bundle)
    assert plan.draft is not None and plan.facts["draft"] == folder.name
    assert plan.draft.memory.weights == alone.memory.weights  # the budget is for the weights of the model alone
    assert plan.memory.weights == plan.weights.host.held_bytes + plan.draft.memory.weights


def test_a_card_that_refuses_leaves_the_plan_to_the_host(bundle, monkeypatch):
    def refuses(self, *_):
        raise DeviceError("it is full")

    monkeypatch.setattr(EmulatedDevice, "streamed", refuses)
    machine = replace(MACHINE, auto=AutoDevice("emulated:310p", "a card is here"))
    plan = resolve(options(device="auto"), machine, bundle)
    reason = "the device `emulated:310p` refuses: it is full"
    assert (plan.site.device, plan.site.device_reason) == ("host", reason)
    assert plan.notices == (f"--device auto uses the host: {reason}",)
    with pytest.raises(DeviceError, match="it is full"):
        resolve(options(device="emulated:310p"), machine, bundle)


def test_a_card_that_refuses_when_it_is_opened_leaves_the_plan_to_the_host(bundle, monkeypatch):
    def refuses(self, *_):
        raise DeviceError("it is full")

    machine = replace(MACHINE, auto=AutoDevice("emulated:310p", "a card is here"))
    plan = resolve(options(device="auto"), machine, bundle)
    assert plan.host is not None and plan.host.site.device == "host" and plan.host.host is None
    monkeypatch.setattr(EmulatedDevice, "open", refuses)
    engine = open_engine(plan)
    reason = "the device `emulated:310p` refuses: it is full"
    assert engine.facts.plan["device_reason"] == engine.plan["device_reason"] == reason
    assert engine.facts.plan["memory"] == plan.host.facts["memory"]
    with pytest.raises(DeviceError, match="^it is full$"):
        open_engine(resolve(options(device="emulated:310p"), machine, bundle))


def test_a_host_that_cannot_take_the_place_says_why(bundle):
    plan = resolve(options(device="emulated:310p", placement="card"), MACHINE, bundle)
    needed = resolve(options(), MACHINE, bundle).weights.host.held_bytes
    assert plan.host is not None and plan.host.weights.host.held_bytes == needed
    alone = replace(plan, host=None, no_host="no room")
    with pytest.raises(DeviceError, match="it broke; the host cannot take its place: no room"):
        alone.on_host("it broke")


def test_pages_that_no_memory_holds_are_refused_with_their_size(bundle):
    before = {thread.name for thread in threading.enumerate()}
    for size in ("1000TiB", "1000000TiB"):
        with pytest.raises(OutOfMemory, match=r"not enough memory for `bundle` \(weights .*, keys and values 1\d+.0 GiB, "):
            open_engine(resolve(options(kv_memory=size), MACHINE, bundle))
    assert {thread.name for thread in threading.enumerate()} <= before


DAMAGE = {
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "changed": lambda path: path.write_bytes(bytes(byte ^ 255 for byte in path.read_bytes())),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", ["weights.bin", "tokenizer.json"])
def test_a_bundle_that_is_damaged_behind_its_plan_is_an_error_or_the_model(folder, tmp_path, name, how):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    with open_bundle(copy) as opened:
        plan = resolve(options(), MACHINE, opened)
        DAMAGE[how](copy / name)
        if name == "weights.bin" and how.startswith("a "):  # the file is open
            assert open_engine(plan).name == "copy"
        else:
            with pytest.raises(EdgeLLMError):
                open_engine(plan)


def test_a_draft_model_of_other_tokens_is_refused(folder, bundle, tmp_path):
    write_model(tmp_path / "source", tiny_config("llama"))
    tokenizer = tmp_path / "source/tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    other = import_model(tmp_path / "source", target=tmp_path / "other")
    with open_bundle(other) as draft, pytest.raises(UsageError, match="another tokenizer") as refused:
        resolve(options(draft=str(other)), MACHINE, bundle, draft)
    assert refused.value.param == "draft"


@settings(max_examples=40, deadline=None)
@given(st.from_regex(r"[0-9.]{0,6} ?([kmgt]i?b?|%|b|B|GiB)?", fullmatch=True))
def test_a_size_is_within_bounds_or_refused(folder, text):
    given = options(memory=text, kv_memory=text, prefix_cache=text)
    with open_bundle(folder) as bundle:
        try:
            plan = resolve(given, MACHINE, bundle)
        except UsageError as error:
            assert error.param in ("memory", "kv_memory", "prefix_cache")
            return
    assert 0 < plan.weights.host.held_bytes <= plan.weights.budget
    assert plan.kv_tokens >= plan.context and plan.memory.pages >= kv_bytes(bundle.decoder.attentions, plan.context)


@pytest.mark.parametrize("cpus", [{0: "a"}, {5: "5"}, dict.fromkeys(range(256), "a"), {cpu: str(cpu) for cpu in range(256)}])
@pytest.mark.parametrize("quota", [None, 1, 3])
@pytest.mark.parametrize("memory", [1 << 20, 64 * GIB])
def test_any_machine_has_a_plan(bundle, cpus, quota, memory):
    machine = Machine(cpus, quota, memory, NumaNodes({}))
    plan = resolve(RuntimeConfig(), machine, bundle)
    assert 1 <= plan.threads <= min(len(set(cpus.values())), quota or 1024)
    shared = resolve(RuntimeConfig(kv_memory="50%"), machine, bundle)
    assert shared.kv_tokens >= shared.context


def test_a_float_model_has_a_plan_too(bundle):
    plan = resolve(options(float_path=True), MACHINE, bundle)
    assert plan.device is None and plan.memory.weights > resolve(options(), MACHINE, bundle).memory.weights


def test_an_engine_hands_its_plan_on(bundle):
    plan = resolve(options(), MACHINE, bundle)
    engine = open_engine(plan)
    assert engine.facts.plan == plan.facts
    assert (engine.name, engine.runner.context) == (plan.name, plan.context)
    assert dict(plan_rows(plan.facts)).keys() >= {"device", "placement", "threads", "context", "takes"}


def test_two_plans_share_one_ledger(bundle):
    small, large = (resolve(options(kv_tokens=tokens), MACHINE, bundle) for tokens in (128, 2048))
    ledger = Ledger(main=small.memory.main + large.memory.main)
    claims = [ledger.claim(plan) for plan in (small, large)]
    assert not ledger.fits(small)
    with pytest.raises(OutOfMemory):
        ledger.claim(small)
    claims[0].release()
    assert ledger.fits(small) and not ledger.fits(large)
