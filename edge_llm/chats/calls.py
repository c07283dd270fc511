"""Calls of tools in a chat: what the model asked for, what the person said to it, and what came of it; and how that is kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from edge_llm.files import storable

CallState = Literal["asked", "done", "failed", "refused"]
"""A call is asked until it is done, has failed (there is no result, or the tool says so), or was refused by the person."""

TABLE = """CREATE TABLE IF NOT EXISTS calls (
    message INTEGER NOT NULL REFERENCES messages ON DELETE CASCADE, position INTEGER NOT NULL, call TEXT NOT NULL,
    server TEXT NOT NULL, name TEXT NOT NULL, arguments TEXT NOT NULL, state TEXT NOT NULL, result TEXT NOT NULL,
    PRIMARY KEY (message, position)) WITHOUT ROWID"""
_COLUMNS = "call, server, name, arguments, state, result"
NO_RESULT = "This call was not made."


@dataclass(frozen=True)
class ToolCall:
    """One call, in an answer."""

    id: str
    name: str
    arguments: str = ""
    """JSON text, as the model wrote it."""
    server: str = ""
    """Whose tool it is; empty while that is not known."""
    state: CallState = "asked"
    result: str = ""

    @property
    def open(self) -> bool:
        """Whether nothing has come of it yet."""
        return self.state == "asked"


def messages_of(text: str, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """An answer of ``text`` and ``calls`` as a model is given it: the calls, and a result for each."""
    made = [{"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}} for each in calls]
    results = [{"role": "tool", "tool_call_id": each.id, "content": each.result or NO_RESULT} for each in calls]
    return [{"role": "assistant", "content": text, "tool_calls": made}, *results]


def write_calls(db: sqlite3.Connection, message: int, calls: Sequence[ToolCall]) -> None:
    """``calls`` are those of ``message`` now."""
    rows = [
        (message, at, each.id, each.server, each.name, each.arguments, each.state, each.result) for at, each in enumerate(calls)
    ]
    plain = [tuple(storable(value) if isinstance(value, str) else value for value in row) for row in rows]
    db.executemany(f"INSERT OR REPLACE INTO calls (message, position, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", plain)


def read_calls(db: sqlite3.Connection, chat: int) -> dict[int, tuple[ToolCall, ...]]:
    """The calls of a chat, by message."""
    found: dict[int, tuple[ToolCall, ...]] = {}
    query = f"SELECT message, {_COLUMNS} FROM calls WHERE message IN (SELECT id FROM messages WHERE chat = ?)"
    for message, *row in db.execute(f"{query} ORDER BY message, position", (chat,)):
        call, server, name, arguments, state, result = row
        known: CallState = state if state in get_args(CallState) else "failed"
        found[message] = (*found.get(message, ()), ToolCall(call, name, arguments, server, known, result))
    return found


def call_records(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """``calls`` as plain data, for a file."""
    return [asdict(each) for each in calls]


def calls_of_records(records: Any) -> tuple[ToolCall, ...]:
    """What `call_records` gave.  Raises KeyError, TypeError or ValueError where it is not that."""
    return tuple(_call(record) for record in records)


def _call(record: Mapping[str, Any]) -> ToolCall:
    fields = {name: record[name] for name in ("id", "name", "arguments", "server", "state", "result")}
    if not all(isinstance(value, str) for value in fields.values()) or fields["state"] not in get_args(CallState):
        raise ValueError
    return ToolCall(**fields)
