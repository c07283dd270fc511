"""All weights of a bundle in memory, checked against their checksums while they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from edge_llm.formats.layout import layer_name
from edge_llm.operations.attention import KEY_OFFSET
from edge_llm.operations.early_router import mixture_of
from edge_llm.operations.host_call import HostExperts
from edge_llm.operations.linear import Linear
from edge_llm.progress import CountProgress
from edge_llm.quant.shadow import NONE
from edge_llm.schemes import BlockWeights, Facts, Weight, linear_tensors, scheme_of
from edge_llm.schemes.tables import Table
from edge_llm.weights.token_bytes import host_token

if TYPE_CHECKING:
    from edge_llm.formats.bundle import Bundle


class ResidentWeights:
    """Reads every tensor of ``bundle`` at once; the arrays are exactly the file's bytes, nothing is repacked.

    Layers that a card ``streams`` to itself are here all the same.
    """

    flash_tables: frozenset[str] = frozenset()
    streamed_bytes = 0
    read_bytes = 0
    sent_bytes = 0
    slots = 0
    hosted: Mapping[int, int] = {}
    experts = None

    def __init__(self, bundle: Bundle, progress: CountProgress | None = None, streams: tuple[int, ...] = ()) -> None:
        self.streamed = streams
        tensors = bundle.read_all(progress)
        self._layers = tuple(layer_weights(bundle, tensors, index) for index in range(len(bundle.decoder.layers)))
        self.embedding, output = table_weights(bundle, tensors)
        self.head = BlockWeights({"output": output}, bundle.decoder.norm.named(tensors["final_norm"]))
        self.nbytes = sum(tensor.nbytes for tensor in tensors.values())
        self.token_bytes = host_token(bundle)

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


def layer_weights(
    bundle: Bundle, tensors: Mapping[str, np.ndarray], index: int, experts: HostExperts | None = None
) -> BlockWeights:
    """The weights of layer ``index``, whose ``tensors`` have their full names; without the experts that ``experts`` has."""
    prefix = f"layers.{index}."
    own = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
    return _open_layer(bundle, index, own, experts=experts)


def _open_layer(
    bundle: Bundle, index: int, tensors: Mapping[str, np.ndarray], experts: HostExperts | None = None
) -> BlockWeights:
    """The weights of layer ``index``, whose ``tensors`` have their names without the layer's."""
    layer, block = bundle.decoder.layers[index], layer_name(index)
    mixture = None if experts is None else mixture_of(layer)
    elsewhere = set() if mixture is None else {one.name for one in mixture.linears}
    gains = [*(gain.name for gain in layer.gains), *([KEY_OFFSET] if layer.attentions else [])]
    return BlockWeights(
        linears={one.name: open_linear(bundle, block, one, tensors) for one in layer.linears if one.name not in elsewhere},
        gains={name: tensors[name] for name in gains},
        tensors=tensors,
        open=partial(_open_layer, bundle, index, experts=experts),
        experts=experts,
    )


def open_linear(bundle: Bundle, block: str, linear: Linear, tensors: Mapping[str, np.ndarray]) -> Weight:
    """The weight of ``linear`` of ``block``, whose ``tensors`` have their names without the block's."""
    return _open(linear, tensors, bundle.facts[f"{block}.{linear.name}"])


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
