"""One decode step: the rows of many sequences walk all blocks of the model in program order.

A hand-over between lanes costs tens of microseconds and a step has hundreds of parts, so a step is cut only where it
must wait for a streamed layer: when all weights are resident it is one task, and on a card one launch.  That one needs no
graph.
"""

from __future__ import annotations

from time import perf_counter

from edge_llm.devices.base import Chunk, DeviceModel
from edge_llm.runner.sweep import Sweep
from scheduler import Span, TaskGraph, Trace


def run_whole(chunk: Chunk, model: DeviceModel) -> Trace:
    """Run what `decode_graph` has as its only task when every layer of ``model`` is resident."""
    (blocks,) = _spans(model)
    task = model.walk(blocks, chunk)
    began = perf_counter()
    task()
    span = Span(_name(blocks), model.lane, 0.0, perf_counter() - began, (), _cost_key(blocks, chunk))
    return Trace((span,), (model.lane,))


def decode_graph(chunk: Chunk, model: DeviceModel) -> TaskGraph:
    """The tasks that carry every row of ``chunk`` from its token to what it is wanted for."""
    graph = TaskGraph()
    sweep = Sweep(graph, model.weights)
    before: tuple[str, ...] = ()
    for blocks in _spans(model):
        first = blocks[0] - 1  # block i + 1 is layer i
        name, after = _name(blocks), (*before, *sweep.begin(first))
        graph.add(name, model.lane, model.walk(blocks, chunk), after=after, cost_key=_cost_key(blocks, chunk))
        sweep.end(first, (name,))
        before = (name,)
    return graph


def _name(blocks: range) -> str:
    return f"blocks{blocks[0]}-{blocks[-1]}"


def _cost_key(blocks: range, chunk: Chunk) -> str:
    return f"blocks{len(blocks)}/{chunk.rows.static}"


def _spans(model: DeviceModel) -> list[range]:
    """All blocks of ``model`` in order, cut so that a layer that must be awaited begins a run, and its use ends one."""
    end = len(model.layer_parts) + 2
    starts = sorted({0, *(cut for layer in model.weights.streamed for cut in (layer + 1, layer + 2))})
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], end], strict=True)]
