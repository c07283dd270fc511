"""How a request says whether and how hard the model is to think: one wish, in the fields of several APIs."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.server.schemas import Body
from edge_llm.text.reasoning import Wish

Setting = dict[str, Any] | bool | str | None
"""True, an effort, or an object like ``{"effort": "low"}`` or ``{"type": "enabled", "budget_tokens": 1024}``."""

_OFF = ("none", "off", "disabled")
_ON = ("on", "enabled")
_AS_ALWAYS = ("auto", "adaptive", "default")
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_KEYS = ("effort", "enabled", "type")
_BUDGETS = ("budget_tokens", "max_tokens")


class Thinks(Body):
    """A request that may say how the model is to think; of several fields that say it the first counts."""

    reasoning_effort: str | None = Field(None, max_length=64)
    """OpenAI's."""
    reasoning: Setting = None
    """OpenAI's responses, and OpenRouter's."""
    thinking: Setting = None
    """Anthropic's, and many others' since."""
    think: bool | str | None = None
    """Ollama's."""
    enable_thinking: bool | None = None
    """Qwen's."""

    def wish(self) -> Wish | None:
        """What the request asks for; None leaves it to the model.  Raises `UsageError`."""
        return next((wish for name, setting in self.settings().items() if (wish := _wish(setting, name)) is not None), None)

    def settings(self) -> dict[str, Setting]:
        """What was said, by its field, the first that counts first."""
        return {name: getattr(self, name) for name in Thinks.model_fields}

    def thinking_variables(self, template: str) -> dict[str, Any]:
        """What the chat template ``template`` is told of it."""
        wish = self.wish()
        return {} if wish is None else wish.variables(template)

    def ignored(self, template: str = "") -> list[str]:
        wish = self.wish()
        names = super().ignored(template)
        for name, setting in self.settings().items():
            names += _not_understood(setting, name)
            found = _wish(setting, name)
            if found is not None and not (found == wish and found.fulfilled(template)):
                names.append(name)
        return names


def _wish(setting: Any, where: str) -> Wish | None:
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
    wish = next((wish for key in _KEYS if (wish := _wish(setting.get(key), where)) is not None), None)
    budget = next((value for key in _BUDGETS if (value := setting.get(key)) is not None), None)
    if budget is None or (wish is not None and not wish.on):
        return wish
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
        raise UsageError(f"{where}: the budget must be a number of tokens, got `{shown(budget, 40)}`", param=where)
    return Wish(True, None if wish is None else wish.effort, budget)


def _not_understood(setting: Setting, name: str) -> list[str]:
    """What of ``setting`` asks for something in words that are not known."""
    if isinstance(setting, str):
        return [] if setting in (*_OFF, *_ON, *_AS_ALWAYS, *_EFFORTS) else [name]
    if not isinstance(setting, dict):
        return []
    inner = [one for key in _KEYS for one in _not_understood(setting.get(key), f"{name}.{key}")]
    return inner + [f"{name}.{key}" for key, value in setting.items() if key not in (*_KEYS, *_BUDGETS) and value is not None]
