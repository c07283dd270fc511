"""Text that is piped in: whose it is, and read up to a limit, for a pipe may never end."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from edge_llm.cli.terminal import has_person, note
from edge_llm.errors import UsageError

MAX_BYTES = 16 << 20
"""More than any context here holds; what a model's own context holds is asked of the engine."""


MOST_TEXTS = 1 << 20
"""Texts of one command."""
SILENT_SECONDS = 2.0
"""Who waits longer for the end of stdin is told what for."""

_SHELLS = frozenset(
    ("ash", "bash", "csh", "dash", "fish", "ksh", "ksh93", "mksh", "nu", "oksh", "rbash", "sh", "tcsh", "yash", "zsh")
)


def is_piped_in() -> bool:
    """Whether stdin is text for this command: a file that nobody has begun to read, or a pipe that no shell around it has too.

    What such a shell has too it reads on behind this command, as in a loop, or never ends, as in the job of a CI.
    """
    if sys.stdin is None:
        return False
    try:
        ours = os.fstat(sys.stdin.fileno())
    except (OSError, ValueError):  # no descriptor is behind it
        return not sys.stdin.closed
    if stat.S_ISREG(ours.st_mode):  # shells may open it themselves for the command that they start
        return os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR) == 0
    if not (stat.S_ISFIFO(ours.st_mode) or stat.S_ISSOCK(ours.st_mode)):
        return False
    parent = os.getppid()
    while _has_as_stdin(parent, ours):  # a shell, or a program that it started to start us: `timeout 60 edge-llm ...`
        if _is_shell(parent):
            return False
        parent = _parent_of(parent)
    return True


def _has_as_stdin(process: int, ours: os.stat_result) -> bool:
    try:
        theirs = Path(f"/proc/{process}/fd/0").stat()
    except OSError:  # there is none, or it is another user's
        return False
    return (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)


def _is_shell(process: int) -> bool:
    """By its program, or by how it was called where one program is many (busybox)."""
    try:
        program = Path(f"/proc/{process}/exe").readlink().name
        called = Path(f"/proc/{process}/cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
    except OSError:
        return False
    return not _SHELLS.isdisjoint((program, Path(called).name.lstrip("-")))


def _parent_of(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0


def read_all(*, exact: bool = False) -> str:
    """All that is piped in; unless ``exact``, but for the end of its last line, which `echo` and files have and nobody means.

    Empty lines in front of it stay.  Raises `UsageError` when it is too much, or not UTF-8.
    """
    if sys.stdin is None:
        return ""
    telling = threading.Timer(SILENT_SECONDS, note, ["reading stdin ... (Ctrl-D ends it, </dev/null skips it)"])
    telling.daemon = True
    telling.start()
    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
    finally:
        telling.cancel()
    if len(data) > MAX_BYTES:
        raise UsageError(f"more than {MAX_BYTES >> 20} MiB are piped in; no context here holds that", param="prompt")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 text (byte {error.start}); pipe text", param="prompt") from error
    return text if exact else text.removesuffix("\r\n" if text.endswith("\r\n") else "\n")


def read_lines() -> Iterator[str]:
    """The lines that are piped in, stripped; a line that cannot be used is noted and left out."""
    encoding = "utf-8-sig"
    while sys.stdin is not None and (line := sys.stdin.buffer.readline(MAX_BYTES + 1)):
        if len(line) > MAX_BYTES:
            note(f"error: a line has more than {MAX_BYTES >> 20} MiB; no context here holds that")
            _skip_line()
            continue
        try:
            yield line.decode(encoding).strip()
        except UnicodeDecodeError:
            note("error: that line is not UTF-8 text")
        encoding = "utf-8"  # a byte order mark stands before the first one only


def _skip_line() -> None:
    while (rest := sys.stdin.buffer.readline(1 << 16)) and not rest.endswith(b"\n"):
        pass


def given_texts(texts: Sequence[str], what: str, usage: str) -> list[str]:
    """``texts`` of arguments, called ``what``, or the lines of stdin, of which a form feed or U+2028 ends none.

    Raises `UsageError` where there is none, or too many."""
    if not texts and has_person() and not is_piped_in():
        raise UsageError(f"no {what}; write `{usage}` or pipe lines in", param=what)
    piped = "" if texts else read_all()
    found = list(texts) or [line.removesuffix("\r") for line in piped.removesuffix("\n").split("\n")]
    if not texts and not piped:
        raise UsageError("stdin is empty; give at least one line", param=what)
    if len(found) > MOST_TEXTS:
        raise UsageError(f"`{len(found)}` {what} are too many; give at most {MOST_TEXTS} at a time", param=what)
    return found
