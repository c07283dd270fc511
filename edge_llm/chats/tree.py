"""A chat is a tree of messages: an answer that is made again, or a prompt that is edited, is a sibling of what it replaces.

What is shown is a *path*: the messages from the first one to the chat's leaf.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from edge_llm.chats.calls import ToolCall

Role = Literal["user", "assistant"]
State = Literal["growing", "whole", "stopped", "failed"]
"""How far a message is: an answer grows until it is whole, stopped by the person, or cut off by an error."""
_RANDOM_BITS = 12

CONTEXT_FULL = "context full"
"""How the reason begins of an answer that found no room."""
LAST_TIME = 1e11
"""Seconds since 1970 that every calendar can still show."""
_MOST_FIGURE = 1e15


@dataclass(frozen=True)
class Attachment:
    """A text file that a message brings along."""

    name: str
    text: str

    @property
    def size(self) -> int:
        """Bytes of the text."""
        return len(self.text.encode())


@dataclass(frozen=True)
class Cut:
    """Behind a message: what a model is told next begins here."""

    summary: str = ""
    """What stands for all that was said up to here; empty where nothing does."""
    at: int = 0
    """When it was made, as an id: what has a lower one was said before."""
    tokens: int = 0
    """What was left of the conversation then; 0 when unknown."""


@dataclass(frozen=True)
class Message:
    """One thing that somebody said.  Its id is unique among all chats, and grows with time."""

    id: int
    chat: int
    parent: int | None
    role: Role
    text: str
    thought: str = ""
    attachments: tuple[Attachment, ...] = ()
    model: str = ""
    """Who said it; empty for the person."""
    state: State = "whole"
    figures: Mapping[str, Any] = field(default_factory=dict)
    """What the answer took: the fields of a provider's figures that are known."""
    created: float = 0.0
    """Seconds since 1970."""
    reason: str = ""
    """Why it failed, or ended before its end."""
    cut: Cut | None = None
    """The model is no longer shown it, nor what is before it."""
    calls: tuple[ToolCall, ...] = ()
    """Of tools, behind the text."""

    @property
    def content(self) -> str:
        """What a model is given: the attachments, then the text."""
        return "".join((*(_fenced(each) for each in self.attachments), self.text))


@dataclass(frozen=True)
class Chat:
    """What is known of a chat without its messages."""

    id: int
    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """As the face that made the chat wrote them; JSON."""
    leaf: int | None = None
    """The last message of the path that is shown."""
    created: float = 0.0
    changed: float = 0.0


@dataclass(frozen=True)
class FoundChat:
    """A chat in a list."""

    chat: Chat
    excerpt: str = ""
    """Where the text that was looked for is said, in one line; empty when only the title has it, or nothing was looked for."""


def new_id() -> int:
    """An id that no other terminal takes, larger than those of before: microseconds since 1970, then random bits."""
    return (time.time_ns() // 1000) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)


def figures_of(value: Any) -> dict[str, float]:
    """What of ``value``, which another program may have written, are figures: numbers that can be shown."""
    items = value.items() if isinstance(value, dict) else ()
    return {str(name): number for name, number in items if type(number) in (int, float) and 0 <= number < _MOST_FIGURE}


def cut_of(value: Any) -> Cut | None:
    """The `Cut` that ``value``, which another program may have written, stands for."""
    if not isinstance(value, dict) or not value:
        return None
    summary, at, tokens = (value.get(name) for name in ("summary", "at", "tokens"))
    number = [each if type(each) is int and 0 <= each < 1 << 63 else 0 for each in (at, tokens)]
    return Cut(summary if isinstance(summary, str) else "", *number)


def copied(message: Message, ids: Mapping[int, int], **more: Any) -> Message:
    """``message`` in another chat, where ``ids`` has the new ids of all messages; ``more`` are other fields that differ.

    What was said before its cut was made has a lower id than the cut there, too.
    """
    cut = message.cut
    if cut is not None:
        cut = replace(cut, at=1 + max((new for old, new in ids.items() if old < cut.at), default=0))
    parent = ids.get(message.parent) if message.parent is not None else None
    return replace(message, id=ids[message.id], parent=parent, cut=cut, **more)


def fence_of(text: str) -> str:
    """A fence for a block of code that ``text`` cannot close: longer than any row of backticks in it."""
    return "`" * max([3, *(len(row) + 1 for row in re.findall("`+", text))])


def path_to(messages: Iterable[Message], leaf: int | None) -> list[Message]:
    """The messages from the first one to ``leaf``."""
    by_id = {message.id: message for message in messages}
    path: list[Message] = []
    while leaf is not None and (message := by_id.get(leaf)) is not None:
        path.append(message)
        leaf = message.parent
    return path[::-1]


def visible(path: Sequence[Message]) -> tuple[str, list[Message]]:
    """What of ``path`` a model is told: the summary that it begins with, and the messages behind that.

    A cut behind the last message is for what follows it.
    """
    start = next((at for at in range(len(path) - 2, -1, -1) if path[at].cut is not None), -1)
    cut = path[start].cut if start >= 0 else None
    return (cut.summary if cut is not None else ""), list(path[start + 1 :])


def is_full(path: Sequence[Message]) -> bool:
    """Whether ``path`` ends where the context had no more room, and nothing was done about it since."""
    if not path or not path[-1].reason.startswith(CONTEXT_FULL):
        return False
    return not any(message.cut is not None and message.cut.at > path[-1].id for message in path)


def siblings(messages: Iterable[Message], message: Message) -> list[Message]:
    """All that follow the same message as ``message`` with the same role, itself included, oldest first."""
    same = [other for other in messages if other.parent == message.parent and other.role == message.role]
    return sorted(same, key=lambda other: other.id)


def newest_leaf(messages: Sequence[Message], start: int) -> int:
    """The leaf below the message ``start`` that one reaches by the newest follower at every step."""
    while followers := [message.id for message in messages if message.parent == start]:
        start = max(followers)
    return start


def _fenced(file: Attachment) -> str:
    fence = fence_of(file.text)
    return f"File `{file.name}`:\n{fence}\n{file.text.rstrip()}\n{fence}\n\n"
