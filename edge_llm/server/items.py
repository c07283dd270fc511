"""The input items of a response as messages, and a conversation that is made to fit."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from edge_llm.engine.request import Request
from edge_llm.errors import ContextOverflow, UsageError
from edge_llm.files import shown
from edge_llm.talk.contents import LeftOut, custom_call, result_of, texts_of, thought_of

_FIELD = "input.content"
_CALLED_WITH = ("arguments", "action", "operation", "input")
"""Where calls of other tools have what they are called with."""


class Items:
    """Takes items one after the other; calls and thoughts of one turn become one message of the assistant."""

    def __init__(self, left_out: LeftOut) -> None:
        self.messages: list[dict[str, Any]] = []
        """In OpenAI's shape of chat completions."""
        self._left_out = left_out
        self._called: set[Any] = set()

    def take(self, item: dict[str, Any], where: str) -> None:
        """The next item.  Raises `UsageError`."""
        kind = item.get("type", "message")
        if not isinstance(kind, str):
            raise _unknown(kind, where)
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            self._thought(item)
        elif kind.endswith("_call"):
            self._call(kind, item)
        elif kind.endswith("_output"):
            self._result(kind, item, where)
        else:
            raise _unknown(kind, where)

    def _message(self, item: dict[str, Any], where: str) -> None:
        self._left_out.beside(("role", "content"), item, "input")
        role, content = item.get("role"), texts_of(item.get("content"), f"{where}.content", _FIELD, self._left_out)
        if role == "assistant" and content is not None and self._only_thought:
            self.messages[-1] = self.messages[-1] | {"content": content}
        else:
            self.messages.append({"role": role, "content": content})

    @property
    def _only_thought(self) -> bool:
        """Whether the last message is a thought that waits for what was said or called behind it."""
        last = self.messages[-1] if self.messages else {}
        return bool(last.get("reasoning_content")) and not (last.get("content") or last.get("tool_calls"))

    def _thought(self, item: dict[str, Any]) -> None:
        thought = thought_of(item.get("content")) or thought_of(item.get("summary"))
        if thought:
            self.messages.append({"role": "assistant", "content": "", "reasoning_content": thought})
        elif item.get("encrypted_content"):
            self._left_out.add("input.encrypted_content")

    def _call(self, kind: str, item: dict[str, Any]) -> None:
        """A call of a function, a custom tool or another; one without id has its result in itself, and is left out."""
        call_id = item.get("call_id")
        if kind == "function_call":
            self._left_out.beside(("call_id", "name", "arguments"), item, "input")
            call = {"id": call_id, "function": {"name": item.get("name"), "arguments": item.get("arguments")}}
        elif kind == "custom_tool_call":
            self._left_out.beside(("call_id", "name", "input"), item, "input")
            call = custom_call(call_id, item.get("name"), item.get("input"))
        elif isinstance(call_id, str):
            given: Any = next((item[name] for name in _CALLED_WITH if item.get(name) is not None), {})
            arguments = given if isinstance(given, str | dict) else {"input": given}
            call = {"id": call_id, "function": {"name": kind.removesuffix("_call"), "arguments": arguments}}
        else:
            self._left_out.add(f"input.{kind}")
            return
        self._called.add(call_id if isinstance(call_id, str) else None)
        if not self.messages or self.messages[-1].get("role") != "assistant":
            self.messages.append({"role": "assistant", "content": None})
        self.messages[-1] = self.messages[-1] | {"tool_calls": [*self.messages[-1].get("tool_calls", []), call]}

    def _result(self, kind: str, item: dict[str, Any], where: str) -> None:
        call_id, output = item.get("call_id"), item.get("output")
        known = kind in ("function_call_output", "custom_tool_call_output")
        if not known and not (isinstance(call_id, str) and call_id in self._called):
            self._left_out.add(f"input.{kind}")
            return
        if known and isinstance(output, list):
            output = result_of(output, f"{where}.output", "input.output", self._left_out)
        elif not known and not isinstance(output, str):
            output = json.dumps(output, ensure_ascii=False)
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": output})


def _unknown(kind: Any, where: str) -> UsageError:
    return UsageError(f"{where}: items of type `{shown(kind, 40)}` are not supported here", param=where)


Found = TypeVar("Found")


def shortened(
    messages: Sequence[dict[str, Any]], ask: Callable[[list[dict[str, Any]]], tuple[Request, Found]], room: int
) -> tuple[Request, Found]:
    """What ``ask`` makes of ``messages``; where they do not fit, of the longest end of them in ``room`` tokens.

    What the system says first stays, and an end begins with a user's message.  Raises `ContextOverflow` if the last such
    end is too long.
    """
    try:
        return ask(list(messages))
    except ContextOverflow as overflow:
        refusal = overflow
    first = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    begins = [at for at, message in enumerate(messages) if at > first and message["role"] == "user"]
    found: dict[int, tuple[Request, Found]] = {}

    def fits(at: int) -> bool:
        try:
            found[at] = ask([*messages[:first], *messages[at:]])
        except ContextOverflow:
            return False
        return len(found[at][0].prompt) <= room

    at = bisect_left(begins, True, key=fits)
    chosen = begins[min(at, len(begins) - 1)] if begins else first
    if chosen not in found:
        raise refusal
    return found[chosen]
