"""The sampling that a model's author recommends: Hugging Face `generation_config.json`, as far as it can be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edge_llm.config import GenerationParams
from edge_llm.errors import UsageError
from edge_llm.files import shown

_SAMPLED = ("temperature", "top_k", "top_p", "min_p")
"""Settings that only sampling uses."""


@dataclass(frozen=True)
class GenerationDefaults:
    """What an answer begins with, and what of the author's wishes is left out of it."""

    params: GenerationParams
    left_out: tuple[str, ...]
    """For each value that cannot be used: its name, the value, and why."""


def generation_defaults(raw: Mapping[str, Any]) -> GenerationDefaults:
    """The defaults in ``raw``: greedy unless `do_sample`.  A value that cannot be used is left out, and named."""
    params, left_out = GenerationParams(), []
    samples = raw.get("do_sample") or False
    if samples not in (True, False):
        left_out.append(f"do_sample must be true or false, got `{shown(samples)}`")
        samples = False
    if samples:
        params = replace(params, temperature=1.0)
    for name in ("repetition_penalty", *(_SAMPLED if samples else ())):
        if raw.get(name) is None:
            continue
        try:
            params = replace(params, **{name: _number(name, raw[name])})
        except UsageError as refused:
            left_out.append(str(refused))
    return GenerationDefaults(params, tuple(left_out))


def _number(name: str, value: Any) -> Any:
    """``value`` if it is a number of the kind that `GenerationParams` has there."""
    whole = name == "top_k"
    if type(value) not in ((int,) if whole else (int, float)) or (type(value) is int and value.bit_length() > 64):
        raise UsageError(f"{name} must be a {'whole ' if whole else ''}number, got `{shown(value)}`", param=name)
    return value
