"""The tools that a client offers, in the shapes of all APIs: functions, what becomes one, and what is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.talk.contents import LeftOut

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
    if kind in ("function", "custom") or not isinstance(kind, str):
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
        return functions, {"type": "function", "function": {"name": _name_of(choice)}}
    if kind != "allowed_tools":
        return functions, choice
    inner = choice.get("allowed_tools") or choice
    allowed = inner.get("tools") if isinstance(inner, dict) else None
    if not isinstance(allowed, list) or not all(isinstance(tool, dict) for tool in allowed):
        raise UsageError("tool_choice.tools must be a list of tools", param="tool_choice")
    names = [_name_of(tool) for tool in allowed if tool.get("type") in ("function", "custom")]
    known = [_name_of(tool) for tool in functions]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"tool_choice: there is no tool `{shown(unknown[0], 60)}`", param="tool_choice")
    return [tool for tool in functions if _name_of(tool) in names], inner.get("mode", "auto")


def _name_of(tool: Tool) -> Any:
    """The name of a tool, or of a choice of one, in the shape of chat completions or of responses."""
    inner = tool.get(tool["type"]) if tool.get("type") in ("function", "custom") else None
    return (inner if isinstance(inner, dict) else tool).get("name")
