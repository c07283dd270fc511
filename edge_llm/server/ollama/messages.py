"""Messages in Ollama's shape become those of OpenAI's: calls get ids, and results the id of the call that they answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from edge_llm.errors import ContextOverflow, UsageError
from edge_llm.talk.contents import LeftOut

_KNOWN = ("role", "content", "thinking", "images", "tool_calls", "tool_name", "name", "tool_call_id")


def chat_messages(messages: Sequence[dict[str, Any]], left_out: LeftOut) -> list[dict[str, Any]]:
    """``messages`` in OpenAI's shape; what is malformed in that shape, too, is left to whoever reads it.

    Raises `UsageError` for images, which no model here sees.
    """
    calls = _Calls()
    return [_message(message, f"messages[{at}]", calls, left_out) for at, message in enumerate(messages)]


Made = TypeVar("Made")


def as_many_as_fit(messages: list[dict[str, Any]], make: Callable[[list[dict[str, Any]]], Made]) -> tuple[Made, int]:
    """What ``make`` makes of plain ``messages`` without the oldest turns, and how many messages are left out: as few as can be.

    What the system says first stays, and so does the last question.  Raises `ContextOverflow` where those do not fit.
    """
    try:
        return make(messages), 0
    except ContextOverflow:
        lead = next((at for at, message in enumerate(messages) if message["role"] != "system"), 0)
        starts = [at for at, message in enumerate(messages) if at > lead and message["role"] == "user"]
        if not starts:
            raise
    found = make([*messages[:lead], *messages[starts[-1] :]]), starts[-1] - lead
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            found = make([*messages[:lead], *messages[starts[middle] :]]), starts[middle] - lead
            high = middle
        except ContextOverflow:
            low = middle + 1
    return found


def _message(message: dict[str, Any], where: str, calls: _Calls, left_out: LeftOut) -> dict[str, Any]:
    left_out.beside(_KNOWN, message, "messages")
    if message.get("images"):
        raise UsageError(f"{where}.images: this model reads text only; leave images out", param=f"{where}.images")
    content = message.get("content")
    found = {"role": message.get("role"), "content": "" if content is None else content}
    if thought := message.get("thinking"):
        found["reasoning_content"] = thought
    if given := message.get("tool_calls"):
        found["tool_calls"] = calls.named(given) if isinstance(given, list) else given
    if message.get("role") == "tool":
        found |= calls.answered(message)
    return found


class _Calls:
    """The calls of a conversation that have no result yet."""

    def __init__(self) -> None:
        self._count = 0
        self._open: list[tuple[str, Any]] = []
        """(id, name of the tool)."""

    def named(self, given: list[Any]) -> list[Any]:
        """The calls ``given`` with ids."""
        found: list[Any] = []
        for call in given:
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                call_id = self._id(call.get("id"))
                self._open.append((call_id, function.get("name")))
                named = {name: value for name, value in function.items() if name != "index"}
                call = {"id": call_id, "type": "function", "function": named}
            found.append(call)
        return found

    def answered(self, message: dict[str, Any]) -> dict[str, Any]:
        """The fields by which the result ``message`` names its call: the one of its id or tool, or the first that is open."""
        name, call_id = message.get("tool_name") or message.get("name"), message.get("tool_call_id")
        matches = [one for one in self._open if one[0] == call_id] or [one for one in self._open if one[1] == name]
        match = next(iter(matches if matches or call_id else self._open), None)
        if match is not None:
            self._open.remove(match)
            call_id, name = match[0], name or match[1]
        return {"tool_call_id": call_id or self._id(None)} | ({"name": name} if name else {})

    def _id(self, given: Any) -> str:
        self._count += 1
        return given if isinstance(given, str) and given else f"call_{self._count}"
