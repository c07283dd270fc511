"""AWQ checkpoints in the version gemm: integers of 4 bits, eight output channels in a word, in an order of their own.

qweight int32 [K, N / 8]      qzeros int32 [G, N / 8]      scales float [G, N]

weight[n, k] = scales[g, n] * (qweight[k, n] - qzeros[g, n]),  g = k // group_size
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.model_folder import SourceFolder
from edge_llm.formats.packed_integers import dequantize, unpack
from edge_llm.sources.packing import FLOATS, Packing, in_words

_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""Where in a word of eight each channel lies."""


class Awq(Packing):
    name = "AWQ"

    def __init__(self, settings: Mapping[str, Any], weights: SourceFolder) -> None:
        super().__init__(settings, weights)
        version = settings.get("version") or settings.get("checkpoint_format") or "gemm"
        if not isinstance(version, str) or version.lower() != "gemm":
            raise UnsupportedModel(
                f"quantization_config: the AWQ weights are of the version `{shown(version)}`; gemm is read: import a "
                "checkpoint of that version, or the original model"
            )
        self.whole(settings, "bits" if "bits" in settings else "w_bit", 4, (4,), "4 bits are read")
        self._size = self.group_size(settings, "group_size" if "group_size" in settings else "q_group_size", 128)

    @property
    def quantization(self) -> str:
        return f"{self.name} 4-bit, {in_words([self._size])}"

    def matrix(self, name: str) -> str | None:
        return name.removesuffix(".qweight") if name.endswith(".qweight") else None

    def beside(self, module: str) -> tuple[str, ...]:
        return tuple(f"{module}.{part}" for part in ("qzeros", "scales"))

    def shape(self, module: str) -> tuple[int, int]:
        columns, words = self.two_dimensions(f"{module}.qweight", ("I32",))
        size = self._size or columns
        if columns % size:
            raise InvalidModel(
                f"`{shown(module)}` has `{columns}` input channels, which groups of {size}, as quantization_config says, do "
                "not divide"
            )
        self.tensor(f"{module}.qzeros", ("I32",), [(columns // size, words)])
        self.tensor(f"{module}.scales", FLOATS, [(columns // size, 8 * words)])
        return 8 * words, columns

    def read(self, module: str) -> np.ndarray:
        self.shape(module)
        codes, zeros = (_in_order(self.weights.read_integers(f"{module}.{part}")) for part in ("qweight", "qzeros"))
        scales = self.weights.read(f"{module}.scales")
        return self.checked(module, dequantize(codes.T, zeros.T, np.ascontiguousarray(scales.T)))


def _in_order(words: np.ndarray) -> np.ndarray:
    """The integers of ``words`` int32 [M, N / 8] as uint8 [M, N]."""
    packed = unpack(words, 4, 8 * words.shape[1])
    return np.take(packed.reshape(len(words), -1, 8), _PLACES, axis=2).reshape(len(words), -1)
