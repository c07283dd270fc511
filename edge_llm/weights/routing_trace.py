"""Traces of routing: which experts the rows of every step went to, as a file that cache policies can be tried on.

A file (version 1, little-endian) is a head and records behind each other:

    head    magic "EDGEROUT", version u16, experts of a layer u16, experts of a row u16, layers u16,
            bytes of an expert u64 for each layer (0: the layer has no experts), CRC-32 of all this u32
    record  layer u16, rows u32, guessed u16 (65535: nobody guessed), CRC-32 of the record without this field u32,
            the rows' experts [rows, experts of a row], ascending in every row, then the guessed experts, ascending;
            each of these a u8 where a layer has at most 256 experts, else a u16

Records are in the order in which the layers were computed: a step gives one for each layer with experts, a prompt one for each
of these and each chunk.  A file may end behind any record, so a run that is killed leaves what it has recorded.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_llm.errors import StorageError, UsageError
from edge_llm.files import read_file, shown

MAGIC = b"EDGEROUT"
VERSION = 1
MOST_BYTES = 2**26
"""Of a file: some ten thousand tokens of a large model.  In memory a step takes up to thirty times its bytes."""
MOST_LAYERS, MOST_EXPERTS, MOST_ROWS = 4096, 65_534, 2**24
MOST_EXPERT_BYTES = 2**40
_HEAD = struct.Struct("<8sHHHH")
_RECORD = struct.Struct("<HIHI")
_CHECK = struct.Struct("<I")
_NO_GUESS = 0xFFFF


@dataclass(frozen=True)
class TracedShape:
    """Whose routing it is."""

    experts: int
    """Of a layer."""
    used: int
    """Of these, how many a row goes to."""
    expert_bytes: tuple[int, ...]
    """Of one expert, for every layer of the model; 0 where a layer has none."""

    def __post_init__(self) -> None:
        if not 1 <= self.used <= self.experts <= MOST_EXPERTS:
            raise ValueError(f"rows go to {self.used} of {self.experts} experts")
        if not 1 <= len(self.expert_bytes) <= MOST_LAYERS or not any(self.expert_bytes):
            raise ValueError(f"of {len(self.expert_bytes)} layers none has experts")
        if not all(0 <= size <= MOST_EXPERT_BYTES for size in self.expert_bytes):
            raise ValueError(f"an expert has {max(self.expert_bytes)} bytes")

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Of an expert's number in a file."""
        return np.dtype("<u1" if self.experts <= 256 else "<u2")


@dataclass(frozen=True)
class RoutedStep:
    """Where the rows of one step, or of one chunk of a prompt, went in one layer."""

    layer: int
    experts: np.ndarray
    """Integers of any type [rows, used], ascending in every row."""
    guess: tuple[int, ...] | None = None
    """The experts that were guessed before the router had spoken, ascending; None where nobody guessed."""

    @property
    def wanted(self) -> tuple[int, ...]:
        """The experts that any row went to, ascending."""
        return tuple(np.unique(self.experts).tolist())


@dataclass(frozen=True)
class RoutingTrace:
    """What a file holds."""

    shape: TracedShape
    steps: tuple[RoutedStep, ...]


def encode_head(shape: TracedShape) -> bytes:
    """The bytes before the records."""
    head = _HEAD.pack(MAGIC, VERSION, shape.experts, shape.used, len(shape.expert_bytes))
    head += np.array(shape.expert_bytes, "<u8").tobytes()
    return head + _CHECK.pack(zlib.crc32(head))


def encode_step(shape: TracedShape, step: RoutedStep) -> bytes:
    """A record.  Raises ValueError for a step that ``shape`` cannot have."""
    problem = _problem(shape, step.layer, step.experts, step.guess)
    if problem is not None:
        raise ValueError(problem)
    guess = () if step.guess is None else step.guess
    body = step.experts.astype(shape.dtype).tobytes() + np.array(guess, shape.dtype).tobytes()
    facts = (step.layer, len(step.experts), _NO_GUESS if step.guess is None else len(guess))
    return _RECORD.pack(*facts, _checksum(facts, body)) + body


def decode_trace(data: bytes, name: str) -> RoutingTrace:
    """What the bytes of the file ``name`` say.  Raises `UsageError` where they are no trace, a newer or a damaged one."""
    try:
        shape, at = _decode_head(data)
        return RoutingTrace(shape, tuple(_decode_steps(shape, data, at)))
    except _DamagedError as problem:
        raise UsageError(f"`{shown(name)}` is no trace of routing that can be read: {problem}; record it again") from None


def read_trace(path: Path) -> RoutingTrace:
    """The trace in the file ``path``.  Raises `UsageError`."""
    return decode_trace(read_file(path, MOST_BYTES, error=UsageError), str(path))


class TraceWriter:
    """Writes a trace while it comes about, and calls ``full`` once, when no more goes into the file.

    Raises `StorageError` where the disk refuses.
    """

    def __init__(self, path: Path, shape: TracedShape, full: Callable[[], None] = lambda: None) -> None:
        self._path, self._shape, self._bytes = path, shape, 0
        self._full, self._is_full = full, False
        try:
            self._file = path.open("wb", buffering=0)  # who is killed has written every record
        except OSError as failure:
            raise StorageError(f"cannot write `{shown(path)}`: {failure.strerror}; check the folder") from None
        self._write(encode_head(shape))

    def add(self, step: RoutedStep) -> None:
        """Write one more record; behind the first that would go beyond `MOST_BYTES` nothing is written."""
        record = encode_step(self._shape, step)
        if not self._is_full and self._bytes + len(record) <= MOST_BYTES:
            self._write(record)
        elif not self._is_full:
            self._is_full = True
            self._full()

    def close(self) -> None:
        """End the file; more than once is fine."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        try:
            if self._file.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as failure:
            with contextlib.suppress(OSError):  # half a record; the next one goes where it began
                self._file.truncate(self._bytes)
                self._file.seek(self._bytes)
            raise StorageError(f"cannot write `{shown(self._path)}`: {failure.strerror}; make room on the disk") from None
        self._bytes += len(data)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _DamagedError(Exception):
    """What is wrong with a file."""


def _checksum(facts: tuple[int, int, int], body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_RECORD.pack(*facts, 0)[: -_CHECK.size]))


def _decode_head(data: bytes) -> tuple[TracedShape, int]:
    """The shape, and where the records begin."""
    if len(data) < _HEAD.size:
        raise _DamagedError("it is too short")
    magic, version, experts, used, layers = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise _DamagedError("it begins with other bytes")
    if version != VERSION:
        raise _DamagedError(f"its version is {version}, and only {VERSION} is known")
    end = _HEAD.size + 8 * layers
    if len(data) < end + _CHECK.size or _CHECK.unpack_from(data, end)[0] != zlib.crc32(data[:end]):
        raise _DamagedError("its head is damaged")
    try:
        return TracedShape(experts, used, tuple(np.frombuffer(data[_HEAD.size : end], "<u8").tolist())), end + _CHECK.size
    except ValueError as problem:
        raise _DamagedError(str(problem)) from None


def _decode_steps(shape: TracedShape, data: bytes, at: int) -> Iterator[RoutedStep]:
    size = shape.dtype.itemsize
    while at < len(data):
        if len(data) - at < _RECORD.size:
            raise _DamagedError(f"it ends within the record at byte {at}")
        layer, rows, guessed, checksum = _RECORD.unpack_from(data, at)
        split = at + _RECORD.size + rows * shape.used * size
        end = split + (0 if guessed == _NO_GUESS else guessed * size)
        if end > len(data):
            raise _DamagedError(f"it ends within the record at byte {at}")
        if _checksum((layer, rows, guessed), data[at + _RECORD.size : end]) != checksum:
            raise _DamagedError(f"the record at byte {at} is damaged")
        experts = np.frombuffer(data, shape.dtype, rows * shape.used, at + _RECORD.size).reshape(rows, shape.used)
        guess = None if guessed == _NO_GUESS else tuple(np.frombuffer(data[split:end], shape.dtype).tolist())
        if (problem := _problem(shape, layer, experts, guess)) is not None:
            raise _DamagedError(f"in the record at byte {at}, {problem}")
        yield RoutedStep(layer, experts, guess)
        at = end


def _problem(shape: TracedShape, layer: int, experts: np.ndarray, guess: Sequence[int] | None) -> str | None:
    """Why no step of ``shape`` is like this; None for one that can be."""
    if not 0 <= layer < len(shape.expert_bytes) or not shape.expert_bytes[layer]:
        return f"layer {layer} has no experts"
    if experts.shape[1:] != (shape.used,) or not 1 <= len(experts) <= MOST_ROWS:
        return f"experts {experts.shape} are not those of rows that go to {shape.used}"
    if experts.min() < 0 or experts.max() >= shape.experts or (experts[:, 1:] <= experts[:, :-1]).any():
        return f"a row's experts are not ascending numbers below {shape.experts}"
    numbers = np.array(() if guess is None else guess, np.int64)
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= shape.experts or (np.diff(numbers) <= 0).any()):
        return f"the guessed experts are not ascending numbers below {shape.experts}"
    return None
