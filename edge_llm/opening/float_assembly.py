"""A bundle becomes a float runner, or float layers around the bundle's own linears.

Only ``--float`` and `edge-llm perplexity` want that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edge_llm.errors import ModelNotFound
from edge_llm.formats.bundle import Bundle
from edge_llm.kernels import ThreadPool
from edge_llm.models.reference import FloatModel, layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.operations.base import FloatLinear, KVRounding, LayerWeights
from edge_llm.operations.float_kv import FloatKV
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear
from edge_llm.runner.base import Runner
from edge_llm.runner.float_path import FloatRunner
from edge_llm.schemes import BlockWeights
from edge_llm.sources import open_source
from edge_llm.sources.lora_places import wishes_of


def float_runner(bundle: Bundle, context: int) -> Runner[Any]:
    """The float oracle over the source's own weights, which the bundle carries or remembers the place of."""
    return FloatRunner(float_model(bundle), context)


def float_model(bundle: Bundle) -> FloatModel:
    """The source's own weights in memory; raises `ModelNotFound` when they are not there any more."""
    source = bundle.float_source()
    if source is None:
        raise ModelNotFound(
            f"the float weights of `{bundle.folder.name}` are not here any more; import the model again, "
            "with --keep-float to keep them in the bundle"
        )
    with open_source(source, lora=wishes_of(bundle.manifest["source"])) as opened:
        return FloatModel(opened, opened.config)


def bundle_layer(
    x: np.ndarray,
    layer: Layer,
    block: BlockWeights,
    tables: RopeTables,
    pool: ThreadPool,
    past: FloatKV | None,
    rounding: KVRounding,
) -> np.ndarray:
    """`layer_forward` on x [T, hidden] with the linears and gains of the bundle's ``block``: [T, hidden]."""

    def apply(linear: Linear, _: FloatLinear, x: np.ndarray) -> np.ndarray:
        return block.linears[linear.name].apply(np.ascontiguousarray(x, np.float32), pool)

    none = dict.fromkeys((linear.name for linear in layer.linears), FloatLinear(np.empty((0, 0), np.float32)))
    return layer_forward(x, layer, LayerWeights(none, block.gains), tables, past, apply=apply, rounding=rounding)
