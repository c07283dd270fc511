"""Layers that have no room on a card: they stay in main memory while that lasts, and the others come from flash."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_devices_card import EXACT, SHAPES, answers, tokens_of

from edge_llm.ascend.devices.card import pinned as pinned_module
from edge_llm.ascend.devices.card.pinned import ALIGNMENT, Pinned, block_bytes, pinned_bytes
from edge_llm.ascend.npu.chips import chip_law
from edge_llm.ascend.npu.emulated_runtime import EmulatedRuntime
from edge_llm.ascend.npu.runtime import run
from edge_llm.bench.synthetic import write_random
from edge_llm.config import RuntimeConfig
from edge_llm.errors import CorruptBundle, OutOfMemory, StorageError
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.opening import resolve as resolve_module
from edge_llm.opening.machine import this_machine
from edge_llm.opening.plan import Plan
from edge_llm.opening.resolve import resolve
from edge_llm.opening.runner import load_runner
from edge_llm.runner.runner import Int8Runner
from edge_llm.weights.staging import FREE_SHARE, LEAST_COLD

WAYS = [("ascend", "card"), ("ascend", "split"), (EXACT["310p"], "card"), (EXACT["310p"], "split")]


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_LLM_NPU_OPS", "emulated")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundle")
    write_random(folder, SHAPES["tied"], seed=3)
    return open_bundle(folder)


def options_of(**options: Any) -> RuntimeConfig:
    given = {"threads": 1, "context": 256, "chunk": 32, "kv_tokens": 512, "activations": "static", **options}
    return RuntimeConfig(**given)


def plan_of(bundle: Bundle, **options: Any) -> Plan:
    return resolve(options_of(**options), this_machine(), bundle)


def runner_of(bundle: Bundle, **options: Any) -> Int8Runner:
    runner = load_runner(bundle, options_of(**options), 200)[0]
    assert isinstance(runner, Int8Runner)
    return runner


def on_small_card(bundle: Bundle, device: str, placement: str) -> dict[str, Any]:
    """Options of a card that lacks room for the half of the layers and more."""
    way = {"device": device, "placement": placement}
    plan = plan_of(bundle, **way)
    assert plan.device is not None
    needs = plan.device.needs(bundle.decoder, bundle.tensors, plan.room)  # type: ignore[attr-defined]
    return {**way, "card_memory": str(needs.total - 2 * needs.layers[0])}


def budgets(bundle: Bundle, way: dict[str, Any]) -> list[tuple[int, Plan]]:
    """Budgets for all and one of the four layers that the card lacks room for, and the least; and their plans."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolve_module, "free_memory", lambda: 0)
        least = plan_of(bundle, **way).weights.host.held_bytes
    enough = plan_of(bundle, **way).weights.host.held_bytes + LEAST_COLD
    found = {budget: plan_of(bundle, **way, memory=str(budget)) for budget in (least, enough)}
    below = least
    while enough - below > 1000:
        middle = (below + enough) // 2
        found[middle] = plan_of(bundle, **way, memory=str(middle))
        below, enough = (middle, enough) if found[middle].weights.host.streamed else (below, middle)
    assert [hosted(found[budget]) for budget in (enough, below)] == [4, 1]
    return [(budget, found[budget]) for budget in (enough, below, least)]


def hosted(plan: Plan) -> int:
    assert plan.weights.staging is not None
    return len(plan.weights.staging.hosted)


@pytest.mark.parametrize(("device", "placement"), WAYS)
def test_any_split_gives_the_bits_of_layers_that_stay_on_the_card_and_counts_what_the_plan_says(
    bundle: Bundle, device: str, placement: str
) -> None:
    tokens, way = tokens_of(bundle, 40), on_small_card(bundle, device, placement)
    wanted = answers(runner_of(bundle, device=device, placement=placement), tokens, 2)
    found = []
    for budget, plan in budgets(bundle, way):
        runner = runner_of(bundle, **way, memory=str(budget))
        weights, staging, host = runner.model.weights, plan.weights.staging, plan.weights.host
        assert staging is not None and tuple(weights.hosted) == staging.hosted
        assert weights.streamed == plan.weights.to_card == tuple(sorted({*staging.hosted, *host.streamed}))
        assert np.array_equal(answers(runner, tokens, 2), wanted)
        assert weights.token_bytes == plan.weights.token
        assert sum(plan.weights.token.facts.values()) == model_bytes(bundle)
        sequence = runner.open()
        runner.forward(sequence, tokens[:20])
        read, sent, steps = weights.read_bytes, weights.sent_bytes, 6
        for token in range(steps):
            runner.forward(sequence, [token])
        tables = len(host.flash_tables) > 0 and placement == "split"
        assert weights.sent_bytes - sent == steps * sum(weights.hosted.values())
        if not tables:
            ahead = weights.slots * host.slot_bytes  # may be read already, here and there
            assert abs(weights.read_bytes - read - steps * host.streamed_bytes) <= ahead * bool(host.streamed)
        found.append((len(staging.hosted), host.streamed_bytes))
    assert [count for count, _ in found[:2]] == [4, 1] and 0 == found[0][1] < found[1][1] <= found[2][1]


def model_bytes(bundle: Bundle) -> int:
    layers = sum(bundle.blocks[f"layers.{index}"].nbytes for index in range(len(bundle.decoder.layers)))
    return layers + bundle.blocks["embedding"].nbytes


def test_without_a_budget_layers_take_a_part_of_the_memory_that_is_free(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = on_small_card(bundle, "ascend", "card")
    whole = plan_of(bundle, **way)
    assert whole.weights.staging is not None and not whole.weights.host.streamed
    for free in (0, whole.weights.host.held_bytes):
        monkeypatch.setattr(resolve_module, "free_memory", partial(int, free))
        plan = plan_of(bundle, **way)
        assert len(plan.weights.host.streamed) >= 3
        staging = plan.weights.staging
        assert staging is not None and (not staging.hosted or plan.weights.host.held_bytes <= FREE_SHARE * free)


def test_a_layer_that_cannot_be_read_ends_its_request_and_no_other(tmp_path: Path) -> None:
    write_random(tmp_path, SHAPES["tied"], seed=3)
    bundle = open_bundle(tmp_path)
    way, tokens = on_small_card(bundle, "ascend", "card"), tokens_of(bundle, 30)
    budget = budgets(bundle, way)[1][0]
    runner = runner_of(bundle, **way, memory=str(budget))
    wanted = answers(runner, tokens)
    layer = bundle.blocks[f"layers.{plan_of(bundle, **way, memory=str(budget)).weights.host.streamed[-1]}"]
    with (tmp_path / "weights.bin").open("r+b") as file:
        file.seek(layer.offset + 10)
        before = file.read(1)
        file.seek(layer.offset + 10)
        file.write(bytes([before[0] ^ 255]))
        file.flush()
        with pytest.raises((CorruptBundle, StorageError)):
            for _ in range(3):
                answers(runner, tokens)
        file.seek(layer.offset + 10)
        file.write(before)
    for _ in range(2):  # what was read ahead may be of before
        try:
            found = answers(runner, tokens)
        except CorruptBundle:
            continue
    assert np.array_equal(found, wanted)


def test_where_main_memory_has_no_room_for_what_is_pinned_that_is_said(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = on_small_card(bundle, "ascend", "card")
    monkeypatch.setattr(pinned_module, "free_memory", lambda: pinned_module.RESERVE + 1000)
    with pytest.raises(OutOfMemory, match="a smaller --memory leaves more layers on flash"):
        runner_of(bundle, **way)


# ---- pinned memory ----


@given(st.lists(st.tuples(st.integers(0, 300_000), st.sampled_from(["int8", "float16", "float32", "int64"])), max_size=8))
@settings(deadline=None, max_examples=10)
def test_arrays_come_to_the_card_as_they_were_across_the_bounds_of_blocks(shapes: list[tuple[int, str]]) -> None:
    import torch

    runtime = EmulatedRuntime(chip_law("310p"))
    pinned, rng = Pinned(runtime), np.random.default_rng(0)
    for _ in range(2):
        pinned.restart()
        arrays = [rng.integers(-100, 100, count).astype(kind) for count, kind in shapes]
        staged = [pinned.put(array) for array in arrays]
        for array, one in zip(arrays, staged, strict=True):
            card = torch.empty(one.shape, dtype=one.dtype)
            run(runtime, lambda one=one, card=card: one.copy_to(runtime, card))  # type: ignore[misc]
            assert np.array_equal(card.numpy(), array)
    assert pinned.nbytes == pinned_bytes(sum(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays))


@given(st.integers(0, 2**33))
def test_blocks_are_powers_of_two_and_waste_little(nbytes: int) -> None:
    held = pinned_bytes(nbytes)
    assert nbytes <= held <= max(pinned_module.LEAST_BLOCK, nbytes * 1.25 + pinned_module.LEAST_BLOCK)
    assert block_bytes(nbytes) & (block_bytes(nbytes) - 1) == 0


def test_what_is_pinned_is_no_more_than_the_plan_says(bundle: Bundle) -> None:
    way = on_small_card(bundle, "ascend", "card")
    plan = plan_of(bundle, **way)
    runner = runner_of(bundle, **way)
    assert plan.device is not None
    needs = plan.device.needs(bundle.decoder, bundle.tensors, plan.room)  # type: ignore[attr-defined]
    for index, kept in runner.model.weights._kept.items():  # type: ignore[attr-defined]
        layer = kept.bring.args[0]
        assert layer.pinned.nbytes <= needs.pinned[index]


# ---- the real torch_npu ----


def on_standins(folder: str) -> dict[str, Any]:
    from standins import kernels

    from edge_llm.ascend.npu import opening
    from edge_llm.ascend.npu.emulated_ops import IMPLEMENTATIONS
    from edge_llm.ascend.npu.opening import load_torch_npu

    os.environ.pop("EDGE_LLM_NPU_OPS", None)
    load_torch_npu()
    tried = opening.import_torch_npu({**os.environ})
    opening.import_torch_npu = lambda environment: tried  # seconds each time
    kernels.install(IMPLEMENTATIONS)
    bundle = open_bundle(Path(folder))
    tokens = tokens_of(bundle, 40)
    found: dict[str, Any] = {"whole": answers(runner_of(bundle, device="ascend", placement="card"), tokens)}
    way = on_small_card(bundle, "ascend", "card")
    for budget, _ in budgets(bundle, way):
        runner = runner_of(bundle, **way, memory=str(budget))
        logits = answers(runner, tokens)
        sequence = runner.open()
        runner.forward(sequence, [1, 2, 3])
        with kernels.counting() as counted:
            runner.forward(sequence, [4])
        found[tuple(runner.model.weights.hosted)] = logits, counted
    return found


@pytest.mark.torch_npu
def test_the_real_torch_npu_gives_the_same_from_flash_and_from_pinned_memory(card: Any, bundle: Bundle) -> None:
    found = card.run(on_standins, str(bundle.folder))
    wanted = found.pop("whole")
    assert len(found) == 3
    for logits, counted in found.values():
        assert np.array_equal(logits, wanted)
        assert counted.get("host_allocations", 0) == 0, "a step pins nothing"
    copies = {tuple(counted[name] for name in ("async_in", "async_in_bytes", "sync_in")) for _, counted in found.values()}
    assert len(copies) == 1, "a step copies the same to the card, wherever that lies"
