"""The tools that a client offers, in the shapes of all APIs: functions, what becomes one, and what is left out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.server.contents import LeftOut
from edge_llm.talk.outcome import Outcome
from edge_llm.talk.pieces import AnswerPiece, CallArguments, CallBegun

Tool = dict[str, Any]
_FUNCTION = ("name", "description", "parameters", "strict")


@dataclass(frozen=True)
class Offer:
    """What a model may call."""

    functions: tuple[Any, ...] = ()
    """In the shape of chat completions; what is none is refused by whoever reads it."""
    choice: Any = None
    customs: frozenset[str] = frozenset()
    """Names of functions whose one argument is a text: custom tools."""
    left_out: tuple[str, ...] = ()
    """Names of what has no effect."""


_Read = Callable[[Tool, LeftOut], tuple[Tool | None, bool]]
"""A tool as a function, or None for one that is left out; and whether it is a custom one."""


def chat_offer(tools: Sequence[Tool], choice: Any) -> Offer:
    """Tools of chat completions."""
    return _offer(tools, choice, _of_chat)


def responses_offer(tools: Sequence[Tool], choice: Any) -> Offer:
    """Tools of responses."""
    return _offer(tools, choice, _of_responses)


def messages_offer(tools: Sequence[Tool], choice: Any) -> Offer:
    """Tools of Anthropic's messages; ``choice`` is in OpenAI's words."""
    return _offer(tools, choice, _of_messages)


def _offer(tools: Sequence[Tool], choice: Any, read: _Read) -> Offer:
    left_out, functions, customs = LeftOut(), [], []
    for tool in tools:
        function, is_custom = read(tool, left_out)
        if function is None:
            left_out.add(f"tools.{tool['type']}")
            continue
        functions.append(function)
        if is_custom:
            customs.append(function["function"]["name"])
    functions, choice = _chosen(functions, choice)
    names = frozenset(name for name in customs if isinstance(name, str))
    return Offer(tuple(functions), choice, names, tuple(left_out.names))


# ---- the shapes


def _of_chat(tool: Tool, left_out: LeftOut) -> tuple[Tool | None, bool]:
    kind, custom = tool.get("type", "function"), tool.get("custom")
    if kind == "custom" and isinstance(custom, dict):
        return _custom(custom, left_out), True
    if kind == "function" or not isinstance(kind, str):
        if isinstance(function := tool.get("function"), dict):
            left_out.beside(_FUNCTION, function, "tools.function")
        left_out.beside(("function",), tool, "tools")
        return tool, False
    return None, False


def _of_responses(tool: Tool, left_out: LeftOut) -> tuple[Tool | None, bool]:
    kind = tool.get("type")
    if kind == "custom":
        return _custom(tool, left_out), True
    if kind == "function":
        left_out.beside(_FUNCTION, tool, "tools")
        return {"type": "function", "function": {key: tool.get(key) for key in _FUNCTION}}, False
    return (None, False) if isinstance(kind, str) else (tool, False)


def _of_messages(tool: Tool, left_out: LeftOut) -> tuple[Tool | None, bool]:
    kind = tool.get("type")
    if isinstance(kind, str) and kind != "custom":
        known = next((function for begin, function in _CLIENTS_OWN.items() if kind.startswith(begin)), None)
        return (None if known is None else {"type": "function", "function": known | {"name": tool.get("name")}}), False
    left_out.beside(("name", "description", "input_schema", "strict"), tool, "tools")
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get("input_schema")}
    return {"type": "function", "function": function | {"strict": tool.get("strict")}}, False


def _custom(tool: Tool, left_out: LeftOut) -> Tool:
    """A tool that takes any text as a function of one text; its grammar is told, and not held to."""
    form = tool.get("format")
    described, grammar = tool.get("description"), (form.get("grammar") or form) if isinstance(form, dict) else {}
    if isinstance(grammar, dict) and isinstance(rules := grammar.get("definition"), str):
        left_out.add("tools.format")
        described = f"{described or ''}\n\nThe input is a text of this grammar ({grammar.get('syntax')}):\n{rules}".strip()
    left_out.beside(("name", "description", "format"), tool, "tools")
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return {"type": "function", "function": {"name": tool.get("name"), "description": described, "parameters": text}}


def _object(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_TEXT = {"type": "string"}
_CLIENTS_OWN: dict[str, Tool] = {
    "bash_": {
        "description": "Run a command in a shell that stays open.",
        "parameters": _object((), command=_TEXT, restart={"type": "boolean"}),
    },
    "text_editor_": {
        "description": "View, create and edit files.",
        "parameters": _object(
            ("command", "path"), command={"enum": ["view", "create", "str_replace", "insert"]}, path=_TEXT, file_text=_TEXT,
            old_str=_TEXT, new_str=_TEXT, insert_line={"type": "integer"}, insert_text=_TEXT,
            view_range={"type": "array", "items": {"type": "integer"}},
        ),
    },
}  # fmt: skip
"""Anthropic's tools that clients run, whose schemas their models know; by the beginning of their types."""


# ---- the choice


def _chosen(functions: list[Tool], choice: Any) -> tuple[list[Tool], Any]:
    """The functions that may be called, and the choice among them in words of chat completions."""
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "custom":
        return functions, {"type": "function", "function": {"name": (choice.get("custom") or choice).get("name")}}
    if kind != "allowed_tools":
        return functions, choice
    inner = choice.get("allowed_tools") or choice
    allowed = inner.get("tools") if isinstance(inner, dict) else None
    if not isinstance(allowed, list) or not all(isinstance(tool, dict) for tool in allowed):
        raise UsageError("tool_choice.tools must be a list of tools", param="tool_choice")
    names = list(_names(allowed))
    known = {tool["function"].get("name") for tool in functions if isinstance(tool.get("function"), dict)}
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"tool_choice: there is no tool `{shown(unknown[0], 60)}`", param="tool_choice")
    return [tool for tool in functions if tool["function"].get("name") in names], inner.get("mode", "auto")


def _names(allowed: Iterable[Tool]) -> Iterable[Any]:
    for tool in allowed:
        kind = tool.get("type")
        if kind in ("function", "custom"):
            inner = tool.get(kind)
            yield (inner if isinstance(inner, dict) else tool).get("name")


# ---- calls of custom tools, on their way back


_BEGUN_INPUT = re.compile(r'\s*\{\s*"input"\s*:\s*"((?:[^"\\]|\\(?:u[0-9A-Fa-f]{4}|[^u]))*)')


def custom_input(arguments: str) -> str:
    """The text in the arguments of a call of a custom tool, also of one that was cut off."""
    try:
        found = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        begun = _BEGUN_INPUT.match(arguments)
        try:
            return arguments if begun is None else _unicode(json.loads(f'"{begun[1]}"', strict=False))
        except ValueError:
            return arguments
    text = found.get("input") if isinstance(found, dict) else found
    return _unicode(text) if isinstance(text, str) else arguments


def _unicode(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@dataclass(frozen=True)
class CustomInput(CallArguments):
    """The text of a call of a custom tool."""


class CustomCalls:
    """Pieces of an answer in which a call of a custom tool has its text as one piece, when all of it is there."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._open = -1
        """Number of the call whose text comes."""
        self._held = ""

    def push(self, pieces: Sequence[AnswerPiece], *, ended: bool) -> list[AnswerPiece]:
        """What can be told now; all if the answer has ``ended``."""
        if not self._names:
            return list(pieces)
        found: list[AnswerPiece] = []
        for piece in pieces:
            if isinstance(piece, CallArguments) and piece.index == self._open:
                self._held += piece.text
                continue
            found += self._closed()
            found.append(piece)
            if isinstance(piece, CallBegun) and piece.name in self._names:
                self._open = piece.index
        return found + (self._closed() if ended else [])

    def _closed(self) -> list[AnswerPiece]:
        if self._open < 0:
            return []
        piece = CustomInput(self._open, custom_input(self._held))
        self._open, self._held = -1, ""
        return [piece]


def with_inputs(outcome: Outcome, customs: frozenset[str]) -> Outcome:
    """``outcome`` whose calls of custom tools have their text as arguments."""
    for call in outcome.calls:
        if call.name in customs:
            call.arguments = custom_input(call.arguments)
    return outcome
