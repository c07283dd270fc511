"""What a user wants of a model's thoughts: on or off, how hard, how long; read from a setting, told to any template."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.text.reasoning import CLOSE, OPEN

Setting = dict[str, Any] | bool | str | None
"""True, an effort, or an object like ``{"effort": "low"}`` or ``{"type": "enabled", "budget_tokens": 1024}``."""

_OFF = ("none", "off", "disabled")
_ON = ("on", "enabled")
_AS_ALWAYS = ("auto", "adaptive", "default")
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_KEYS = ("effort", "enabled", "type")
_BUDGETS = ("budget_tokens", "max_tokens")
_LEVEL_TOKENS = {"low": 1024, "medium": 4096}
"""Tokens of a thought where the template knows no levels."""

SWITCHES = ("enable_thinking", "thinking")
"""Template variables that turn thoughts on and off."""
EFFORT, BUDGET = "reasoning_effort", "thinking_budget"
"""Template variables for how hard (low, medium, high) and how long (tokens) a model thinks."""

_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_CODE = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_VARIABLE = re.compile(r"(?<![\w.])[^\W\d]\w*")


@dataclass(frozen=True)
class Wish:
    """Whether a model is to think, how hard (low, medium or high) and for how many tokens."""

    on: bool
    effort: str | None = None
    budget: int | None = None

    def variables(self, template: str) -> dict[str, Any]:
        """What to tell the chat template ``template`` in the variables that it has."""
        has = template_names(template)
        found: dict[str, Any] = {name: self.on for name in SWITCHES if name in has}
        if self.effort is not None and EFFORT in has:
            found[EFFORT] = self.effort
        if BUDGET in has and (self.budget is not None or not self.on):
            found[BUDGET] = self.budget if self.on else 0
        return found

    def most_tokens(self, template: str) -> int | None:
        """Tokens behind which a thought is closed: as asked, else by its level where ``template`` knows no levels."""
        if self.budget is not None or self.effort is None or EFFORT in template_names(template):
            return self.budget
        return _LEVEL_TOKENS.get(self.effort)

    def fulfilled(self, template: str) -> bool:
        """Whether a model with ``template`` fulfils the wish, because a variable says so or because it always does."""
        has = template_names(template)
        told = self.variables(template)
        said = _COMMENT.sub("", template)
        thinks = OPEN in said or CLOSE in said or EFFORT in has
        if not self.on:
            return bool(told) or not thinks
        marked = OPEN in said or CLOSE in said or bool(told.keys() & {*SWITCHES})
        limited = marked or BUDGET in has or self.budget is None
        return (bool(told) or thinks) and limited and (self.effort != "high" or EFFORT in has)


@lru_cache(maxsize=16)
def template_names(template: str) -> frozenset[str]:
    """Names that the code of ``template`` uses, without attributes and what stands in strings and comments."""
    code_alone = _CODE.findall(_COMMENT.sub("", template))
    return frozenset(name for code in code_alone for name in _VARIABLE.findall(_LITERAL.sub("''", code)))


def wish_of(setting: Any, where: str) -> Wish | None:
    """What ``setting`` of the field ``where`` asks for; None if nothing that is known.  Raises `UsageError`."""
    if isinstance(setting, bool):
        return Wish(setting)
    if isinstance(setting, str):
        if setting in _OFF or setting in _ON:
            return Wish(setting in _ON)
        return Wish(True, _EFFORTS[setting]) if setting in _EFFORTS else None
    return None if setting is None else _wish_of_object(setting, where)


def _wish_of_object(setting: dict[str, Any], where: str) -> Wish | None:
    for key in _KEYS:
        if not isinstance(setting.get(key), str | bool | None):
            raise UsageError(f"{where}.{key} must be a string, got `{shown(setting[key], 40)}`", param=f"{where}.{key}")
    wish = next((wish for key in _KEYS if (wish := wish_of(setting.get(key), where)) is not None), None)
    budget = next((value for key in _BUDGETS if (value := setting.get(key)) is not None), None)
    if budget is None or (wish is not None and not wish.on):
        return wish
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
        raise UsageError(f"{where}: the budget must be a number of tokens, got `{shown(budget, 40)}`", param=where)
    return Wish(True, None if wish is None else wish.effort, budget)


def not_understood(setting: Setting, name: str) -> list[str]:
    """What of ``setting`` asks for something in words that are not known."""
    if isinstance(setting, str):
        return [] if setting in (*_OFF, *_ON, *_AS_ALWAYS, *_EFFORTS) else [name]
    if not isinstance(setting, dict):
        return []
    inner = [one for key in _KEYS for one in not_understood(setting.get(key), f"{name}.{key}")]
    return inner + [f"{name}.{key}" for key, value in setting.items() if key not in (*_KEYS, *_BUDGETS) and value is not None]
