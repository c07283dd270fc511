"""Checkpoints of 8-bit floats (E4M3), with a scale for each block, row or matrix.

weight float8_e4m3fn [N, K]      weight_scale_inv or weight_scale float [N / 128, K / 128], [N, 1] or one number

what is multiplied is weight * scale, whichever name the scale has
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.float8 import e4m3_values
from edge_llm.formats.model_folder import SourceFolder
from edge_llm.formats.packed_integers import dequantize
from edge_llm.sources.packing import FLOATS, Packing

_SCALES = ("weight_scale_inv", "weight_scale")
CODES = "F8_E4M3"


class Fp8(Packing):
    name = "FP8"

    def __init__(self, settings: Mapping[str, Any], weights: SourceFolder) -> None:
        super().__init__(settings, weights)
        form = settings.get("fmt", "e4m3")
        if form not in ("e4m3", "float8_e4m3fn"):
            raise UnsupportedModel(f"quantization_config: `fmt` is `{shown(form)}`; of {self.name} e4m3 is read")
        self._block = block_of(settings.get("weight_block_size"), "weight_block_size")

    @property
    def quantization(self) -> str:
        return f"{self.name}, blocks of {self._block[0]} x {self._block[1]}" if self._block else self.name

    def matrix(self, name: str) -> str | None:
        return name.removesuffix(".weight") if name.endswith(".weight") and self.weights.dtype(name) == CODES else None

    def beside(self, module: str) -> tuple[str, ...]:
        return tuple(f"{module}.{part}" for part in (*_SCALES, "input_scale"))

    def shape(self, module: str) -> tuple[int, int]:
        shape = self.two_dimensions(f"{module}.weight", (CODES,))
        self.tensor(self._scale(module), FLOATS, scale_shapes(shape, self._block))
        return shape

    def read(self, module: str) -> np.ndarray:
        shape = self.shape(module)
        return self.checked(module, scaled(self, module, self.weights.read(self._scale(module)), shape, self._block))

    def _scale(self, module: str) -> str:
        return next((name for part in _SCALES if (name := f"{module}.{part}") in self.present), f"{module}.{_SCALES[0]}")


def block_of(value: object, key: str) -> tuple[int, int] | None:
    """Rows and columns of a block that has one scale."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(type(size) is int and 0 < size < 1 << 20 for size in value):
        raise InvalidModel(f"quantization_config: `{key}` must be two whole numbers, such as [128, 128], not `{shown(value)}`")
    return value[0], value[1]


def scale_shapes(shape: tuple[int, int], block: tuple[int, int] | None) -> list[tuple[int, ...]]:
    """The shapes that the scales of a matrix of ``shape`` can have."""
    rows, columns = shape
    if block is not None:
        return [(-(-rows // block[0]), -(-columns // block[1]))]
    return [(rows, 1), (rows,), (1,), (), (1, 1)]


def scaled(
    packing: Packing, module: str, scales: np.ndarray, shape: tuple[int, int], block: tuple[int, int] | None
) -> np.ndarray:
    """The floats of a module whose ``weight`` is E4M3, by its ``scales`` float32."""
    rows, columns = shape
    codes, groups = packing.weights.read_integers(f"{module}.weight"), None
    if block is None:
        scales = scales.reshape(-1, 1)
    else:
        scales, groups = np.repeat(scales, block[0], axis=0)[:rows], np.arange(columns) // block[1]
    return dequantize(codes, None, scales, groups, e4m3_values())
