"""`--device ascend` through the real torch_npu, on stand-ins for Ascend's libraries: streams, events, pinned memory, graphs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from card_reference import logits_of
from test_ascend import BOUND, BUILTIN, FLOAT16, ON_CARD, SHAPES, logits

from edge_llm.bench.synthetic import write_random
from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.opening.load import load_engine
from edge_llm.opening.machine import this_machine
from edge_llm.opening.resolve import resolve
from edge_llm.opening.runner import load_runner
from edge_llm.runner.base import Segment

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

    from edge_llm.ascend.npu.emulated_ops import IMPLEMENTATIONS
    from edge_llm.ascend.npu.opening import load_torch_npu

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
    found["on the default stream"] = +kernels.default_stream_calls
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


def test_all_that_the_card_does_is_in_order_with_the_work_that_it_was_given(found):
    """What a stream does for itself may be done later than what another stream does behind it."""
    assert not found["on the default stream"]


# ---- other chips, boards, and what may be in the way of graphs


def facts_of_910b(folder: str) -> dict[str, Any]:
    """Logits on a 910B, whose attention takes lengths from the host, and what one step passes."""
    from standins import kernels

    from edge_llm.ascend.npu.emulated_ops import IMPLEMENTATIONS
    from edge_llm.ascend.npu.opening import load_torch_npu

    load_torch_npu()
    kernels.install(IMPLEMENTATIONS)
    bundle = open_bundle(Path(folder) / "tied")
    runner = runner_of(bundle, placement="card")
    found: dict[str, Any] = {"card": logits(runner, tokens_of(bundle)), "site": str(runner.site)}
    found["step"] = step_counts(bundle, kernels)
    found["layers"] = len(bundle.decoder.layers)
    return found


@pytest.fixture(scope="module")
def found_910b(card: Card, bundles: Path) -> dict[str, Any]:
    return card.run(facts_of_910b, str(bundles), soc="Ascend910B1")


def test_a_910b_is_given_lengths_by_the_host_and_is_close_to_the_reference(found_910b, bundles):
    bundle = open_bundle(bundles / "tied")
    want = logits_of(bundle, tokens_of(bundle))
    assert np.abs(found_910b["card"] - want).max() <= BOUND * np.abs(want).max()


def test_a_graph_of_a_910b_is_told_the_lengths_of_every_step(found_910b):
    counted = found_910b["step"]
    assert counted["replays"] == STEPS and counted["kernels_updated"] == STEPS * found_910b["layers"]
    assert (counted["async_in"], counted["async_out"], counted["waits_event"]) == (STEPS, STEPS, STEPS)
    assert "not recorded" not in found_910b["site"]


def without_graphs(folder: str, rule: str) -> tuple[np.ndarray, str, int, str]:
    """Logits where functions of graphs fail by ``rule``, what is said then, the replays, and what is said before."""
    from standins import kernels

    from edge_llm.ascend.npu.emulated_ops import IMPLEMENTATIONS
    from edge_llm.ascend.npu.opening import load_torch_npu

    load_torch_npu()
    kernels.install(IMPLEMENTATIONS)
    bundle = open_bundle(Path(folder) / "tied")
    kernels.fail_runtime(rule)
    runner = runner_of(bundle, placement="card")
    before = str(runner.site)
    with kernels.counting() as counted:
        found = logits(runner, tokens_of(bundle))
    return found, str(runner.site), counted.get("replays", 0), before


NO_GROUPS = ",".join(f"aclmdlRICaptureTask{part}=207000" for part in ("GrpBegin", "GrpEnd", "UpdateBegin", "UpdateEnd"))
"""torch_npu says of these that its driver is too old, and goes on."""
SEGMENTS = "pin_memory_expandable_segments:True"


@pytest.mark.parametrize(
    ("rule", "settings", "words"),
    [
        ("aclmdlRICaptureBegin=207008", {}, "207008"),
        ("aclmdlRICaptureEnd=207005", {}, "207005"),
        ("aclmdlRICaptureTaskGrpEnd=207010", {"soc": "Ascend910B1"}, "207010"),
        (NO_GROUPS, {"soc": "Ascend910B1"}, "it goes on with the lengths that it was recorded with"),
        ("", {"TASK_QUEUE_ENABLE": "2"}, "TASK_QUEUE_ENABLE is in the way, `export TASK_QUEUE_ENABLE=1`"),
        ("", {"ASCEND_LAUNCH_BLOCKING": "1"}, "ASCEND_LAUNCH_BLOCKING is in the way"),
        ("", {"PYTORCH_NPU_ALLOC_CONF": SEGMENTS}, "PYTORCH_NPU_ALLOC_CONF is in the way"),
    ],
    ids=[
        "no streams left", "the end fails", "groups of tasks fail", "no groups of tasks", "two queues", "launches that block",
        "pinned segments",
    ],
)  # fmt: skip
def test_where_no_graph_can_be_recorded_steps_go_on_without_and_the_reason_is_said(card, found, bundles, rule, settings, words):
    got, said, replays, before = card.run(without_graphs, str(bundles), rule, **settings)
    assert replays == 0 and "its steps are not recorded: " in said and words in said.partition("not recorded: ")[2]
    assert (words in before) == (not rule or "soc" in settings), "what the environment or a trial says is known at the start"
    want = logits_of(open_bundle(bundles / "tied"), tokens_of(open_bundle(bundles / "tied")))
    assert np.abs(got - want).max() <= BOUND * np.abs(want).max()
    if "soc" not in settings:
        assert np.array_equal(got, found["tied", "card"])


def lost_in_a_capture(folder: str) -> str:
    from standins import kernels

    from edge_llm.ascend.npu.emulated_ops import IMPLEMENTATIONS
    from edge_llm.ascend.npu.opening import load_torch_npu

    load_torch_npu()
    kernels.install(IMPLEMENTATIONS)
    bundle = open_bundle(Path(folder) / "tied")
    runner = runner_of(bundle, placement="card")
    runner.forward(sequence := runner.open(), tokens_of(bundle))
    return raised(kernels, "aclmdlRICaptureEnd=507899", lambda: runner.forward(sequence, [1]))


def test_a_card_that_fails_in_the_middle_of_a_capture_is_lost(card, bundles):
    assert card.run(lost_in_a_capture, str(bundles)).startswith("DeviceLost: the device `ascend` failed: ")


def too_large(folder: str, rows: int) -> str:
    """What is said of activations that leave float32 where the chip has the largest number instead of infinity."""
    from standins import kernels

    from edge_llm.ascend.devices.card.layers import Layers, settled
    from edge_llm.ascend.npu.emulated_ops import IMPLEMENTATIONS
    from edge_llm.ascend.npu.opening import load_torch_npu

    load_torch_npu()
    kernels.install(IMPLEMENTATIONS)
    bundle = open_bundle(Path(folder) / "tied")
    layer = Layers.run
    Layers.run = lambda *given: settled(layer(*given)) * 3e38 * 3e38  # type: ignore[method-assign]
    runner = runner_of(bundle, placement="card")
    return raised(kernels, "", lambda: runner.forward(runner.open(), tokens_of(bundle)[:rows]))


@pytest.mark.parametrize("rows", [1, 70])
def test_activations_that_a_card_has_no_infinity_for_are_refused(card, bundles, rows):
    assert card.run(too_large, str(bundles), rows).startswith("NumericError: numbers of the card are not finite")


def on_a_board(folder: str) -> dict[str, Any]:
    """The model on a 310P that runs the host as well: in no copy does the host go on."""
    from standins import kernels

    from edge_llm.ascend.npu import torch_npu_runtime
    from edge_llm.ascend.npu.emulated_ops import IMPLEMENTATIONS
    from edge_llm.ascend.npu.opening import load_torch_npu, open_runtime

    load_torch_npu()
    kernels.install(IMPLEMENTATIONS)
    torch_npu_runtime.is_own_host = lambda root: True
    with kernels.counting() as counted:
        bundle = open_bundle(Path(folder) / "tied")
        found: dict[str, Any] = {"card": logits(runner_of(bundle, placement="card"), tokens_of(bundle))}
    runtime = open_runtime(None)
    return found | {"counted": counted, "memory": runtime.memory(), "shares": runtime.law.shares_memory}


def test_a_board_that_is_its_own_host_copies_while_the_host_waits_and_has_the_hosts_memory(card, found, bundles):
    import psutil

    on_board = card.run(on_a_board, str(bundles))
    assert np.array_equal(on_board["card"], found["tied", "card"])
    counted = on_board["counted"]
    assert counted.get("async_in", 0) + counted.get("async_out", 0) == 0 and counted["sync_in"] and counted["sync_out"]
    assert on_board["memory"][1] == psutil.virtual_memory().total and on_board["shares"]


# ---- a card that fails

BREAKABLE = (
    "aclrtMalloc", "aclrtMemcpy", "aclrtMemcpyAsync", "aclrtRecordEvent", "aclrtSynchronizeEvent", "aclrtSynchronizeStream",
    "aclrtGetMemInfo", "aclmdlRIExecuteAsync",
)  # fmt: skip
"""Functions of the runtime whose failure torch_npu hands on: it dies itself of one to lock memory or to choose the card."""


ALL = (*BREAKABLE, "aclrtFree", "aclrtFreeHost", "aclrtStreamWaitEvent", "aclrtQueryEventStatus")
NOTHING = ",".join(f"{function}=507899" for function in ALL)
PROMPT = "Once upon a time there was"
PARAMS = GenerationParams(max_tokens=8, ignore_eos=True)


def failures(folder: str) -> dict[tuple[str, str, str], str]:
    """What is raised where a function of the runtime fails from some point on, by placement, function and point."""
    from standins import kernels

    from edge_llm.ascend.npu import opening
    from edge_llm.ascend.npu.emulated_ops import IMPLEMENTATIONS

    opening.load_torch_npu()
    kernels.install(IMPLEMENTATIONS)
    tried = opening.import_torch_npu({**os.environ})
    opening.import_torch_npu = lambda environment: tried  # type: ignore[assignment] # seconds each time
    bundle = open_bundle(Path(folder) / "tied")
    return {
        (placement, function, point): raised(kernels, f"{function}=507899", working(bundle, placement, point))
        for placement in ("split", "card")
        for function in BREAKABLE
        for point in ("load", "prompt", "states", "step", "pages")
    }


def working(bundle: Bundle, placement: str, point: str) -> Callable[[], Any]:
    """What a model does at this ``point``."""
    if point == "load":
        return lambda: runner_of(bundle, placement=placement)
    runner, tokens = runner_of(bundle, placement=placement), tokens_of(bundle)
    sequence = runner.open()
    if point == "prompt":
        return lambda: runner.forward(sequence, tokens)
    runner.forward(sequence, tokens)
    if point == "step":
        runner.forward(sequence, [1])
        return lambda: runner.forward(sequence, [2])
    if point == "states":
        return lambda: runner.run([Segment(sequence, tokens[:3], 2, states=True)])
    return lambda: runner.model.kv.read_pages(sequence.host_pages(np.arange(2)))


def raised(kernels: Any, rule: str, work: Callable[[], Any]) -> str:
    """The name and the text of what ``work`` raises under the ``rule``; empty where it does not need what fails."""
    kernels.fail_runtime(rule)
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        kernels.fail_runtime("")
    return ""


@pytest.mark.thorough
def test_wherever_the_card_fails_it_is_lost_by_name(card, bundles):
    found = card.run(failures, str(bundles))
    told = {place: text for place, text in found.items() if text}
    assert {placement for placement, *_ in told} == {"split", "card"}
    assert {point for *_, point in told} == {"load", "prompt", "states", "step", "pages"}
    strange = {place: text for place, text in told.items() if not text.startswith("DeviceLost: the device `ascend` failed: ")}
    assert not strange
    assert not [text for text in told.values() if "\n" in text]


REFUSALS = {
    "a library is missing": (OSError("libatb.so: cannot open shared object file: No such file or directory"), "install NNAL"),
    "an operator is missing": (
        AttributeError("'_OpNamespace' 'npu' object has no attribute 'npu_rms_norm'"), "install a torch_npu that has it",
    ),
    "the compiler does not start": (
        RuntimeError("OPS function error: Identity, error code is 500001\n[ERROR] EZ9999"),
        "500001; `pip install absl-py`; ask again",
    ),
    "the kernels are another chip's": (RuntimeError("call aclnnRmsNorm failed, error code is 561103"), "row `CANN kernels`"),
    "operators are forbidden": (RuntimeError("Acl op is disabled!\nmore"), "disabled!; `unset ACL_OP_INIT_MODE`"),
    "streams are used up": (RuntimeError("Stream resources are insufficient"), "install Ascend HDK 25.5.1"),
}  # fmt: skip
"""What torch_npu may raise from an operator, and what the user is told to do."""


def refused(folder: str) -> dict[str, str]:
    """What is said of each of `REFUSALS` in a prompt, where one package of CANN's compiler is missing."""
    from standins import kernels

    from edge_llm.ascend.npu import settings
    from edge_llm.ascend.npu.emulated_ops import IMPLEMENTATIONS
    from edge_llm.ascend.npu.opening import load_torch_npu

    load_torch_npu()
    kernels.install(IMPLEMENTATIONS)
    found, find = {}, settings.find_package
    settings.find_package = lambda name, search: None if name == "absl-py" else find("torch", search)
    runner = runner_of(bundle := open_bundle(Path(folder) / "tied"), placement="card")
    for name, (error, _) in REFUSALS.items():
        kernels.fail_operator("npu::npu_rms_norm", error=error)
        found[name] = raised(kernels, "", lambda: runner.forward(runner.open(), tokens_of(bundle)))
    return found


def test_what_an_operator_raises_is_one_line_with_the_way_out(card, bundles):
    found = card.run(refused, str(bundles))
    for name, (_, words) in REFUSALS.items():
        assert found[name].startswith("DeviceLost: the device `ascend` failed: ") and words in found[name], name
        assert "\n" not in found[name] and "--device host" in found[name]


def lost_for_good(placement: str) -> tuple[str, str, str]:
    """What the request says in whose middle the card answers nothing any more, what the next one is told, and by whom."""
    from standins import kernels

    from edge_llm.ascend.npu.emulated_ops import IMPLEMENTATIONS
    from edge_llm.ascend.npu.opening import load_torch_npu

    load_torch_npu()
    kernels.install(IMPLEMENTATIONS)
    runtime = RuntimeConfig(threads=1, context=128, device="ascend", placement=placement, draft="none")
    engine = load_engine(BUILTIN, runtime)
    deltas = engine.stream(engine.text_request(PROMPT, PARAMS))
    next(deltas)
    first = raised(kernels, "", lambda: break_card(kernels, deltas))
    kernels.fail_runtime(NOTHING)
    return first, engine.answer(engine.text_request(PROMPT, PARAMS)).text, engine.runner.site.device


def break_card(kernels: Any, deltas: Iterator[Any]) -> None:
    kernels.fail_runtime(NOTHING)
    list(deltas)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("placement", ["split", "card"])
def test_a_card_that_answers_nothing_any_more_costs_one_request_and_not_the_process(card, placement):
    first, then, device = card.run(lost_for_good, placement)
    host = load_engine(BUILTIN, RuntimeConfig(threads=1, context=128, device="host"))
    assert first.startswith("DeviceLost: ") and device == "host"
    assert then == host.answer(host.text_request(PROMPT, PARAMS)).text


def memory_left(folder: str) -> list[int]:
    """What a model may take of the card before the first one, and after each one that was opened, used and dropped."""
    from standins import kernels

    from edge_llm.ascend.npu.emulated_ops import IMPLEMENTATIONS
    from edge_llm.ascend.npu.opening import load_torch_npu

    load_torch_npu()
    kernels.install(IMPLEMENTATIONS)
    bundle = open_bundle(Path(folder) / "tied")

    def most() -> int:
        plan = resolve(RuntimeConfig(threads=1, context=512, device="ascend"), this_machine(), bundle)
        assert plan.weights.card is not None
        return plan.device.most(0)  # type: ignore[union-attr]

    left = [most()]
    for placement in ("card", "split"):
        logits(runner_of(bundle, placement=placement), tokens_of(bundle))
        left.append(most())
    return left


@pytest.mark.thorough
def test_a_model_that_is_gone_leaves_its_memory_to_the_next(card, bundles):
    left = card.run(memory_left, str(bundles), memory=40 << 20)
    assert left[0] > 0 and set(left) == {left[0]}
