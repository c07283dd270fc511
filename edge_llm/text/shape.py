"""What a chat template takes and shows: found out once, by rendering small conversations and looking for their words.

The template's source is not searched: a word in a comment, or in code that never runs, means nothing.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edge_llm.errors import InvalidTokenizer, UsageError
from edge_llm.text.reasoning import CLOSE, OPEN

Render = Callable[[Sequence[Mapping[str, Any]], Mapping[str, Any]], str]
MAX_SECONDS = 10.0
"""After which a template is asked nothing more; real ones take some milliseconds for all of it."""

ASK, TOOL_NAME, KEY, VALUE, RESULT = "qovakask", "qovaktool", "qovakkey", "qovakvalue", "qovakresult"
"""Words of the question and the call in the history that is tried; they are not those of the tool that is given."""
_GIVEN, _PARAMETER = "qovakgiven", "qovakparameter"
_SAID, _MORE, _SYSTEM, _LATE, _THOUGHT = "qovaksaid", "qovakmore", "qovaksystem", "qovaklate", "qovakthought"
_SECOND, _OTHER = "qovaksecond", "qovakother"
_IDS = ("call_0123456789abcdef01234567", "call_89abcdef0123456701234567")
_SHORT_IDS = ("a0b1c2d3e", "f4g5h6i7j")
_THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
_SWITCHES = ("enable_thinking", "thinking")

_USER = {"role": "user", "content": ASK}
_ASSISTANT = {"role": "assistant", "content": _SAID}
_NEXT = {"role": "user", "content": _MORE}
_TOOL = {
    "type": "function",
    "function": {
        "name": _GIVEN,
        "description": "Looks something up.",
        "parameters": {
            "type": "object",
            "properties": {_PARAMETER: {"type": "string", "description": "What."}},
            "required": [_PARAMETER],
        },
    },
}


@dataclass(frozen=True)
class CallShape:
    """How tool calls and their results stand in the messages that a template shows."""

    as_text: bool = False
    """Arguments are JSON text; else objects."""
    takes_text: bool = True
    """Arguments that are no object may stand there as the text they are."""
    null_content: bool = False
    """The content beside calls is none, not empty."""
    text_beside: bool = True
    """A text may stand in the message of the calls; else it is a message before it."""
    many: bool = True
    """Several calls stand in one message; else each is followed by its result."""
    short_ids: bool = False
    """Ids of calls have nine letters and digits."""
    named_results: bool = False
    """Results have the name of the tool."""
    sample: str = ""
    """What the template made of a call of `TOOL_NAME` with the argument `KEY`: `VALUE`, and the `RESULT` behind it."""


@dataclass(frozen=True)
class TemplateShape:
    """What a chat template takes and shows.  By itself: all that there is, as it stands."""

    system: bool = True
    """A message of the system reaches the prompt; else what it says goes before the first user message."""
    system_with_calls: bool = True
    """It still does where a tool was called."""
    system_alone: bool = True
    """It does without a user message, too."""
    late_system: bool = True
    """Other messages of the system, too, where they stand; else what they say is joined to the first."""
    alternates: bool = False
    """Two messages of one role in a row are refused, or one is left out."""
    tools: bool = True
    """Tools that are given are shown."""
    needs_list: bool = False
    """Where no tools are given it wants an empty list of them."""
    tools_sample: str = ""
    """What the template makes of a tool that is given, and a message."""
    calls: CallShape | None = CallShape()
    """Of a history with calls, where tools are given; None where the template has no calls."""
    calls_alone: CallShape | None = CallShape()
    """The same where no tools are given."""
    thinks: bool = False
    """It knows the tags of thoughts."""
    thought_key: str = _THOUGHT_KEYS[0]
    """The field of a message that has its thought."""


def shape_of(render: Render) -> TemplateShape:
    """The shape of the template behind ``render``, which takes messages and variables and raises as `ChatTemplate.render`."""
    probe = _Probe(render)
    if probe.text([_USER]) is None:
        probe.none = []
        if probe.text([_USER]) is None:  # it wants other messages than anybody sends
            return TemplateShape()
    with_tool = probe.text([_USER], tools=True) or ""
    shape = TemplateShape(
        system=probe.shows([_system(_SYSTEM), _USER]),
        system_alone=all(probe.shows([_system(_SYSTEM)], tools=tools) for tools in (False, True)),
        late_system=probe.shows([_system(_SYSTEM), _USER, _ASSISTANT, _system(_LATE), _NEXT]),
        alternates=not probe.shows([_USER, _NEXT]) and probe.shows([_USER, _ASSISTANT, _NEXT]),
        tools=_GIVEN in with_tool,
        needs_list=probe.none is not None,
        tools_sample=with_tool,
        calls=_calls(probe, tools=True),
        calls_alone=_calls(probe, tools=False),
    )
    system_with_calls = all(
        probe.shows([_system(_SYSTEM), *_conversation(calls)], VALUE, tools=tools)
        for calls, tools in ((shape.calls, True), (shape.calls_alone, False))
        if calls is not None
    )
    return replace(
        shape, system_with_calls=system_with_calls, thinks=_thinks(probe), thought_key=_thought_key(probe, shape)
    )


class _Probe:
    """Renders what is tried; None for what is refused."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._until = time.monotonic() + MAX_SECONDS
        self.none: list[Any] | None = None
        """What stands for no tools."""

    def text(self, messages: Sequence[Mapping[str, Any]], *, tools: bool = False, **variables: Any) -> str | None:
        if time.monotonic() > self._until:
            return None
        try:
            return self._render(messages, {**variables, "tools": [_TOOL] if tools else self.none})
        except (UsageError, InvalidTokenizer):
            return None

    def shows(self, messages: Sequence[Mapping[str, Any]], *words: str, tools: bool = False) -> bool:
        """Whether all contents of ``messages`` reach the prompt, and ``words``."""
        text = self.text(messages, tools=tools) or ""
        return all(word in text for word in (*(message["content"] or "" for message in messages), *words))


def _system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


# ---- calls


def _calls(probe: _Probe, *, tools: bool) -> CallShape | None:
    """The first shape of calls that the template shows whole; one that it writes as JSON is better than one as Python."""
    spare: CallShape | None = None
    for shape in _call_shapes():
        text = probe.text(_conversation(shape), tools=tools) or ""
        if not all(word in text for word in (ASK, TOOL_NAME, VALUE, RESULT)):
            continue
        shape = replace(shape, sample=text)
        if f"'{KEY}'" not in text:
            return _refined(probe, shape, tools=tools)
        spare = spare or shape
    return None if spare is None else _refined(probe, spare, tools=tools)


def _call_shapes() -> Iterator[CallShape]:
    """All shapes in which a single call may be shown, the usual ones first."""
    for short_ids, named, null, as_text in itertools.product((False, True), repeat=4):
        yield CallShape(as_text=as_text, null_content=null, named_results=named, short_ids=short_ids)


def _refined(probe: _Probe, shape: CallShape, *, tools: bool) -> CallShape:
    def shows(other: CallShape, *words: str, **options: Any) -> bool:
        return all(word in (probe.text(_conversation(other, **options), tools=tools) or "") for word in words)

    cut = json.dumps({KEY: VALUE})[:-2]
    shape = replace(shape, takes_text=shape.as_text or shows(shape, VALUE, RESULT, arguments=cut))
    shape = replace(shape, text_beside=shows(shape, _SAID, VALUE, RESULT, said=_SAID))
    return replace(shape, many=shows(shape, VALUE, RESULT, _SECOND, _OTHER, second=True))


def _conversation(
    shape: CallShape, *, said: str = "", arguments: str | None = None, second: bool = False, thought: str = ""
) -> list[dict[str, Any]]:
    """A question, calls in ``shape`` and their results."""
    ids = _SHORT_IDS if shape.short_ids else _IDS
    values = [(ids[0], VALUE, RESULT)] + ([(ids[1], _SECOND, _OTHER)] if second else [])
    calls, results = [], []
    for call_id, value, result in values:
        given: Any = json.dumps({KEY: value}) if shape.as_text else {KEY: value}
        function = {"name": TOOL_NAME, "arguments": given if arguments is None else arguments}
        calls.append({"id": call_id, "type": "function", "function": function})
        named = {"name": TOOL_NAME} if shape.named_results else {}
        results.append({"role": "tool", "tool_call_id": call_id, "content": result} | named)
    content = said or (None if shape.null_content else "")
    more = {thought: _THOUGHT} if thought else {}
    return [_USER, {"role": "assistant", "content": content, "tool_calls": calls} | more, *results]


# ---- thoughts


def _thinks(probe: _Probe) -> bool:
    switches = [{}, *(dict.fromkeys(_SWITCHES, on) for on in (True, False))]
    texts = [probe.text([_USER], **variables) or "" for variables in switches]
    thought = _USER, _ASSISTANT | {"content": f"{OPEN}\n{_THOUGHT}\n{CLOSE}\n\n{_SAID}"}, _NEXT
    again = probe.text(thought) or f"{_THOUGHT}{_SAID}"
    apart = probe.text([_USER, _ASSISTANT | dict.fromkeys(_THOUGHT_KEYS, _THOUGHT)]) or ""
    cuts = _SAID in again and _THOUGHT not in again
    return cuts or any(tag in text for text in (*texts, apart) for tag in (OPEN, CLOSE))


def _thought_key(probe: _Probe, shape: TemplateShape) -> str:
    """The first field that shows a thought before an answer, or before a call."""
    for key in _THOUGHT_KEYS:
        if probe.shows([_USER, _ASSISTANT | {key: _THOUGHT}], _THOUGHT):
            return key
        for calls, tools in ((shape.calls, True), (shape.calls_alone, False)):
            if calls is not None and _THOUGHT in (probe.text(_conversation(calls, thought=key), tools=tools) or ""):
                return key
    return _THOUGHT_KEYS[0]
