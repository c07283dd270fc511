"""Calls of tools: how model families write them, and the grammar that forces one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edge_llm.config import Grammar


@dataclass(frozen=True)
class ToolFormat:
    """How a family writes calls: ``marker begin (opener object closer), separator, ... end``.

    A format with an ``opener`` finds calls anywhere in an answer; one without finds them only at its beginning.
    """

    arguments: str = "arguments"
    """Key of the arguments in a call's object, beside ``name``."""
    marker: str = ""
    begin: str = ""
    opener: str = ""
    closer: str = ""
    separator: str = "\n"
    end: str = ""
    id_length: int = 24
    """Letters of a call's id; some templates take no other length."""


HERMES = ToolFormat(opener="<tool_call>\n", closer="\n</tool_call>")
"""Qwen, Hermes and others; also what a model is asked for whose template knows no tools."""
MISTRAL = ToolFormat(marker="[TOOL_CALLS]", begin="[", separator=", ", end="]", id_length=9)
LLAMA = ToolFormat(arguments="parameters", separator="; ")
PLAIN = ToolFormat()
"""Bare objects, one per line."""

ControlToken = Callable[[str], int | None]
"""Id of the control token that is written so, which is no part of an answer's text; None if there is none."""


def format_of(template: str) -> ToolFormat:
    """The format that the chat template ``template`` shows calls in."""
    if "tools" not in template or "<tool_call>" in template:
        return HERMES
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    return LLAMA if "<|python_tag|>" in template or '"parameters": ' in template else PLAIN


# ---- grammars


def calls_grammar(
    tools: Sequence[dict[str, Any]], style: ToolFormat, control: ControlToken, *, parallel: bool, most: int = 16
) -> Grammar:
    """One call of one of ``tools`` ({"name", "parameters"}), or up to ``most`` calls if ``parallel``."""
    repeated = f"(separator call){{0,{most - 1}}}" if parallel else ""
    return _grammar(tools, style, control, f"begin call {repeated} end")


def text_or_calls_grammar(tools: Sequence[dict[str, Any]], style: ToolFormat, control: ControlToken) -> Grammar:
    """Any text, in which calls are calls of ``tools`` with arguments that fit."""
    if not style.opener:
        return _grammar(tools, style, control, "TEXT | begin call (separator call)* end", "TEXT: /([^{\\[](.|\\n)*)?/")
    token = control(style.opener.strip())
    opened = "opened[lazy]: TEXT " + json.dumps(style.opener.strip()) if token is None else f"opened: TEXT <[{token}]>"
    after = json.dumps(style.opener[len(style.opener.rstrip()) :])
    rules = f"TEXT: /(.|\\n)*/\n{opened}\nmore: opened {after} object closer"
    return _grammar(tools, style, control, "more* last\nlast: TEXT", rules)


def calls_or(calls: Grammar, answer: Grammar) -> Grammar:
    """Either ``calls`` or ``answer``."""
    parts = (("calls", Grammar(calls.kind, calls.text)), ("answer", answer), *calls.parts)
    return Grammar("lark", "start: @calls | @answer", parts)


def after_thought(answer: Grammar, control: ControlToken, *, opened: bool) -> Grammar:
    """``answer`` behind a thought: one that the prompt has opened, or one that may be there."""
    open_token, close_token = control("<think>"), control("</think>")
    thought = "thought[lazy]: /(.|\\n)*<\\/think>/" if close_token is None else f"thought: /(.|\\n)*/ <[{close_token}]>"
    begun = '"<think>"' if open_token is None else f"<[{open_token}]>"
    start = "thought SPACE @rest" if opened else f"({begun} thought SPACE)? @rest"
    text = f"start: {start}\n{thought}\nSPACE: /\\n{{0,2}}/"
    return Grammar("lark", text, (("rest", Grammar(answer.kind, answer.text)), *answer.parts))


def arguments_schema(tool: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a tool's arguments: an object that has only what the tool declares, unless it says otherwise."""
    declared = tool.get("parameters") or {"properties": {}}
    closed = {"additionalProperties": False} if "properties" in declared else {}
    return {"type": "object"} | closed | declared


def _grammar(tools: Sequence[dict[str, Any]], style: ToolFormat, control: ControlToken, start: str, *rules: str) -> Grammar:
    lines = [f"start: {start}", *rules]
    lines.append("begin: " + _terms(style.marker, control, optional=True) + json.dumps(style.begin))
    lines.append("call: " + _terms(style.opener, control) + "object " + "closer")
    lines.append("closer: " + _terms(style.closer, control) + '""')
    lines.append("separator: " + json.dumps(style.separator))
    lines.append("end: " + json.dumps(style.end))
    lines.append("object: " + " | ".join(f"object_{at}" for at in range(len(tools))))
    for at, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool["name"])}, "{style.arguments}": '
        lines.append(f'object_{at}: {json.dumps(head)} @arguments_{at} "}}"')
    schemas = [Grammar("json_schema", json.dumps(arguments_schema(tool))) for tool in tools]
    return Grammar("lark", "\n".join(lines), tuple((f"arguments_{at}", schema) for at, schema in enumerate(schemas)))


def _terms(text: str, control: ControlToken, *, optional: bool = False) -> str:
    """``text`` in a rule, where a control token is itself; one that is ``optional`` and no control token is left out."""
    word = text.strip()
    token = control(word) if word else None
    if token is None:
        return "" if optional or not text else json.dumps(text) + " "
    before, after = text.split(word)
    return f"{json.dumps(before)} <[{token}]> {json.dumps(after)} "
