"""One decode step: the rows of many sequences walk all blocks of the model in program order.

A hand-over between lanes costs tens of microseconds and a step has hundreds of parts, so a step is cut only where it
must wait for a streamed layer: when all weights are resident it is one task, and on a card one launch.  A program of the
host that reads streamed layers itself needs no graph; until it has found them all in their buffers, this is its step.
"""

from __future__ import annotations

from edge_llm.devices.base import Chunk, DeviceModel
from edge_llm.runner.sweep import Sweep
from edge_llm.scheduler import TaskGraph


def decode_graph(chunk: Chunk, model: DeviceModel) -> TaskGraph:
    """The tasks that carry every row of ``chunk`` from its token to what it is wanted for."""
    graph = TaskGraph()
    sweep = Sweep(graph, model.weights)
    before: tuple[str, ...] = ()
    for blocks in _spans(model):
        first = blocks[0] - 1  # block i + 1 is layer i
        name = f"blocks{blocks[0]}-{blocks[-1]}"
        key = f"blocks{len(blocks)}/{chunk.rows.static}"
        graph.add(name, model.lane, model.walk(blocks, chunk), after=(*before, *sweep.begin(first)), cost_key=key)
        sweep.end(first, (name,))
        before = (name,)
    return graph


def _spans(model: DeviceModel) -> list[range]:
    """All blocks of ``model`` in order, cut so that a layer that must be awaited begins a run, and its use ends one."""
    end = len(model.layer_parts) + 2
    starts = sorted({0, *(cut for layer in model.weights.streamed for cut in (layer + 1, layer + 2))})
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], end], strict=True)]
