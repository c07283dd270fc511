"""Kernels in Python for the operators of a card that is not there: they see its memory as CPU tensors.

For a process of `standins.Card.run`: `install` overrides operators of the real torch_npu.  While a graph is captured no
kernel runs; each is recorded, with its arguments and the memory of its results, and runs at every replay.  What is not
overridden raises, and so does what the operator's own Meta kernel refuses or has another result for.
"""

from __future__ import annotations

import ctypes
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch_npu
from torch.utils._pytree import tree_leaves, tree_map

from standins.lengths import check_lengths, on_host

Kernel = Callable[..., Any]

# what the card computes of torch itself; each name stands for all its forms that torch_npu implements
ATEN = (
    "mm", "addmm", "add", "add_", "mul", "mul_", "neg", "cat", "index_select", "gt", "abs", "sum", "max", "zero_", "fill_",
    "clone",
)  # fmt: skip
SOC = os.environ["STANDIN_SOC"]
SATURATES = "910B" not in SOC
ND_FORMATS = (0, 2)  # of memory that lies as torch thinks

calls: Counter[str] = Counter()  # kernels that ran, by operator; those of a replay are among the replayed ones only
captured_calls: Counter[str] = Counter()
replayed_calls: Counter[str] = Counter()
default_stream_calls: Counter[str] = Counter()  # of the calls, those on the stream that nothing waits for by itself

_runtime = ctypes.CDLL("libascendcl.so")
_runtime.standin_counter_name.restype = ctypes.c_char_p
_runtime.standin_counter.restype = ctypes.c_uint64
_runtime.standin_begin_kernel.restype = ctypes.c_uint64
_runtime.standin_begin_kernel.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
_runtime.standin_capture_kernel.argtypes = [ctypes.c_void_p, ctypes.c_uint64]

_recorded: list[Callable[[], None]] = []  # by number, what graphs replay
_to_fail: dict[str, tuple[int, Exception]] = {}  # operator -> how many calls until the one that fails, and how
_overrides: list[torch.library.Library] = []  # an override lasts as long as its library


# ---- counters and failures


def counters() -> dict[str, int]:
    """What the stand-ins have counted since the process began."""
    counted = {}
    while (name := _runtime.standin_counter_name(len(counted))) is not None:
        counted[name.decode()] = _runtime.standin_counter(len(counted))
    return counted


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """A dictionary that holds, after the block, what was counted in it and is not zero."""
    counted: dict[str, int] = {}
    before = counters()
    yield counted
    counted.update({name: value - before[name] for name, value in counters().items() if value != before[name]})


def fail_runtime(rules: str) -> None:
    """Functions of the runtime that fail from now on, as for `standins.Card.environment`; an empty string: none."""
    _runtime.standin_fail(rules.encode())


def fail_operator(name: str, call: int = 1, error: Exception | None = None) -> None:
    """The ``call``-th next call of the operator raises ``error``, or as if the card had failed."""
    _to_fail[name] = call, error or RuntimeError(f"OPS function error: {name}, error code is 507015")


def _fail_if_told(name: str) -> None:
    if name in _to_fail:
        left, error = _to_fail.pop(name)
        if left == 1:
            raise error
        _to_fail[name] = left - 1, error


# ---- overrides


def install(implementations: Mapping[str, Kernel], aten: tuple[str, ...] = ATEN) -> None:
    """Overrides the operators that ``implementations`` has CPU functions for, by names like ``npu::npu_swiglu``.

    A function is called as torch calls a kernel: with the operator's parameters, defaults left out, a dtype as its
    number.  It writes to the operands that the operator writes to.  ``aten`` are run by torch's own CPU kernels.
    """
    _runtime.standin_on_kernel(_replay)
    nnal = hasattr(torch.ops.atb, "_npu_paged_attention")
    for name, function in implementations.items():
        for operator in _forms(name) if nnal or not name.startswith("atb::") else ():
            _override(operator, _Kernel(operator, function))
    for operator in (form for name in aten for form in _forms(f"aten::{name}")):
        _override(operator, _Kernel(operator, operator))
    cast = torch.ops.npu.npu_dtype_cast.default
    _override(cast, _Kernel(cast, lambda tensor, dtype, *_: tensor.to(dtype)))
    for operator, function in _PLACED.items():
        _override(operator, function)
    copy = torch.ops.aten.copy_.default
    _override(copy, _Copy(copy, torch.library.get_kernel(copy, "PrivateUse1")), with_keyset=True)


def _forms(name: str) -> list[torch._ops.OpOverload]:
    """The forms of an operator that the card has kernels for."""
    namespace, _, base = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base)
    forms = [getattr(packet, form) for form in packet.overloads()]
    of_tensors = [form for form in forms if any("Tensor" in str(parameter.type) for parameter in form._schema.arguments)]
    return [form for form in of_tensors if _has_kernel(form, "PrivateUse1")]


def _has_kernel(operator: torch._ops.OpOverload, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key)


def _override(operator: torch._ops.OpOverload, function: Kernel, **options: Any) -> None:
    library = torch.library.Library(operator.namespace, "IMPL")
    library.impl(operator.name(), function, "PrivateUse1", allow_override=True, **options)
    _overrides.append(library)


class _Kernel:
    """A CPU function in an operator's place."""

    def __init__(self, operator: torch._ops.OpOverload, function: Kernel) -> None:
        schema = operator._schema
        self.operator = operator
        self.function = function
        self.name = schema.name
        self.parameters = [parameter.name for parameter in schema.arguments]
        written = [parameter.name for parameter in schema.arguments if _is_written(parameter)]
        self.written = [name for name in written if "cache" not in name]  # what is in those comes out of other kernels
        self.returned = written if any(_is_written(value) for value in schema.returns) else []
        self.makes_results = bool(schema.returns) and not self.returned
        self.has_meta = operator.namespace != "aten" and self.makes_results and _has_kernel(operator, "Meta")
        self.by_meta: dict[str, list[Any]] = {}

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        operands = dict(zip(self.parameters, arguments, strict=False)) | named
        _fail_if_told(self.name)
        check_lengths(SOC, self.name, operands)
        self._check_devices(operands)
        stream = torch.npu.current_stream().npu_stream
        default_stream_calls[self.name] += stream == torch.npu.default_stream().npu_stream
        error = ctypes.c_int()
        if _runtime.standin_begin_kernel(stream, error):
            results = self._record(stream, arguments, named)
        elif error.value:
            raise RuntimeError(f"the work before {self.name} failed, error code is {error.value}")
        else:
            results = self._run(arguments, named)
        returned = [operands[name] for name in self.returned] or results
        return returned[0] if len(returned) == 1 else tuple(returned) or None

    def _run(self, arguments: Any, named: Any) -> list[torch.Tensor]:
        calls[self.name] += 1
        results = self._results(*tree_map(_memory, (arguments, named)))
        self._check_by_meta(arguments, named, results)
        return [_on_card(result) for result in results]

    def _record(self, stream: int, arguments: Any, named: Any) -> list[torch.Tensor]:
        """The kernel as part of a graph; its results have no values before a replay."""
        captured_calls[self.name] += 1
        made: list[torch.Tensor] = []
        if self.makes_results:  # their shapes, found without a look at values, which a capture does not have either
            made = self._results(*tree_map(_zeros, (arguments, named)))
            self._check_by_meta(arguments, named, made)
        results = [_on_card(result.fill_(_no_value(result.dtype))) for result in made]
        seen, seen_named = tree_map(_memory_at_capture, (arguments, named))
        places = [_memory(result) for result in results]

        def replay() -> None:
            replayed_calls[self.name] += 1
            for place, result in zip(places, self._results(seen, seen_named), strict=True):
                place.copy_(result)

        _recorded.append(replay)
        _runtime.standin_capture_kernel(stream, len(_recorded) - 1)
        return results

    def _results(self, arguments: Any, named: Any) -> list[torch.Tensor]:
        value = self.function(*arguments, **named)
        results = [] if not self.makes_results else list(value) if isinstance(value, tuple | list) else [value]
        if SATURATES:
            operands = dict(zip(self.parameters, arguments, strict=False)) | named
            for tensor in (*results, *(operands[name] for name in self.written if name in operands)):
                _saturate(tensor)
        return results

    def _check_devices(self, operands: Mapping[str, Any]) -> None:
        for name, operand in operands.items():
            for tensor in tree_leaves(operand):
                elsewhere = isinstance(tensor, torch.Tensor) and tensor.device.type != "npu"
                # a number is a tensor without dimensions, on the host, for aten
                if elsewhere and tensor.dim() and name not in on_host(SOC, self.name):
                    raise RuntimeError(f"{self.name}: expected all tensors to be on the card, but {name} is on {tensor.device}")

    def _check_by_meta(self, arguments: Any, named: Any, results: list[torch.Tensor]) -> None:
        """What torch_npu itself says of the shapes and dtypes; it raises where it refuses the operands."""
        if not self.has_meta:
            return
        like = tree_map(_meta, (arguments, named))
        key = repr(tree_map(lambda leaf: (_kind(leaf), leaf.stride()) if isinstance(leaf, torch.Tensor) else leaf, like))
        if key not in self.by_meta:
            value = self.operator(*like[0], **like[1])
            self.by_meta[key] = [_kind(result) for result in (value if isinstance(value, tuple | list) else [value])]
        found = [_kind(result) for result in results]
        if found != self.by_meta[key]:
            raise AssertionError(f"{self.name} gives {found} here, but torch_npu {self.by_meta[key]}")


def _saturate(tensor: torch.Tensor) -> None:
    """As a chip without Inf and NaN: the largest number, and 0."""
    if tensor.dtype.is_floating_point:
        tensor.nan_to_num_(nan=0)


def _is_written(value: Any) -> bool:
    return value.alias_info is not None and value.alias_info.is_write


def _kind(tensor: torch.Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.dtype


def _on_tensors(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    return lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf


@_on_tensors
def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


@_on_tensors
def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


@_on_tensors
def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that a tensor of the card names, as a tensor of the CPU."""
    if tensor.device.type != "npu":
        return tensor
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    place = (ctypes.c_char * (extent * tensor.itemsize)).from_address(tensor.data_ptr())
    return torch.frombuffer(place, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())


@_on_tensors
def _memory_at_capture(tensor: torch.Tensor) -> torch.Tensor:
    """As `_memory`; what the host holds is part of the graph, as it is now."""
    return _memory(tensor) if tensor.device.type == "npu" else tensor.clone()


def _on_card(result: torch.Tensor) -> torch.Tensor:
    place = torch.empty_strided(result.shape, result.contiguous().stride(), dtype=result.dtype, device="npu")
    _memory(place).copy_(result)
    return place


def _no_value(dtype: torch.dtype) -> float | int | bool:
    return float("nan") if dtype.is_floating_point else dtype != torch.bool and -1


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)
def _replay(number: int) -> int:
    try:
        with torch.inference_mode():  # which the tensors of the capture may be of
            _recorded[number]()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


# ---- operators that are about where tensors lie, not about what is in them


class _Copy(_Kernel):
    """Copies on the card are a kernel; those to and from it are torch_npu's own, of memory without gaps, as on the card."""

    def __init__(self, operator: torch._ops.OpOverload, original: Any) -> None:
        super().__init__(operator, lambda to, source, non_blocking=False: to.copy_(source))
        self.original = original

    def __call__(self, keys: Any, to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if to.device == source.device:
            super().__call__(to, source)
        elif to.device.type == "npu" and _lies_plainly(to) and (to.shape, to.dtype) == (source.shape, source.dtype):
            self.original.call_boxed(keys, to, source.contiguous(), non_blocking)
        elif to.device.type == "npu":
            staged = torch.empty(to.shape, dtype=to.dtype, device=to.device)
            self(keys, staged, source.to(to.dtype).expand(to.shape), non_blocking)
            super().__call__(to, staged)
        elif _lies_plainly(source) and to.is_contiguous() and (to.shape, to.dtype) == (source.shape, source.dtype):
            self.original.call_boxed(keys, to, source, non_blocking)
        else:
            plain = torch.empty(source.shape, dtype=source.dtype, device=source.device)
            super().__call__(plain, source)
            arrived = torch.empty(source.shape, dtype=source.dtype)
            self(keys, arrived, plain, False)
            to.copy_(arrived)
        return to


def _lies_plainly(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and torch_npu.get_npu_format(tensor) in ND_FORMATS


def _format_cast(tensor: torch.Tensor, acl_format: int, **_: Any) -> torch.Tensor:
    """Another format is another name here: the values lie as before, in as much memory as the format takes."""
    cast = torch_npu.empty_with_format(tensor.shape, dtype=tensor.dtype, device=tensor.device, acl_format=acl_format)
    return cast.copy_(tensor)


def _contiguous(tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    return tensor if tensor.is_contiguous() else tensor.clone()


def _zeros_on_card(size: Any, **options: Any) -> torch.Tensor:
    return torch.empty(size, **options).zero_()


def _ones_on_card(size: Any, **options: Any) -> torch.Tensor:
    return torch.empty(size, **options).fill_(1)


def _full_on_card(size: Any, value: Any, **options: Any) -> torch.Tensor:
    dtype = options.pop("dtype", None) or torch.tensor(value).dtype
    return torch.empty(size, dtype=dtype, **options).fill_(value)


_PLACED: dict[torch._ops.OpOverload, Kernel] = {
    torch.ops.npu.npu_format_cast.default: _format_cast,
    torch.ops.aten.contiguous.default: _contiguous,
    torch.ops.aten.zeros.default: _zeros_on_card,
    torch.ops.aten.ones.default: _ones_on_card,
    torch.ops.aten.full.default: _full_on_card,
}
