"""A card whose operators the CPU computes: a stream is a thread, and a graph is a list of calls, which are made again."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge_llm.ascend.npu.chips import ChipLaw
from edge_llm.ascend.npu.emulated_ops import register
from edge_llm.ascend.npu.law import check_capture
from edge_llm.ascend.npu.runtime import Completion, Counters, Work
from edge_llm.errors import DeviceError, DeviceLost

if TYPE_CHECKING:
    from torch import Tensor


LENGTHS = "context_lens"
"""The operand of attention that holds how many keys each row sees."""


class EmulatedRuntime:
    """The runtime of a chip with ``law``."""

    emulated = True
    attention_missing = ""
    capture_refusal = ""

    def __init__(self, law: ChipLaw) -> None:
        import torch

        register()
        self.law = law
        self.device = torch.device("cpu")
        self.software = f"torch {torch.__version__}, operators emulated"
        self.counters = Counters()
        self._torch = torch
        self._stream = ThreadPoolExecutor(1, "npu stream")
        self._copies = ThreadPoolExecutor(1, "npu copies")

    def _numbers(self) -> Any:
        """What is too large, and what is no number, as on the chip."""
        return saturating() if self.law.saturates else nullcontext()

    def memory(self) -> tuple[int, int]:
        return self.law.memory_bytes, self.law.memory_bytes

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        return self._torch.zeros(shape, dtype=dtype)

    def enqueue(self, work: Work, after: Completion | None = None) -> Completion:
        return self._given(self._stream, work, after)

    def load(self, work: Work, after: Completion | None = None) -> Completion:
        return self._given(self._copies, work, after)

    def copy_in(self, card: Tensor, host: Tensor) -> None:
        card.copy_(host)
        self.counters.copies_in += 1

    def copy_out(self, host: Tensor, card: Tensor) -> None:
        host.copy_(card)
        self.counters.copies_out += 1

    def mark(self) -> _Moment:
        return _Moment(time.perf_counter())

    def capture(self, work: Work) -> RecordedGraph:
        check_capture(self.law)
        graph = RecordedGraph(self)
        self._given(self._stream, lambda: graph.record(work), None)()
        self.counters.captures += 1
        return graph

    def _given(self, thread: ThreadPoolExecutor, work: Work, after: Completion | None) -> _Future:
        def run() -> None:
            if after is not None:
                assert isinstance(after, _Future), "a completion of another card"
                after.future.result()
            with self._torch.inference_mode(), self._numbers():
                work()

        return _Future(thread.submit(run), self.counters, self.law.name)


@dataclass(frozen=True)
class _Moment:
    seconds: float

    def seconds_since(self, earlier: _Moment) -> float:
        return self.seconds - earlier.seconds


def saturating() -> Any:
    """While it lasts, the results of operators are those of a chip without Inf and NaN: the largest number, and 0."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Saturating(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if not function.is_view:
                for made in result if isinstance(result, tuple | list) else (result,):
                    _saturate(made)
            return result

    return Saturating()


def _saturate(result: Any) -> None:
    """Arrays alone; those that were only made, such as by `empty`, are as well."""
    import torch

    if isinstance(result, torch.Tensor) and result.dtype in (torch.float16, torch.float32):
        result.nan_to_num_(nan=0)


class _Future:
    """A completion that a stream can wait for too."""

    def __init__(self, future: Future[None], counters: Counters, chip: str) -> None:
        self.future = future
        self._counters = counters
        self._chip = chip

    def __call__(self) -> None:
        self._counters.waits += 1
        try:
            self.future.result()
        except RuntimeError as error:
            raise DeviceLost(f"ascend:{self._chip}", str(error)) from error


class RecordedGraph:
    """The calls of operators that ``record`` saw, made again by ``replay`` into the results of the first time."""

    def __init__(self, runtime: EmulatedRuntime) -> None:
        self._runtime = runtime
        self._calls: list[Callable[[], None]] = []
        self._lengths: list[Any] = []

    def record(self, work: Work) -> None:
        """Do ``work``.  Raises `DeviceError` where it would wait for a result, which a recording cannot."""
        from torch.utils._python_dispatch import TorchDispatchMode

        calls, lengths, host_lengths = self._calls, self._lengths, self._runtime.law.host_lengths

        class Recorder(TorchDispatchMode):
            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if function.overloadpacket.__name__ in ("_local_scalar_dense", "item", "nonzero"):
                    raise DeviceError(f"`{function}` waits for the card, and a graph is being recorded")
                result = function(*args, **(kwargs or {}))
                names = [argument.name for argument in function._schema.arguments]
                if host_lengths and LENGTHS in names:  # what the host holds is part of the graph, as it is now
                    at = names.index(LENGTHS)
                    lengths.append(args[at].clone())
                    args = (*args[:at], lengths[-1], *args[at + 1 :])
                calls.append(_again(function, args, kwargs or {}, result))
                return result

        with Recorder():
            work()

    def update(self, lengths: Tensor) -> None:
        for held in self._lengths:
            held.copy_(lengths)

    def replay(self) -> None:
        self._runtime.counters.replays += 1
        for call in self._calls:
            call()


def _again(function: Any, args: Any, kwargs: Any, result: Any) -> Callable[[], None]:
    """The same call, its results copied over those of the first time; nothing for a view, which follows by itself."""
    import torch

    given = {value.untyped_storage().data_ptr() for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)}
    made = result if isinstance(result, tuple | list) else (result,)
    fresh = [
        place
        for place, value in enumerate(made)
        if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() not in given
    ]
    if not fresh and function.is_view:
        return lambda: None

    def call() -> None:
        found = function(*args, **kwargs)
        found = found if isinstance(found, tuple | list) else (found,)
        for place in fresh:
            made[place].copy_(found[place])

    return call
