"""A card through torch_npu: streams, events, pinned memory and captured graphs are those of `torch.npu`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from edge_llm.ascend.npu.chips import ChipLaw
from edge_llm.ascend.npu.law import check_capture, chunk_attention
from edge_llm.ascend.npu.runtime import Completion, Counters, Work
from edge_llm.errors import DeviceError, DeviceLost

if TYPE_CHECKING:
    from torch import Tensor


class TorchNpuRuntime:
    """The runtime of the first card, which has a chip of ``law``; torch_npu is loaded."""

    emulated = False

    def __init__(self, law: ChipLaw) -> None:
        import torch

        self.law = law
        self.device = torch.device("npu", 0)
        self.counters = Counters()
        self._torch = torch
        self._npu: Any = torch.npu  # type: ignore[attr-defined]
        with _failures():
            self._npu.set_device(self.device)
            self._stream = self._npu.Stream(device=self.device)
            self._copies = self._npu.Stream(device=self.device)
        self.software = f"torch_npu {package_version('torch_npu')}, CANN {_cann_version()}"
        self.attention_missing = _attention_missing(torch.ops.atb, law)

    def memory(self) -> tuple[int, int]:
        with _failures():
            self._npu.empty_cache()  # what models left that are gone is free, and torch_npu keeps it
            free, total = self._npu.mem_get_info(self.device)
        return int(free), int(total)

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        with _failures():
            array = self._torch.zeros(shape, dtype=dtype).pin_memory()
        _pinned[id(array)] = array
        return array

    def enqueue(self, work: Work, after: Completion | None = None) -> Completion:
        return self._given(self._stream, work, after)

    def load(self, work: Work, after: Completion | None = None) -> Completion:
        return self._given(self._copies, work, after)

    def copy_in(self, card: Tensor, host: Tensor) -> None:
        card.copy_(host, non_blocking=True)
        self.counters.copies_in += 1

    def copy_out(self, host: Tensor, card: Tensor) -> None:
        host.copy_(card, non_blocking=True)
        self.counters.copies_out += 1

    def mark(self) -> _Mark:
        event = self._npu.Event(enable_timing=True)
        event.record()
        return _Mark(event)

    def capture(self, work: Work) -> _NpuGraph:
        check_capture(self.law)
        graph = self._npu.NPUGraph()
        with _failures(), self._torch.inference_mode():
            self._npu.set_device(self.device)
            self._npu.synchronize()
            with self._npu.graph(graph, stream=self._stream):
                work()
        self.counters.captures += 1
        return _NpuGraph(graph, self.counters)

    def _given(self, stream: Any, work: Work, after: Completion | None) -> Completion:
        with _failures(), self._torch.inference_mode():
            self._npu.set_device(self.device)  # a thread that is new to the card has none
            with self._npu.stream(stream):
                if after is not None:
                    assert isinstance(after, _Event), "a completion of another card"
                    stream.wait_event(after.event)
                work()
                event = self._npu.Event()
                event.record(stream)
        return _Event(event, self.counters)


def _cann_version() -> str:
    from torch_npu.npu.utils import get_cann_version  # type: ignore[import-not-found]

    return str(get_cann_version("CANN")) or "of an unknown version"


def _attention_missing(operators: Any, law: ChipLaw) -> str:
    """[whl] torch_npu loads ATB's operators when it is imported, and goes on without them."""
    if not hasattr(operators, "_npu_paged_attention"):
        return "the package NNAL is missing: install it for this CANN, then `source .../nnal/atb/set_env.sh`"
    if not hasattr(operators, chunk_attention(law)):
        return f"this torch_npu has no {chunk_attention(law)}: install a newer one, up to 2.14"
    return ""


class _Event:
    """A completion that a stream can wait for too."""

    def __init__(self, event: Any, counters: Counters) -> None:
        self.event = event
        self._counters = counters

    def __call__(self) -> None:
        self._counters.waits += 1
        with _failures():
            self.event.synchronize()


class _Mark:
    def __init__(self, event: Any) -> None:
        self._event = event

    def seconds_since(self, earlier: _Mark) -> float:
        with _failures():
            return float(earlier._event.elapsed_time(self._event)) / 1000


class _NpuGraph:
    def __init__(self, graph: Any, counters: Counters) -> None:
        self._graph = graph
        self._counters = counters

    def replay(self) -> None:
        self._counters.replays += 1
        self._graph.replay()


_pinned: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
"""Pinned arrays that are in use, by their identity."""
_never_freed: dict[int, Tensor] = {}
"""Those that were in use when a card was lost."""


def _never_free_pinned() -> None:
    """Keep what is pinned until the process is gone: freed, torch_npu asks a lost card about it and ends the process [run]."""
    if not _never_freed:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_never_freed))  # nor is it freed when Python ends
    arrays = [array for array in (held() for held in _pinned.valuerefs()) if array is not None]
    _never_freed.update({id(array): array for array in arrays})


@contextmanager
def _failures() -> Iterator[None]:
    """What torch_npu raises, as one of the tree's errors."""
    try:
        yield
    except RuntimeError as error:
        reason = next(iter(str(error).strip().splitlines()), "it gave no reason")
        if "out of memory" in reason.lower():
            raise DeviceError(f"the card has no memory left: {reason}; use a smaller --ctx or --card-memory") from error
        _never_free_pinned()
        raise DeviceLost("ascend", reason) from error
