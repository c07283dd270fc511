"""One decode step: the rows of many sequences walk all layers in program order.

A hand-over between lanes costs tens of microseconds and a step has hundreds of parts, so a step is cut only where it
must wait for a streamed layer: when all weights are resident it is one task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from edge_llm.devices.base import Device
from edge_llm.kv.store import LayerPages
from edge_llm.runner.prefill import Chunk
from edge_llm.runner.rows import embed
from edge_llm.runner.sweep import Sweep
from edge_llm.subgraphs.build import SubgraphShelf
from edge_llm.weights.base import Weights
from scheduler.tasks import TaskGraph


def decode_graph(
    chunk: Chunk,
    weights: Weights,
    pages: Sequence[LayerPages],
    subgraphs: SubgraphShelf,
    device: Device,
) -> TaskGraph:
    """The tasks that carry every row of ``chunk`` from its token to the last layer's hidden state."""
    graph = TaskGraph()
    sweep = Sweep(graph, weights)
    before = "embedding"
    graph.add(before, "cpu", embed(device, weights, chunk.rows, chunk.buffers))
    for layers in _groups(len(pages), weights.streamed):
        last = layers[-1]
        name = f"layers{layers[0]}-{last}"
        run = _run_layers(layers, chunk, weights, pages, subgraphs)
        graph.add(name, "cpu", run, after=(before, *sweep.begin(last)), cost_key=f"layers{len(layers)}/{chunk.rows.static}")
        sweep.end(last, (name,))
        before = name
    return graph


def _groups(count: int, streamed: Sequence[int]) -> Iterator[range]:
    """All layers in order, cut so that a streamed layer begins a group of its own."""
    starts = sorted({0, *streamed, *(layer + 1 for layer in streamed)})
    ends = [*starts[1:], count]
    return (range(start, end) for start, end in zip(starts, ends, strict=True) if start < end)


def _run_layers(
    layers: range, chunk: Chunk, weights: Weights, pages: Sequence[LayerPages], subgraphs: SubgraphShelf
) -> Callable[[], None]:
    parts = [[subgraphs.get(part, chunk.rows.static) for part in subgraphs.layer_parts[layer]] for layer in layers]

    def run() -> None:
        for layer, layer_parts in zip(layers, parts, strict=True):
            layer_weights = weights.layer(layer)
            for part in layer_parts:
                part(layer_weights, chunk.buffers, chunk.rows, pages[layer])

    return run
