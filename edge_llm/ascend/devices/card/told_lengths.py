"""Whether graphs can be told lengths of keys: where driver and CANN differ, torch_npu warns and goes on with the first ones."""

from __future__ import annotations

from edge_llm.ascend.npu.calls import Calls
from edge_llm.ascend.npu.runtime import CaptureRefused, Runtime, run
from edge_llm.errors import DeviceLost

HEAD = 64
RECORDED, TOLD = 128, 3
UNTOLD = "it goes on with the lengths that it was recorded with: driver and CANN may be of different versions"


def check_told(runtime: Runtime, calls: Calls) -> None:
    """Have ``runtime`` refuse captures if a graph of attention goes on with the lengths of its capture, or fails.

    A card that is lost by it will say so in the first step, as it does when it is lost at any other time.
    """
    try:
        if not _goes_by_what_it_is_told(runtime, calls):
            runtime.capture_refusal = UNTOLD
    except CaptureRefused:
        return  # which the runtime keeps in mind
    except DeviceLost as error:
        runtime.capture_refusal = error.failure


def _goes_by_what_it_is_told(runtime: Runtime, calls: Calls) -> bool:
    """One head sees keys that are all the same, so it gives the mean of the values, which are 0, 1, 2, ..."""
    import torch

    kind = {"device": runtime.device, "dtype": torch.float16}
    shape = calls.law.cache_shape(1, 1, HEAD)
    values = torch.arange(calls.law.page_tokens, dtype=torch.float16).reshape(1, -1, 1, 1).expand(shape).contiguous()
    found = runtime.pinned((1, 1, HEAD), torch.float16)
    query, keys, table = run(
        runtime,
        lambda: (
            torch.zeros((1, 1, HEAD), **kind), torch.zeros(shape, **kind),
            torch.zeros((1, 1), device=runtime.device, dtype=torch.int32),
        ),
    )  # fmt: skip
    of_card = run(runtime, lambda: values.to(runtime.device))
    recorded, told = (torch.tensor([length], dtype=torch.int32) for length in (RECORDED, TOLD))
    made = [run(runtime, lambda: calls.attend(query, keys, of_card, 1, table, recorded))]

    def work() -> None:
        made[:] = [calls.attend(query, keys, of_card, 1, table, recorded)]

    def again() -> None:
        graph.update(told)
        graph.replay()
        runtime.copy_out(found, made[0])

    graph = runtime.capture(work)
    run(runtime, again)
    return torch.equal(found, torch.full_like(found, (TOLD - 1) / 2))
