"""Calls of tools: how model families write them, and the grammar that forces one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edge_llm.config import Grammar
from edge_llm.text.shape import ASK, RESULT, TOOL_NAME, TemplateShape

FENCE, FUNCTION = "```", "<function="
CALLS_BEGIN, CALL_BEGIN, SEPARATOR = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
CALL_END, CALLS_END = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
LISTED, ACTION, ACTION_END = "<|tool_call|>", "<|START_ACTION|>", "<|END_ACTION|>"
OPENERS = (
    "<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", LISTED, "<function_call>", CALLS_BEGIN, CALL_BEGIN, ACTION,
    FUNCTION, FENCE,
)  # fmt: skip
"""Behind which a call may stand."""
CLOSERS = (
    "</tool_call>", "</function>", "</function_call>", "<|/tool_call|>", "<|eom_id|>", CALL_END, CALLS_END, ACTION_END, FENCE,
)  # fmt: skip
"""Which may stand behind one; the last only where it stands before it, too."""
MARKS = (*OPENERS, *CLOSERS, SEPARATOR, "[ARGS]", "[CALL_ID]", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
"""All that are looked for in an answer's text."""


@dataclass(frozen=True)
class ToolFormat:
    """How a family writes calls: ``marker begin (opener object closer), separator, ... end``.

    A format without an ``opener`` has its calls at the beginning of an answer; one with ``between`` writes ``name between
    arguments`` in place of an object.
    """

    name: str = "name"
    """Key of the tool's name in a call's object."""
    arguments: str = "arguments"
    """Key of the arguments beside it."""
    marker: str = ""
    begin: str = ""
    opener: str = ""
    closer: str = ""
    separator: str = "\n"
    end: str = ""
    between: str = ""
    id_length: int = 24
    """Letters of a call's id; some templates take no other length."""

    @property
    def is_bare(self) -> bool:
        """Whether an object at the beginning of an answer may be a call."""
        return not self.opener


HERMES = ToolFormat(opener="<tool_call>\n", closer="\n</tool_call>")
"""Qwen, Hermes and others; also what a model is asked for whose template knows no tools."""
MISTRAL = ToolFormat(marker="[TOOL_CALLS]", begin="[", separator=", ", end="]", id_length=9)
MISTRAL_NAMED = ToolFormat(opener="[TOOL_CALLS]", between="[ARGS]", separator="", id_length=9)
DEEPSEEK = ToolFormat(
    begin=CALLS_BEGIN,
    opener=f"{CALL_BEGIN}function{SEPARATOR}",
    between="\n```json\n",
    closer=f"\n```{CALL_END}",
    end=CALLS_END,
)
LIST = ToolFormat(marker=LISTED, begin="[", separator=", ", end="]")
"""Granite 3 and Phi-4-mini."""
COHERE = ToolFormat(
    name="tool_name", arguments="parameters", marker=ACTION, begin="[", separator=", ", end=f"]{ACTION_END}"
)
LLAMA = ToolFormat(arguments="parameters", separator="; ")
PLAIN = ToolFormat()
"""Bare objects, one per line."""

ControlToken = Callable[[str], int | None]
"""Id of the control token that is written so, which is no part of an answer's text; None if there is none."""


def format_of(shape: TemplateShape) -> ToolFormat:
    """The format that a template of ``shape`` writes calls in, or asks for where it shows tools."""
    if not shape.tools:
        return HERMES  # as the tools are explained there
    if shape.calls is not None:
        written = shape.calls.sample.rpartition(RESULT)[0] or shape.calls.sample
        found = _format_in(written[written.rfind(ASK) :])
        if found is not None:
            return found
    return _format_in(shape.tools_sample) or PLAIN


def _format_in(text: str) -> ToolFormat | None:
    """The format whose marks are in ``text``, which shows tools or a call of `TOOL_NAME`."""
    if "<tool_call>" in text:
        return HERMES
    if "[TOOL_CALLS]" in text or "[AVAILABLE_TOOLS]" in text:
        return MISTRAL_NAMED if re.search(re.escape(TOOL_NAME) + r"(\[CALL_ID\]\w*)?\[ARGS\]", text) else MISTRAL
    if CALL_BEGIN in text:
        return DEEPSEEK
    if ACTION in text:
        return COHERE
    if LISTED in text or "<|/tool|>" in text:
        return LIST
    # a tool's own parameters are an object
    return LLAMA if "<|python_tag|>" in text or re.search(r'"parameters": (?!\{\s*"type")', text) else None


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
    mark = _MARK.match(style.opener)
    first = style.opener.strip() if mark is None else mark[0]
    token = control(first)
    opened = "opened[lazy]: TEXT " + json.dumps(first) if token is None else f"opened: TEXT <[{token}]>"
    after = _terms(style.opener[len(first) :], control)
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
    marker = _terms(style.marker, control) if control(style.marker) is not None else ""  # without it, objects are calls
    lines.append(f"begin: {marker} {_terms(style.begin, control)}")
    lines.append(f"call: {_terms(style.opener, control)} object closer")
    lines.append(f"closer: {_terms(style.closer, control)}")
    lines.append("separator: " + json.dumps(style.separator))
    lines.append(f"end: {_terms(style.end, control)}")
    lines.append("object: " + " | ".join(f"object_{at}" for at in range(len(tools))))
    for at, tool in enumerate(tools):
        if style.between:
            lines.append(f"object_{at}: {json.dumps(tool['name'])} {_terms(style.between, control)} @arguments_{at}")
            continue
        head = f'{{"{style.name}": {json.dumps(tool["name"])}, "{style.arguments}": '
        lines.append(f'object_{at}: {json.dumps(head)} @arguments_{at} "}}"')
    schemas = [Grammar("json_schema", json.dumps(arguments_schema(tool))) for tool in tools]
    return Grammar("lark", "\n".join(lines), tuple((f"arguments_{at}", schema) for at, schema in enumerate(schemas)))


_MARK = re.compile("|".join(re.escape(mark) for mark in sorted(MARKS, key=len, reverse=True)))


def _terms(text: str, control: ControlToken) -> str:
    """``text`` in a rule, where each mark that is a control token is itself."""
    terms, at = [], 0
    for mark in _MARK.finditer(text):
        if (token := control(mark[0])) is not None:
            terms += [json.dumps(text[at : mark.start()]), f"<[{token}]>"]
            at = mark.end()
    return " ".join(term for term in [*terms, json.dumps(text[at:])] if term != '""') or '""'
