"""What a generated token takes of weights, by where they lie: on a card, in main memory, on flash."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_llm.formats.layout import group_units, layer_name
from edge_llm.operations.early_router import mixture_of
from edge_llm.weights.base import EMBEDDING, OUTPUT, TokenBytes

if TYPE_CHECKING:
    from edge_llm.formats.bundle import Bundle
    from edge_llm.weights.memory_plan import StagingPlan


def host_token(bundle: Bundle, flash: int = 0) -> TokenBytes:
    """What the host takes for a token, ``flash`` bytes of it from there."""
    return TokenBytes(host=_of_all(bundle) - flash, flash=flash)


def card_token(bundle: Bundle, staging: StagingPlan) -> TokenBytes:
    """What a card that decodes takes for a token; the host multiplies the output matrix where the card lacks that."""
    flash = staging.plan.streamed_bytes
    host = sum(bundle.blocks[layer_name(index)].nbytes for index in staging.hosted)
    if not staging.whole and OUTPUT not in staging.plan.flash_tables:
        host += _output(bundle)
    return TokenBytes(_of_all(bundle) - host - flash, host, flash)


def _of_all(bundle: Bundle) -> int:
    layers = range(len(bundle.decoder.layers))
    return _output(bundle) + sum(bundle.blocks[layer_name(index)].nbytes - _unused(bundle, index) for index in layers)


def _output(bundle: Bundle) -> int:
    return bundle.blocks[OUTPUT if OUTPUT in bundle.blocks else EMBEDDING].nbytes


def _unused(bundle: Bundle, index: int) -> int:
    """Bytes of the experts of layer ``index`` that a token does not go to, about."""
    mixture = mixture_of(bundle.decoder.layers[index])
    if mixture is None:
        return 0
    experts = sum(unit.nbytes for unit in group_units(bundle.blocks[layer_name(index)]).values())
    return experts * (mixture.count - mixture.used) // mixture.count
