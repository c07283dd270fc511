"""Rows of the file of chats as values.  Another program may have written other things into the columns: SQLite takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from edge_llm.chats.tree import LAST_TIME, Attachment, Chat, Message, Role, cut_of, figures_of


def chat_of(row: Sequence[Any]) -> Chat:
    id, title, settings, leaf, created, changed = row[:6]
    return Chat(id, text_of(title), mapping_of(settings), leaf, seconds_of(created), seconds_of(changed))


def message_of(row: Sequence[Any], attachments: tuple[Attachment, ...]) -> Message:
    id, chat, parent, role, text, thought, model, state, figures, created, reason, cut = row
    said, thought, figures = text_of(text), text_of(thought), figures_of(mapping_of(figures))
    speaker: Role = "user" if role == "user" else "assistant"
    more = (seconds_of(created), text_of(reason), cut_of(mapping_of(cut)))
    return Message(id, chat, parent, speaker, said, thought, attachments, text_of(model), state, figures, *more)


def mapping_of(text: Any) -> Mapping[str, Any]:
    try:
        value = json.loads(text_of(text))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def seconds_of(value: Any) -> float:
    return value if isinstance(value, float) and 0 <= value < LAST_TIME else 0.0
