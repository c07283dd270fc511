"""A tokenizer.json becomes a tokenizer of the `tokenizers` package, which ends the process where it gets no memory."""

from __future__ import annotations

import codecs
import mmap
from pathlib import Path
from typing import Any

import tokenizers

from edge_llm.errors import InvalidTokenizer
from edge_llm.files import read_file, shown
from edge_llm.interrupts import HeldInterrupt

ROOM_BYTES, ROOM_PER_BYTE = 8 << 20, 16
"""Memory that loading a tokenizer may take: so much, and so much for each byte of its file."""
MAX_FILE_BYTES = 64 << 20


def _expect_memory(count: int) -> None:
    """Raise MemoryError unless the system gives ``count`` bytes: where it does not, `tokenizers` ends the process."""
    try:
        mmap.mmap(-1, count).close()
    except OSError:
        raise MemoryError from None


def load(path: Path) -> Any:
    """The tokenizer of the package in the file at ``path``; raises `InvalidTokenizer`."""
    return load_bytes(read_file(path, MAX_FILE_BYTES, error=InvalidTokenizer), path.name)


def load_bytes(data: bytes, name: str) -> Any:
    """The same of a file's bytes; ``name`` is said in errors."""
    _expect_memory(ROOM_BYTES + ROOM_PER_BYTE * len(data))
    with HeldInterrupt():  # what a signal's handler raises says nothing of the file
        try:
            return _without_cache(tokenizers.Tokenizer.from_buffer(data.removeprefix(codecs.BOM_UTF8)))
        except BaseException as failure:  # a Rust panic is not an Exception
            pass_on(failure)
            raise InvalidTokenizer(
                f"`{shown(name)}` cannot be used: {shown(failure)}; save the model's tokenizer again"
            ) from None


def _without_cache(tokenizer: Any) -> Any:
    """``tokenizer`` without its cache of words: every thread has one of every tokenizer, and keeps it when that is gone.

    Texts of known words take 1.2 times as long without.
    """
    if hasattr(tokenizer.model, "_resize_cache"):  # BPE's and Unigram's
        tokenizer.model._resize_cache(0)
    return tokenizer


def pass_on(failure: BaseException) -> None:
    """Raise ``failure`` if it says nothing of what a tokenizer was given."""
    if isinstance(failure, (KeyboardInterrupt, SystemExit, GeneratorExit)):
        raise failure
