"""Checkpoints of gpt-oss: experts in MXFP4, 4-bit floats (E2M1) with a power of two for 32 of them.

weight_blocks uint8 [N, K / 32, 16]    two codes each, the lower half is the column before      weight_scales uint8 [N, K / 32]

what is multiplied is the code's value * 2^(scale - 127)
"""

from __future__ import annotations

import numpy as np

from edge_llm.sources.packing import Packing

_BLOCKS, _SCALES, _BYTES = "weight_blocks", "weight_scales", "U8"
_GROUP = 32
_HALVES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_VALUES = np.concatenate([_HALVES, -_HALVES])
_BIAS = 127


class Mxfp4(Packing):
    name = "MXFP4"

    @property
    def quantization(self) -> str:
        return f"{self.name}, groups of {_GROUP}"

    def matrix(self, name: str) -> str | None:
        return name.removesuffix(f".{_BLOCKS}") if name.endswith(f".{_BLOCKS}") else None

    def beside(self, module: str) -> tuple[str, ...]:
        return (f"{module}.{_SCALES}",)

    def shape(self, module: str) -> tuple[int, int]:
        rows, groups = self.two_dimensions(f"{module}.{_SCALES}", (_BYTES,))
        self.tensor(f"{module}.{_BLOCKS}", (_BYTES,), [(rows, groups, _GROUP // 2)])
        return rows, groups * _GROUP

    def read(self, module: str) -> np.ndarray:
        shape = self.shape(module)
        pairs = self.weights.read_integers(f"{module}.{_BLOCKS}")
        exponents = self.weights.read_integers(f"{module}.{_SCALES}").astype(np.int32) - _BIAS
        values = np.empty((*pairs.shape, 2), np.float32)
        values[..., 0], values[..., 1] = _VALUES[pairs & 15], _VALUES[pairs >> 4]
        return self.checked(module, np.ldexp(values.reshape(*exponents.shape, _GROUP), exponents[..., None]).reshape(shape))
