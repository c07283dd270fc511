"""A file that is downloaded into, and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any


class Counted:
    """A file that tells how long it is whenever it grows."""

    def __init__(self, file: IO[bytes], grown: Callable[[int], None]) -> None:
        self._file = file
        self._grown = grown

    def write(self, data: bytes) -> int:
        count = self._file.write(data)
        self._grown(self._file.tell())
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
