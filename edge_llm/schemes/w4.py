"""Scheme ``w4``: the weight of scheme ``int8`` kept as 4-bit codes, with the same activations, outliers and sums.

    w8[n, k] = m * (CODEBOOK[code[n, k]] - z), one m and z for 32 columns of a row; y as in `edge_llm.schemes.int8`

So its products have the bits of the INT8 weight that it stands for, wherever they are computed (`kernels.reference.w4`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edge_llm.config import W4
from edge_llm.kernels.linear import Int8Linear
from edge_llm.kernels.types import TILE_CHANNELS
from edge_llm.kernels.w4 import GROUP, panel_bytes, steps_fit
from edge_llm.operations.linear import Linear
from edge_llm.quant.shadow import product_cost
from edge_llm.quant.w4 import round_weight
from edge_llm.schemes.base import (
    Facts,
    TensorSpec,
    beside_integers,
    check_beside_integers,
    fields_beside,
    integer_facts,
    integer_facts_of,
)
from edge_llm.schemes.int8_weight import CODES, CodedProduct

NAME = W4
facts, facts_of = integer_facts, integer_facts_of
_ALLOWED = bytes(byte for byte in range(256) if steps_fit(np.array(byte & 15), np.array(byte >> 4)))
"""A multiplier and a shift in a byte: those that are allowed."""


@dataclass(frozen=True)
class W4Weight(CodedProduct):
    """A weight that is kept in codes."""

    codes: np.ndarray
    """uint8 [ceil(N/16), bytes of a panel]."""

    @property
    def integers(self) -> Mapping[str, np.ndarray]:
        return {CODES: self.codes}

    @cached_property
    def native(self) -> Int8Linear:
        return Int8Linear.of_codes(self.codes, self.rows, self.columns, self.linear_scale, *self.beside, turn=self.turn)

    @property
    def parts_in_order(self) -> Sequence[tuple[np.ndarray, int]]:
        return [(self.codes, self.rows)]


def tensors(linear: Linear, hot: int) -> list[TensorSpec]:
    panels = -(-linear.rows // TILE_CHANNELS)
    return [(CODES, "uint8", (panels, panel_bytes(linear.columns))), *beside_integers(linear, hot)]


def convert(weight: np.ndarray, hot: np.ndarray, name: str) -> dict[str, np.ndarray]:
    return round_weight(weight, hot, name).arrays()


def check(linear: Linear, name: str, array: np.ndarray) -> None:
    check_beside_integers(linear, name, array)
    if name == CODES:
        steps = array[:, : TILE_CHANNELS * -(-linear.columns // GROUP)]
        if steps.tobytes().translate(None, _ALLOWED):  # a fast way to look bytes up: what is not deleted is not allowed
            raise ValueError("holds a multiplier and a shift whose weights or sums are too large")


def open(linear: Linear, arrays: Mapping[str, np.ndarray], facts: Facts) -> W4Weight:
    return W4Weight(arrays[CODES], **fields_beside(linear, arrays, facts))


def cost(linear: Linear) -> float:
    return product_cost(linear.rows, linear.columns)
