"""What holds of a setting in a chat, and where it comes from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from edge_llm.chats.settings import BY_NAME, ChatSettings, shown_value
from edge_llm.config import GenerationParams
from edge_llm.files import one_line
from edge_llm.providers.base import Facts

_NOT_SET = {
    "system": "none", "thinking": "the model decides", "seed": "a new one each time", "max_tokens": "no limit", "stop": "none",
    "think_tokens": "no limit",
    "memory": "no limit", "tools": "on where there are any",
}  # fmt: skip
"""What holds where nothing is set that could be written as a value."""
_LONGEST = 200
"""Characters of a value in a notice."""


@dataclass(frozen=True)
class Holds:
    """What holds, in words, and who says so; empty for nobody."""

    value: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.value} ({self.source})" if self.source else self.value


def holds(name: str, chat: ChatSettings, start: ChatSettings, facts: Facts | None) -> Holds:
    """What holds of the setting ``name`` in ``chat``; ``start`` is what the command line says of every new chat."""
    value = chat.value(name)
    if value is None:
        return default(name, facts, chat)
    shown = one_line(shown_value(value))
    short = f"{shown[:_LONGEST]}…" if len(shown) > _LONGEST else shown
    return Holds(short, "the command line" if start.value(name) == value else "set in this chat")


def default(name: str, facts: Facts | None, chat: ChatSettings) -> Holds:
    """What holds of ``name`` where ``chat`` says nothing, or would hold then."""
    if BY_NAME[name].part == "sampling":
        return _sampling(name, facts)
    if chat.value(name) is not None:  # the model is loaded with that
        return Holds("as the command line has it")
    if facts is not None and name == "context" and facts.context is not None:
        return Holds(str(facts.context), "as the model is loaded")
    if facts is not None and name == "device" and facts.site:
        device = facts.site.partition(";")[0].partition(" (")[0].removeprefix("device: ")
        return Holds(one_line(device), "as the model is loaded")
    return Holds(_NOT_SET.get(name, "not known yet"))


def _sampling(name: str, facts: Facts | None) -> Holds:
    if facts is None:
        return Holds("not known yet", "no model is loaded")
    if name in facts.sampling:
        return Holds(shown_value(facts.sampling[name]), "default")
    if facts.site.startswith("server"):
        return Holds("the server decides")
    if name in _NOT_SET:
        return Holds(_NOT_SET[name])
    return Holds(shown_value(_plain()[name]), "default")


@cache
def _plain() -> dict[str, Any]:
    return asdict(GenerationParams())
