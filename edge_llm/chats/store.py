"""The chats that are kept: every call is done when it returns, and any thread may make it.

    store, notice = ChatStore.open(paths.chats_file())
    chat = store.create({"model": "qwen"}, new_id())
    prompt = Message(new_id(), chat.id, None, "user", "Hi")
    store.put(prompt)                                          # on the disk now
    store.set_leaf(chat.id, prompt.id)

A face changes an `OpenChat`, which writes what has changed.  Several processes may use one file.  Whatever the disk refuses is
a `StorageError`: nothing is half written, the store stays usable, and the same call works once the reason is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

from edge_llm.chats.calls import read_calls, write_calls
from edge_llm.chats.database import TIMEOUT, connect, connect_memory, has_index, refusals, transaction
from edge_llm.chats.rows import chat_of, message_of, text_of
from edge_llm.chats.titles import UNTITLED, title_of
from edge_llm.chats.tree import (
    Attachment,
    Chat,
    FoundChat,
    Message,
    State,
    copied,
    new_id,
    newest_leaf,
)  # fmt: skip
from edge_llm.errors import StorageError, UsageError
from edge_llm.files import shown, storable

_CHAT = "chats.id, chats.title, chats.settings, chats.leaf, chats.created, chats.changed"
_MESSAGE = "id, chat, parent, role, text, thought, model, state, figures, created, reason, cut"
_BELOW = """WITH RECURSIVE below (id) AS (
    VALUES (?) UNION ALL SELECT messages.id FROM messages JOIN below ON messages.parent = below.id)"""
_LISTED = "(chats.title <> '' OR chats.titled_by <> '' OR EXISTS (SELECT 1 FROM messages WHERE messages.chat = chats.id))"
"""What is no chat yet has neither a title nor a message."""
_INDEXED = 3
"""Characters that a word needs to be looked up in the index of trigrams."""
_EXCERPT = 80
"""Characters of an excerpt."""


class ChatGone(StorageError):
    """The chat, or the message that is followed or shown, was deleted by another terminal."""


class ChatStore:
    """All chats of one file, or of this process's memory.  Close it when done."""

    def __init__(self, db: sqlite3.Connection, path: Path | None) -> None:
        self._db = db
        self._path = path
        self._place = _place(path)
        self._lock = threading.RLock()
        db.create_function("holds", 2, _holds, deterministic=True)
        self._indexed = has_index(db)
        self._version = self._data_version()

    @classmethod
    def open(cls, path: Path, timeout: float = TIMEOUT) -> tuple[ChatStore, str]:
        """The store in the file ``path``, and a sentence that the person must read; mostly empty.

        A damaged file is kept aside and a new one is begun; the sentence says where the old one lies.
        """
        db, notice = connect(Path(os.path.realpath(path)), timeout)
        return cls(db, Path(path)), notice

    @classmethod
    def in_memory(cls) -> ChatStore:
        """A store that keeps nothing, for when there is no other."""
        return cls(connect_memory(), None)

    def close(self) -> None:
        """Give the file back; more than once is fine, and no other call is."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._db.close()

    def changed_elsewhere(self) -> bool:
        """Whether another process, or another store of this one, has written since the last call."""
        with self._reading():
            before, self._version = self._version, self._data_version()
            return self._version != before

    # ---- chats

    def create(self, settings: Mapping[str, Any], chat_id: int) -> Chat:
        """An empty chat with this id, which its first prompt names; a chat that has the id already stays as it is."""
        now = time.time()
        with self._writing():
            self._db.execute(
                "INSERT OR IGNORE INTO chats (id, title, created, changed, settings) VALUES (?, ?, ?, ?, ?)",
                (chat_id, UNTITLED, now, now, json.dumps(dict(settings))),
            )
            return self._require_chat(chat_id)

    def chat(self, chat_id: int) -> Chat | None:
        """The chat with this id, unless it is deleted."""
        with self._reading():
            return self._find_chat(chat_id)

    def chats(self, search: str = "", limit: int = 200, *, unlisted: bool = False) -> list[FoundChat]:
        """The chats of which the title or one message has every word of ``search``; the one that changed last comes first.

        A word is found inside of words too, whatever its case.  A chat that holds only a command that is being typed is not
        among them; without ``search`` it is there if ``unlisted``.
        """
        words = storable(search).split()
        if not words:
            query = f"SELECT {_CHAT} FROM chats WHERE ? OR {_LISTED} ORDER BY changed DESC, id DESC LIMIT ?"
            with self._reading():
                return [FoundChat(chat_of(row)) for row in self._db.execute(query, (unlisted, limit))]
        said, values = self._messages_that_say(words)
        query = f"""WITH hits (chat, message) AS (SELECT chat, max(id) FROM messages WHERE id IN ({said}) GROUP BY chat)
            SELECT {_CHAT}, messages.text FROM chats
            LEFT JOIN hits ON hits.chat = chats.id LEFT JOIN messages ON messages.id = hits.message
            WHERE hits.chat IS NOT NULL OR ({_all_hold("chats.title", words)})
            ORDER BY chats.changed DESC, chats.id DESC LIMIT ?"""
        with self._reading():
            rows = self._db.execute(query, (*values, *words, limit))
            return [FoundChat(chat_of(row), _excerpt(row[-1], words) if row[-1] else "") for row in rows]

    def rename(self, chat_id: int, title: str) -> None:
        """Give the chat a title, which stays."""
        if not title.strip():
            raise UsageError("a chat's title needs a character that can be seen")
        self._set("title = ?, titled_by = 'person'", storable(title), chat_id)

    def set_settings(self, chat_id: int, settings: Mapping[str, Any]) -> None:
        """Replace the chat's settings."""
        self._set("settings = ?", json.dumps(dict(settings)), chat_id)

    def set_leaf(self, chat_id: int, message_id: int | None) -> None:
        """Show the path to this message."""
        with self._writing():
            self._require_chat(chat_id)
            if message_id is not None:
                self._require_message(chat_id, message_id)
            self._db.execute("UPDATE chats SET leaf = ? WHERE id = ?", (message_id, chat_id))

    def delete(self, chat_id: int) -> None:
        """Delete the chat with all that was said in it; one that is deleted already is fine."""
        with self._writing():
            self._db.execute("DELETE FROM chats WHERE id = ?", (chat_id,))

    # ---- messages

    def messages(self, chat_id: int) -> list[Message]:
        """The whole tree, oldest first."""
        with self._reading(), transaction(self._db, "BEGIN"):
            attached: dict[int, list[Attachment]] = {}
            for message, name, text in self._db.execute(
                """SELECT message, name, attachments.text FROM attachments JOIN messages ON messages.id = message
                WHERE chat = ? ORDER BY message, position""",
                (chat_id,),
            ):
                attached.setdefault(message, []).append(Attachment(name, text))
            rows = self._db.execute(f"SELECT {_MESSAGE} FROM messages WHERE chat = ? ORDER BY id", (chat_id,))
            calls = read_calls(self._db, chat_id)
            found = [message_of(row, tuple(attached.get(row[0], ()))) for row in rows]
            return [replace(each, calls=calls[each.id]) if each.id in calls else each for each in found]

    def take_in(self, chat: Chat, messages: Sequence[Message]) -> Chat:
        """A copy of a chat from elsewhere (`export.from_json`) with ids of its own; its answers grow no more."""
        chat_id = new_id()
        ids = {each.id: fresh for each, fresh in zip(messages, count(new_id()), strict=False)}
        with self._writing():
            self._db.execute(
                "INSERT INTO chats (id, title, titled_by, created, changed, settings) VALUES (?, ?, 'person', ?, ?, ?)",
                (chat_id, storable(chat.title), chat.created, time.time(), json.dumps(dict(chat.settings))),
            )
            for each in messages:
                state: State = "stopped" if each.state == "growing" else each.state
                self._put(copied(each, ids, chat=chat_id, state=state))
            leaf = None if chat.leaf is None else ids[chat.leaf]
            self._db.execute("UPDATE chats SET leaf = ? WHERE id = ?", (leaf, chat_id))
            return self._require_chat(chat_id)

    def put(self, message: Message) -> None:
        """Write a new message, whose path is shown from then on, or what has become of one.

        Raises `ChatGone` when its chat or its parent was deleted.
        """
        with self._writing():
            self._require_chat(message.chat)
            if message.parent is not None:
                self._require_message(message.chat, message.parent)
            is_new = self._db.execute("SELECT 1 FROM messages WHERE id = ?", (message.id,)).fetchone() is None
            self._put(message)
            leaf = "leaf = ?1, " if is_new else ""
            self._db.execute(f"UPDATE chats SET {leaf}changed = ?2 WHERE id = ?3", (message.id, time.time(), message.chat))
            if message.role == "user":
                self._name(message.chat, message.text)

    def delete_message(self, message_id: int) -> None:
        """Delete a message with all below it.  If it was shown, what stands beside it is shown now, or what is above it."""
        with self._writing():
            row = self._db.execute("SELECT chat, parent FROM messages WHERE id = ?", (message_id,)).fetchone()
            if row is None:
                return
            chat_id, parent = row
            self._db.execute(f"{_BELOW} DELETE FROM messages WHERE id IN below", (message_id,))
            rows = self._db.execute(f"SELECT {_MESSAGE} FROM messages WHERE chat = ? ORDER BY id", (chat_id,))
            left = [message_of(row, ()) for row in rows]
            beside = [message.id for message in left if message.parent == parent]
            start = max(beside, default=parent)
            leaf = None if start is None else newest_leaf(left, start)
            self._db.execute(
                "UPDATE chats SET leaf = ? WHERE id = ? AND leaf NOT IN (SELECT id FROM messages WHERE chat = chats.id)",
                (leaf, chat_id),
            )

    # ---- what is not sent

    def drafts(self, chat_id: int) -> dict[int, str]:
        """What terminals keep of prompts that are not sent in the chat, by the ids of their rows, oldest first."""
        with self._reading():
            rows = self._db.execute("SELECT id, body FROM drafts WHERE chat = ? ORDER BY id", (chat_id,))
            return {int(row): text_of(body) for row, body in rows}

    def keep_draft(self, chat_id: int, known: Mapping[int, str], body: str, title: str) -> dict[int, str]:
        """``body`` (empty: nothing) in the place of the rows ``known``, and the rows as they are then; `ChatGone`.

        A row that another terminal has changed meanwhile stays.  ``title`` names a chat that no prompt has named; without one
        it is not listed.
        """
        with self._writing():
            for row, before in known.items():
                self._db.execute("DELETE FROM drafts WHERE id = ? AND body = ?", (row, before))
            if not body:
                return {}
            self._require_chat(chat_id)
            made = self._db.execute("INSERT INTO drafts (chat, body) VALUES (?, ?)", (chat_id, body)).lastrowid
            self._db.execute(
                """UPDATE chats SET changed = CASE WHEN ? THEN ? ELSE changed END,
                title = CASE titled_by WHEN '' THEN ? ELSE title END WHERE id = ?""",
                (not known, time.time(), storable(title), chat_id),
            )
            return {made or 0: body}

    def forget_empty(self, chat_id: int) -> bool:
        """Delete the chat if it was kept for a draft that is gone; whether it was deleted."""
        with self._writing():
            used = "id IN (SELECT chat FROM messages UNION SELECT chat FROM drafts)"
            query = f"DELETE FROM chats WHERE id = ? AND titled_by = '' AND NOT {used}"
            return bool(self._db.execute(query, (chat_id,)).rowcount)

    def prompts(self, limit: int) -> list[str]:
        """What people said last in any chat, each text once, the newest at the end."""
        found: dict[str, None] = {}
        with self._reading():
            for (text,) in self._db.execute("SELECT text FROM messages WHERE role = 'user' ORDER BY id DESC"):
                if len(found) >= limit:
                    break
                if text.strip():
                    found.setdefault(text)
        return list(found)[::-1]

    # ---- within

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock, refusals(self._path):
            if _place(self._path) != self._place:  # what is written now would be lost with the file
                raise StorageError(
                    f"`{shown(self._path)}` was moved or deleted while the chat was open; put it back, or start again"
                )
            yield

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with self._reading(), transaction(self._db):
            yield

    def _data_version(self) -> int:
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def _find_chat(self, chat_id: int) -> Chat | None:
        row = self._db.execute(f"SELECT {_CHAT} FROM chats WHERE id = ?", (chat_id,)).fetchone()
        return None if row is None else chat_of(row)

    def _require_chat(self, chat_id: int) -> Chat:
        chat = self._find_chat(chat_id)
        if chat is None:
            raise ChatGone("this chat was deleted in another terminal; begin a new one to go on")
        return chat

    def _require_message(self, chat_id: int, message_id: int) -> None:
        if not self._db.execute("SELECT 1 FROM messages WHERE id = ? AND chat = ?", (message_id, chat_id)).fetchone():
            raise ChatGone("this message was deleted in another terminal; open the chat again to see what is left")

    def _put(self, message: Message) -> None:
        self._db.execute(
            f"""INSERT INTO messages ({_MESSAGE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE
            SET text = excluded.text, thought = excluded.thought, state = excluded.state, figures = excluded.figures,
                reason = excluded.reason, cut = excluded.cut""",
            (message.id, message.chat, message.parent, message.role, storable(message.text), storable(message.thought),
             storable(message.model), message.state, json.dumps(dict(message.figures)), message.created,
             storable(message.reason), "" if message.cut is None else json.dumps(asdict(message.cut))),
        )  # fmt: skip
        self._db.executemany(
            "INSERT OR IGNORE INTO attachments VALUES (?, ?, ?, ?)",
            ((message.id, at, storable(each.name), storable(each.text)) for at, each in enumerate(message.attachments)),
        )
        if message.calls:
            write_calls(self._db, message.id, message.calls)

    def _set(self, change: str, value: str, chat_id: int) -> None:
        with self._writing():
            self._require_chat(chat_id)
            self._db.execute(f"UPDATE chats SET {change} WHERE id = ?", (value, chat_id))

    def _name(self, chat_id: int, text: str) -> None:
        self._db.execute(
            "UPDATE chats SET title = ?, titled_by = 'prompt' WHERE id = ? AND titled_by = ''",
            (storable(title_of(text)), chat_id),
        )

    def _messages_that_say(self, words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        """A query for their ids, and its values."""
        long = [word for word in words if len(word) >= _INDEXED]
        if not (self._indexed and long):
            return f"SELECT id FROM messages WHERE {_all_hold('text', words)}", tuple(words)
        quoted = " AND ".join('"' + word.replace('"', '""') + '"' for word in long)
        short = [word for word in words if len(word) < _INDEXED]
        and_short = "".join(" AND holds(messages.text, ?)" for _ in short)
        return (
            f"""SELECT messages.id FROM words JOIN messages ON messages.id = words.rowid WHERE words MATCH ?{and_short}
            UNION SELECT id FROM messages WHERE state = 'growing' AND {_all_hold("text", words)}""",
            (quoted, *short, *words),
        )


def _all_hold(column: str, words: Sequence[str]) -> str:
    return " AND ".join(f"holds({column}, ?)" for _ in words)


def _holds(text: str, word: str) -> bool:
    return word.casefold() in text.casefold()


def _excerpt(text: str, words: Sequence[str]) -> str:
    """One line of ``text`` around the first of ``words``."""
    at = max(text.lower().find(words[0].lower()), 0)
    start = max(at - _EXCERPT // 3, 0)
    inside = " ".join(text[start : start + _EXCERPT].split())
    return f"{'…' if start else ''}{inside}{'…' if start + _EXCERPT < len(text) else ''}"


def _place(path: Path | None) -> tuple[int, int] | None:
    """What tells a file from another that has come to its name."""
    if path is None:
        return None
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
