"""How answers are sampled where nobody says: as the model's author recommends, else as people and API clients expect it.

An author's recommendation is Hugging Face's `generation_config.json`, as far as it can be used.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edge_llm.config import GenerationParams
from edge_llm.errors import UsageError
from edge_llm.files import shown

FOR_PEOPLE = GenerationParams(
    temperature=0.7, min_p=0.05, dry_multiplier=0.8, dry_sequence_breakers=('"', ":", "|", "<", ">"), loop_guard=True
)
"""Where the author names no sampling: what small models need not to loop (`benchmarks/loops.py`).  Marks that tables, code and
data repeat break a sequence; ends of lines do not, for lists loop by lines."""
FOR_CLIENTS = GenerationParams(temperature=1.0, loop_guard=True)
"""The same for API clients, to which a field that is absent has OpenAI's value."""

_SAMPLED = ("temperature", "top_k", "top_p", "min_p")
"""Settings that only sampling uses."""
SAMPLING = (*_SAMPLED, "repetition_penalty", "dry_multiplier", "dry_sequence_breakers")
"""Settings in which the defaults may differ."""


@dataclass(frozen=True)
class GenerationDefaults:
    """What an answer begins with, and what of the author's wishes is left out of it."""

    params: GenerationParams
    """Of people: in the chat, by `run`, from Python."""
    served: GenerationParams
    """Of the clients of `serve`."""
    left_out: tuple[str, ...]
    """For each value that cannot be used: its name, the value, and why."""


def generation_defaults(raw: Mapping[str, Any]) -> GenerationDefaults:
    """The defaults in ``raw``.  A value that cannot be used is left out, and named.

    Who gives a value of sampling, or `do_sample`, names sampling: what else there is to it is then as Hugging Face has it.
    `do_sample: false` is greedy.
    """
    found, left_out = _usable(raw)
    samples = found.pop("do_sample", None)
    penalty = {name: found.pop(name) for name in ("repetition_penalty",) if name in found}
    if samples is None and not found:
        people, clients = FOR_PEOPLE, FOR_CLIENTS
    else:
        found = {"temperature": 1.0, **found} if samples is not False else {}
        people = clients = replace(GenerationParams(loop_guard=True), **found)
    return GenerationDefaults(replace(people, **penalty), replace(clients, **penalty), tuple(left_out))


def with_overrides(defaults: GenerationParams, **given: Any) -> GenerationParams:
    """``defaults`` with the settings that are ``given``; greedy sampling turns DRY off unless that is given too."""
    params = replace(defaults, **given)
    plain = is_greedy(params) and not is_greedy(defaults) and "dry_multiplier" not in given
    return replace(params, dry_multiplier=0.0) if plain else params


def sampling(params: GenerationParams) -> dict[str, Any]:
    """How ``params`` choose tokens, in the names that an author and an API request have."""
    return {name: getattr(params, name) for name in SAMPLING}


def another(params: GenerationParams) -> GenerationParams:
    """``params`` for another answer to a prompt that has one: never greedy, and from a seed of its own."""
    lively = {name: getattr(FOR_PEOPLE, name) for name in _SAMPLED} if is_greedy(params) else {}
    return replace(params, seed=secrets.randbits(32), **lively)


def is_greedy(params: GenerationParams) -> bool:
    """Whether ``params`` leave one token to choose from, whatever the model says."""
    return params.temperature == 0.0 or params.top_k == 1 or params.top_p == 0.0 or params.min_p == 1.0


def _usable(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What ``raw`` has of what is known here, and what is wrong with the rest of that."""
    found: dict[str, Any] = {}
    left_out: list[str] = []
    samples = raw.get("do_sample")
    if samples in (True, False):
        found["do_sample"] = bool(samples)
    elif samples is not None:
        left_out.append(f"do_sample must be true or false, got `{shown(samples)}`")
    for name in ("repetition_penalty", *(() if samples in (False,) else _SAMPLED)):
        if raw.get(name) is None:
            continue
        try:
            found[name] = _number(name, raw[name])
            GenerationParams(**{name: found[name]})
        except UsageError as refused:
            found.pop(name, None)
            left_out.append(str(refused))
    return found, left_out


def _number(name: str, value: Any) -> Any:
    """``value`` if it is a number of the kind that `GenerationParams` has there."""
    whole = name == "top_k"
    if type(value) not in ((int,) if whole else (int, float)) or (type(value) is int and value.bit_length() > 64):
        raise UsageError(f"{name} must be a {'whole ' if whole else ''}number, got `{shown(value)}`", param=name)
    return value
