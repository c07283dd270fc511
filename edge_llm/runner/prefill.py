"""A window of chunks as a task graph: each chunk walks the parts of every layer; attention also waits for earlier keys.

Dependencies as in llm.npu (arXiv 2407.05858, §3.4): inside a chunk each part follows the one before it; across chunks
only attention waits, for the keys of the earlier chunks of its sequence in the same layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge_llm.devices.base import Buffers, Device, Rows
from edge_llm.kv.store import LayerPages
from edge_llm.subgraphs.build import LAYER_PARTS, SubgraphShelf
from edge_llm.weights.base import Weights
from scheduler import TaskGraph


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
    """The tasks that carry ``chunks`` (one sequence, in order) from tokens to the last layer's hidden states.

    Program order is layer by layer, and within a layer chunk by chunk, so that one sweep over the weights serves
    the whole window.
    """
    graph = TaskGraph()
    previous = [_add_embedding(graph, index, chunk, weights, device) for index, chunk in enumerate(chunks)]
    for layer in range(len(pages)):
        keys: list[str] = []
        for index, chunk in enumerate(chunks):
            for part in LAYER_PARTS:
                name = f"chunk{index}.layer{layer}.{part}"
                after = (*keys, previous[index]) if part == "attention" else (previous[index],)
                run = _bind(part, layer, chunk, weights, pages[layer], subgraphs)
                graph.add(name, device.lane(part), run, after=after, cost_key=f"{part}/{chunk.rows.static}")
                previous[index] = name
                if part == "keys":
                    keys.append(name)
    return graph


def _add_embedding(graph: TaskGraph, index: int, chunk: Chunk, weights: Weights, device: Device) -> str:
    name = f"chunk{index}.embedding"

    def run() -> None:
        device.embed(weights.embedding, chunk.rows, chunk.buffers["hidden"])

    graph.add(name, device.lane("embedding"), run, cost_key=f"embedding/{chunk.rows.static}")
    return name


def _bind(
    part: str, layer: int, chunk: Chunk, weights: Weights, pages: LayerPages, subgraphs: SubgraphShelf
) -> Callable[[], None]:
    subgraph = subgraphs.get(part, chunk.rows.static)

    def run() -> None:
        subgraph(weights.layer(layer), chunk.buffers, chunk.rows, pages)

    return run
