"""All weights of a bundle in memory, checked against their checksums while they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from edge_llm.formats.bundle import Bundle
from edge_llm.operations.attention import KEY_OFFSET
from edge_llm.operations.linear import Linear
from edge_llm.progress import CountProgress
from edge_llm.quant.shadow import NONE
from edge_llm.schemes import BlockWeights, Facts, Weight, linear_tensors, scheme_of
from edge_llm.schemes.tables import Table


class ResidentWeights:
    """Reads every tensor of ``bundle`` at once; the arrays are exactly the file's bytes, nothing is repacked.

    Layers that a card ``streams`` to itself are here all the same.
    """

    flash_tables: frozenset[str] = frozenset()
    streamed_bytes = 0
    read_bytes = 0
    slots = 0

    def __init__(self, bundle: Bundle, progress: CountProgress | None = None, streams: tuple[int, ...] = ()) -> None:
        self.streamed = streams
        tensors = bundle.read_all(progress)
        self._layers = tuple(layer_weights(bundle, tensors, index) for index in range(len(bundle.decoder.layers)))
        self.embedding, output = table_weights(bundle, tensors)
        self.head = BlockWeights({"output": output}, bundle.decoder.norm.named(tensors["final_norm"]))
        self.nbytes = sum(tensor.nbytes for tensor in tensors.values())

    def use(self, index: int) -> BlockWeights:
        return self._layers[index]

    def turns(self) -> None:
        """Nothing to do: every layer is here."""

    def host_part(self, index: int) -> BlockWeights:
        return self.use(index)

    def embedding_blocks(self) -> Iterator[tuple[slice, Table]]:
        yield slice(0, self.embedding.rows), self.embedding

    def forget_layers(self) -> None:
        """Nothing to do: every layer stays here."""

    def forget_tables(self) -> None:
        """Nothing to do: both stay here."""

    def embedding_rows(self, tokens: np.ndarray) -> tuple[Table, np.ndarray]:
        return self.embedding, tokens

    def head_blocks(self) -> Iterator[tuple[slice, BlockWeights]]:
        yield slice(0, self.head.linears["output"].rows), self.head

    def request(self, index: int) -> None:
        """Nothing to do: every layer is here."""

    def wait(self, index: int) -> None:
        """Nothing to do: every layer is here."""


def layer_weights(bundle: Bundle, tensors: Mapping[str, np.ndarray], index: int) -> BlockWeights:
    """The weights of layer ``index``, whose ``tensors`` have their full names."""
    prefix = f"layers.{index}."
    own = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
    return _open_layer(bundle, index, own)


def _open_layer(bundle: Bundle, index: int, tensors: Mapping[str, np.ndarray]) -> BlockWeights:
    """The weights of layer ``index``, whose ``tensors`` have their names without the layer's."""
    layer = bundle.decoder.layers[index]
    gains = [*(gain.name for gain in layer.gains), KEY_OFFSET]
    return BlockWeights(
        linears={one.name: _open(one, tensors, bundle.facts[f"layers.{index}.{one.name}"]) for one in layer.linears},
        gains={name: tensors[name] for name in gains},
        tensors=tensors,
        open=partial(_open_layer, bundle, index),
    )


def _open(linear: Linear, tensors: Mapping[str, np.ndarray], facts: Facts) -> Weight:
    return scheme_of(linear).open(linear, _arrays(linear, tensors, f"{linear.name}."), facts)


def table_weights(bundle: Bundle, tensors: Mapping[str, np.ndarray]) -> tuple[Table, Table]:
    """The embedding and the output matrix, which are the same weight where the model ties them."""
    decoder, facts = bundle.decoder, bundle.facts["output"]
    if decoder.tied:
        both = _open_table(decoder.output, tensors, "embedding.", facts)
        return both, both
    unused = {"input_scale": 1.0, "shadow": NONE}  # the embedding is not multiplied
    embedding = _open_table(decoder.table, tensors, "embedding.", unused)
    return embedding, _open_table(decoder.output, tensors, "output.", facts)


def _open_table(linear: Linear, tensors: Mapping[str, np.ndarray], prefix: str, facts: Facts) -> Table:
    found = scheme_of(linear).open(linear, _arrays(linear, tensors, prefix), facts)
    assert isinstance(found, Table), "the manifest is checked"
    return found


def _arrays(linear: Linear, tensors: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The tensors of ``linear`` by the names of its scheme."""
    return {name: tensors[prefix + name] for name, _, _ in linear_tensors(linear, 0)}
