"""A window of chunks as a task graph: each chunk walks the parts of every layer; attention also waits for earlier keys.

Dependencies as in llm.npu (arXiv 2407.05858, §3.4): inside a chunk a part follows those it names; across chunks only
attention waits, for the keys of the earlier chunks in the same layer.  Where one lane does everything, chunks could not
overlap anyway: they take turns layer by layer, and share the memory in which a layer works.  Streamed weights add reads on
the lane `flash`, see `runner.sweep`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edge_llm.devices.base import Buffers, Device, Part, Rows
from edge_llm.kv.store import LayerPages
from edge_llm.models.layer import HIDDEN
from edge_llm.runner.rows import embed
from edge_llm.runner.sweep import Sweep
from edge_llm.subgraphs.build import SubgraphShelf
from edge_llm.subgraphs.placement import last_parts
from edge_llm.weights.base import Weights
from scheduler.tasks import TaskGraph


def take_turns(device: Device) -> bool:
    """Whether the chunks of a window go through each layer one after the other, so that only ``hidden`` is a chunk's own."""
    return len(device.lanes) == 1


def activation_bytes(widths: Mapping[str, int], rows: int, window: int, device: Device) -> int:
    """Memory of the float buffers, of these ``widths``, of ``window`` chunks of ``rows`` tokens on ``device``."""
    whole = sum(widths.values())
    others = widths[HIDDEN] if take_turns(device) else whole
    return rows * 4 * (whole + (window - 1) * others)


@dataclass(frozen=True)
class Chunk:
    """One chunk of a window: its rows, and the buffers it works in until its last task ends."""

    rows: Rows
    buffers: Buffers


def prefill_graph(
    chunks: Sequence[Chunk],
    weights: Weights,
    pages: Sequence[LayerPages],
    subgraphs: SubgraphShelf,
    device: Device,
) -> TaskGraph:
    """The tasks that carry ``chunks`` (each sequence's rows in order) from tokens to the last layer's hidden states.

    Program order is layer by layer, and within a layer chunk by chunk, so that one sweep over the weights serves
    the whole window.
    """
    graph = TaskGraph()
    sweep = Sweep(graph, weights)
    turns = take_turns(device) and len(chunks) > 1
    ends = [_add_embedding(graph, index, chunk, weights, device) for index, chunk in enumerate(chunks)]
    for layer in range(len(pages)):
        read = sweep.begin(layer)
        parts = subgraphs.layer_parts[layer]
        for index, chunk in enumerate(chunks):
            before = ends[index - 1] if turns else ()  # ends[-1]: the last chunk's, in the layer before
            for part in parts:
                after = [_name(index, layer, earlier) for earlier in part.after] or [*ends[index], *before, *read]
                after += [_name(earlier, layer, name) for earlier in range(index) for name in part.after_earlier]
                run = _bind(part, layer, chunk, weights, pages[layer], subgraphs)
                graph.add(_name(index, layer, part.name), part.lane, run, after=after, cost_key=_cost_key(part, chunk))
            ends[index] = tuple(_name(index, layer, part) for part in last_parts(parts))
        sweep.end(layer, [name for names in ends for name in names])
    return graph


def _name(chunk: int, layer: int, part: str) -> str:
    return f"chunk{chunk}.layer{layer}.{part}"


def _cost_key(part: Part, chunk: Chunk) -> str:
    """What tasks of like cost have in common; attention also depends on how many chunks of keys lie before it."""
    rows = chunk.rows
    if part.after_earlier:
        return f"{part.name}/{rows.static}@{int(rows.position.max()) // rows.static}"
    return f"{part.name}/{rows.static}"


def _add_embedding(graph: TaskGraph, index: int, chunk: Chunk, weights: Weights, device: Device) -> tuple[str, ...]:
    name = f"chunk{index}.embedding"
    run = embed(device, weights, chunk.rows, chunk.buffers)
    graph.add(name, "cpu", run, cost_key=f"embedding/{chunk.rows.static}")
    return (name,)


def _bind(
    part: Part, layer: int, chunk: Chunk, weights: Weights, pages: LayerPages, subgraphs: SubgraphShelf
) -> Callable[[], None]:
    subgraph = subgraphs.get(part, chunk.rows.static)

    def run() -> None:
        subgraph(weights.layer(layer), chunk.buffers, chunk.rows, pages)

    return run
