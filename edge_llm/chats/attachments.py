"""Text files that a prompt brings along, written as ``@path`` in it.

A path ends at a space, or is quoted: ``@notes.txt``, ``@"my file.txt"``, ``@~/todo``.  What names no file is text, as in
``me@example.org`` or ``@someone``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from edge_llm.chats.tree import Attachment
from edge_llm.errors import UsageError
from edge_llm.files import RegularFile, shown
from edge_llm.paths import expanded

MOST_BYTES = 1 << 20
_LOOKED_AT = 10_000
"""Names of a folder that completion looks at."""

_WORD = re.compile(r'(?<![A-Za-z0-9._%+@/`-])@(?:"([^"\n]+)"|([^\s"]+))')
_BEHIND = ",;:!?)]}'.…，。；：！？、）】』」"
_MOST_BEHIND = 8
"""Punctuation that may follow a path in a sentence, and how much of it is taken off."""
_OF_CODE = frozenset("()[]{}<>=|*")
"""Such as a decorator's call: no person writes them in the name of a file."""
_MOST_NAMED = 3


def read_attachment(path: Path) -> Attachment:
    """The text file at ``path``.  `UsageError`: it cannot be attached.  `StorageError`: the disk does not read it."""
    with RegularFile(path, error=UsageError) as file:
        if file.size > MOST_BYTES:
            raise UsageError(f"`{shown(path)}` has {file.size} bytes; at most {MOST_BYTES} can be attached: cut out a part")
        data = file.read(file.size)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as failure:
        raise UsageError(f"`{shown(path)}` is not a text file: byte {failure.start} is not UTF-8; convert it first") from None
    if "\0" in text:
        raise UsageError(f"`{shown(path)}` is not a text file: it has NUL bytes; only text can be attached")
    return Attachment(shown(path.name), text)


def find_attachments(text: str, base: Path) -> tuple[str, list[Path]]:
    """``text`` with every ``@path`` of a file put as the file's name, and these files, each once, in their order.

    Relative paths begin at ``base``.  A file that is found here may still not be one that can be attached.
    """
    found: dict[Path, None] = {}

    def named(match: re.Match[str]) -> str:
        quoted, plain = match.groups()
        for name in [quoted] if quoted else _shorter(plain):
            path = _there(name, base)
            if path is not None:
                found.setdefault(path)
                rest = "" if quoted else plain[len(name) :]
                return f"`{path.name}`{rest}"
        return match.group()

    return _WORD.sub(named, text), list(found)


def missing_files(text: str) -> str:
    """The paths of ``text``, which `find_attachments` left, that look like those of files; a few by name, "" for none."""
    words = [quoted or plain.rstrip(_BEHIND) for quoted, plain in _WORD.findall(text)]
    names = [shown(name, 60) for name in dict.fromkeys(words) if ("." in name or "/" in name) and _OF_CODE.isdisjoint(name)]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(f"`{name}`" for name in names[:_MOST_NAMED]) + more


def completions(prefix: str, base: Path, limit: int = 50) -> list[str]:
    """What the word ``prefix`` (``@pa`` or ``@"my fi``) may become: files and folders, folders end in ``/``."""
    typed = prefix.removeprefix("@").removeprefix('"')
    folder, slash, begun = typed.rpartition("/")
    place = base / expanded(folder + slash) if slash else base
    names = sorted(_names(place, begun), key=lambda name: (name.casefold(), name))
    return [_word(folder + slash + name) for name in names[:limit]]


def _shorter(word: str) -> Iterator[str]:
    """``word``, and without the marks at its end, one less each time."""
    yield word
    for _ in range(_MOST_BEHIND):
        if len(word) < 2 or word[-1] not in _BEHIND:
            return
        word = word[:-1]
        yield word


def _there(name: str, base: Path) -> Path | None:
    """The path of ``name``, unless nothing or a folder is there; whether it can be attached shows when it is read."""
    path = base / expanded(name)
    try:
        return path if path.exists() and not path.is_dir() else None
    except (OSError, ValueError):  # a name that no file can have, or a folder that may not be seen
        return None


def _names(folder: Path, begun: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            fitting = (each for each in islice(entries, _LOOKED_AT) if _fits(each.name, begun))
            return [each.name + ("/" if _is_folder(each) else "") for each in fitting]
    except (OSError, ValueError):
        return []


def _fits(name: str, begun: str) -> bool:
    """Hidden files come when their dot is typed; a name that cannot be written in a prompt never does."""
    writable = name.isprintable() and '"' not in name
    return writable and name.casefold().startswith(begun.casefold()) and (not name.startswith(".") or begun.startswith("."))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _word(path: str) -> str:
    """A folder in quotes stays open: its files follow."""
    if not any(map(str.isspace, path)):
        return f"@{path}"
    return f'@"{path}' if path.endswith("/") else f'@"{path}"'
