"""What a person has written in a chat and not sent, as one value that is kept with the chat."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from edge_llm.chats.titles import UNTITLED, title_of
from edge_llm.chats.tree import Attachment

MOST_OTHERS = 50
"""Texts that were put aside and are still reached; the oldest go."""


@dataclass(frozen=True)
class Draft:
    """One prompt that is not sent."""

    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    edits: int = 0
    """The id of the message that it is to stand in the place of; 0 for a new prompt."""

    def __bool__(self) -> bool:
        return bool(self.text.strip() or self.attachments or self.edits)


@dataclass(frozen=True)
class Drafts:
    """All that is not sent in one chat."""

    draft: Draft = Draft()
    """What stands in the prompt."""
    aside: Draft = Draft()
    """What stood there before a message was edited."""
    queued: tuple[Draft, ...] = ()
    """What is sent when the answer ends, in this order."""
    others: tuple[str, ...] = ()
    """Other texts, newest last: earlier prompts that were changed, drafts of another terminal."""

    def __bool__(self) -> bool:
        return bool(self.draft or self.aside or self.queued or self.others)

    def with_others(self, texts: Iterable[str]) -> Drafts:
        """These drafts, and ``texts`` among the others."""
        found = dict.fromkeys([*self.others, *(text for text in texts if text.strip())])
        return replace(self, others=tuple(found)[-MOST_OTHERS:])

    def unqueued(self) -> Drafts:
        """Nothing waits to be sent: it stands in the prompt again, before what is written there."""
        if not self.queued:
            return self
        if self.draft.edits:  # what is edited stays what it is
            return replace(self, aside=joined([*self.queued, self.aside]), queued=())
        return replace(self, draft=joined([*self.queued, self.draft]), queued=())

    @property
    def texts(self) -> list[str]:
        """Every text in it."""
        drafts = (self.draft, self.aside, *self.queued)
        return [text for text in (*self.others, *(each.text for each in drafts)) if text.strip()]

    @property
    def are_commands(self) -> bool:
        """Whether all of it is commands that are being typed."""
        drafts = (self.draft, self.aside, *self.queued)
        return not any(each.attachments or each.edits for each in drafts) and all(map(begins_command, self.texts))

    @property
    def title(self) -> str:
        """The title of a chat that has these drafts and no message; empty where they are commands, which name nothing."""
        if self.are_commands:
            return ""
        first = self.aside if self.draft.edits else self.draft
        said = (text for text in (first.text, *self.texts) if text.strip() and not begins_command(text))
        return title_of(next(said, UNTITLED))

    def as_json(self) -> str:
        """All of it, for the file of chats."""
        parts: dict[str, Any] = {"draft": _record(self.draft), "aside": _record(self.aside), "others": list(self.others)}
        return json.dumps(parts | {"queued": [_record(each) for each in self.queued]})

    @classmethod
    def from_json(cls, stored: str) -> Drafts:
        """What `as_json` gave; of what another program wrote, as much as can be read."""
        try:
            parts = json.loads(stored)
        except (ValueError, RecursionError):
            return cls(others=(stored,) if stored.strip() else ())
        if not isinstance(parts, dict):
            return cls()
        queued = tuple(draft for draft in map(_draft, _list(parts.get("queued"))) if draft)
        others = tuple(text for text in _list(parts.get("others")) if isinstance(text, str))
        return cls(_draft(parts.get("draft")), _draft(parts.get("aside")), queued, others)


def command_in(text: str) -> tuple[str, str] | None:
    """The name and the argument of the command that ``text`` is; None for a text that is no command.

    A text like `/etc/hosts is a file` is no command: a name has letters only, or is `?`.
    """
    line = text.strip()
    if not line.startswith("/"):
        return None
    name, _, argument = line[1:].partition(" ")
    return (name, argument.strip()) if name.isalpha() or name == "?" else None


def begins_command(text: str) -> bool:
    """Whether ``text`` is a command, or the `/` that begins one."""
    return text.strip() == "/" or command_in(text) is not None


def joined(drafts: Iterable[Draft]) -> Draft:
    """One draft with the texts and files of ``drafts``, in their order."""
    found = [draft for draft in drafts if draft]
    text = "\n".join(draft.text for draft in found if draft.text)
    return Draft(text, tuple(each for draft in found for each in draft.attachments))


def _record(draft: Draft) -> dict[str, Any]:
    files = [{"name": each.name, "text": each.text} for each in draft.attachments]
    return {"text": draft.text, "attachments": files, "edits": draft.edits}


def _draft(record: Any) -> Draft:
    if not isinstance(record, dict):
        return Draft()
    text, edits = record.get("text"), record.get("edits")
    files = [each for each in _list(record.get("attachments")) if isinstance(each, dict)]
    attached = [(each.get("name"), each.get("text")) for each in files]
    return Draft(
        text if isinstance(text, str) else "",
        tuple(Attachment(name, inside) for name, inside in attached if isinstance(name, str) and isinstance(inside, str)),
        edits if type(edits) is int else 0,
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
