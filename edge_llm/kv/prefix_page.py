"""One page of keys and values in its own file, which is used only if it is whole, unchanged and the wanted page.

    magic 8 | version 4 | tokens per page 4 | bytes of data 4 | CRC-32C of the data 4 | key 32 | tokens 16 x 8 | data

All numbers are little-endian.  The key identifies the model and the whole text up to the page (`kv.prefix.page_keys`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edge_llm.kernels.checksum import crc32c
from edge_llm.kv.pages import PAGE_TOKENS
from edge_llm.kv.prefix import Key, page_keys

VERSION = 1
PAGE_SUFFIX = ".page"
_HEADER = struct.Struct(f"<8sIIII32s{PAGE_TOKENS}q")
_MAGIC = b"edge-kv\n"
_UNFINISHED = ".writing-"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe in a page's place must not block
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Page(NamedTuple):
    """A full page of a text: its number in the text, its key, its tokens, and its file."""

    number: int
    key: Key
    tokens: tuple[int, ...]
    file_name: str


def pages_of(identity: bytes, tokens: Sequence[int]) -> Iterator[Page]:
    """The full pages of ``tokens``, in order."""
    for number, (key, page_tokens) in enumerate(page_keys(identity, tokens)):
        yield Page(number, key, page_tokens, key.hex() + PAGE_SUFFIX)


def read_page(folder: Path, page: Page, out: np.ndarray) -> bool:
    """Fill ``out`` (uint8 [page bytes], contiguous); False if the file holds anything but this page, whole and unchanged.

    Raises `OSError` when the file is missing or cannot be read.
    """
    header, beyond = bytearray(_HEADER.size), bytearray(1)
    fd = os.open(f"{folder}/{page.file_name}", _READ)
    try:
        size = os.preadv(fd, [header, out.data, beyond], 0)
    finally:
        os.close(fd)
    return size == page_file_bytes(out.nbytes) and header == _header(page, out)


def page_file_bytes(data_bytes: int) -> int:
    """Bytes of the file of a page with ``data_bytes`` of data."""
    return _HEADER.size + data_bytes


def write_page(folder: Path, page: Page, data: np.ndarray, used_ns: int) -> None:
    """Put a page into ``folder``, whole or not at all.  Raises `OSError`.

    data: uint8 [page bytes], contiguous.  ``used_ns`` becomes its time of last use.  The folder itself is not synced.
    """
    write_whole(folder / page.file_name, _header(page, data) + data.tobytes(), used_ns)


def write_whole(path: Path, content: bytes, used_ns: int | None = None) -> None:
    """Write or replace the file at ``path``, whole or not at all.  Raises `OSError`.

    ``used_ns`` becomes its time of last change; None is now.
    """
    temporary = unfinished(path.parent)
    fd = os.open(temporary, _CREATE, 0o600)
    try:
        with contextlib.suppress(OSError):  # without locks, another start may remove it as a leftover: then the rename fails
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write_all(fd, content)
        if used_ns is not None:
            os.utime(fd, ns=(used_ns, used_ns))
        os.fsync(fd)
        temporary.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):  # then the next start removes it
            temporary.unlink()
        raise
    finally:
        os.close(fd)


def is_unfinished(name: str) -> bool:
    """Whether ``name`` is that of an unfinished file."""
    return name.startswith(_UNFINISHED)


def unfinished(folder: Path) -> Path:
    """A new path in ``folder`` for an unfinished file."""
    return folder / f"{_UNFINISHED}{secrets.token_hex(8)}"


def clear_leftovers(folder: Path) -> None:
    """Remove the unfinished files of killed processes from ``folder``: those without a lock.  Raises `OSError`."""
    with os.scandir(folder) as entries:
        leftovers = [Path(entry.path) for entry in entries if is_unfinished(entry.name)]
    for path in leftovers:
        with contextlib.suppress(OSError):
            fd = os.open(path, _READ)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(fd)


def _header(page: Page, data: np.ndarray) -> bytes:
    return _HEADER.pack(_MAGIC, VERSION, PAGE_TOKENS, data.nbytes, crc32c(data), page.key, *page.tokens)


def _write_all(fd: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]
