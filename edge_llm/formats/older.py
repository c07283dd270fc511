"""What bundles before version 4 say of their model: the numbers of a Llama, of which a family here made the layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from edge_llm.config import LlamaConfig, RopeScaling
from edge_llm.errors import CorruptBundle
from edge_llm.formats.limits import MAX_LAYERS, MOST

_COUNTS = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")


def llama_config(raw: Mapping[str, Any], most_layers: int = MAX_LAYERS) -> LlamaConfig:
    """The model of which ``raw`` says the numbers, each checked against its range; it has at most ``most_layers``.

    Raises `CorruptBundle`.
    """
    values = dict(raw)
    scaling = values.get("rope_scaling")
    if scaling is not None:
        values["rope_scaling"] = _fields_of(RopeScaling, scaling, "rope_scaling")
    config: LlamaConfig = _fields_of(LlamaConfig, values, "model")
    for name in (*_COUNTS, "context"):
        if not 1 <= getattr(config, name) <= MOST:
            raise CorruptBundle(f"`{name}` in the manifest is `{getattr(config, name)}`")
    if config.num_layers > MAX_LAYERS:
        raise CorruptBundle(f"`num_layers` in the manifest is `{config.num_layers}`")
    if config.num_layers > most_layers:
        raise CorruptBundle("the linears in the manifest are not those of the model")
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise CorruptBundle("`num_heads` in the manifest is no multiple of `num_kv_heads`, or `head_dim` is odd")
    if not config.norm_eps > 0 or not config.rope_theta > 0:
        raise CorruptBundle("`norm_eps` and `rope_theta` in the manifest must be above 0")
    rope = config.rope_scaling
    if rope is not None and not (
        rope.factor > 0 and rope.original_context > 0 and rope.high_frequency_factor > rope.low_frequency_factor > 0
    ):
        raise CorruptBundle("`rope_scaling` in the manifest is invalid")
    return config


def _fields_of(kind: type, raw: object, where: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if not isinstance(raw, dict) or set(raw) != set(fields):
        raise CorruptBundle(f"`{where}` in the manifest does not have the fields of a {kind.__name__}")
    values: dict[str, Any] = {}
    for name, value in raw.items():
        hint = str(fields[name].type)
        good = (
            (hint == "str" and type(value) is str)
            or (hint == "bool" and type(value) is bool)
            or (hint == "int" and type(value) is int)
            or (hint == "float" and type(value) in (int, float) and abs(value) < 1e300)
            or (hint.startswith("RopeScaling") and (value is None or isinstance(value, RopeScaling)))
        )
        if not good:
            raise CorruptBundle(f"`{where}.{name}` in the manifest is `{str(value)[:60]}`, not a {hint}")
        values[name] = float(value) if hint == "float" else value
    return kind(**values)
