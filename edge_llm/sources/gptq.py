"""GPTQ checkpoints: integers of 2, 3, 4 or 8 bits, packed along the input channels.

    qweight int32 [K * bits / 32, N]      qzeros int32 [G, N * bits / 32]      scales float [G, N]      g_idx int32 [K]

    weight[n, k] = scales[g, n] * (qweight[k, n] - zero[g, n]),  g = g_idx[k], or k // group_size where there is none

A zero point is stored less one, modulo 2^bits; in the form ``gptq_v2`` as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.model_folder import SourceFolder
from edge_llm.formats.packed_integers import dequantize, unpack, words_of
from edge_llm.sources.packing import FLOATS, MOST_SETTINGS, Packing, in_words

_BITS = (2, 3, 4, 8)
_FORMS = {"gptq": 1, "gptq_v2": 0}
"""What is added to a stored zero point."""


class Gptq(Packing):
    name = "GPTQ"

    def __init__(self, settings: Mapping[str, Any], weights: SourceFolder) -> None:
        super().__init__(settings, weights)
        form = "marlin" if settings.get("is_marlin_format") else settings.get("checkpoint_format") or settings.get("format")
        form = form or "gptq"
        if not isinstance(form, str) or form not in _FORMS:
            raise UnsupportedModel(
                f"quantization_config: the GPTQ weights are in the form `{shown(form)}`; {' and '.join(_FORMS)} are read: "
                "import the checkpoint in one of these, or the original model"
            )
        self._zero = _FORMS[form]
        self._bits = self._all("bits", lambda one: self.whole(one, "bits", None, _BITS, "2, 3, 4 and 8 bits are read"))
        self._sizes = self._all("group_size", lambda one: self.group_size(one, "group_size", 128))

    @property
    def quantization(self) -> str:
        *others, last = map(str, sorted(self._bits))
        bits = f"{'-, '.join(others)}- and {last}-bit" if others else f"{last}-bit"
        return f"{self.name} {bits}, {in_words(self._sizes)}"

    def matrix(self, name: str) -> str | None:
        return name.removesuffix(".qweight") if name.endswith(".qweight") else None

    def beside(self, module: str) -> tuple[str, ...]:
        return tuple(f"{module}.{part}" for part in ("qzeros", "scales", "g_idx"))

    def shape(self, module: str) -> tuple[int, int]:
        rows, columns, _, _ = self._layout(module)
        return rows, columns

    def read(self, module: str) -> np.ndarray:
        rows, columns, bits, count = self._layout(module)
        index = f"{module}.g_idx"
        groups = self.groups(index, count) if index in self.present else None
        size = self._size(columns, count) or columns
        if groups is None and index not in self.present and size * count != columns:  # the last group is a short one
            groups = np.arange(columns) // size
        codes = unpack(self.weights.read_integers(f"{module}.qweight").T, bits, columns)
        stored = unpack(self.weights.read_integers(f"{module}.qzeros"), bits, rows)
        zeros = (stored + np.uint8(self._zero)) & np.uint8((1 << bits) - 1)
        scales = self.weights.read(f"{module}.scales")
        return self.checked(module, dequantize(codes, zeros.T, np.ascontiguousarray(scales.T), groups))

    def _layout(self, module: str) -> tuple[int, int, int, int]:
        """Rows, columns, bits and groups of a module."""
        words, rows = self.two_dimensions(f"{module}.qweight", ("I32",))
        index = f"{module}.g_idx"
        if index in self.present or self.settings.get("desc_act"):  # in act-order nothing else tells the groups
            shape = self.tensor(index, ("I32", "I64"))
            columns = shape[0] if len(shape) == 1 else 0
        else:
            columns = words * 32 // self._bits[0]
        bits = next((one for one in self._bits if columns and words_of(columns, one) == words), None)
        if bits is None:
            said = " or ".join(map(str, self._bits))
            raise InvalidModel(
                f"tensor `{shown(module)}.qweight` has the shape `{[words, rows]}`, which is not {said} bits for "
                f"{columns} input channels, as quantization_config says"
            )
        count = self.two_dimensions(f"{module}.scales", FLOATS)[0]
        self.tensor(f"{module}.scales", FLOATS, [(count, rows)])
        self.tensor(f"{module}.qzeros", ("I32",), [(count, words_of(rows, bits))])
        if self._size(columns, count) < 0:
            raise InvalidModel(
                f"tensor `{shown(module)}.scales` has `{count}` groups for {columns} input channels; quantization_config says "
                f"{in_words(self._sizes)}"
            )
        return rows, columns, bits, count

    def _size(self, columns: int, count: int) -> int:
        """The size of the groups, -1 for none that is told."""
        return next((size for size in self._sizes if -(-columns // (size or columns)) == count), -1)

    def _all(self, key: str, of: Any) -> tuple[int, ...]:
        """What is told of ``key`` for all modules, and then for some."""
        return tuple(dict.fromkeys(of(one) for one in (self.settings, *(one for one in self._some() if key in one))))

    def _some(self) -> Iterator[Mapping[str, Any]]:
        """What is told for some modules only; which ones their tensors tell."""
        dynamic = self.settings.get("dynamic") or {}
        if not isinstance(dynamic, dict) or len(dynamic) > MOST_SETTINGS:
            raise InvalidModel(
                f"quantization_config: `dynamic` must be an object of at most {MOST_SETTINGS} patterns, not `{shown(dynamic)}`"
            )
        yield from (one for one in dynamic.values() if isinstance(one, dict))
