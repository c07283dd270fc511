"""Schemes such as ``w4,w4,int8``: each source of a linear, such as queries, keys and values, is kept in 4 bits or in 8.

Sources that follow each other with one scheme are a part, whose integers have a tensor of their own.  Activations, outliers
and the vectors beside the integers are those of the whole linear.  So its products have the bits of the INT8 weight that it
stands for, as those of `edge_llm.schemes.w4` have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from edge_llm.config import W4
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.linear import Int8Linear
from edge_llm.operations.linear import Linear, SourceRows
from edge_llm.quant.shadow import product_cost
from edge_llm.schemes.base import (
    Facts,
    Scheme,
    TensorSpec,
    beside_integers,
    check_beside_integers,
    fields_beside,
    integer_facts,
    integer_facts_of,
)
from edge_llm.schemes.int8_weight import CODES, CodedProduct, holds_integers
from edge_llm.schemes.joint import Part


@dataclass(frozen=True)
class PartsWeight(CodedProduct):
    """A weight of which some parts are kept as tiles and others in codes."""

    parts: Mapping[str, np.ndarray]
    """Tiles int8 [P, ceil(K/4), 16, 4] or codes uint8 [P, bytes of a panel] of every part, by their names in a bundle."""
    channels: tuple[int, ...]
    """Output channels of every part."""

    @property
    def integers(self) -> Mapping[str, np.ndarray]:
        return self.parts

    @property
    def parts_in_order(self) -> Sequence[tuple[np.ndarray, int]]:
        return list(zip(self.parts.values(), self.channels, strict=True))

    @cached_property
    def native(self) -> Int8Linear:
        integers = tuple(self.parts.values())
        return Int8Linear.of_parts(integers, self.channels, self.columns, self.linear_scale, *self.beside, turn=self.turn)

    def apply(self, x: np.ndarray, pool: ThreadPool, *, out: np.ndarray | None = None, **how: Any) -> np.ndarray:
        shared = out is not None and np.may_share_memory(x, out)  # every part reads x
        return super().apply(x.copy() if shared else x, pool, out=out, **how)


@dataclass(frozen=True)
class Parts:
    """The scheme ``NAME`` of a linear with these ``parts``, each in one of ``schemes``, by their names."""

    NAME: str
    parts: Sequence[Part]
    schemes: Mapping[str, Scheme]

    def tensors(self, linear: Linear, hot: int) -> list[TensorSpec]:
        integers = []
        for number, part in enumerate(self.parts):
            alone = replace(linear, sources=(SourceRows("", part.channels),), scheme=part.scheme)
            (name, dtype, shape), *_ = self.schemes[part.scheme].tensors(alone, hot)
            integers.append((_numbered(name, number), dtype, shape))
        return [*integers, *beside_integers(linear, hot)]

    facts = staticmethod(integer_facts)
    facts_of = staticmethod(integer_facts_of)

    def convert(self, weight: np.ndarray, hot: np.ndarray, name: str) -> dict[str, np.ndarray]:
        return joined([self.schemes[part.scheme].convert(weight[part.rows], hot, name) for part in self.parts])

    def open(self, linear: Linear, arrays: Mapping[str, np.ndarray], facts: Facts) -> PartsWeight:
        names = [name for name, _, _ in self.tensors(linear, 0)[: len(self.parts)]]
        channels = tuple(part.channels for part in self.parts)
        return PartsWeight({name: arrays[name] for name in names}, channels, **fields_beside(linear, arrays, facts))

    def check(self, linear: Linear, name: str, array: np.ndarray) -> None:
        check_beside_integers(linear, name, array)
        if name.startswith(CODES):
            self.schemes[W4].check(linear, CODES, array)

    @staticmethod
    def cost(linear: Linear) -> float:
        return product_cost(linear.rows, linear.columns)


def joined(made: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The arrays of a linear out of those that were ``made`` of each of its parts."""
    if len(made) == 1:
        return dict(made[0])
    integers = {_numbered(name, number): one[name] for number, one in enumerate(made) for name in one if holds_integers(name)}
    return integers | {
        "scale": np.concatenate([one["scale"] for one in made]),
        "row_sum": np.concatenate([one["row_sum"] for one in made]),
        "hot_index": made[0]["hot_index"],
        "hot_weight": np.ascontiguousarray(np.concatenate([one["hot_weight"] for one in made], axis=1)),
    }


def _numbered(name: str, part: int) -> str:
    """What the tensor ``name`` of a part is called."""
    return f"{name}{part}"
