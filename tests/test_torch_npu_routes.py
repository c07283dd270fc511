"""Which kernels of a card torch_npu chooses for what the backend calls: none that the chip has not, none that a graph refuses.

Nothing is computed here: the libraries of kernels are stand-ins that write down that they were called.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from standins.documented import COMPILED, DOCUMENTED, USED_ALL_THE_SAME
from test_torch_npu_ascend import runner_of

from edge_llm.ascend.npu.limits import NZ
from edge_llm.bench.synthetic import write_random
from edge_llm.config import LlamaConfig, ModelConfig, RuntimeConfig
from edge_llm.errors import EdgeLLMError
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.machine import this_machine
from edge_llm.opening.resolve import resolve

if TYPE_CHECKING:
    from standins import Card

pytestmark = pytest.mark.torch_npu

SOCS = {"310p": "Ascend310P3", "310b": "Ascend310B4", "910b": "Ascend910B1"}
FEW, MANY = 1, 3
"""Layers."""
CHUNKS = 2
"""Of the prompt, which is too long for a step."""
MOST_LAUNCHES = {"card": {"step": 30, "prompt": 59}, "turned": {"step": 25, "prompt": 52}}
"""Of a layer of a model with norms of queries and keys and float16 keys: with hot columns everywhere, or turned channels.
Of the prompt's two chunks the first is counted, which of all is one of eight."""
WAYS: dict[str, dict[str, Any]] = {
    "card": {"placement": "card"},
    "turned": {"placement": "card", "turned": True},
    "int8 keys": {"placement": "card", "keys": "int8"},
    "streamed": {"placement": "card", "streamed": True},
    "split": {"placement": "split"},
}
Routes = list[tuple[str, str, bool]]
"""Kind, name, and whether into a graph, of each kernel that was called."""


def shape(layers: int) -> ModelConfig:
    return LlamaConfig(
        family="qwen3", vocab_size=131, hidden_size=256, intermediate_size=512, num_layers=layers, num_heads=4,
        num_kv_heads=2, head_dim=64, context=640, norm_eps=1e-6, rope_theta=1e6, qk_norm=True,
    )  # fmt: skip


def all_routes(folder: str, ways: dict[str, dict[str, Any]]) -> dict[tuple[str, int, str], Routes]:
    """The kernels of each way, number of layers and phase; the phase `refused` has what was said instead."""
    from standins import routes

    from edge_llm.ascend.devices.card import model
    from edge_llm.ascend.npu import opening

    model.check_told = lambda *_: None  # its numbers would be wrong, as all are here
    opening.load_torch_npu()
    routes.install()
    tried = opening.import_torch_npu({**os.environ})
    opening.import_torch_npu = lambda environment: tried  # type: ignore[assignment] # seconds each time
    found: dict[tuple[str, int, str], Any] = {}
    for name, options in ways.items():
        for layers in (FEW, MANY) if name in MOST_LAUNCHES else (MANY,):
            try:
                for phase, called in phases(Path(folder), layers, routes, **options):
                    found[name, layers, phase] = called
            except EdgeLLMError as error:
                found[name, layers, "refused"] = str(error)
    return found


def phases(
    folder: Path, layers: int, routes: Any, streamed: bool = False, turned: bool = False, **options: Any
) -> Any:
    bundle = open_bundle(folder / named(layers, turned))
    if streamed:
        options["card_memory"] = least_memory(bundle, **options)
    with routes.watched() as called:
        runner = runner_of(bundle, **options)
    yield "load", tuples(called)
    with routes.watched() as called:
        sequence = runner.open()
        runner.forward(sequence, list(range(64)))
    yield "prompt", tuples(called)
    for phase in ("first step", "step"):
        with routes.watched() as called:
            runner.forward(sequence, [1])
        yield phase, tuples(called)
    with routes.watched() as called:
        pages = sequence.host_pages(np.arange(1))
        runner.model.kv.write_pages(pages, runner.model.kv.read_pages(pages))
    yield "pages", tuples(called)
    if options["placement"] == "card":
        yield "site", str(runner.site)


def least_memory(bundle: Any, **options: Any) -> str:
    """Too little by one layer."""
    given = {"threads": 1, "context": 512, "chunk": 32, "kv_tokens": 1024, "device": "ascend"}
    plan = resolve(RuntimeConfig(**given, **options), this_machine(), bundle)
    needs = plan.device.needs(bundle.decoder, bundle.tensors, plan.room)
    return str(needs.total - sum(needs.layers[: len(needs.layers) // 3]))


def tuples(called: list[Any]) -> Routes:
    return [tuple(route) for route in called]


@pytest.fixture(scope="module", params=SOCS)
def chip(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    for layers in (FEW, MANY):
        for turned in (False, True):
            (folder / named(layers, turned)).mkdir()
            write_random(folder / named(layers, turned), shape(layers), seed=3, turned=turned)
    return folder


def named(layers: int, turned: bool) -> str:
    return f"{layers} turned" if turned else str(layers)


@pytest.fixture(scope="module")
def found(card: Card, chip: str, bundles: Path) -> dict[tuple[str, int, str], Routes]:
    return card.run(all_routes, str(bundles), WAYS, soc=SOCS[chip], routes=True)


def test_what_no_operator_is_for_is_refused_before_one_is_called(found, chip):
    refused = {way for way, _, phase in found if phase == "refused"}
    assert refused == (set(WAYS) if chip == "310b" else set()), found


def test_every_kernel_is_documented_for_its_chip(found, chip):
    called = {name for place in found for kind, name, _ in kernels_of(found, place) if kind != "aclop"}
    strange = called - DOCUMENTED[chip] - USED_ALL_THE_SAME.get(chip, set())
    assert not strange, {place: strange & {name for _, name, _ in kernels_of(found, place)} for place in found}
    assert chip == "310b" or "aclnnRmsNorm" in called


def test_the_older_compiler_is_asked_for_nothing_but_formats_and_never_for_a_graph(found, chip):
    routes = {(*route, place) for place in found for route in kernels_of(found, place)}
    compiled = {(name, captured, place) for kind, name, captured, place in routes if kind == "aclop"}
    assert {name for name, *_ in compiled} <= COMPILED[chip]
    assert not [one for one in compiled if one[1]]
    of_tokens = {place for *_, place in compiled if place[2] in ("prompt", "first step", "step")}
    assert not {place for place in of_tokens if place[0] != "streamed"}, "a layer that comes through a slot is put in fractals"


def test_pages_that_go_out_and_come_back_turn_the_whole_cache(found, chip):
    """By the older compiler on a 310P, which chooses blocks of fractals in no other way."""
    turned = [name for kind, name, _ in found.get(("card", MANY, "pages"), []) if kind == "aclop"]
    assert len(turned) == (8 * MANY if chip == "310p" else 0)


def kernels_of(found: dict[tuple[str, int, str], Routes], place: tuple[str, int, str]) -> Routes:
    return [] if place[2] in ("refused", "site") else found[place]


def test_a_step_is_recorded_whole_and_replayed(found, chip):
    if chip == "310b":
        return
    for way, layers in ((way, layers) for way in MOST_LAUNCHES for layers in (FEW, MANY)):
        first, next_one = found[way, layers, "first step"], found[way, layers, "step"]
        eager, captured = (Counter(name for _, name, into in first if into == which) for which in (False, True))
        told = {"_npu_paged_attention": layers} if chip == "910b" else {}
        assert captured == eager + Counter(told), "once on spare memory, once recorded, and told its lengths"
        assert Counter(name for _, name, _ in next_one) == told, "a replay calls no kernel"
        assert "not recorded" not in str(found[way, layers, "site"])


def test_with_a_queue_of_its_own_torch_npu_chooses_the_same_kernels(card, chip, bundles, found):
    """Which is its default; the other tests have it do without."""
    if chip != "310p":
        return
    ways = {way: WAYS[way] for way in MOST_LAUNCHES}
    queued = card.run(all_routes, str(bundles), ways, soc=SOCS[chip], routes=True, TASK_QUEUE_ENABLE="1")
    places = {place for place in found if place[0] in ways}
    assert queued.keys() == places and all(Counter(queued[place]) == Counter(found[place]) for place in places)


def unwanted(folder: str) -> dict[str, str]:
    """What is said where an operator of the older compiler gets into a step, and where the compiler cannot be turned off."""
    import torch
    from standins import routes

    from edge_llm.ascend.npu.calls import Calls
    from edge_llm.ascend.npu.opening import load_torch_npu

    load_torch_npu()
    routes.install()
    bundle = open_bundle(Path(folder) / named(FEW, False))
    swiglu = Calls.swiglu

    def compiled_too(calls: Calls, x: Any) -> Any:
        calls.to_nz(x.expand(2, -1).contiguous())
        return swiglu(calls, x)

    Calls.swiglu = compiled_too  # type: ignore[method-assign]
    runner = runner_of(bundle, placement="card")
    sequence = runner.open()
    for _ in range(3):
        runner.forward(sequence, [1])
    found = {"in a step": str(runner.site)}
    torch.npu.set_compile_mode(jit_compile=True)  # type: ignore[attr-defined]
    torch.npu.set_compile_mode = lambda jit_compile: None  # type: ignore[attr-defined]
    try:
        runner_of(bundle, placement="card")
    except EdgeLLMError as error:
        found["left on"] = f"{type(error).__name__}: {error}"
    return found


def test_an_operator_of_the_older_compiler_costs_the_graph_and_not_the_card(card, bundles):
    said = card.run(unwanted, str(bundles), routes=True)
    assert "its steps are not recorded: Cannot run aclop operators during NPU graph capture" in said["in a step"]
    assert said["left on"].startswith("DeviceError: torch_npu goes on compiling operators when they are called")


def format_of_fractals() -> int:
    import torch
    import torch_npu  # type: ignore[import-not-found]
    from standins import routes

    from edge_llm.ascend.npu.calls import Calls
    from edge_llm.ascend.npu.opening import load_torch_npu, open_runtime
    from edge_llm.ascend.npu.runtime import run

    load_torch_npu()
    routes.install()
    runtime = open_runtime(None)
    rows = run(runtime, lambda: torch.zeros((64, 64), dtype=torch.int8, device=runtime.device))
    return int(torch_npu.get_npu_format(run(runtime, lambda: Calls(runtime.law).to_nz(rows))))


@pytest.mark.parametrize("soc", ["Ascend310P3", "Ascend910B1"])
def test_what_is_told_to_lie_in_fractals_does(card, soc):
    assert card.run(format_of_fractals, soc=soc, routes=True) == NZ


def launches(found: dict[tuple[str, int, str], Routes], way: str, phase: str) -> float:
    """Of each layer, outside of graphs."""
    few, many = (sum(not captured for *_, captured in found[way, layers, phase]) for layers in (FEW, MANY))
    return (many - few) / (MANY - FEW)


@pytest.mark.parametrize("way", MOST_LAUNCHES)
def test_a_layer_is_no_more_launches_than_it_was(found, chip, way):
    if chip == "310b":
        return
    counted = {"step": launches(found, way, "first step"), "prompt": launches(found, way, "prompt") / CHUNKS}
    print(f"{chip}, {way}: launches of a layer: {counted}")
    assert all(count <= MOST_LAUNCHES[way][kind] for kind, count in counted.items())
