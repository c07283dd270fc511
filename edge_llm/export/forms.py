"""What the format can hold: matrices in INT8 with INT8 inputs, in 4 bits with float inputs, or in float.

    Integers   weight int8 [N, K], weight_scale [N, 1]       inputs in INT8: a scale per token, or one for all
    Packed     weight_packed int32 [N, K / 8], weight_scale [N, K / 32]      inputs in float
    Floats     weight float16 or float32 [N, K]              a module that quantization_config ignores

A weight's rows may be taken, put one under the other and scaled, which is what a family's modules need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

from edge_llm.formats.packed_integers import dequantize
from edge_llm.quant.scheme import MAX_FLOAT16, SMALLEST_SCALE

GROUP = 32
"""Columns that share a scale of 4 bits."""
_LIMIT = 127
_SEARCHED = np.linspace(5.5, 8.5, 13, dtype=np.float32)
"""Steps of a group's largest weight that are tried."""
_ROWS = 256
"""Rows that are searched at a time."""

Stored = tuple[str, np.ndarray]
"""A tensor of a file: its type as safetensors has it, and its values; of BF16 their bits as uint16."""


class Form(Protocol):
    """The weight of a module, as it is written."""

    @property
    def kind(self) -> str:
        """What such modules are called, such as W8A8."""
        ...

    @property
    def floats(self) -> np.ndarray:
        """What it stands for: float32 [N, K]."""
        ...

    def rows(self, numbers: np.ndarray, factor: float) -> Self:
        """The rows ``numbers``, divided by ``factor``."""
        ...

    def stacked(self, others: Sequence[Self]) -> Self:
        """It and ``others`` below."""
        ...

    def input(self, x: np.ndarray) -> np.ndarray:
        """What becomes of an input float32 [T, K] before it is multiplied."""
        ...

    def tensors(self) -> dict[str, Stored]:
        """The tensors of the module by their last names."""
        ...

    def scheme(self) -> dict[str, Any] | None:
        """Its group in quantization_config without targets; None for a module that is ignored."""
        ...


@dataclass(frozen=True)
class Integers:
    """W8A8: every row of the weight has a scale, and so has every token, unless there is one for all."""

    weight: np.ndarray
    """int8 [N, K]."""
    scale: np.ndarray
    """float32 [N]."""
    input_scale: float | None = None
    """None: a scale per token."""
    input_offset: int = 0
    """Steps that are added to a rounded input, with one scale for all."""

    @property
    def kind(self) -> str:
        how = "per token" if self.input_scale is None else "static, with an offset" if self.input_offset else "static"
        return f"W8A8 {how}"

    @property
    def floats(self) -> np.ndarray:
        return dequantize(self.weight, None, self.scale[:, None])

    def rows(self, numbers: np.ndarray, factor: float) -> Integers:
        scale = self.scale[numbers]
        return replace(self, weight=self.weight[numbers], scale=scale if factor == 1 else scale / np.float32(factor))

    def stacked(self, others: Sequence[Integers]) -> Integers:
        every = (self, *others)
        weight, scale = np.concatenate([one.weight for one in every]), np.concatenate([one.scale for one in every])
        return replace(self, weight=weight, scale=scale)

    def input(self, x: np.ndarray) -> np.ndarray:
        if self.input_scale is None:
            step = np.maximum(np.abs(x).max(axis=-1, keepdims=True) / np.float32(_LIMIT), np.float32(SMALLEST_SCALE))
            return np.asarray(np.rint(x / step) * step)
        step = np.float32(self.input_scale)
        steps = np.clip(np.rint(x / step) + self.input_offset, -_LIMIT - 1, _LIMIT) - np.float32(self.input_offset)
        return np.asarray(steps * step, np.float32)

    def tensors(self) -> dict[str, Stored]:
        found: dict[str, Stored] = {"weight": ("I8", self.weight), "weight_scale": ("F32", self.scale[:, None])}
        if self.input_scale is not None:
            found["input_scale"] = "F32", np.array([self.input_scale], np.float32)
        if self.input_offset:
            found["input_zero_point"] = "I8", np.array([self.input_offset], np.int8)
        return found

    def scheme(self) -> dict[str, Any]:
        is_static = self.input_scale is not None
        inputs = _arguments(8, "tensor" if is_static else "token", dynamic=not is_static, symmetric=not self.input_offset)
        return {"weights": _arguments(8, "channel"), "input_activations": inputs, "format": "int-quantized"}


@dataclass(frozen=True)
class Packed:
    """W4A16: groups of columns of a row share a scale, which bfloat16 can hold."""

    codes: np.ndarray
    """int8 [N, K] from -8 to 7."""
    scale: np.ndarray
    """float32 [N, K / 32]."""

    @property
    def kind(self) -> str:
        return f"W4A16, groups of {GROUP}"

    @property
    def floats(self) -> np.ndarray:
        return dequantize(self.codes, None, self.scale)

    def rows(self, numbers: np.ndarray, factor: float) -> Packed:
        if factor != 1:  # its scales would not be what bfloat16 holds
            return nearest_codes(self.floats[numbers] / np.float32(factor))
        return Packed(self.codes[numbers], self.scale[numbers])

    def stacked(self, others: Sequence[Packed]) -> Packed:
        every = (self, *others)
        return Packed(np.concatenate([one.codes for one in every]), np.concatenate([one.scale for one in every]))

    def input(self, x: np.ndarray) -> np.ndarray:
        return x

    def tensors(self) -> dict[str, Stored]:
        nibbles = (self.codes + 8).astype(np.uint8)
        octets = np.ascontiguousarray(nibbles[:, ::2] | nibbles[:, 1::2] << np.uint8(4))  # the first in the low half
        return {
            "weight_packed": ("I32", octets.view("<i4")),
            "weight_scale": ("BF16", (np.ascontiguousarray(self.scale, "<f4").view("<u4") >> np.uint32(16)).astype("<u2")),
            "weight_shape": ("I64", np.array(self.codes.shape, np.int64)),
        }

    def scheme(self) -> dict[str, Any]:
        weights = _arguments(4, "group") | {"group_size": GROUP}
        return {"weights": weights, "input_activations": None, "format": "pack-quantized"}


@dataclass(frozen=True)
class Floats:
    """A weight in float16, or in float32 where that does not hold it."""

    weight: np.ndarray
    """[N, K]."""

    @property
    def kind(self) -> str:
        return self.weight.dtype.name

    @property
    def floats(self) -> np.ndarray:
        return self.weight.astype(np.float32)

    def rows(self, numbers: np.ndarray, factor: float) -> Floats:
        taken = self.weight[numbers]
        return Floats(taken) if factor == 1 else narrowed(taken.astype(np.float32) / np.float32(factor))

    def stacked(self, others: Sequence[Floats]) -> Floats:
        return Floats(np.concatenate([one.weight for one in (self, *others)]))

    def input(self, x: np.ndarray) -> np.ndarray:
        return x

    def tensors(self) -> dict[str, Stored]:
        return {"weight": ("F16" if self.weight.dtype == np.float16 else "F32", self.weight)}

    def scheme(self) -> None:
        return None


def narrowed(weight: np.ndarray) -> Floats:
    """``weight`` float32 [N, K] in float16 where it fits."""
    return Floats(weight.astype(np.float16) if np.abs(weight).max(initial=0) <= MAX_FLOAT16 else weight)


def nearest_integers(weight: np.ndarray) -> Integers:
    """``weight`` float32 [N, K] rounded to INT8 with a scale per row and per token."""
    largest = np.abs(weight).max(axis=1, initial=0)
    scale = np.maximum(largest / np.float32(_LIMIT), np.float32(SMALLEST_SCALE))
    return Integers(np.rint(weight / scale[:, None]).astype(np.int8), scale)


def nearest_codes(weight: np.ndarray) -> Packed:
    """``weight`` float32 [N, K] in codes of 4 bits: of some scales for each group, the one of the least squared error."""
    codes, scale = np.empty(weight.shape, np.int8), np.empty((len(weight), weight.shape[1] // GROUP), np.float32)
    for first in range(0, len(weight), _ROWS):
        some = slice(first, first + _ROWS)
        codes[some], scale[some] = _searched(weight[some])
    return Packed(codes, scale)


def _searched(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`nearest_codes` of a few rows."""
    groups = weight.reshape(len(weight), -1, GROUP)
    largest = np.abs(groups).max(axis=-1)
    least = np.full(largest.shape, np.inf, np.float32)
    codes, scale = np.zeros(groups.shape, np.int8), np.zeros_like(largest)
    for steps in _SEARCHED:
        tried = _in_bfloat16(np.maximum(largest / steps, np.float32(SMALLEST_SCALE)))
        found = np.clip(np.rint(groups / tried[..., None]), -8, 7)
        error = np.square(found * tried[..., None] - groups).sum(axis=-1)
        better = error < least
        least, scale = np.where(better, error, least), np.where(better, tried, scale)
        codes[better] = found[better]
    return codes.reshape(weight.shape), scale


def _in_bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest float32 whose lower half is 0, half up."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)


def _arguments(bits: int, strategy: str, *, dynamic: bool = False, symmetric: bool = True) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy, "dynamic": dynamic}
