"""Prompts that a person keeps to use again: a text or Markdown file each, with places to be filled in, such as {{language}}."""

from __future__ import annotations

import re
from pathlib import Path

from edge_llm.errors import StorageError, UsageError
from edge_llm.files import read_file, shown, write_whole

SUFFIXES = (".md", ".txt")
MOST_BYTES = 256 << 10
MOST_NAMES = 1000
_NAME = re.compile(r"\w[\w-]{0,79}")
PLACE = re.compile(r"\{\{ *+([^{}\n ](?:[^{}\n]{0,78}[^{}\n ])?) *+\}\}")
"""A place to be filled in; found in a time that grows with the text, whatever stands in it."""
NOT_A_NAME = ("save",)
"""Words of the command that uses prompts."""


def prompt_names(folder: Path) -> list[str]:
    """The names of the prompts in ``folder``; none where it cannot be read."""
    try:
        files = [path for path in folder.iterdir() if path.suffix in SUFFIXES and _NAME.fullmatch(path.stem)]
    except OSError:
        return []
    return sorted({path.stem for path in files})[:MOST_NAMES]


def stored_prompt(folder: Path, name: str, filling: str = "") -> str:
    """The prompt ``name`` with ``filling`` in all places of its first name, or behind it where it has no places.

    Raises `UsageError` for a name that is none, `EdgeLLMError` for a file that cannot be read.
    """
    names = prompt_names(folder)
    if name not in names:
        known = f"there are: {', '.join(names[:20])}" if names else f"none is stored in `{folder}`"
        raise UsageError(f"there is no prompt `{shown(name, 60)}`; {known}; /prompt save NAME stores the last one")
    path = next((path for suffix in SUFFIXES if (path := folder / f"{name}{suffix}").exists()), None)
    if path is None:  # a link that leads nowhere, or a file that was removed meanwhile
        raise UsageError(f"the prompt `{name}` in `{folder}` cannot be read: its file is gone")
    text = read_file(path, MOST_BYTES, error=UsageError).decode("utf-8-sig", "replace").rstrip("\n")
    if not filling:
        return text
    first = PLACE.search(text)
    if first is None:
        return f"{text}\n\n{filling}"
    return PLACE.sub(lambda place: filling if place[1] == first[1] else place[0], text)


def store_prompt(folder: Path, name: str, text: str) -> Path:
    """Store ``text`` under ``name``, which must be free.  Raises `UsageError` and `StorageError`."""
    if not _NAME.fullmatch(name) or name in NOT_A_NAME:
        raise UsageError(f"`{shown(name, 60)}` is no name for a prompt; use letters, digits, - and _")
    if name in prompt_names(folder):
        raise UsageError(f"there is a prompt `{name}` already: `{folder}` has it as a file; give another name")
    if len(text.encode("utf-8", "replace")) >= MOST_BYTES:
        raise UsageError(f"a prompt of more than {MOST_BYTES >> 10} KiB is not stored; shorten it")
    path = folder / f"{name}.md"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, (text.rstrip("\n") + "\n").encode("utf-8", "replace"))
    except OSError as failure:
        raise StorageError(f"cannot write `{shown(path)}`: {failure.strerror}") from None
    return path
