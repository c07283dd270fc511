"""Records where rows go while a model runs: a description whose routers are observed, and the file that keeps it.

What the next layer's router says when it is asked early is recorded beside it, as the guess for that layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.formats.bundle import Bundle
from edge_llm.formats.layout import group_units, layer_name
from edge_llm.models.layer import Decoder
from edge_llm.operations.base import Arithmetic
from edge_llm.operations.early_router import early_router, mixture_of
from edge_llm.operations.experts import NAME, Experts
from edge_llm.operations.router import Router, Routes
from edge_llm.progress import byte_size
from edge_llm.weights.base import Weights
from edge_llm.weights.routing_trace import MOST_BYTES, RoutedStep, TracedShape, TraceWriter

ObserveRoutes = Callable[[int, np.ndarray, Routes, Arithmetic], None]
"""Is told of a layer, of the rows x float32 [T, columns] that its router saw, and of what it chose."""


@dataclass(frozen=True)
class ObservedRouter(Router):
    """The router of ``layer``, which tells ``observe`` what it chose."""

    layer: int = 0
    observe: ObserveRoutes = field(default=lambda *_: None)

    def routes(self, x: np.ndarray, gains: Mapping[str, np.ndarray], arithmetic: Arithmetic) -> Routes:
        routes = super().routes(x, gains, arithmetic)
        self.observe(self.layer, x, routes, arithmetic)
        return routes


def mixtures_of(decoder: Decoder) -> dict[int, Experts]:
    """The mixture of every layer that has one, by the layer's number, ascending."""
    found = ((index, mixture_of(layer)) for index, layer in enumerate(decoder.layers))
    return {index: one for index, one in found if one is not None}


def traced_shape(bundle: Bundle) -> TracedShape:
    """What a trace says of the model in ``bundle``.

    Raises `UsageError` for one without experts, or with layers of several kinds.
    """
    mixtures = mixtures_of(bundle.decoder)
    kinds = {(one.count, one.used) for one in mixtures.values()}
    if len(kinds) != 1:
        said = "its layers have experts of several kinds" if kinds else "it has no experts"
        message = f"no routing of `{bundle.folder.name}` can be traced: {said}; leave --trace-experts out"
        raise UsageError(message, param="trace_experts")
    ((count, used),) = kinds
    units = [group_units(bundle.blocks[layer_name(index)]) for index in range(len(bundle.decoder.layers))]
    sizes = (max((unit.nbytes for name, unit in each.items() if f".{NAME}." in name), default=0) for each in units)
    return TracedShape(count, used, tuple(sizes))


class RoutingRecorder:
    """Writes the routing of the model in ``bundle`` to ``path``, while whoever runs `decoder` runs it.

    ``say`` is told once when the file is full: what comes then is left out.
    """

    def __init__(self, path: Path, bundle: Bundle, weights: Weights, say: Callable[[str], None] = lambda _: None) -> None:
        cut = f"the trace of routing `{shown(path)}` is full at {byte_size(MOST_BYTES)}: it ends here, and the answer goes on"
        self._writer = TraceWriter(path, traced_shape(bundle), partial(say, cut))
        self._guessed: dict[int, np.ndarray] = {}  # by the layer: where rows would go, int64 [rows, used]
        layers, mixtures = bundle.decoder.layers, list(mixtures_of(bundle.decoder))
        self._next = {
            here: (there, early_router(layers[here], weights.use(here).gains, layers[there], weights.use(there).gains))
            for here, there in pairwise(mixtures)
        }
        self.decoder = with_observed_routers(bundle.decoder, self._record)
        """The model's description, whose routers this recorder observes."""

    def _record(self, layer: int, x: np.ndarray, routes: Routes, arithmetic: Arithmetic) -> None:
        guessed, guess = self._guessed.pop(layer, None), None
        if guessed is not None and len(guessed) == len(x):
            guess = tuple(np.unique(guessed).tolist())
        self._writer.add(RoutedStep(layer, routes.experts, guess))
        following, early = self._next.get(layer, (0, None))
        if early is not None:
            self._guessed[following] = early.experts(x, arithmetic)


def with_observed_routers(decoder: Decoder, observe: ObserveRoutes) -> Decoder:
    """``decoder``, whose routers tell ``observe`` what they chose."""
    layers = list(decoder.layers)
    for index, mixture in mixtures_of(decoder).items():
        given = {one.name: getattr(mixture.router, one.name) for one in fields(Router)}
        observed = replace(mixture, router=ObservedRouter(**given, layer=index, observe=observe))
        operations = tuple(observed if one is mixture else one for one in layers[index].operations)
        layers[index] = replace(layers[index], operations=operations)
    return replace(decoder, layers=tuple(layers))
