"""A window of chunks as a task graph: each chunk walks the parts of every layer; attention also waits for earlier keys.

Dependencies as in llm.npu (arXiv 2407.05858, §3.4): inside a chunk a part follows those it names; across chunks only
attention waits, for the keys of the earlier chunks in the same layer.  Where one lane does everything, chunks could not
overlap anyway: they take turns layer by layer, and share the memory in which a layer works.  Streamed weights add reads on
the lane `flash`, see `runner.sweep`.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge_llm.devices.base import Chunk, DeviceModel
from edge_llm.runner.sweep import Sweep
from edge_llm.scheduler import TaskGraph
from edge_llm.subgraphs.ops import Part
from edge_llm.subgraphs.placement import last_parts


def prefill_graph(chunks: Sequence[Chunk], model: DeviceModel) -> TaskGraph:
    """The tasks that carry ``chunks`` (each sequence's rows in order) from tokens to the last layer's hidden states.

    Program order is layer by layer, or a few layers at a time where a task carries a chunk through them, and within them chunk
    by chunk, so that one sweep over the weights serves the whole window.
    """
    graph = TaskGraph()
    sweep = Sweep(graph, model.weights)
    turns = model.take_turns and len(chunks) > 1
    ends = [_add_embedding(graph, index, chunk, model) for index, chunk in enumerate(chunks)]
    for layers in model.stretches(chunks):
        parts = model.layer_parts[layers[0]]
        last, read = last_parts(parts), sweep.begin(layers[0])
        for index, chunk in enumerate(chunks):
            before = ends[index - 1] if turns else ()  # ends[-1]: the last chunk's, in the layer before
            for part in parts:
                after = [_name(index, layers, earlier) for earlier in part.after] or [*ends[index], *before, *read]
                after += [_name(earlier, layers, name) for earlier in range(index) for name in part.after_earlier]
                run, key = model.part(layers, part, chunk), _cost_key(part, len(layers), chunk)
                graph.add(_name(index, layers, part.name), part.lane, run, after=after, cost_key=key)
            ends[index] = tuple(_name(index, layers, part) for part in last)
        sweep.end(layers[-1], [name for names in ends for name in names])
    return graph


def _name(chunk: int, layers: range, part: str) -> str:
    told = f"layer{layers[0]}" if len(layers) == 1 else f"layers{layers[0]}-{layers[-1]}"
    return f"chunk{chunk}.{told}.{part}"


def _cost_key(part: Part, layers: int, chunk: Chunk) -> str:
    """What tasks of like cost have in common; attention also depends on how many chunks of keys lie before it."""
    rows = chunk.rows
    size = f"{part.name}/{rows.static}" if layers == 1 else f"{part.name}/{rows.static}x{layers}"
    if part.after_earlier:
        return f"{size}@{int(rows.position.max()) // rows.static}"
    return size


def _add_embedding(graph: TaskGraph, index: int, chunk: Chunk, model: DeviceModel) -> tuple[str, ...]:
    name = f"chunk{index}.embedding"
    graph.add(name, model.lane, model.walk(range(1), chunk), cost_key=f"embedding/{chunk.rows.static}")
    return (name,)
