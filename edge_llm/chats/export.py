"""Chats as files for other programs: Markdown of what is shown, JSON of all that was said."""

from __future__ import annotations

import json
import re
import time
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from edge_llm.chats.calls import call_records, calls_of_records
from edge_llm.chats.titles import UNTITLED, title_of
from edge_llm.chats.tree import LAST_TIME, Attachment, Chat, Message, cut_of, fence_of, figures_of
from edge_llm.errors import UsageError
from edge_llm.files import one_line, shown
from edge_llm.strict_json import parse_object

FORMAT = "edge-llm chat"
VERSION = 1
_MOST_NAME_BYTES = 100
_ROLES = ("user", "assistant")
_STATES = ("growing", "whole", "stopped", "failed")
_OPENING = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")


def as_markdown(chat: Chat, path: Iterable[Message]) -> str:
    """The messages of one path under headings; thoughts and attached files are folded."""
    parts = [f"# {one_line(chat.title) or UNTITLED}"]
    for message in path:
        parts.extend(_parts(message))
    return "\n\n".join(parts) + "\n"


def as_json(chat: Chat, messages: Iterable[Message]) -> str:
    """The whole tree; `from_json` reads it."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "title": chat.title,
        "created": chat.created,
        "changed": chat.changed,
        "settings": dict(chat.settings),
        "leaf": chat.leaf,
        "messages": [_record(message) for message in messages],
    }
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def from_json(data: bytes, name: str) -> tuple[Chat, list[Message]]:
    """What `as_json` wrote, ids as they were there; `ChatStore.take_in` keeps it.  ``name`` is what an error calls it."""
    document = parse_object(data.removeprefix(BOM_UTF8), name, error=UsageError)
    if document.get("format") != FORMAT:
        raise UsageError(f"`{shown(name)}` is no exported chat: its format is not `{FORMAT}`; write one with /export json")
    if document.get("version") != VERSION:
        raise UsageError(f"`{shown(name)}` was exported by another version; this one reads version {VERSION}")
    try:
        title, settings = _text(document["title"]), _mapping(document["settings"])
        chat = Chat(0, title, settings, _id_or_none(document["leaf"]), _time(document["created"]), _time(document["changed"]))
        messages = [_message(record) for record in document["messages"]]
        _check_tree(chat, messages)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UsageError(f"`{shown(name)}` is no exported chat: a field is missing or wrong; export it again") from None
    return chat, messages


def file_name_of(title: str, suffix: str) -> str:
    """A name for the file of a chat that is called ``title``, for any file system: letters, digits and dashes."""
    words = re.sub(r"\W+", "-", title_of(title).casefold()).strip("-_") or "chat"
    return words.encode()[:_MOST_NAME_BYTES].decode(errors="ignore") + suffix


def _parts(message: Message) -> Iterator[str]:
    told = time.strftime("%Y-%m-%d %H:%M", time.localtime(message.created))
    who = "You" if message.role == "user" else one_line(message.model) or "Answer"
    reason = one_line(message.reason)
    cut_off = "" if message.state == "whole" and not reason else f" ({reason or message.state})"
    yield f"## {who}{cut_off} · {told}"
    if message.thought:
        yield _thoughts(_closed(message.thought.strip("\n")))
    for each in message.attachments:
        fence = fence_of(each.text)
        yield _folded(f"Attached: {one_line(each.name)}", f"{fence}\n{each.text.rstrip()}\n{fence}")
    yield _closed(message.text.strip("\n"))
    for call in message.calls:
        inside = "\n".join(part for part in (call.arguments, call.result) if part)
        fence = fence_of(inside)
        yield _folded(f"Called: {one_line(call.name)} ({call.state})", f"{fence}\n{inside.rstrip()}\n{fence}")


def _thoughts(text: str) -> str:
    if "</details" not in text.casefold():
        return _folded("Thoughts", text)
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def _closed(text: str) -> str:
    """``text`` with an end to the code block that was cut off in it, so that what follows is not code."""
    open_fence = ""
    for line in text.splitlines():
        found = _OPENING.match(line)
        if found is None:
            continue
        marks, info = found.groups()
        if not open_fence:
            open_fence = "" if marks[0] == "`" and "`" in info else marks
        elif marks.startswith(open_fence) and not info.strip():
            open_fence = ""
    return f"{text}\n{open_fence}" if open_fence else text


def _folded(summary: str, inside: str) -> str:
    return f"<details>\n<summary>{_escaped(summary)}</summary>\n\n{inside}\n\n</details>"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _record(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "parent": message.parent,
        "role": message.role,
        "text": message.text,
        "thought": message.thought,
        "attachments": [{"name": each.name, "text": each.text} for each in message.attachments],
        "model": message.model,
        "state": message.state,
        "reason": message.reason,
        "cut": None if message.cut is None else asdict(message.cut),
        "figures": dict(message.figures),
        "created": message.created,
        **({"calls": call_records(message.calls)} if message.calls else {}),
    }


def _message(record: Any) -> Message:
    if record["role"] not in _ROLES or record["state"] not in _STATES:
        raise ValueError
    return Message(
        _id(record["id"]),
        0,
        _id_or_none(record["parent"]),
        record["role"],
        _text(record["text"]),
        _text(record["thought"]),
        tuple(Attachment(_text(each["name"]), _text(each["text"])) for each in record["attachments"]),
        _text(record["model"]),
        record["state"],
        figures_of(_mapping(record["figures"])),
        _time(record["created"]),
        _text(record.get("reason", "")),  # exports of before have none
        cut_of(record.get("cut")),
        calls=calls_of_records(record.get("calls", ())),
    )


def _check_tree(chat: Chat, messages: Sequence[Message]) -> None:
    """Every message follows one that comes before it, and the leaf is one of them."""
    known: set[int | None] = {None}
    for message in messages:
        if message.id in known or message.parent not in known:
            raise ValueError
        known.add(message.id)
    if chat.leaf not in known:
        raise ValueError


def _time(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds < LAST_TIME:
        raise ValueError
    return seconds


def _id_or_none(value: Any) -> int | None:
    return None if value is None else _id(value)


def _id(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError
    return value
