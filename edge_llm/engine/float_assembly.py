"""A bundle and a `RuntimeConfig` become a float runner: only ``--float`` and `edge-llm perplexity` want it."""

from __future__ import annotations

from typing import Any

from edge_llm.config import RuntimeConfig
from edge_llm.errors import ModelNotFound
from edge_llm.formats.bundle import Bundle
from edge_llm.models.reference import FloatModel
from edge_llm.runner.base import Runner
from edge_llm.runner.float_path import FloatRunner
from edge_llm.sources import open_source


def float_runner(bundle: Bundle, runtime: RuntimeConfig) -> Runner[Any]:
    """The float oracle over the source's own weights, which the bundle carries or remembers the place of."""
    assert runtime.context is not None
    return FloatRunner(float_model(bundle), runtime.context)


def float_model(bundle: Bundle) -> FloatModel:
    """The source's own weights in memory; raises `ModelNotFound` when they are not there any more."""
    source = bundle.float_source()
    if source is None:
        raise ModelNotFound(
            f"the float weights of `{bundle.folder.name}` are not here any more; import the model again, "
            "with --keep-float to keep them in the bundle"
        )
    with open_source(source) as opened:
        return FloatModel(opened, bundle.config)
