"""Messages as a template takes them: what its shape lacks is said in another way, so that nothing is refused or left out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from edge_llm.talk.spelled_out import spelled_out
from edge_llm.text.chat import with_system
from edge_llm.text.shape import CallShape, TemplateShape

Message = dict[str, Any]


def fitted(messages: Sequence[Message], shape: TemplateShape, *, tools: bool = False, spelled: bool = False) -> list[Message]:
    """Plain ``messages`` for a template of ``shape``, which is given ``tools`` or none.

    With ``spelled`` calls and their results are plain text, whatever the template has.
    """
    if not messages:
        return []
    calls = None if spelled else shape.calls if tools else shape.calls_alone
    found = list(messages)
    if has_calls(found):
        found = spelled_out(found) if calls is None else list(_with_calls(found, calls))
    found = _systems_joined(found, shape)
    alone = not shape.system_alone and not any(message["role"] == "user" for message in found)
    if alone or not shape.system or (has_calls(found) and not shape.system_with_calls):
        found = _without_system(found)
    if shape.thought_key != "reasoning_content":
        found = [_thought_moved(message, shape.thought_key) for message in found]
    return _alternating(found) if shape.alternates else found


def in_words(shape: TemplateShape) -> dict[str, str]:
    """What a template of ``shape`` makes of messages, for people."""
    first = "where it stands, later ones joined to it"
    system = ("where they stand" if shape.late_system else first) if shape.system else "before the first user message"
    calls = shape.calls if shape.tools else shape.calls_alone
    return {
        "system_messages": system,
        "tools": "by the template" if shape.tools else "explained in words",
        "calls": "in words" if calls is None else "by the template",
        "thoughts": "yes" if shape.thinks else "no",
    }


def has_calls(messages: Sequence[Message]) -> bool:
    """Whether a tool was called."""
    return any(message["role"] == "tool" or message.get("tool_calls") for message in messages)


# ---- calls


def _with_calls(messages: Sequence[Message], shape: CallShape) -> Iterator[Message]:
    """``messages`` with their calls and results in ``shape``."""
    results = {message.get("tool_call_id"): message for message in messages if message["role"] == "tool"}
    names = {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or []}
    taken: set[int] = set()
    for message in messages:
        if message["role"] == "tool":
            if id(message) not in taken:
                yield _result(message, shape, names)
            continue
        turns = list(_turns(message, shape))
        for turn in turns:
            calls = turn.get("tool_calls") or []
            yield turn | ({"tool_calls": [_call(call, shape) for call in calls]} if calls else {})
            answer = results.get(calls[0]["id"]) if calls and not shape.many and len(turns) > 1 else None
            if answer is not None and id(answer) not in taken:
                taken.add(id(answer))
                yield _result(answer, shape, names)


def _turns(message: Message, shape: CallShape) -> Iterator[Message]:
    """``message`` as one message, or as several where its text and its calls cannot stand in one."""
    calls, said = message.get("tool_calls") or [], message["content"]
    if not calls:
        yield message
        return
    without_thought = {name: value for name, value in message.items() if name != "reasoning_content"}
    if said and not shape.text_beside:
        yield {name: value for name, value in message.items() if name != "tool_calls"}
        message, said = without_thought, ""
    for part in [calls] if shape.many else [[call] for call in calls]:
        yield message | {"content": said or (None if shape.null_content else ""), "tool_calls": part}
        message, said = without_thought, ""


def _call(call: dict[str, Any], shape: CallShape) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if isinstance(arguments, str):
        arguments = arguments if shape.takes_text else {"arguments": arguments}
    if shape.as_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return call | {"id": _id(call["id"], shape), "function": function | {"arguments": arguments}}


def _result(message: Message, shape: CallShape, names: dict[str, str]) -> Message:
    call_id = message.get("tool_call_id") or ""
    named = {"name": names.get(call_id, "tool")} if shape.named_results and not message.get("name") else {}
    return message | {"tool_call_id": _id(call_id, shape)} | named


def _id(call_id: str, shape: CallShape) -> str:
    """``call_id``, or nine letters and digits that stand for it."""
    if not shape.short_ids or (len(call_id) == 9 and call_id.isalnum() and call_id.isascii()):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


# ---- roles


def _systems_joined(messages: Sequence[Message], shape: TemplateShape) -> list[Message]:
    """``messages`` with what the system says behind the first message in the first, where the template wants it there."""
    late = [message for message in messages[1:] if message["role"] == "system"]
    if not late or (shape.system and shape.late_system and not shape.alternates):
        return list(messages)
    others = [message for at, message in enumerate(messages) if at == 0 or message["role"] != "system"]
    return with_system(others, after="\n\n".join(message["content"] for message in late))


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """``messages`` with what the system says before the first user message."""
    if messages[0]["role"] != "system":
        return list(messages)
    said, others = messages[0]["content"], list(messages[1:])
    at = next((at for at, message in enumerate(others) if message["role"] == "user"), None)
    if at is None:
        return [{"role": "user", "content": said}, *others]
    others[at] = others[at] | {"content": _joined(said, others[at]["content"])}
    return others


def _thought_moved(message: Message, key: str) -> Message:
    """``message`` with its thought where the template looks for it."""
    if "reasoning_content" not in message:
        return message
    return {key if name == "reasoning_content" else name: value for name, value in message.items()}


def _alternating(messages: Sequence[Message]) -> list[Message]:
    """``messages`` with neighbours of one role put together, calls and results as they are."""
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else None
        apart = last is None or last["role"] != message["role"] or message["role"] not in ("user", "assistant")
        if last is None or apart or last.get("tool_calls") or message.get("tool_calls"):
            found.append(message)
        else:
            found[-1] = last | message | {"content": _joined(last["content"], message["content"])}
    return found


def _joined(first: str, second: str | None) -> str:
    return "\n\n".join(text for text in (first, second) if text)
