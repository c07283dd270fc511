"""`--device ascend` through the real torch_npu, on stand-ins for Ascend's libraries: streams, events, pinned memory, graphs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from card_reference import logits_of
from test_ascend import BOUND, BUILTIN, FLOAT16, ON_CARD, SHAPES, logits

from edge_llm.bench.synthetic import write_random
from edge_llm.config import RuntimeConfig
from edge_llm.engine.assembly import load_runner
from edge_llm.formats.bundle import Bundle, open_bundle

if TYPE_CHECKING:
    from standins import Card

pytestmark = pytest.mark.torch_npu
STEPS = 5


def runner_of(bundle: Bundle, **options: Any) -> Any:
    runtime = {"threads": 1, "context": 512, "chunk": 32, "kv_tokens": 1024, "device": "ascend", **options}
    return load_runner(bundle, RuntimeConfig(**runtime), 200)[0]


def facts(folder: str) -> dict[str, Any]:
    """Logits of every shape, split and card, and what one step passes between host and card."""
    from standins import kernels

    from edge_llm.npu.emulated_ops import IMPLEMENTATIONS
    from edge_llm.npu.opening import load_torch_npu

    load_torch_npu()
    kernels.install(IMPLEMENTATIONS)
    found: dict[str, Any] = {}
    for name in SHAPES:
        bundle = open_bundle(Path(folder) / name)
        tokens = tokens_of(bundle)
        found[name, "split"] = logits(runner_of(bundle, placement="split"), tokens)
        if name in ON_CARD:
            found[name, "card"] = logits(runner_of(bundle, placement="card"), tokens)
    found["step"] = step_counts(open_bundle(Path(folder) / "tied"), kernels)
    found["builtin"] = logits(runner_of(open_bundle(BUILTIN), placement="card"), tokens_of(open_bundle(BUILTIN)))
    return found


def step_counts(bundle: Bundle, kernels: Any) -> dict[str, int]:
    runner = runner_of(bundle, placement="card")
    sequence = runner.open()
    runner.forward(sequence, tokens_of(bundle))
    runner.forward(sequence, [1])
    with kernels.counting() as counted:
        for token in range(STEPS):
            runner.forward(sequence, [token])
    return counted


def tokens_of(bundle: Bundle) -> list[int]:
    return np.random.default_rng(7).integers(0, bundle.config.vocab_size, 70).tolist()


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    for name, shape in SHAPES.items():
        (folder / name).mkdir()
        write_random(folder / name, shape, seed=3)
    return folder


@pytest.fixture(scope="module")
def found(card: Card, bundles: Path) -> dict[Any, Any]:
    return card.run(facts, str(bundles))


@pytest.mark.parametrize("name", SHAPES)
def test_split_gives_the_bits_of_the_emulated_chip(found, bundles, name):
    bundle = open_bundle(bundles / name)
    emulated = runner_of(bundle, device=FLOAT16, placement="split")
    assert np.array_equal(found[name, "split"], logits(emulated, tokens_of(bundle)))


@pytest.mark.parametrize("name", [*ON_CARD, "builtin"])
def test_card_is_close_to_the_reference(found, bundles, name):
    bundle = open_bundle(BUILTIN if name == "builtin" else bundles / name)
    want, got = logits_of(bundle, tokens_of(bundle)), found["builtin"] if name == "builtin" else found[name, "card"]
    assert np.abs(got - want).max() <= BOUND * np.abs(want).max()


def test_a_step_is_one_copy_in_one_replay_one_copy_out_and_one_wait(found):
    counted = found["step"]
    once = ("async_in", "replays", "async_out", "waits_event", "events_recorded")
    assert {name: counted.pop(name) for name in once} == dict.fromkeys(once, STEPS)
    kernels = counted.pop("kernels_replayed")
    print(f"a step replays {kernels // STEPS} kernels")
    assert kernels % STEPS == 0
    assert set(counted) == {"async_in_bytes", "async_out_bytes"}, "no other copy, wait, launch or capture"
