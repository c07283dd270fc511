"""The shelf where the subgraph of each (part, length) is built once for all chunks and layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from edge_llm.operations.base import Op
from edge_llm.subgraphs.ops import Part, Subgraph

FLOAT_BYTES = 4
Built = TypeVar("Built")


@dataclass(frozen=True)
class Sharing:
    """How many subgraphs were built, and what sharing them between chunks and layers saved."""

    built: int
    uses: int
    """How often a subgraph was asked for: without sharing, this many would have been built."""
    saved_bytes: int
    """Bytes that the inputs and outputs of the others would have taken."""


@dataclass
class _Entry(Generic[Built]):
    """A subgraph, and how often it was asked for."""

    subgraph: Subgraph
    built: Built
    uses: int = 0


class SubgraphShelf(Generic[Built]):
    """Has ``build`` make a subgraph the first time it is asked for; ``widths`` are the values per row of every buffer."""

    def __init__(self, build: Callable[[Subgraph], Built], widths: Mapping[str, int]) -> None:
        self._build = build
        self._widths = widths
        self._entries: dict[tuple[str, tuple[Op, ...], int], _Entry[Built]] = {}
        self._of_part: dict[tuple[Part, int], _Entry[Built]] = {}

    def get(self, part: Part, rows: int) -> Built:
        """The subgraph of ``part`` for chunks of ``rows`` rows: one for all parts that do the same on one lane."""
        entry = self._of_part.get((part, rows))
        if entry is None:  # parts are known by what they are, because their operations take long to hash
            entry = self._of_part[part, rows] = self._new(part, rows)
        entry.uses += 1
        return entry.built

    def _new(self, part: Part, rows: int) -> _Entry[Built]:
        key = part.lane, part.ops, rows
        if key not in self._entries:
            subgraph = Subgraph(part.name, part.lane, rows, part.ops)
            self._entries[key] = _Entry(subgraph, self._build(subgraph))
        return self._entries[key]

    @property
    def sharing(self) -> Sharing:
        """What sharing saved so far."""
        every = self._entries.values()
        saved = sum(
            (entry.uses - 1) * entry.subgraph.rows * FLOAT_BYTES * sum(self._width(op) for op in entry.subgraph.ops)
            for entry in every
        )
        return Sharing(len(self._entries), sum(entry.uses for entry in every), saved)

    def _width(self, op: Op) -> int:
        """Values per row that go into ``op`` and come out of it."""
        return sum(self._widths.get(name, 0) for name in (*op.reads[:1], op.writes[0]))

    def __len__(self) -> int:
        """Number of subgraphs built so far."""
        return len(self._entries)
