"""Checkpoints of compressed-tensors, which llm-compressor writes: integers packed in words, INT8 or 8-bit floats.

    weight_packed int32 [N, K * bits / 32], weight_shape [2]      pack-quantized
    weight int8 or float8_e4m3fn [N, K]                           int-quantized, float-quantized, naive-quantized

    weight_scale float of a matrix, [N, 1], [N, G] or blocks      weight_zero_point, weight_g_idx where there are some

    what is multiplied is scale * (weight - zero point)

Which tensors a module has says how it is packed; config_groups says with how many bits, and how inputs are rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.model_folder import SourceFolder
from edge_llm.formats.packed_integers import dequantize, unpack, words_of
from edge_llm.sources.fp8 import CODES, block_of, scale_shapes, scaled
from edge_llm.sources.packing import FLOATS, MOST_SETTINGS, Packing, in_words

_FORMATS = {
    "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense", "fakequant",
}  # fmt: skip
_BESIDE = (
    "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape", "weight_global_scale",
    "input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point",
)  # fmt: skip
_PACKED, _PLAIN = ".weight_packed", ".weight"
_BITS = range(2, 9)
_FEW = 3
"""Kinds of groups that a line names."""


@dataclass(frozen=True)
class Group:
    """How a group of modules is quantized, as config_groups says."""

    is_float: bool
    bits: int
    size: int
    """Columns that share a scale; 0: a row, or all."""
    block: tuple[int, int] | None
    symmetric: bool
    input_bits: int
    """Of the rounded inputs; 16 where they stay in float."""
    input_is_float: bool

    def __str__(self) -> str:
        grouped = f", {in_words([self.size])}" if self.size else ""
        blocks = f", blocks of {self.block[0]} x {self.block[1]}" if self.block else ""
        return f"{'FP8' if self.is_float else f'W{self.bits}A{self.input_bits}'}{grouped}{blocks}"

    @property
    def is_w8a8(self) -> bool:
        """Whether weights and inputs are both rounded to INT8, without zero points of the weights."""
        return not self.is_float and self.bits == 8 and self.symmetric and self.input_bits == 8 and not self.input_is_float


class CompressedTensors(Packing):
    name = "compressed-tensors"

    def __init__(self, settings: Mapping[str, Any], weights: SourceFolder) -> None:
        super().__init__(settings, weights)
        self._check_formats()
        self.config_groups = [self._group(one) for one in self._schemes() if one.get("weights") is not None]
        self._block = next((group.block for group in self.config_groups if group.block), None)

    @property
    def quantization(self) -> str:
        kinds = list(dict.fromkeys(map(str, self.config_groups)))
        return f"{self.name} {' and '.join(kinds) if len(kinds) <= _FEW else f'of {len(kinds)} kinds'}"

    def matrix(self, name: str) -> str | None:
        if name.endswith(_PACKED):
            return name.removesuffix(_PACKED)
        return name.removesuffix(_PLAIN) if name.endswith(_PLAIN) and self.weights.dtype(name) in ("I8", CODES) else None

    def beside(self, module: str) -> tuple[str, ...]:
        return tuple(f"{module}.{part}" for part in _BESIDE)

    def shape(self, module: str) -> tuple[int, int]:
        if f"{module}{_PACKED}" in self.present:
            return self._packed(module)[0]
        shape = self.two_dimensions(f"{module}{_PLAIN}", ("I8", CODES))
        if self.weights.dtype(f"{module}{_PLAIN}") == CODES:
            self._check_float(module, shape)
        else:
            self._check_scales(module, shape, 8)
        return shape

    def read(self, module: str) -> np.ndarray:
        shape = self.shape(module)
        if f"{module}{_PACKED}" not in self.present and self.weights.dtype(f"{module}{_PLAIN}") == CODES:
            return self.checked(module, scaled(self, module, self._scales(module), shape, self._block_in(module, shape)))
        codes, bits = self.integers(module)
        scales = self._scales(module).reshape(-1, 1) if self._is_short(module) else self._scales(module)
        zeros, index = self._zeros(module, shape[0], bits), f"{module}.weight_g_idx"
        groups = self.groups(index, scales.shape[1]) if index in self.present else None
        return self.checked(module, dequantize(codes, zeros, scales, groups))

    def integers(self, module: str) -> tuple[np.ndarray, int]:
        """The integers int8 [N, K] of a module and how many bits they have."""
        if f"{module}{_PACKED}" not in self.present:
            return self.weights.read_integers(f"{module}{_PLAIN}"), 8
        (_, columns), bits = self._packed(module)
        return _signed(unpack(self.weights.read_integers(f"{module}{_PACKED}"), bits, columns), bits), bits

    def row_scales(self, module: str) -> np.ndarray | None:
        """float32 [N] for a module of INT8 with one scale for each row or all, and no zero points; None for any other."""
        weight = f"{module}{_PLAIN}"
        if weight not in self.present or self.weights.dtype(weight) != "I8":
            return None
        rows, scales = self.weights.shape(weight)[0], self._scales(module).reshape(-1)
        if len(scales) not in (1, rows) or not (scales >= 0).all() or self._zeros(module, rows, 8) is not None:
            return None
        return np.ascontiguousarray(np.broadcast_to(scales, rows))

    def input_scale(self, module: str) -> float | None:
        """The one scale of the module's input; None where there is none, or rows have zero points or scales of their own."""
        name, offset = f"{module}.input_scale", f"{module}.input_zero_point"
        if name not in self.present:
            return None
        self.tensor(name, FLOATS, [(), (1,)])
        if offset in self.present:
            self.tensor(offset, ("I8", "I32", "I64"), [(), (1,)])
            if self.weights.read_integers(offset).any():
                return None
        scale = float(self.weights.read(name).reshape(()))
        return scale if 1e-30 <= scale <= 1e30 else None

    def _packed(self, module: str) -> tuple[tuple[int, int], int]:
        """Rows and columns of a packed module, and its bits."""
        self.tensor(f"{module}.weight_shape", ("I32", "I64"), [(2,)])
        rows, columns = (int(size) for size in self.weights.read_integers(f"{module}.weight_shape"))
        found = self.two_dimensions(f"{module}{_PACKED}", ("I32",))
        told = dict.fromkeys(group.bits for group in self.config_groups if not group.is_float)
        bits = next((one for one in told if found == (rows, words_of(columns, one)) and columns > 0), None)
        if bits is None:
            said = " or ".join(map(str, told))
            raise InvalidModel(
                f"tensor `{shown(module)}{_PACKED}` has the shape `{list(found)}`, which is not {said} bits for the "
                f"weight_shape {[rows, columns]}, as quantization_config says"
            )
        self._check_scales(module, (rows, columns), bits)
        return (rows, columns), bits

    def _check_scales(self, module: str, shape: tuple[int, int], bits: int) -> None:
        rows, columns = shape
        sizes = [group.size for group in self.config_groups if group.size and columns % group.size == 0]
        shapes = [(rows, columns // size) for size in sizes] + scale_shapes(shape, None)
        scales = self.tensor(f"{module}.weight_scale", FLOATS, list(dict.fromkeys(shapes)))
        grouped = (rows, scales[1]) if len(scales) == 2 else scales
        if (zeros := f"{module}.weight_zero_point") in self.present:
            packed = [(words_of(rows, bits), scales[1])] if len(scales) == 2 else []
            self.tensor(zeros, ("I8", "I32"), [grouped, *packed])
        if (index := f"{module}.weight_g_idx") in self.present:
            self.tensor(index, ("I32", "I64"), [(columns,)])

    def _check_float(self, module: str, shape: tuple[int, int]) -> None:
        shapes = scale_shapes(shape, None) + (scale_shapes(shape, self._block) if self._block else [])
        self.tensor(f"{module}.weight_scale", FLOATS, shapes)
        zeros = f"{module}.weight_zero_point"
        if zeros not in self.present:
            return
        read = self.weights.read_integers if self.weights.dtype(zeros) == CODES else self.weights.read
        if read(zeros).any():
            raise UnsupportedModel(f"`{shown(zeros)}` is not zero; FP8 is read where it is symmetric")

    def _block_in(self, module: str, shape: tuple[int, int]) -> tuple[int, int] | None:
        scales = tuple(self.weights.shape(f"{module}.weight_scale"))
        return None if scales in scale_shapes(shape, None) else self._block

    def _is_short(self, module: str) -> bool:
        """Whether the scales of a module are a vector or one number."""
        return len(self.weights.shape(f"{module}.weight_scale")) < 2

    def _scales(self, module: str) -> np.ndarray:
        return self.weights.read(f"{module}.weight_scale")

    def _zeros(self, module: str, rows: int, bits: int) -> np.ndarray | None:
        """Zero points [N or 1, G]; None where there are none but zeros."""
        name = f"{module}.weight_zero_point"
        if name not in self.present:
            return None
        found = self.weights.read_integers(name)
        if f"{module}{_PACKED}" in self.present and found.ndim == 2 and len(found) == words_of(rows, bits) != rows:
            found = _signed(unpack(found.T, bits, rows).T, bits)
        found = found.reshape(-1, 1) if found.ndim < 2 else found
        if found.min() < -128 or found.max() > 127:
            raise InvalidModel(f"`{shown(name)}` holds a zero point beyond 8 bits; download the model again")
        return found if found.any() else None

    def _schemes(self) -> list[Mapping[str, Any]]:
        groups = self.settings.get("config_groups")
        if not isinstance(groups, dict) or not groups or not all(isinstance(one, dict) for one in groups.values()):
            raise InvalidModel("quantization_config: `config_groups` must be an object of objects, one for each group")
        if len(groups) > MOST_SETTINGS:
            raise InvalidModel(f"quantization_config: `{len(groups)}` config_groups; at most {MOST_SETTINGS} are read")
        return list(groups.values())

    def _group(self, scheme: Mapping[str, Any]) -> Group:
        weights, inputs = scheme["weights"], scheme.get("input_activations")
        if not isinstance(weights, dict) or not (inputs is None or isinstance(inputs, dict)):
            raise InvalidModel("quantization_config: `weights` and `input_activations` of a group must be objects")
        is_float = weights.get("type", "int") == "float"
        if is_float:
            bits = self.whole(weights, "num_bits", 8, (8,), "floats of 8 bits are read: import the original model")
        else:
            bits = self.whole(weights, "num_bits", 8, _BITS, "integers of 2 to 8 bits are read")
        size = weights.get("group_size")
        return Group(
            is_float=is_float,
            bits=bits,
            size=0 if size is None else self.group_size(weights, "group_size", -1),
            block=block_of(weights.get("block_structure"), "block_structure") if weights.get("strategy") == "block" else None,
            symmetric=weights.get("symmetric", True) is True,
            input_bits=self.whole(inputs or {"num_bits": 16}, "num_bits", 8, range(2, 17), "inputs of 2 to 16 bits are read"),
            input_is_float=inputs is not None and inputs.get("type", "int") == "float",
        )

    def _check_formats(self) -> None:
        schemes = self._schemes()
        for form in (self.settings.get("format"), *(one.get("format") for one in schemes)):
            if form is not None and (not isinstance(form, str) or form not in _FORMATS):
                raise UnsupportedModel(
                    f"quantization_config: the weights are in the format `{shown(form)}` of compressed-tensors; "
                    "pack-quantized, int-quantized and float-quantized are read: import the original model"
                )
        sparsity = self.settings.get("sparsity_config")
        form = sparsity.get("format", "dense") if isinstance(sparsity, dict) else "dense"
        if form != "dense":
            raise UnsupportedModel(
                f"quantization_config: the weights are sparse, in the format `{shown(form)}`, which is not read: import the "
                "original model"
            )
        if transforms := self.settings.get("transform_config"):
            named = transforms.get("config_groups") if isinstance(transforms, dict) else transforms
            if named:
                raise UnsupportedModel(
                    "quantization_config: `transform_config` turns activations on the way, which is not done here: import the "
                    "original model"
                )


def _signed(codes: np.ndarray, bits: int) -> np.ndarray:
    """``codes`` uint8 less half their range, as int8."""
    return (codes - np.uint8(1 << (bits - 1))).view(np.int8)
