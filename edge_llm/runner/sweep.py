"""Reads of streamed weights as tasks: what double buffering is, said as dependencies.

A streamed layer is requested when the last use of the layer that lies `slots` streamed layers before it has ended: it
takes that one's memory.  A request is short and made where that use ended; the reading goes on in the background, one
layer right behind the other, and a task on the lane `flash` waits for each layer before its first use.  The last
requests of a sweep are for the first layers of the next one, which is the next window or the next token: the disk works
on them while the logits are computed and a token is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from edge_llm.scheduler import TaskGraph
from edge_llm.subgraphs.ops import HOST_LANE
from edge_llm.weights.base import Weights

FLASH = "flash"


class Sweep:
    """Adds the reads of one sweep over the layers to ``graph``; nothing at all when every layer is resident."""

    def __init__(self, graph: TaskGraph, weights: Weights) -> None:
        self._graph = graph
        self._weights = weights
        self._requests: dict[int, str] = {}
        self._last_read: tuple[str, ...] = ()
        for layer in weights.streamed[: weights.slots]:
            self._request(layer, ())

    def begin(self, layer: int) -> tuple[str, ...]:
        """What a layer's first tasks wait for: the read of its weights if they are streamed, else nothing."""
        if layer not in self._weights.streamed:
            return ()
        name = f"layer{layer}.read"
        after = (self._requests[layer], *self._last_read)
        self._graph.add(name, FLASH, partial(self._weights.wait, layer), after=after, cost_key="read")
        self._last_read = (name,)
        return self._last_read

    def end(self, layer: int, last_tasks: Sequence[str]) -> None:
        """``last_tasks`` were the last that use the weights of ``layer``."""
        streamed = self._weights.streamed
        if layer in streamed:
            place = streamed.index(layer) + self._weights.slots
            self._request(streamed[place % len(streamed)], last_tasks)

    def _request(self, layer: int, after: Sequence[str]) -> None:
        name = f"layer{layer}.request" if layer not in self._requests else f"layer{layer}.request_ahead"
        self._graph.add(name, HOST_LANE, partial(self._weights.request, layer), after=after, cost_key="request")
        self._requests[layer] = name
