"""Standard output and error as a program may find them: full, without a reader, or in an encoding that lacks letters."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO


def set_what_cannot_be_encoded() -> None:
    """What the encoding of stdout lacks is written as `?`; the bytes of a file name that is not UTF-8 come out as they are."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        sys.stdout.reconfigure(errors="surrogateescape" if utf8 else "replace")


def flush_failure(stream: TextIO) -> OSError | None:
    """Why what was written to ``stream`` does not get out; None when it does."""
    try:
        stream.flush()
    except OSError as failure:
        return failure
    return None


def give_up(stream: TextIO) -> None:
    """Send what ``stream`` still holds nowhere, so that the end of the process does not fail at it once more."""
    with contextlib.suppress(OSError):  # a stream without a descriptor has nobody behind it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
