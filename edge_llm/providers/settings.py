"""Settings of a chat over those that a model or a command line has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.decoding.defaults import FOR_CLIENTS, another, with_overrides
from edge_llm.errors import UsageError

Settings = TypeVar("Settings", GenerationParams, RuntimeConfig)


def changed(settings: Settings, changes: Mapping[str, Any], change: Callable[..., Settings] = replace) -> Settings:
    """``settings`` with ``changes``.  Raises `UsageError` for what cannot be set so."""
    try:
        return change(settings, **changes)
    except TypeError as error:  # there is no such setting, or it is of another kind
        raise UsageError(f"a setting cannot be used: {error}") from None


def over(recommended: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """What is ``named`` over what a server has ``recommended``, as it is over the defaults of a model here."""
    if not recommended:
        return dict(named)
    made = changed(changed(FOR_CLIENTS, recommended), named, with_overrides)
    return {name: getattr(made, name) for name in {**recommended, **named}}


def another_of_a_server(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """``sampling`` of a server's answer as it must be for another one; what a server chooses itself is left to it."""
    before = changed(FOR_CLIENTS, sampling)
    made = another(before)
    names = {*sampling} | ({"temperature"} if made.temperature != before.temperature else set())
    return {**sampling, **{name: getattr(made, name) for name in names}}


def differences(params: GenerationParams) -> dict[str, Any]:
    """What ``params`` have otherwise than a plain greedy answer."""
    plain = GenerationParams()
    values = {each.name: getattr(params, each.name) for each in fields(params)}
    return {name: value for name, value in values.items() if value != getattr(plain, name)}
