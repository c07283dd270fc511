"""Schemes such as ``w4,w4,int8``: each source of a linear, such as queries, keys and values, is kept in 4 bits or in 8.

Activations, outliers and the vectors beside the integers are those of the whole linear; only the integers lie apart, in a
tensor for every run of rows that have one scheme.  So its products have the bits of the INT8 weight that it stands for, as
those of `edge_llm.schemes.w4` have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple, Self

import numpy as np

from edge_llm.config import INT8, W4
from edge_llm.models.layer import Linear, SourceRows
from edge_llm.quant.shadow import NONE, product_cost
from edge_llm.schemes.base import (
    Facts,
    Scheme,
    TensorSpec,
    beside_integers,
    check_beside_integers,
    integer_facts,
    integer_facts_of,
)
from edge_llm.schemes.int8_weight import CODES, CodedProduct, by_blocks, expand_blocks, holds_integers
from kernels import ThreadPool
from kernels.linear import Int8Linear
from kernels.reference.w4 import expand as reference_expand
from kernels.types import TILE_CHANNELS, TILE_DEPTH, Residual
from kernels.w4 import expand

_SEPARATOR = ","


def parts_of(scheme: str) -> tuple[str, ...]:
    """The schemes in a name: one, or one for each source of a linear."""
    return tuple(scheme.split(_SEPARATOR))


def of_parts(parts: Sequence[str]) -> str:
    """The scheme of a linear whose sources have the schemes ``parts``."""
    return parts[0] if len(set(parts)) == 1 else _SEPARATOR.join(parts)


def of_integers(scheme: str) -> bool:
    """Whether linears of ``scheme`` are multiplied as INT8."""
    return {INT8, W4}.issuperset(parts_of(scheme))


def has_codes(linear: Linear) -> bool:
    """Whether a card multiplies ``linear`` once it is expanded."""
    return W4 in parts_of(linear.scheme)


def can_part(linear: Linear) -> bool:
    """Whether the sources of ``linear`` may have schemes of their own: several, of whole panels but for the last."""
    whole = linear.columns % TILE_DEPTH == 0 and all(source.count % TILE_CHANNELS == 0 for source in linear.sources[:-1])
    return len(linear.sources) > 1 and whole


class Run(NamedTuple):
    """Rows of a linear that have one scheme."""

    scheme: str
    rows: slice


def runs_of(linear: Linear) -> list[Run]:
    """The rows of ``linear``, cut where the scheme changes.  Raises ValueError where its scheme does not suit it."""
    parts = parts_of(linear.scheme)
    if len(parts) == 1:
        return [Run(linear.scheme, slice(0, linear.rows))]
    fit = can_part(linear) and len(parts) == len(linear.sources) and of_integers(linear.scheme)
    if not fit or of_parts(parts) != linear.scheme:
        raise ValueError(f"`{linear.name}` cannot have the scheme `{linear.scheme}`")
    found: list[Run] = []
    for scheme, sources in groupby(zip(parts, linear.sources, strict=True), key=lambda part: part[0]):
        first = found[-1].rows.stop if found else 0
        found.append(Run(scheme, slice(first, first + sum(source.count for _, source in sources))))
    return found


@dataclass(frozen=True)
class PartsWeight(CodedProduct):
    """parts: of every run of rows its tiles int8 [P, ceil(K/4), 16, 4] or its codes uint8 [P, bytes of a panel], by their
    names in a bundle; ``counts`` are the rows of each; the rest as of an `Int8Weight`."""

    parts: Mapping[str, np.ndarray]
    counts: tuple[int, ...]
    rows: int
    columns: int
    input_scale: float
    weight_scale: np.ndarray
    row_sum: np.ndarray
    hot_index: np.ndarray
    hot_weight: np.ndarray
    bias: np.ndarray | None = None
    residual: bool = True
    rounds: bool = False
    """The product ends in float16, as a card's."""

    @property
    def matrices(self) -> Mapping[str, np.ndarray]:
        return self.parts

    @cached_property
    def native(self) -> Int8Linear:
        vectors = (self.product_scale, self.row_sum, self.hot_index, self.hot_weight)
        ends = (None, *self.rounding) if self.rounds else (self.bias,)
        return Int8Linear.of_parts(tuple(self.parts.values()), self.counts, self.columns, self.input_scale, *vectors, *ends)

    @cached_property
    def rounded(self) -> Self:
        return replace(self, rounds=True)

    def apply(self, x: np.ndarray, pool: ThreadPool, *, out: np.ndarray | None = None, **how: Any) -> np.ndarray:
        shared = out is not None and np.may_share_memory(x, out)  # every part reads x
        return super().apply(x.copy() if shared else x, pool, out=out, **how)

    def overflow(self, residual: Residual) -> tuple[np.ndarray, Residual]:
        blocks, found = by_blocks(residual)
        return np.concatenate([_taken(array, self.columns, blocks) for array in self.parts.values()]), found

    def make_tiles(self, pool: ThreadPool) -> np.ndarray:
        return np.concatenate([
            expand(array, count, self.columns, pool) if array.dtype == np.uint8 else array
            for array, count in zip(self.parts.values(), self.counts, strict=True)
        ])


def _taken(array: np.ndarray, columns: int, blocks: np.ndarray) -> np.ndarray:
    """The tiles of ``blocks`` of four input channels out of tiles or codes."""
    return expand_blocks(array, columns, blocks) if array.dtype == np.uint8 else array[:, blocks]


@dataclass(frozen=True)
class Parts:
    """The scheme of a linear with ``runs`` of rows, each in one of ``schemes``, which are called by their names."""

    NAME: str
    runs: Sequence[Run]
    schemes: Mapping[str, Scheme]

    def tensors(self, linear: Linear, hot: int) -> list[TensorSpec]:
        matrices = []
        for number, run in enumerate(self.runs):
            (name, dtype, shape), *_ = self.schemes[run.scheme].tensors(_rows_of(linear, run), hot)
            matrices.append((f"{name}{number}", dtype, shape))
        return [*matrices, *beside_integers(linear, hot)]

    facts = staticmethod(integer_facts)
    facts_of = staticmethod(integer_facts_of)

    def convert(self, weight: np.ndarray, hot: np.ndarray, name: str) -> dict[str, np.ndarray]:
        return joined([self.schemes[run.scheme].convert(weight[run.rows], hot, name) for run in self.runs])

    def open(self, linear: Linear, arrays: Mapping[str, np.ndarray], facts: Facts) -> PartsWeight:
        return PartsWeight(
            parts={name: arrays[name] for name, _, _ in self.tensors(linear, 0)[: len(self.runs)]},
            counts=tuple(run.rows.stop - run.rows.start for run in self.runs),
            rows=linear.rows,
            columns=linear.columns,
            input_scale=facts["input_scale"],
            weight_scale=arrays["scale"],
            row_sum=arrays["row_sum"],
            hot_index=arrays["hot_index"],
            hot_weight=arrays["hot_weight"],
            bias=arrays.get("bias"),
            residual=facts["shadow"] != NONE,
        )

    def check(self, linear: Linear, name: str, array: np.ndarray) -> None:
        check_beside_integers(linear, name, array)
        if name.startswith(CODES):
            self.schemes[W4].check(linear, CODES, array)

    @staticmethod
    def cost(linear: Linear) -> float:
        return product_cost(linear.rows, linear.columns)

    def reference(self, x: np.ndarray, weight: PartsWeight) -> np.ndarray:
        tiles = [
            reference_expand(array, count, weight.columns) if array.dtype == np.uint8 else array
            for array, count in zip(weight.parts.values(), weight.counts, strict=True)
        ]
        return self.schemes[INT8].reference(x, weight.with_tiles(np.concatenate(tiles)))


def _rows_of(linear: Linear, run: Run) -> Linear:
    """``run`` of ``linear`` as a linear of its own."""
    return replace(linear, sources=(SourceRows("", run.rows.stop - run.rows.start),), scheme=run.scheme)


def joined(made: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The arrays of a linear out of those that were ``made`` of each run of its rows."""
    if len(made) == 1:
        return dict(made[0])
    matrices = {f"{name}{number}": one[name] for number, one in enumerate(made) for name in one if holds_integers(name)}
    return matrices | {
        "scale": np.concatenate([one["scale"] for one in made]),
        "row_sum": np.concatenate([one["row_sum"] for one in made]),
        "hot_index": made[0]["hot_index"],
        "hot_weight": np.ascontiguousarray(np.concatenate([one["hot_weight"] for one in made], axis=1)),
    }
