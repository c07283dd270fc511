"""Calls of tools: how model families write them, the grammar that forces one, and the parser that finds them in a text."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edge_llm.config import Grammar
from edge_llm.text.reasoning import held_back


@dataclass(frozen=True)
class Said:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True)
class CallBegun:
    """Call number ``index`` of the answer begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A piece of the arguments of call number ``index``, as JSON text."""

    index: int
    text: str


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


# ---- the parser

_STRING = r'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(
    rf'\{{\s*(?:"(?:type|id)"\s*:\s*{_STRING}\s*,\s*)*"name"\s*:\s*({_STRING})\s*,\s*"(?:arguments|parameters)"\s*:\s*\{{'
)
"""A call's object up to the brace that opens its arguments."""


class _CallObject:
    """One call's JSON object as its characters come: its name, then its arguments as they are written.

    An object in another order gives both when it is complete.
    """

    def __init__(self, names: frozenset[str] | None) -> None:
        self._names = names
        self.text = ""
        self.name: str | None = None
        self.ended = False
        self._depth = 0
        self._in_string = self._escaped = self._in_arguments = False

    def push(self, c: str) -> str:
        """The text of the arguments that ``c`` adds."""
        self.text += c
        structural = self._structural(c)
        if structural and c in "{[":
            self._depth += 1
            if self._depth == 2 and c == "{" and self.name is None and (head := _HEAD.fullmatch(self.text)):
                self._in_arguments = self._named(json.loads(head[1], strict=False))
        piece = c if self._in_arguments else ""
        if structural and c in "}]":
            self._depth -= 1
            self._in_arguments = self._in_arguments and self._depth > 1
            self.ended = self._depth == 0
        return piece if not self.ended or self.name is not None else self._whole()

    def _structural(self, c: str) -> bool:
        """Whether ``c`` stands outside of strings."""
        if not self._in_string:
            self._in_string = c == '"'
            return True
        if self._escaped:
            self._escaped = False
        elif c == "\\":
            self._escaped = True
        else:
            self._in_string = c != '"'
        return False

    def _named(self, name: Any) -> bool:
        if isinstance(name, str) and (self._names is None or name in self._names):
            self.name = name
        return self.name is not None

    def _whole(self) -> str:
        """The arguments of the complete object, if it is a call."""
        try:
            value = json.loads(self.text, strict=False)
            arguments = value.get("arguments", value.get("parameters", {}))
            if isinstance(arguments, str):
                arguments = json.loads(arguments, strict=False)
        except (ValueError, RecursionError):
            return ""
        if not isinstance(arguments, dict) or not self._named(value.get("name")):
            return ""
        return json.dumps(arguments, ensure_ascii=False)


Part = Said | CallBegun | CallArguments


class ToolCallParser:
    """Feed text with `push`, which gives the pieces of text and of calls that it completes.

    It goes character by character, so the calls are the same however the text is cut.  What looks like a call and is
    none, or is cut off before its name, is text.  ``names`` are the tools that there are; where nothing but an object
    marks a call, an object with another name is none.
    """

    def __init__(self, style: ToolFormat, names: frozenset[str]) -> None:
        self._style = style
        self._opener, self._closer = style.opener.strip(), style.closer.strip()
        self._names = None if self._opener else names
        self._step = self._text if self._opener else self._start
        self._held = ""
        self._object = _CallObject(self._names)
        self._parts: list[Part] = []
        self.calls = 0
        """Calls so far."""

    def push(self, text: str) -> list[Part]:
        """The parts that ``text`` completes, in order."""
        for c in text:
            self._step(c)
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> list[Part]:
        """What was held back, when the text ends."""
        if self._step == self._call:
            self._say("" if self._object.name is not None else self._held + self._object.text)
        elif self._step not in (self._close, self._between) and not (self.calls and not self._held.strip()):
            self._say(self._held)
        self._held = ""
        return self.push("")

    # -- calls between tags

    def _text(self, c: str) -> None:
        self._held += c
        if self._held.lstrip() == self._opener:
            self._step = self._open
        elif self._held.strip() and self._held.lstrip() != self._opener[: len(self._held.lstrip())]:
            end = len(self._held) - held_back(self._held, self._opener)
            self._say(self._held[:end])
            self._held = self._held[end:]

    def _open(self, c: str) -> None:
        if c == "{":
            self._begin_object(c)
        elif c.isspace():
            self._held += c
        else:
            self._give_up(self._held)
            self._text(c)

    def _close(self, c: str) -> None:
        self._held += c
        found = self._held.lstrip()
        if found == self._closer:
            self._step, self._held = self._text, ""
        elif not self._closer.startswith(found):
            held, self._held = self._held, ""
            self._step = self._text
            for one in held:
                self._step(one)

    # -- calls at the beginning

    def _start(self, c: str) -> None:
        held = self._held + c
        rest = held.lstrip()
        if self._style.marker and rest.startswith(self._style.marker):
            rest = rest[len(self._style.marker) :].lstrip()
        bare = rest.removeprefix("[").lstrip()
        if bare == "{":
            self._begin_object(c)
        elif bare and not (self._style.marker and self._style.marker.startswith(rest)):
            self._give_up(held)
        else:
            self._held = held

    def _between(self, c: str) -> None:
        if c == "{":
            self._begin_object(c)
        elif not c.isspace() and c not in ",;]":
            self._give_up(self._held + c)
        else:
            self._held += c

    def _rest(self, c: str) -> None:
        self._say(c)

    # -- both

    def _begin_object(self, c: str) -> None:
        self._object = _CallObject(self._names)
        self._step = self._call
        self._call(c)

    def _call(self, c: str) -> None:
        known = self._object.name is not None
        piece = self._object.push(c)
        if not known and self._object.name is not None:
            self._parts.append(CallBegun(self.calls, self._new_id(), self._object.name))
            self.calls += 1
        if piece:
            self._add_arguments(piece)
        if self._object.ended:
            if self._object.name is None:
                self._give_up(self._held + self._object.text)
            else:
                self._step, self._held = self._close if self._opener else self._between, ""

    def _give_up(self, text: str) -> None:
        """``text`` was no call."""
        self._held = ""
        self._say(text)
        self._step = self._text if self._opener else self._rest

    def _say(self, text: str) -> None:
        if self._parts and isinstance(last := self._parts[-1], Said):
            self._parts[-1] = Said(last.text + text)
        elif text:
            self._parts.append(Said(text))

    def _add_arguments(self, text: str) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, CallArguments):
            self._parts[-1] = CallArguments(last.index, last.text + text)
        else:
            self._parts.append(CallArguments(self.calls - 1, text))

    def _new_id(self) -> str:
        length = self._style.id_length
        letters = secrets.token_hex((length + 1) // 2)[:length]
        return letters if length < 16 else f"call_{letters}"
