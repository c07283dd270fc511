"""A decoder layer as subgraphs, and the shelf on which each (part, length) is built once for all chunks and layers."""

from __future__ import annotations

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.devices.base import Device, Op, RunSubgraph, Subgraph

LAYER_PARTS: dict[str, tuple[Op, ...]] = {
    "qkv": (
        Op("rms_norm", reads="hidden", writes="normed", weights="attention_norm"),
        Op("linear", reads="normed", writes="qkv", weights="qkv"),
    ),
    "keys": (Op("rope_append", reads="qkv", writes="qkv"),),
    "attention": (Op("attention", reads="qkv", writes="attended"),),
    "o": (Op("linear", reads="attended", writes="hidden", weights="o", adds="hidden"),),
    "gate_up": (
        Op("rms_norm", reads="hidden", writes="normed", weights="mlp_norm"),
        Op("linear", reads="normed", writes="gate_up", weights="gate_up"),
    ),
    "down": (
        Op("swiglu", reads="gate_up", writes="activated"),
        Op("linear", reads="activated", writes="hidden", weights="down", adds="hidden"),
    ),
}
"""The parts of a layer in program order.  Each waits for the one before it; attention also waits for earlier keys."""

HEAD_PART = "head"
HEAD_OPS = (
    Op("rms_norm", reads="hidden", writes="normed", weights="final_norm"),
    Op("linear", reads="normed", writes="logits", weights="output"),
)


class SubgraphShelf:
    """Builds a subgraph the first time it is asked for, and hands out the same one ever after."""

    def __init__(self, device: Device, config: ModelConfig, rope: tuple[np.ndarray, np.ndarray]) -> None:
        self._device = device
        self._config = config
        self._rope = rope
        self._built: dict[tuple[str, int], RunSubgraph] = {}

    def get(self, part: str, rows: int) -> RunSubgraph:
        """The subgraph of ``part`` (a key of `LAYER_PARTS`, or `HEAD_PART`) for chunks of ``rows`` rows."""
        built = self._built.get((part, rows))
        if built is None:
            ops = HEAD_OPS if part == HEAD_PART else LAYER_PARTS[part]
            built = self._device.build(Subgraph(part, rows, ops), self._config, self._rope)
            self._built[part, rows] = built
        return built

    def __len__(self) -> int:
        """Number of subgraphs built so far."""
        return len(self._built)
