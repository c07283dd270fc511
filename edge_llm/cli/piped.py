"""Text that is piped in, read up to a limit: a pipe may never end."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from edge_llm.cli.terminal import note
from edge_llm.errors import UsageError

MAX_BYTES = 16 << 20
"""More than any context here holds; what a model's own context holds is asked of the engine."""


def read_all() -> str:
    """All that is piped in but for the end of its last line, which `echo` and files have and nobody means.

    Empty lines in front of it stay.  Raises `UsageError` when it is too much, or not UTF-8.
    """
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UsageError(f"more than {MAX_BYTES >> 20} MiB are piped in; no context here holds that", param="prompt")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 text (byte {error.start}); pipe text", param="prompt") from error
    return text.removesuffix("\r\n" if text.endswith("\r\n") else "\n")


def read_lines() -> Iterator[str]:
    """The lines that are piped in, stripped; a line that cannot be used is noted and left out."""
    while sys.stdin is not None and (line := sys.stdin.buffer.readline(MAX_BYTES + 1)):
        if len(line) > MAX_BYTES:
            note(f"error: a line has more than {MAX_BYTES >> 20} MiB; no context here holds that")
            _skip_line()
            continue
        try:
            yield line.decode("utf-8").strip()
        except UnicodeDecodeError:
            note("error: that line is not UTF-8 text")


def _skip_line() -> None:
    while (rest := sys.stdin.buffer.readline(1 << 16)) and not rest.endswith(b"\n"):
        pass
