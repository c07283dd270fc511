"""The shelf where the subgraph of each (part, length) is built once for all chunks and layers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from edge_llm.devices.base import Device, Op, Part, RunSubgraph, Subgraph, buffer_widths
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import RopeTables
from edge_llm.subgraphs.placement import final_norm_part, head_part, place

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Sharing:
    """How many subgraphs were built, and what sharing them between chunks and layers saved."""

    built: int
    uses: int
    """How often a subgraph was asked for: without sharing, this many would have been built."""
    saved_bytes: int
    """Bytes that the inputs and outputs of the others would have taken."""


class SubgraphShelf:
    """Cuts the layers of ``decoder`` into parts for ``device``, and builds a subgraph the first time it is asked for."""

    def __init__(self, device: Device, decoder: Decoder, tables: RopeTables) -> None:
        self.layer_parts = place(decoder, device.placement)
        """Of every layer, in program order; like layers have the same."""
        self.head = head_part(decoder)
        self.final_norm = final_norm_part(decoder)
        every = list(dict.fromkeys(part for parts in self.layer_parts for part in parts))
        self.widths = buffer_widths(every, decoder.hidden_size)
        """Values per row of every float buffer that the layers work in."""
        self._device = device
        self._tables = tables
        first: dict[tuple[Op, ...], Part] = {}
        self._same = {part: first.setdefault(part.ops, part) for part in (*every, self.head, self.final_norm)}
        self._built: dict[tuple[Part, int], RunSubgraph] = {}
        self._uses: Counter[tuple[Part, int]] = Counter()

    def get(self, part: Part, rows: int) -> RunSubgraph:
        """The subgraph of ``part`` for chunks of ``rows`` rows: one for all parts that do the same."""
        key = self._same[part], rows
        self._uses[key] += 1
        built = self._built.get(key)
        if built is None:
            built = self._device.build(Subgraph(part.name, part.lane, rows, part.ops), self._tables)
            self._built[key] = built
        return built

    @property
    def sharing(self) -> Sharing:
        """What sharing saved so far."""
        saved = sum(
            (uses - 1) * rows * FLOAT_BYTES * sum(self._width(op.reads[0]) + self._width(op.writes[0]) for op in part.ops)
            for (part, rows), uses in self._uses.items()
        )
        return Sharing(len(self._built), sum(self._uses.values()), saved)

    def _width(self, buffer: str) -> int:
        return self.widths.get(buffer, 0)

    def __len__(self) -> int:
        """Number of subgraphs built so far."""
        return len(self._built)
