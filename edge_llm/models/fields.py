"""Checked access to the values of a config.json."""

from __future__ import annotations

from typing import Any

from edge_llm.errors import InvalidModel
from edge_llm.files import shown

MAX_CONTEXT = 1 << 27
MAX_EXPERTS = 4096
MAX_THETA = 1e18
"""Models for a million tokens have about 1e11.  A theta of at least 1 keeps every angle at or below its position."""

_REQUIRED = object()


class Fields:
    """Checked access to the values of a config.json; an absent or null key takes the default."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw

    def _value(self, key: str, default: Any) -> Any:
        value = self.raw.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise InvalidModel(f"config.json lacks `{key}`; give the complete config.json of the model")
        return default

    def integer(self, key: str, low: int, high: int, default: Any = _REQUIRED) -> int:
        """A whole number in [low, high]."""
        value = self._value(key, default)
        if type(value) is not int or not low <= value <= high:
            raise InvalidModel(f"config.json: {key} must be a whole number from {low} to {high}, not `{shown(value)}`")
        return value

    def number(self, key: str, low: float, high: float, default: Any = _REQUIRED) -> float:
        """A number in [low, high]."""
        value = self._value(key, default)
        if type(value) not in (int, float) or not low <= value <= high:
            raise InvalidModel(f"config.json: {key} must be a number from {low:g} to {high:g}, not `{shown(value)}`")
        return float(value)

    def is_null(self, key: str) -> bool:
        """Whether it is there, and null, which a family may take for something else than its default."""
        return key in self.raw and self.raw[key] is None

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self._value(key, default)
        if type(value) is not bool:
            raise InvalidModel(f"config.json: {key} must be true or false, not `{shown(value)}`")
        return value

    def section(self, key: str) -> dict[str, Any]:
        """An object; empty when absent."""
        value = self._value(key, {})
        if not isinstance(value, dict):
            raise InvalidModel(f"config.json: {key} must be an object, not `{shown(value)}`")
        return value
