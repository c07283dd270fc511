"""Whether an import keeps the blocks of a GGUF file, and what cannot be asked for beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edge_llm.config import BLOCKS
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.choose import Outliers
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.kernels.blocks import GROUP, KINDS
from edge_llm.sources.base import BlockSource, Source
from edge_llm.sources.lora import AdaptedSource


def chosen_weights(source: Source, weights: LayerBits, outliers: Outliers, **asked: bool) -> LayerBits:
    """``weights``, or those of the blocks of ``source`` where these are asked for, or there and `LayerBits.or_blocks`.

    Raises `UsageError` for a source without blocks, and beside blocks for adapters and for what else was ``asked`` for, by
    options that say how weights are quantized.
    """
    base = source.original if isinstance(source, AdaptedSource) else source
    if weights.kind == BLOCKS and not isinstance(base, BlockSource):
        raise UsageError(
            f"--weights {BLOCKS} keeps those of a GGUF file, and `{shown(source.path)}` is none; leave it out", param="weights"
        )
    if weights.kind != BLOCKS and not (weights.or_blocks and isinstance(base, BlockSource) and _has_kept(base, source)):
        return replace(weights, or_blocks=False)
    if base is not source:
        raise UsageError(
            "an adapter changes single weights, which the blocks of a GGUF file cannot hold; add --weights int8, or merge it "
            "into the float model",
            param="lora",
        )
    shadows = {"shadow": outliers.mode != Outliers().mode, "float16": bool(outliers.schemes)}
    _refuse_beside_blocks(shadows | asked)
    return LayerBits(BLOCKS)


def _has_kept(base: BlockSource, source: Source) -> bool:
    """Whether ``base``, the file of ``source``, has matrices whose blocks can be kept, and an embedding that can be beside."""
    kinds = {base.block_type(name).name.lower() for name in source.names()}
    return source.config.hidden_size % GROUP == 0 and not kinds.isdisjoint(KINDS)


def _refuse_beside_blocks(asked: Mapping[str, bool]) -> None:
    """Raise `UsageError` for an option that was ``asked`` for and says how weights are quantized."""
    option = next((name for name, is_asked in asked.items() if is_asked), None)
    if option is not None:
        raise UsageError(
            f"--{option.replace('_', '-')} is for weights that are quantized here, and those of this file stay as they are; "
            "leave it out, or add --weights int8",
            param=option,
        )
