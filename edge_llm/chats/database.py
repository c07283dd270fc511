"""The file that chats are kept in: its tables, how it is opened, and what is done when it is damaged or refused.

`store.py` asks it questions; nobody else knows SQL.  A file that cannot be read is kept aside under a new name, and nothing
of it is ever overwritten or deleted.  Openings take turns by a lock on the folder: none sees a file that is half set aside.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from edge_llm.chats.calls import TABLE as CALLS
from edge_llm.errors import StorageError
from edge_llm.files import shown

TIMEOUT = 5.0
"""Seconds to wait for another program that writes."""
APPLICATION = 0x65644C6D
"""Marks a file as ours, among all that SQLite can open."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE chats (
            id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, titled_by TEXT NOT NULL DEFAULT '',
            leaf INTEGER, created REAL NOT NULL, changed REAL NOT NULL, settings TEXT NOT NULL)""",
        """CREATE TABLE messages (
            id INTEGER PRIMARY KEY AUTOINCREMENT, chat INTEGER NOT NULL REFERENCES chats ON DELETE CASCADE,
            parent INTEGER REFERENCES messages, role TEXT NOT NULL, state TEXT NOT NULL, model TEXT NOT NULL,
            created REAL NOT NULL, figures TEXT NOT NULL, thought TEXT NOT NULL, text TEXT NOT NULL)""",
        "CREATE INDEX messages_of_chat ON messages (chat)",
        "CREATE INDEX messages_below ON messages (parent)",
        "CREATE INDEX messages_growing ON messages (state) WHERE state = 'growing'",
        """CREATE TABLE attachments (
            message INTEGER NOT NULL REFERENCES messages ON DELETE CASCADE, position INTEGER NOT NULL,
            name TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (message, position)) WITHOUT ROWID""",
        "CREATE VIEW said AS SELECT id, text FROM messages WHERE state <> 'growing'",
    ),
    (
        "ALTER TABLE messages ADD COLUMN reason TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE messages ADD COLUMN cut TEXT NOT NULL DEFAULT ''",
        """CREATE TABLE drafts (
            id INTEGER PRIMARY KEY AUTOINCREMENT, chat INTEGER NOT NULL REFERENCES chats ON DELETE CASCADE,
            body TEXT NOT NULL)""",
        "CREATE INDEX drafts_of_chat ON drafts (chat)",
    ),
)
"""What brings a file from version n to n + 1; never changed once released."""

_INDEX = """CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
    text, content = 'said', content_rowid = 'id', tokenize = 'trigram')"""
_PROBE = "SELECT count(*) FROM words WHERE words MATCH 'any'"
_REBUILD = "INSERT INTO words (words) VALUES ('rebuild')"
_FORGET = "INSERT INTO words (words, rowid, text) SELECT 'delete', old.id, old.text"
_LEARN = "INSERT INTO words (rowid, text) SELECT new.id, new.text"
_TRIGGERS = {
    "words_added": f"AFTER INSERT ON messages WHEN new.state <> 'growing' BEGIN {_LEARN}; END",
    "words_removed": f"AFTER DELETE ON messages WHEN old.state <> 'growing' BEGIN {_FORGET}; END",
    "words_replaced": f"AFTER UPDATE OF text, state ON messages BEGIN {_FORGET} WHERE old.state <> 'growing'; "
    f"{_LEARN} WHERE new.state <> 'growing'; END",
}
"""They keep the index of words as the texts are; an answer that grows is not indexed, as it changes every second."""

_SIDE_FILES = ("-wal", "-shm")
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_ELSEWHERE = "or set EDGE_LLM_HOME to another folder"
_REASONS = {
    sqlite3.SQLITE_BUSY: "another program holds it; try again in a moment, or close that program",
    sqlite3.SQLITE_LOCKED: "another program holds it; try again in a moment, or close that program",
    sqlite3.SQLITE_FULL: f"the disk is full; make room and try again, {_ELSEWHERE}",
    sqlite3.SQLITE_IOERR: f"the disk refused; check it and the room on it, and try again, {_ELSEWHERE}",
    sqlite3.SQLITE_READONLY: f"it cannot be written; check its permissions, {_ELSEWHERE}",
    sqlite3.SQLITE_PERM: f"it cannot be written; check its permissions, {_ELSEWHERE}",
    sqlite3.SQLITE_CANTOPEN: f"it cannot be opened; check its permissions and the room on the disk, {_ELSEWHERE}",
    sqlite3.SQLITE_TOOBIG: "a text is too long for it; send less at a time",
    sqlite3.SQLITE_CORRUPT: "it is damaged; start again, and it is kept aside",
    sqlite3.SQLITE_NOTADB: "it is damaged; start again, and it is kept aside",
}


def connect(path: Path, timeout: float = TIMEOUT) -> tuple[sqlite3.Connection, str]:
    """The database at ``path``, begun if nothing is there, and what the person must know: where a damaged one lies now."""
    with refusals(path), _turn(path.parent, timeout) as folder:
        notice = ""
        if not _size(path) and _size(_beside(path, "-wal")):  # SQLite would delete what is left of a lost file
            notice = _set_aside(path)
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            os.fsync(folder)
        db = _connection(path, timeout)
        try:
            _prepare(db)
        except sqlite3.DatabaseError as failure:
            with contextlib.closing(db):  # after the move: SQLite then leaves the moved files as they are
                if _kind(failure) not in _DAMAGED:
                    raise
                notice = _set_aside(path)
            db = _connection(path, timeout)
            _prepare(db)
        except BaseException:
            db.close()
            raise
        return db, notice


def connect_memory() -> sqlite3.Connection:
    """An empty database that is gone when it is closed."""
    db = _connection(":memory:", TIMEOUT)
    _prepare(db)
    return db


@contextlib.contextmanager
def refusals(path: Path | None) -> Iterator[None]:
    """Turn what SQLite and the system refuse into a `StorageError` that names the file and the way out."""
    try:
        yield
    except sqlite3.Error as failure:
        reason = _REASONS.get(_kind(failure), f"SQLite says: {failure}")
    except OSError as failure:
        reason = f"{failure.strerror}; check the place and its permissions, {_ELSEWHERE}"
    else:
        return
    raise StorageError(f"cannot use the chats in {f'`{shown(path)}`' if path else 'memory'}: {reason}")


def has_index(db: sqlite3.Connection) -> bool:
    """Whether the table ``words`` can be asked: not every SQLite can keep it."""
    found = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")}
    return found.issuperset(_TRIGGERS)


def _connection(path: Path | str, timeout: float) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    db.text_factory = lambda text: text.decode("utf-8", "replace")
    return db


def _prepare(db: sqlite3.Connection) -> None:
    """Look before the first write: a file that is damaged, newer or not ours stays as it is."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION:
        raise StorageError("the file in the place of the chats belongs to another program; move it away, " + _ELSEWHERE)
    if version > len(MIGRATIONS):
        raise StorageError("the saved chats are of a newer edge-llm; update edge-llm, " + _ELSEWHERE)
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise _damage(found)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")
    with transaction(db):
        _migrate(db)
        db.execute(CALLS)
        _index(db)


@contextlib.contextmanager
def transaction(db: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """All that is done within, or nothing; what is read is of one moment."""
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite ends it itself on some errors
            db.execute("ROLLBACK")
        raise


def _migrate(db: sqlite3.Connection) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION}")
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _index(db: sqlite3.Connection) -> None:
    """Keep an index of words where this SQLite can.  Where it cannot, none is kept: the next one that can begins it anew."""
    try:
        db.execute(_INDEX)
        db.execute(_PROBE)
    except sqlite3.OperationalError as failure:
        if _kind(failure) != sqlite3.SQLITE_ERROR:
            raise
        for name in _TRIGGERS:
            db.execute(f"DROP TRIGGER IF EXISTS {name}")
        return
    if not has_index(db):
        db.execute(_REBUILD)
        for name, body in _TRIGGERS.items():
            db.execute(f"CREATE TRIGGER IF NOT EXISTS {name} {body}")


@contextlib.contextmanager
def _turn(folder: Path, timeout: float) -> Iterator[int]:
    """Wait for our turn to open files in ``folder``, which is made if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(fd, folder, time.monotonic() + timeout)
        yield fd
    finally:
        os.close(fd)


def _lock(fd: int, folder: Path, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StorageError(f"another program opens the chats in `{shown(folder)}`; try again in a moment") from None
            time.sleep(0.02)
        except OSError:  # a file system without locks
            return None


def _set_aside(path: Path) -> str:
    """Give the file and what SQLite keeps beside it a new name; the notice of that."""
    aside = _free_name(path)
    for suffix in (*_SIDE_FILES, ""):  # the file last: a new one must never meet the old one's -wal
        with contextlib.suppress(FileNotFoundError):
            _beside(path, suffix).rename(_beside(aside, suffix))
    return f"The saved chats were damaged: they are kept in `{shown(aside, 4000)}`, and a new file was begun."


def _free_name(path: Path) -> Path:
    stem = f"{path.stem}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (path.with_name(f"{stem}{f'-{count}' if count else ''}{path.suffix}") for count in range(10_000))
    return next(name for name in names if not any(os.path.lexists(_beside(name, suffix)) for suffix in (*_SIDE_FILES, "")))


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _kind(failure: sqlite3.Error) -> int:
    """SQLite's primary code of an error; 0 for one of Python's own."""
    return getattr(failure, "sqlite_errorcode", 0) & 0xFF


def _damage(found: str) -> sqlite3.DatabaseError:
    failure = sqlite3.DatabaseError(found)
    failure.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return failure
