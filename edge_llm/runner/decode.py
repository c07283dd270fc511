"""One decode step: the rows of many sequences walk all layers as one task, in program order.

A hand-over between lanes costs tens of microseconds and a step has hundreds of parts, so a step is not cut up.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge_llm.devices.base import Device
from edge_llm.kv.store import LayerPages
from edge_llm.runner.prefill import Chunk
from edge_llm.subgraphs.build import LAYER_PARTS, SubgraphShelf
from edge_llm.weights.base import Weights


def decode_step(
    chunk: Chunk,
    weights: Weights,
    pages: Sequence[LayerPages],
    subgraphs: SubgraphShelf,
    device: Device,
) -> None:
    """Carry every row of ``chunk`` from its token to the last layer's hidden state."""
    parts = [subgraphs.get(part, chunk.rows.static) for part in LAYER_PARTS]
    device.embed(weights.embedding, chunk.rows, chunk.buffers["hidden"])
    for layer, layer_pages in enumerate(pages):
        layer_weights = weights.layer(layer)
        for run in parts:
            run(layer_weights, chunk.buffers, chunk.rows, layer_pages)
