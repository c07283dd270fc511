"""A card through torch_npu: streams, events, pinned memory and captured graphs are those of `torch.npu`."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version as package_version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from edge_llm.ascend.npu.chips import ChipLaw
from edge_llm.ascend.npu.law import check_capture, chunk_attention
from edge_llm.ascend.npu.pci import is_own_host
from edge_llm.ascend.npu.remedies import means_lost, with_remedy
from edge_llm.ascend.npu.runtime import CaptureRefused, Completion, Counters, Work
from edge_llm.ascend.npu.settings import graph_findings
from edge_llm.errors import DeviceError, DeviceLost

if TYPE_CHECKING:
    from torch import Tensor


class TorchNpuRuntime:
    """The runtime of the first card, which has a chip of ``law``; torch_npu is loaded."""

    emulated = False

    def __init__(self, law: ChipLaw) -> None:
        import torch

        self._is_own_host = is_own_host(Path("/"))
        self.law = replace(law, shares_memory=True) if self._is_own_host else law
        self.device = torch.device("npu", 0)
        self.counters = Counters()
        self._torch = torch
        self._npu: Any = torch.npu  # type: ignore[attr-defined]
        with _failures():
            self._npu.set_device(self.device)
            _set_up(self._npu, law)
            self._stream = self._npu.Stream(device=self.device)
            self._copies = self._npu.Stream(device=self.device)
        self.software = f"torch_npu {package_version('torch_npu')}, CANN {_cann_version()}"
        self.attention_missing = _attention_missing(torch.ops.atb, law)
        self.capture_refusal = _refused_from_the_start(os.environ)
        self._pool: Any = None

    def memory(self) -> tuple[int, int]:
        with _failures():
            self._npu.empty_cache()  # what models left that are gone is free, and torch_npu keeps it
            if not self._is_own_host:
                free, total = self._npu.mem_get_info(self.device)
                return int(free), int(total)
        return _host_memory()  # [vllm] of a board that is its own host, torch_npu says something else

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
        card.copy_(host, non_blocking=self._copies_beside)
        self.counters.copies_in += 1

    def copy_out(self, host: Tensor, card: Tensor) -> None:
        host.copy_(card, non_blocking=self._copies_beside)
        self.counters.copies_out += 1

    def mark(self) -> _Mark:
        event = self._npu.Event(enable_timing=True)
        event.record()
        return _Mark(event)

    def capture(self, work: Work) -> _NpuGraph:
        check_capture(self.law)
        if self.capture_refusal:
            raise CaptureRefused(self.capture_refusal)
        graph = self._npu.NPUGraph()
        try:
            self._record(graph, work)
        except (RuntimeError, OSError) as error:
            if _loses_the_card(error):
                raise _lost(error) from error
            self.capture_refusal = with_remedy(_first_line(_first_cause(error)), " ".join(map(str, _chain(error))))
            raise CaptureRefused(self.capture_refusal) from error
        self.counters.captures += 1
        return _NpuGraph(graph, self.counters)

    def _record(self, graph: Any, work: Work) -> None:
        """All graphs have one pool of memory: one is replayed at a time."""
        self._npu.set_device(self.device)
        self._npu.synchronize()
        if self._pool is None:
            self._pool = self._npu.graph_pool_handle()
        how = {"pool": self._pool, "stream": self._stream, "capture_error_mode": "thread_local"}
        if self.law.host_lengths:  # has operators be told of other lengths
            how["auto_dispatch_capture"] = True
        recorded = self._npu.graph(graph, **how)
        with _modes_as_before(), self._torch.inference_mode(), self._npu.stream(self._stream), recorded:
            work()

    @property
    def _copies_beside(self) -> bool:
        """Whether copies may run while the host goes on: [vllm] of boards that are their own host, such copies race."""
        return not self._is_own_host

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


def _set_up(npu: Any, law: ChipLaw) -> None:
    """What a process must say before its first operator.

    [src] CANN compiles operators when they are called, unless it is told not to, and does by default on inference chips: an
    operator that is compiled so cannot be captured, and makes float32 float16.  Fractals are off by default on a 910B.
    """
    npu.set_compile_mode(jit_compile=False)
    if not npu.is_jit_compile_false():
        raise DeviceError(
            "torch_npu goes on compiling operators when they are called, though set_compile_mode was told not to; install "
            "another one, or use --device host"
        )
    if law.fractals_are_off:
        npu.config.allow_internal_format = True


def _host_memory() -> tuple[int, int]:
    """Bytes of the host's memory: what may be had now, and all."""
    import psutil

    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)


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

    def update(self, lengths: Tensor) -> None:
        self._graph.update(cpu_update_input=[{"context_lens": lengths}])

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


def _refused_from_the_start(environment: Mapping[str, str]) -> str:
    """Why torch_npu will refuse every capture of this process; empty where nothing is known."""
    return next((f"{one.name} is in the way, {one.advice}" for one in graph_findings(environment)), "")


@contextmanager
def _modes_as_before() -> Iterator[None]:
    """[whl] torch_npu leaves its way to see operators behind where a capture does not end well."""
    from torch._C import _len_torch_dispatch_stack
    from torch.utils._python_dispatch import _pop_mode

    before = _len_torch_dispatch_stack()
    try:
        yield
    finally:
        while _len_torch_dispatch_stack() > before:
            _pop_mode()


def _loses_the_card(error: BaseException) -> bool:
    return means_lost(" ".join(map(str, _chain(error))))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """``error`` and what it was raised in the middle of."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _first_cause(error: BaseException) -> BaseException:
    return [*_chain(error)][-1]


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "it gave no reason")


def _lost(error: BaseException) -> DeviceLost:
    _never_free_pinned()
    return DeviceLost("ascend", with_remedy(_first_line(error), str(error)))


def _is_of_torch(error: BaseException) -> bool:
    """Whether torch_npu raised it: an error of its own, of a library that it cannot load, or of an operator that it lacks."""
    return not isinstance(error, AttributeError) or "_OpNamespace" in str(error)


@contextmanager
def _failures() -> Iterator[None]:
    """What torch_npu raises, as one of the tree's errors."""
    try:
        yield
    except (RuntimeError, OSError, AttributeError) as error:
        if not _is_of_torch(error):
            raise
        reason = _first_line(error)
        if "out of memory" in reason.lower():
            raise DeviceError(f"the card has no memory left: {reason}; use a smaller --ctx or --card-memory") from error
        raise _lost(error) from error
