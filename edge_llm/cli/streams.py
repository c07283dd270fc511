"""Standard output and error that cannot take what is written: full, without a reader, or in a small encoding."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO


def set_what_cannot_be_encoded() -> None:
    """Let stdout write `?` for what its encoding lacks, and file names that are not UTF-8 with their own bytes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        sys.stdout.reconfigure(errors="surrogateescape" if utf8 else "replace")


def flush_failure(stream: TextIO) -> OSError | None:
    """The error of writing what ``stream`` holds; None when all is written."""
    try:
        stream.flush()
    except OSError as failure:
        return failure
    return None


def give_up(stream: TextIO) -> None:
    """Drop what ``stream`` still holds, so that the end of the process does not fail at it once more."""
    with contextlib.suppress(OSError):  # it has no descriptor, so there is nothing to drop
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
