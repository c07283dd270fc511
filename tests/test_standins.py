"""The stand-ins for Ascend's libraries are a card that tests can trust: the real torch_npu runs on them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from standins import SOCS

if TYPE_CHECKING:
    import torch
    from standins import Card

pytestmark = pytest.mark.torch_npu


def raised(action: Callable[[], Any]) -> str:
    """What an action raises, on one line; or nothing."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""


# ---- the chip


def chip_facts() -> dict[str, Any]:
    import torch
    import torch_npu
    from standins import kernels

    npu = torch.npu
    properties = npu.get_device_properties(0)
    facts = {
        "available": npu.is_available(),
        "count": npu.device_count(),
        "name": npu.get_device_name(0),
        "soc": torch_npu.npu.get_soc_version(),
        "bfloat16": npu.is_bf16_supported(),
        "memory": npu.mem_get_info(),
        "total": properties.total_memory,
        "cann": torch_npu.npu.utils.get_cann_version("CANN"),
        "too large": raised(lambda: torch.empty(70 << 30, dtype=torch.int8, device="npu")),
    }
    x = torch.arange(12, dtype=torch.float16).view(3, 4).to("npu")
    cache = torch.empty(4, 128, 2, 64, dtype=torch.float16, device="npu")
    rows = torch.empty(3, 2, 64, dtype=torch.float16, device="npu")
    slots = torch.empty(3, dtype=torch.int32, device="npu")
    # what nobody has a kernel for must not look as if it had worked
    facts["no kernel"] = {
        "mm": raised(lambda: x.mm(x.t())),
        "add": raised(lambda: x + x),
        "cast": raised(lambda: x.float()),
        "gap": raised(lambda: x.t().contiguous()),
        "npu_swiglu": raised(lambda: torch_npu.npu_swiglu(x)),
        "_npu_reshape_and_cache": raised(lambda: torch_npu._npu_reshape_and_cache(rows, rows, cache, cache, slots)),
    }
    kernels.install({})
    graph = npu.NPUGraph()

    def capture() -> None:
        with npu.graph(graph):
            x + x

    facts["capture"] = raised(capture)
    return facts


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(
    ("soc", "number", "bfloat16", "gibibytes", "captures"),
    [("Ascend310P3", 202, False, 24, True), ("Ascend310B4", 243, True, 8, False), ("Ascend910B1", 220, True, 64, True)],
)
def test_torch_npu_sees_the_chip_that_is_asked_for(card, soc, number, bfloat16, gibibytes, captures):
    facts = card.run(chip_facts, soc=soc)
    assert (facts["available"], facts["count"], facts["name"], facts["soc"]) == (True, 1, soc, number)
    assert facts["bfloat16"] is bfloat16
    assert facts["memory"] == (gibibytes << 30, gibibytes << 30)
    assert facts["total"] == gibibytes << 30
    assert facts["cann"] == "9.1.0"
    assert "NPU out of memory" in facts["too large"]
    assert (facts["capture"] == "") is captures
    assert all(facts["no kernel"].values()), facts["no kernel"]


# ---- what can be missing


def import_facts() -> dict[str, Any]:
    found: dict[str, Any] = {}

    def imported() -> None:
        import torch_npu

        found["torch_npu"] = torch_npu

    facts: dict[str, Any] = {"import": raised(imported)}
    if "torch_npu" in found:
        import torch

        facts["cards"] = torch.npu.device_count()
        facts["version"] = found["torch_npu"].npu.utils.get_cann_version("CANN")
        facts["attention"] = raised(lambda: found["torch_npu"]._npu_reshape_and_cache())
        facts["tensor"] = raised(lambda: torch.empty(3, device="npu"))
    return facts


def test_without_cann_torch_npu_cannot_be_imported(card):
    assert "libhccl.so" in card.run(import_facts, cann=None)["import"]


def test_without_nnal_and_without_a_card_torch_npu_says_so(card):
    facts = card.run(import_facts, devices=0, nnal=False, cann="8.0.RC1")
    assert facts["import"] == ""
    assert (facts["cards"], facts["version"]) == (0, "8.0.RC1")
    assert "OSError" in facts["attention"]
    assert facts["tensor"]


# ---- memory, copies, streams and events


def copy_facts() -> dict[str, Any]:
    import torch
    import torch_npu
    from standins import kernels
    from standins.examples import IMPLEMENTATIONS

    npu = torch.npu
    kernels.install(IMPLEMENTATIONS)
    facts: dict[str, Any] = {}

    # there and back, every dtype that the backend uses, with gaps and with a change of dtype on the way
    for dtype in (torch.float32, torch.float16, torch.int8, torch.int32, torch.int64, torch.bool):
        value = torch.arange(24).view(2, 3, 4).to(dtype)
        there = value.to("npu")
        assert there.device.type == "npu" and there.dtype == dtype
        assert torch.equal(there.cpu(), value)
        assert torch.equal(there.transpose(0, 2).cpu(), value.transpose(0, 2))
        assert torch.equal(value.transpose(0, 2).to("npu").cpu(), value.transpose(0, 2))
        assert torch.equal(there[:, 1].cpu(), value[:, 1])
        assert torch.equal(there.to(torch.float16).cpu(), value.half())
        assert torch.equal(there.transpose(0, 1).contiguous().cpu(), value.transpose(0, 1))
    target = torch.zeros(2, 6, device="npu")
    target[:, ::2].copy_(torch.ones(2, 3))
    assert target.cpu().tolist() == [[1, 0] * 3] * 2
    assert torch.empty(8 << 20, device="npu").cpu().isnan().all()  # memory that nobody wrote to

    # fractals are a name
    weight = torch.arange(64 * 32, dtype=torch.int16).to(torch.int8).view(64, 32)
    fractals = torch_npu.npu_format_cast(weight.to("npu"), 29)
    assert torch_npu.get_npu_format(fractals) == 29
    assert torch.equal(fractals.t().cpu(), weight.t())
    assert torch_npu.get_npu_format(torch_npu.npu_format_cast(fractals, 2)) == 2
    fractals.copy_(weight + 1)
    assert torch.equal(fractals.cpu(), weight + 1)

    # torch's own operators, in all forms
    x, y = torch.tensor([[1.0, -2.0], [3.0, 4.0]]), torch.tensor([[0.5, 0.25], [-1.0, 2.0]])
    a, b = x.to("npu"), y.to("npu")
    out = torch.empty(2, 2, device="npu")
    for on_card, expected in [
        (a + b, x + y), (a + 1, x + 1), (torch.add(a, b, out=out), x + y), (a * b, x * y), (a @ b, x @ y),
        (a.t().mm(b), x.t() @ y), (a.abs(), x.abs()), (a.gt(b), x > y), (a > 0, x > 0), (a.sum(), x.sum()),
        (a.sum(-1, keepdim=True), x.sum(-1, keepdim=True)), (a.clone(), x), (torch.zeros_like(a), torch.zeros_like(x)),
        (a.index_select(1, torch.tensor([1], device="npu")), x[:, 1:]), (a.half().float(), x),
        (torch.full((3,), 2.5, device="npu"), torch.full((3,), 2.5)), (a.clone().mul_(2).add_(b), x * 2 + y),
    ]:  # fmt: skip
        assert torch.equal(on_card.cpu(), expected), (on_card.cpu(), expected)
    assert (out.cpu() == x + y).all()
    assert a[0, 1].item() == -2

    # operators of the card; a result that is not as torch_npu says is refused, and so is a tensor of the host
    for on_card, expected in zip(
        torch_npu.npu_rms_norm(a, torch.ones(2, device="npu"), epsilon=1e-5),
        IMPLEMENTATIONS["npu::npu_rms_norm"](x, torch.ones(2), 1e-5),
        strict=True,
    ):
        assert torch.equal(on_card.cpu(), expected)
    keys, values = (torch.zeros(2, 4, 2, 3, dtype=torch.float16, device="npu") for _ in range(2))
    row = torch.arange(12, dtype=torch.float16).view(2, 2, 3)
    slots = torch.tensor([5, 0], dtype=torch.int32)
    torch_npu._npu_reshape_and_cache(row.to("npu"), (row + 1).to("npu"), keys, values, slots.to("npu"))
    assert torch.equal(keys.cpu().flatten(0, 1)[slots.long()], row)
    assert torch.equal(values.cpu().flatten(0, 1)[slots.long()], row + 1)
    facts["wrong result"] = raised(lambda: torch_npu.npu_quantize(a, b[0], None, torch.qint8, -1, False))
    facts["refused by Meta"] = raised(lambda: torch_npu.npu_rms_norm(a, torch.ones(1, 3, 2, device="npu")))
    facts["mixed"] = raised(lambda: torch_npu.npu_rms_norm(a, torch.ones(2)))
    facts["no kernel"] = raised(lambda: a.softmax(0))

    # pinned memory; what is counted; what is seen before a wait
    host_in, host_out = torch.ones(8).pin_memory(), torch.zeros(8).pin_memory()
    facts["pinned"] = (host_in.is_pinned(), torch.ones(8).is_pinned())
    z = torch.empty(8, device="npu")
    event = npu.Event()
    with kernels.counting() as counted:
        z.copy_(host_in, non_blocking=True)
        doubled = z + z
        host_out.copy_(doubled, non_blocking=True)
        event.record()
        before = host_out.tolist()
        event.synchronize()
    facts["one step"] = counted
    facts["before and after the wait"] = (before, host_out.tolist())
    with kernels.counting() as counted:
        z.cpu()
        torch.ones(4).to("npu")
        npu.synchronize()
        torch.ones(8).to("npu", non_blocking=True)
    facts["blocking"] = counted

    # a stream that does not wait for another one works with old data
    beside = npu.Stream()

    def seen_from_main(waits: bool) -> float:
        z.zero_()
        host_in.fill_(7)
        npu.synchronize()
        with npu.stream(beside):
            z.copy_(host_in, non_blocking=True)
            copied = npu.Event()
            copied.record()
        if waits:
            npu.current_stream().wait_event(copied)
        return (z + 0).cpu()[0].item()

    facts["without and with a wait"] = (seen_from_main(waits=False), seen_from_main(waits=True))
    npu.synchronize()
    started, ended = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
    started.record()
    host_out.copy_(z, non_blocking=True)
    ended.record()
    facts["asked, and asked again"] = (ended.query(), ended.query(), npu.current_stream().query())
    facts["milliseconds"] = started.elapsed_time(ended)

    # failures
    kernels.fail_runtime("aclrtMemcpyAsync@2=507899")
    z.copy_(host_in, non_blocking=True)
    facts["second copy"] = raised(lambda: z.copy_(host_in, non_blocking=True))
    facts["third copy"] = raised(lambda: z.copy_(host_in, non_blocking=True))
    kernels.fail_runtime("")
    kernels.fail_operator("npu::npu_swiglu", call=2)
    facts["operator"] = [raised(lambda: torch_npu.npu_swiglu(a)) for _ in range(3)]
    facts["calls of it"] = kernels.calls["npu::npu_swiglu"]
    return facts


@pytest.fixture(scope="module")
def copies(card: Card) -> dict[str, Any]:
    return card.run(copy_facts)


def test_a_kernel_that_torch_npu_would_not_agree_with_is_refused(copies):
    assert "npu::npu_quantize gives" in copies["wrong result"]
    assert "RuntimeError" in copies["refused by Meta"]
    assert "gamma is on cpu" in copies["mixed"]
    assert "SoftmaxV2" in copies["no kernel"]


def test_every_copy_and_every_wait_is_counted_once(copies):
    assert copies["pinned"] == (True, False)
    assert copies["one step"] == {
        "async_in": 1, "async_in_bytes": 32, "async_out": 1, "async_out_bytes": 32, "kernels": 1, "events_recorded": 1,
        "waits_event": 1,
    }  # fmt: skip
    blocking = copies["blocking"]
    assert blocking["sync_out_bytes"] == 32
    assert blocking["sync_in_bytes"] == 16
    assert (blocking["waits_stream"], blocking["waits_device"]) == (3, 1)  # blocking copies, and the pageable one
    assert (blocking["async_pageable"], blocking["async_in_bytes"]) == (1, 32)


def test_a_wait_that_is_missing_shows_as_old_data(copies):
    assert copies["before and after the wait"] == ([0.0] * 8, [2.0] * 8)
    assert copies["without and with a wait"] == (0.0, 7.0)
    assert copies["asked, and asked again"] == (False, True, True)
    assert copies["milliseconds"] > 0


def test_failures_happen_where_a_test_wants_them(copies):
    assert "507899" in copies["second copy"]
    assert copies["third copy"] == ""
    assert [bool(error) for error in copies["operator"]] == [False, True, False]
    assert copies["calls of it"] == 2


# ---- graphs


def graph_facts() -> dict[str, Any]:
    import torch
    import torch_npu
    from standins import kernels
    from standins.examples import IMPLEMENTATIONS

    npu = torch.npu
    kernels.install(IMPLEMENTATIONS)
    facts: dict[str, Any] = {}
    host_in, host_out = torch.ones(2, 4).half().pin_memory(), torch.zeros(2, 2).half().pin_memory()
    x = torch.zeros(2, 4, dtype=torch.float16, device="npu")
    total = torch.zeros(2, 2, dtype=torch.float16, device="npu")
    stream, beside = npu.Stream(), npu.Stream()

    def step() -> torch.Tensor:
        half = torch_npu.npu_swiglu(x)
        fork, join = npu.Event(), npu.Event()
        fork.record()
        with npu.stream(beside):  # a part of the graph as well
            beside.wait_event(fork)
            half.mul_(2)
            join.record()
        npu.current_stream().wait_event(join)
        total.add_(half)
        return half.t().contiguous().t() + 1

    graph = npu.NPUGraph()
    with torch.inference_mode(), kernels.counting() as counted, npu.graph(graph, stream=stream):
        result = step()
    facts["captured"] = counted
    facts["after the capture"] = (result.cpu().isnan().all().item(), total.cpu().tolist())

    steps = []
    expected_total = torch.zeros(2, 2).half()
    for value in (1.0, -2.0, 3.0):
        host_in.fill_(value)
        with kernels.counting() as counted:
            with npu.stream(stream):
                x.copy_(host_in, non_blocking=True)
                graph.replay()
                host_out.copy_(result, non_blocking=True)
                done = npu.Event()
                done.record()
            done.synchronize()
        doubled = IMPLEMENTATIONS["npu::npu_swiglu"](host_in) * 2
        expected_total += doubled
        steps.append((host_out.clone(), doubled + 1, counted))
    facts["steps"] = steps
    facts["totals"] = (total.cpu(), expected_total)
    facts["calls"] = {
        "eager": kernels.calls["npu::npu_swiglu"],
        "captured": kernels.captured_calls["npu::npu_swiglu"],
        "replayed": kernels.replayed_calls["npu::npu_swiglu"],
    }

    # a second graph in the pool of the first; what the host holds is part of a graph, what the card holds is not
    lengths = torch.tensor([2, 1], dtype=torch.int32)
    on_card = lengths.to("npu")
    out = torch.empty(3, 2, 4, dtype=torch.float16, device="npu")
    cache = torch.empty(1, 8, 128, 16, dtype=torch.float16, device="npu")
    second = npu.NPUGraph()
    with npu.graph(second, pool=graph.pool(), stream=stream):
        torch_npu._npu_paged_attention_splitfuse_v2(
            query=out, key_cache=cache, value_cache=cache, block_table=on_card, context_lens=on_card, mask=x,
            seq_len=lengths, num_kv_heads=1, num_heads=2, scale_value=1.0, out=out,
        )  # fmt: skip
        copied = on_card + 0
    lengths.fill_(0)
    on_card.copy_(torch.tensor([5, 6]))
    with npu.stream(stream):
        second.replay()
    npu.synchronize()
    facts["host and card"] = (out[:, 0, 0].cpu().tolist(), copied.cpu().tolist())
    graph.replay()
    npu.synchronize()
    facts["first again"] = (result.cpu() - steps[-1][1]).abs().max().item()

    # what a capture must not do
    def capture(action: Callable[[torch.Tensor], Any]) -> str:
        def run() -> None:
            with npu.graph(npu.NPUGraph(), stream=stream):
                action(x + 1)

        return raised(run)

    facts["forbidden"] = {
        "item": capture(lambda y: y[0, 0].item()),
        "cpu": capture(lambda y: y.cpu()),
        "to the card": capture(lambda y: torch.ones(2).to("npu")),
        "synchronize": capture(lambda y: npu.synchronize()),
        "stream": capture(lambda y: npu.current_stream().synchronize()),
    }
    facts["no kernel"] = capture(lambda y: y.softmax(0))
    facts["allowed again"] = capture(lambda y: y + 1)
    pinned = torch.zeros(2, 4).half().pin_memory()
    facts["pinned copy in a graph"] = capture(lambda y: pinned.copy_(y, non_blocking=True))

    # a kernel that fails in a replay; the next replay works
    third = npu.NPUGraph()
    places = torch.zeros(1, dtype=torch.int64, device="npu")
    with npu.graph(third, stream=stream):
        chosen = x.index_select(0, places)
    places.copy_(torch.tensor([9]))
    third.replay()
    facts["failed replay"] = raised(npu.synchronize)
    places.copy_(torch.tensor([1]))
    third.replay()
    npu.synchronize()
    facts["replay after it"] = torch.equal(chosen.cpu(), x[1:].cpu())

    # threads that replay, wait and ask at once, each on a stream of its own
    def work(failures: list[str]) -> None:
        def turns() -> None:
            with npu.stream(npu.Stream()):
                for _ in range(50):
                    second.replay()
                    event = npu.Event()
                    event.record()
                    while not event.query():
                        npu.synchronize()

        failures.append(raised(turns))

    failures: list[str] = []
    threads = [threading.Thread(target=work, args=(failures,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    facts["threads"] = failures
    return facts


@pytest.fixture(scope="module")
def graphs(card: Card) -> dict[str, Any]:
    return card.run(graph_facts)


def test_a_capture_computes_nothing_and_a_replay_everything(graphs):
    import torch

    captured = graphs["captured"]
    assert (captured["captures_begun"], captured["captures_ended"], captured["kernels_captured"]) == (1, 1, 5)
    assert "kernels" not in captured
    assert graphs["after the capture"] == (True, [[0, 0], [0, 0]])
    for result, expected, counted in graphs["steps"]:
        assert torch.equal(result, expected)
        assert counted == {
            "async_in": 1, "async_in_bytes": 16, "replays": 1, "kernels_replayed": 5, "async_out": 1, "async_out_bytes": 8,
            "events_recorded": 1, "waits_event": 1,
        }  # fmt: skip
    found, expected = graphs["totals"]
    assert torch.equal(found, expected)
    assert graphs["calls"] == {"eager": 0, "captured": 1, "replayed": 3}


def test_a_graph_has_the_hosts_values_of_its_capture_and_the_cards_of_its_replay(graphs):
    assert graphs["host and card"] == ([2, 2, 1], [5, 6])
    assert graphs["first again"] == 0


def test_a_capture_refuses_what_would_wait_for_it(graphs):
    assert all("507903" in error for error in graphs["forbidden"].values()), graphs["forbidden"]
    assert "SoftmaxV2" in graphs["no kernel"]
    assert graphs["allowed again"] == graphs["pinned copy in a graph"] == ""


def test_a_replay_that_fails_is_heard_of_at_the_next_wait_and_only_there(graphs):
    assert "507011" in graphs["failed replay"]
    assert graphs["replay after it"]


def test_threads_that_wait_for_each_others_work_go_on(graphs):
    assert graphs["threads"] == [""] * 4


# ---- commands that know nothing of tests


@pytest.mark.thorough
def test_a_command_has_the_kernels_as_soon_as_it_imports_torch_npu(card):
    script = (
        "import torch, torch_npu; x = torch.ones(1, 2).to('npu'); print(torch_npu.npu_swiglu(x).item(), SOC)"
    ).replace("SOC", "torch.npu.get_device_name(0)")
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=card.environment(soc=SOCS[2], kernels="standins.examples"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["0.7310585975646973", SOCS[2]], done.stderr
