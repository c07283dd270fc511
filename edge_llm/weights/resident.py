"""All weights of a bundle in memory, checked against their checksums while they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from edge_llm.formats.bundle import Bundle
from edge_llm.formats.layout import KEY_OFFSET
from edge_llm.quant.linear import BlockWeights, LinearWeights

Progress = Callable[[int, int], None]


class ResidentWeights:
    """Reads every tensor of ``bundle`` at once; the arrays are exactly the file's bytes, nothing is repacked."""

    streamed: tuple[int, ...] = ()
    streamed_bytes = 0
    slots = 0

    def __init__(self, bundle: Bundle, progress: Progress | None = None) -> None:
        tensors = bundle.read_all(progress)
        config = bundle.config
        self._layers = tuple(layer_weights(bundle, tensors, index) for index in range(config.num_layers))
        self.embedding = linear_weights(bundle, tensors, "embedding", "output" if config.tied_embeddings else None)
        output = self.embedding if config.tied_embeddings else linear_weights(bundle, tensors, "output", "output")
        self.head = BlockWeights({"output": output}, {"final_norm": tensors["final_norm"]})
        self.nbytes = sum(tensor.nbytes for tensor in tensors.values())

    def layer(self, index: int) -> BlockWeights:
        return self._layers[index]

    def embedding_rows(self, tokens: np.ndarray) -> tuple[LinearWeights, np.ndarray]:
        return self.embedding, tokens

    def head_blocks(self) -> Iterator[tuple[slice, BlockWeights]]:
        yield slice(0, self.head.linears["output"].rows), self.head

    def request(self, index: int) -> None:
        """Nothing to do: every layer is here."""

    def read(self, index: int) -> None:
        """Nothing to do: every layer is here."""


def layer_weights(bundle: Bundle, tensors: dict[str, np.ndarray], index: int) -> BlockWeights:
    """The weights of layer ``index``."""
    prefix, layer = f"layers.{index}", bundle.decoder.layers[index]
    linears = [linear.name for linear in layer.linears]
    gains = [*(gain.name for gain in layer.gains), KEY_OFFSET]
    return BlockWeights(
        linears={name: linear_weights(bundle, tensors, f"{prefix}.{name}", f"{prefix}.{name}") for name in linears},
        gains={name: tensors[f"{prefix}.{name}"] for name in gains},
    )


def linear_weights(bundle: Bundle, tensors: dict[str, np.ndarray], name: str, profile: str | None) -> LinearWeights:
    """The linear stored under ``name``; its input scale is the one recorded for ``profile`` (None: never multiplied)."""
    tiles = tensors[f"{name}.tiles"]
    weight_scale = tensors[f"{name}.scale"]
    input_scale = 1.0 if profile is None else bundle.input_scale(profile)
    return LinearWeights(
        tiles=tiles,
        rows=len(weight_scale),
        columns=bundle.columns(name),
        input_scale=input_scale,
        weight_scale=weight_scale,
        scale=np.float32(input_scale) * weight_scale,
        row_sum=tensors[f"{name}.row_sum"],
        hot_index=tensors[f"{name}.hot_index"],
        hot_weight=tensors[f"{name}.hot_weight"],
        bias=tensors.get(f"{name}.bias"),
        residual=profile is not None and bundle.shadows[profile] != "none",
    )
