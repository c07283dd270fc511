"""The tools of a request: checked, shown to the model, and forced where the client says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from edge_llm.config import Grammar
from edge_llm.decoding.guided import check_grammar
from edge_llm.engine.engine import Engine
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.talk.pieces import TOOL_NAME
from edge_llm.talk.tool_formats import (
    ControlToken,
    ToolFormat,
    arguments_schema,
    calls_grammar,
    calls_or,
    format_of,
    text_or_calls_grammar,
)
from edge_llm.text.chat import with_system
from edge_llm.text.tokenizer import Tokenizer

_EXPLANATION = (
    "You can call tools. To call one, write its name and arguments as JSON between tags, like this:\n"
    '<tool_call>\n{"name": "tool", "arguments": {"key": "value"}}\n</tool_call>\n'
    "These are the tools, with the JSON schemas of their arguments:\n"
)
"""For a model whose chat template knows no tools."""


@dataclass(frozen=True)
class ToolUse:
    """Tools that the model may or must call."""

    tools: tuple[dict[str, Any], ...]
    style: ToolFormat
    forced: bool = False
    parallel: bool = True
    strict: bool = False
    """Every call's arguments keep to their schema, whether or not a call is forced."""

    @classmethod
    def of(cls, tools: Sequence[Any] | None, choice: Any, parallel: bool | None, engine: Engine) -> Self | None:
        """What ``tools`` and ``tool_choice`` of a request ask for; None when the model is shown no tools.

        Raises `UsageError` for tools that are malformed, or a choice that is none.
        """
        checked = [_plain_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or [])]
        named = _named(choice)
        if named is not None or choice == "required":
            if not checked:
                raise UsageError("tool_choice needs tools", param="tool_choice")
        elif choice not in (None, "none", "auto"):
            raise UsageError(f"tool_choice `{shown(choice, 60)}` is not supported here", param="tool_choice")
        if not checked or choice == "none":
            return None
        strict = any((tool.get("function") or {}).get("strict") for tool in tools or [])
        style = format_of(engine.template.shape)
        made = cls(tuple(checked), style, choice == "required" or named is not None, parallel is not False, strict)
        return made if named is None else made._only(named)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool["function"]["name"] for tool in self.tools)

    def explained(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """``messages`` with the tools in plain words, for a template that knows none."""
        tools = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in self.tools)
        return with_system(messages, after=_EXPLANATION + tools)

    def grammar(self, answer: Grammar | None, tokenizer: Tokenizer) -> Grammar | None:
        """What the answer must look like: calls where they are forced, else ``answer`` or calls; None for any text."""

        control = control_token(tokenizer)
        functions = [tool["function"] for tool in self.tools]
        if not self.forced and answer is None and not self.strict:
            return None
        for at, function in enumerate(functions):
            schema = Grammar("json_schema", json.dumps(arguments_schema(function)))
            check_grammar(schema, tokenizer, param=f"tools[{at}].function.parameters")
        if not self.forced and answer is None:
            return replace(text_or_calls_grammar(functions, self.style, control), free=True)
        calls = calls_grammar(functions, self.style, control, parallel=self.parallel)
        return calls if self.forced or answer is None else calls_or(calls, answer)

    def _only(self, name: str) -> Self:
        """The same with one tool to call, once."""
        if name not in self.names:
            raise UsageError(f"tool_choice: there is no tool `{shown(name, 60)}`", param="tool_choice")
        chosen = tuple(tool for tool in self.tools if tool["function"]["name"] == name)
        return type(self)(chosen, self.style, forced=True, parallel=False, strict=self.strict)


def control_token(tokenizer: Tokenizer) -> ControlToken:
    """How to find the control tokens of ``tokenizer``."""

    def find(text: str) -> int | None:
        token = tokenizer.token_id(text)
        return token if token is not None and tokenizer.is_special(token) else None

    return find


def _named(choice: Any) -> str | None:
    """The name in a choice of one function, in the shape of a chat or a response request."""
    if not isinstance(choice, dict) or choice.get("type") != "function":
        return None
    name = (choice.get("function") or choice).get("name") if isinstance(choice.get("function") or {}, dict) else None
    if not isinstance(name, str):
        raise UsageError("tool_choice.function.name is missing", param="tool_choice")
    return name


def _plain_tool(tool: Any, where: str) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type", "function") == "function" else None
    if not isinstance(function, dict):
        raise UsageError(f"{where} must be a tool of type function", param=where)
    name = function.get("name")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise UsageError(f"{where}.function.name `{shown(name, 60)}` is not a name", param=f"{where}.function.name")
    if not isinstance(function.get("parameters") or {}, dict):
        raise UsageError(f"{where}.function.parameters must be a JSON schema", param=f"{where}.function.parameters")
    plain = {"name": name, "description": function.get("description") or "", "parameters": function.get("parameters") or {}}
    return {"type": "function", "function": plain}
