"""The shelf where the subgraph of each (part, length) is built once for all chunks and layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from edge_llm.subgraphs.ops import Op, Part, Subgraph

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


class SubgraphShelf(Generic[Built]):
    """Has ``build`` make a subgraph the first time it is asked for; ``widths`` are the values per row of every buffer."""

    def __init__(self, build: Callable[[Subgraph], Built], widths: Mapping[str, int]) -> None:
        self._build = build
        self._widths = widths
        self._same: dict[tuple[str, tuple[Op, ...]], Part] = {}
        self._known: dict[Part, Part] = {}
        self._built: dict[tuple[Part, int], Built] = {}
        self._uses: Counter[tuple[Part, int]] = Counter()

    def get(self, part: Part, rows: int) -> Built:
        """The subgraph of ``part`` for chunks of ``rows`` rows: one for all parts that do the same on one lane."""
        same = self._known.get(part)
        if same is None:  # parts are compared by what they are, because their operations take long to hash
            same = self._known[part] = self._same.setdefault((part.lane, part.ops), part)
        key = same, rows
        self._uses[key] += 1
        built = self._built.get(key)
        if built is None:
            built = self._built[key] = self._build(Subgraph(part.name, part.lane, rows, part.ops))
        return built

    @property
    def sharing(self) -> Sharing:
        """What sharing saved so far."""
        saved = sum(
            (uses - 1) * rows * FLOAT_BYTES * sum(self._width(op) for op in part.ops)
            for (part, rows), uses in self._uses.items()
        )
        return Sharing(len(self._built), sum(self._uses.values()), saved)

    def _width(self, op: Op) -> int:
        """Values per row that go into ``op`` and come out of it."""
        return sum(self._widths.get(name, 0) for name in (*op.reads[:1], op.writes[0]))

    def __len__(self) -> int:
        """Number of subgraphs built so far."""
        return len(self._built)
