"""What stands before the data of a GGUF file: walked once through a window, and held against the file before memory is taken.

Pairs of key and value, then the table of tensors.  Every length, count, offset and type is checked; arrays stay where they are.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace

import numpy as np

from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import RegularFile, shown
from edge_llm.formats.gguf_blocks import REMOVED, TYPES, BlockType

MAX_HEADER_BYTES = 32 << 20
"""Of everything before the data: Gemma's, with 262,144 tokens, has 6.5 MB."""
MAX_KEYS = 1 << 16
MAX_TENSORS = 100_000
MAX_KEY_BYTES = 65_535
MAXSTRING_BYTES = 16 << 20
MAX_ELEMENTS = 4 << 20
MAX_NAME_BYTES = 63
MAX_DIMS = 4
ALIGNMENT = 32
"""Where a file does not say otherwise."""

MAGIC = b"GGUF"
STRING, _ARRAY, _BOOL = 8, 9, 7
NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", _BOOL: "<u1", 10: "<u8", 11: "<i8", 12: "<f8"}
_LEAST_PAIR_BYTES, _LEAST_TENSOR_BYTES = 14, 33
_WINDOW_BYTES = 1 << 20
_U32, U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufArray:
    """Where an array lies that the file's pairs have: elements of the value type ``kind``."""

    kind: int
    count: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor lies in its file; ``shape`` as in safetensors: rows, columns."""

    name: str
    kind: BlockType
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    def rows(self, first: int, count: int) -> GgufTensor:
        """``count`` of its rows; those of stacked matrices are one under the other.

        Raises `UnsupportedModel` where a block has several.
        """
        if len(self.shape) == 1 and self.kind.columns > 1:
            raise UnsupportedModel(f"the vector `{shown(self.name)}` is {self.kind.name}; parts of it cannot be read, F32 can")
        each = self.nbytes // math.prod(self.shape[:2] if len(self.shape) == 3 else self.shape[:1])
        return replace(self, shape=(count, *self.shape[1:][-1:]), offset=self.offset + first * each, nbytes=count * each)


Value = int | float | bool | str | GgufArray


class GgufHeader:
    """Everything before the data of ``file``, walked through a window of it."""

    def __init__(self, file: RegularFile) -> None:
        self._file = file
        self.where = f"`{shown(file.path.name)}`"
        self._at = 0
        self._window, self._window_at = b"", 0
        self.pairs: dict[str, Value] = {}
        self.tensors: dict[str, GgufTensor] = {}
        tensors, pairs = self._counts()
        for _ in range(pairs):
            self._pair()
        self._alignment = self._read_alignment()
        infos = [self._tensor() for _ in range(tensors)]
        self._place(infos)

    def _counts(self) -> tuple[int, int]:
        if self._file.size < 24:
            raise self._broken(f"{self._file.size} bytes, too few for a GGUF file; download it again")
        if self._take(4) != MAGIC:
            raise self._broken("the file does not begin with `GGUF`; this is not a GGUF file")
        version = self._u32()
        if version and not version & 0xFFFF:
            raise UnsupportedModel(f"{self.where} is a big-endian GGUF file; take the usual little-endian one")
        if version not in (2, 3):
            raise UnsupportedModel(f"{self.where} is GGUF version `{version}`; versions 2 and 3 are read, take a newer file")
        tensors, pairs = self._u64(), self._u64()
        rest = self._file.size - self._at
        if tensors > min(MAX_TENSORS, rest // _LEAST_TENSOR_BYTES):
            raise self._broken(f"it claims `{tensors}` tensors, more than {MAX_TENSORS} or than it has room for")
        if pairs > min(MAX_KEYS, rest // _LEAST_PAIR_BYTES):
            raise self._broken(f"it claims `{pairs}` keys, more than {MAX_KEYS} or than it has room for")
        return tensors, pairs

    def _pair(self) -> None:
        key = self._string("a key", MAX_KEY_BYTES)
        if not key or not key.isprintable():
            raise self._broken(f"it has the key `{shown(key)}`; keys are printable and not empty")
        if key in self.pairs:
            raise self._broken(f"it has the key `{shown(key)}` twice")
        self.pairs[key] = self._value(key, self._u32())

    def _value(self, key: str, kind: int) -> Value:
        if kind == STRING:
            return self._string(f"`{shown(key)}`", MAXSTRING_BYTES)
        if kind == _ARRAY:
            return self._array(key)
        if kind not in NUMBERS:
            raise self._broken(f"`{shown(key)}` has the unknown type `{kind}`")
        dtype = np.dtype(NUMBERS[kind])
        value: int | float = np.frombuffer(self._take(dtype.itemsize), dtype)[0].item()
        if kind != _BOOL:
            return value
        if value not in (0, 1):
            raise self._broken(f"`{shown(key)}` is the bool `{value}`; 0 and 1 are possible")
        return bool(value)

    def _array(self, key: str) -> GgufArray:
        kind, count = self._u32(), self._u64()
        if kind == _ARRAY:
            raise self._broken(f"`{shown(key)}` is an array of arrays; no model has one")
        if kind != STRING and kind not in NUMBERS:
            raise self._broken(f"`{shown(key)}` is an array of the unknown type `{kind}`")
        least = 8 if kind == STRING else np.dtype(NUMBERS[kind]).itemsize
        if count > min(MAX_ELEMENTS, (self._file.size - self._at) // least):
            raise self._broken(f"`{shown(key)}` claims `{count}` elements, more than {MAX_ELEMENTS} or than it has room for")
        start = self._at
        if kind != STRING:
            self._skip(count * least)
        else:
            self._skip_strings(key, count)
        return GgufArray(kind, count, start, self._at - start)

    def _skip_strings(self, key: str, count: int) -> None:
        size = self._file.size
        for _ in range(count):
            length = self._u64()
            if length > MAXSTRING_BYTES or length > size - self._at:
                raise self._too_long(f"a string of `{shown(key)}`", length, MAXSTRING_BYTES)
            self._skip(length)

    def _read_alignment(self) -> int:
        value = self.pairs.get("general.alignment", ALIGNMENT)
        if type(value) is not int or not 8 <= value <= 1 << 20 or value & (value - 1):
            raise self._broken(f"`general.alignment` is `{shown(value)}`; a power of two from 8 to {1 << 20} is possible")
        return value

    def _tensor(self) -> tuple[str, BlockType, tuple[int, ...], int]:
        name = self._string("a tensor's name", MAX_NAME_BYTES)
        if not name or not name.isprintable():
            raise self._broken(f"it has a tensor `{shown(name)}`; names are printable and not empty")
        dims = self._u32()
        if not 1 <= dims <= MAX_DIMS:
            raise self._broken(f"tensor `{shown(name)}` has `{dims}` dimensions; 1 to {MAX_DIMS} are possible")
        sizes = tuple(self._u64() for _ in range(dims))
        number, offset = self._u32(), self._u64()
        if not all(sizes) or math.prod(sizes) >= 1 << 63:
            raise self._broken(f"tensor `{shown(name)}` has the impossible size `{shown(list(sizes))}`")
        if (kind := TYPES.get(number)) is None:
            gone = REMOVED.get(number)
            named = f"of the unknown type `{number}`" if gone is None else f"{gone}, which ggml itself has given up"
            raise UnsupportedModel(f"{self.where}: tensor `{shown(name)}` is {named}; take a Q4_K_M or Q8_0 file of today")
        if sizes[0] % kind.columns:
            raise self._broken(f"tensor `{shown(name)}` has rows of `{sizes[0]}`; {kind.name} has blocks of {kind.columns}")
        return name, kind, sizes[::-1], offset

    def _place(self, infos: list[tuple[str, BlockType, tuple[int, ...], int]]) -> None:
        """Hold the offsets against each other and against the file: no hole, no overlap, nothing behind."""
        start = self._padded(self._at)
        end = padded = start
        for name, kind, shape, offset in infos:
            if name in self.tensors:
                raise self._broken(f"it has the tensor `{shown(name)}` twice")
            if offset != padded - start:
                raise self._broken(
                    f"tensor `{shown(name)}` is at byte `{offset}` of the data, those before it end at {shown(padded - start)}"
                )
            nbytes = math.prod(shape) // kind.columns * kind.nbytes
            end = padded + nbytes
            if end > self._file.size:
                raise self._broken(
                    f"tensor `{shown(name)}` would end at byte {shown(end)}, the file has {self._file.size}; it is truncated, "
                    "download it again"
                )
            self.tensors[name] = GgufTensor(name, kind, shape, padded, nbytes)
            padded = self._padded(end)
        if infos and self._file.size > padded:
            raise self._broken(f"it has {self._file.size - padded} bytes behind its last tensor; download it again")

    def _padded(self, count: int) -> int:
        return -(-count // self._alignment) * self._alignment

    def _string(self, what: str, most: int) -> str:
        length = self._u64()
        if length > most or length > self._file.size - self._at:
            raise self._too_long(what, length, most)
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise self._broken(f"{what} is not UTF-8") from None

    def _u32(self) -> int:
        value: int = _U32.unpack(self._take(4))[0]
        return value

    def _u64(self) -> int:
        value: int = U64.unpack(self._take(8))[0]
        return value

    def _take(self, count: int) -> bytes:
        at = self._at - self._window_at
        self._skip(count)
        if at < 0 or at + count > len(self._window):
            first = self._at - count
            self._window = self._file.read(min(max(count, _WINDOW_BYTES), self._file.size - first), first)
            self._window_at, at = first, 0
        return self._window[at : at + count]

    def _skip(self, count: int) -> None:
        self._at += count
        if self._at > self._file.size:
            raise self._broken(
                f"the file ends within its header, at byte {self._file.size}: download it again"
            )
        if self._at > MAX_HEADER_BYTES:
            raise self._broken(f"it has a header of more than {MAX_HEADER_BYTES >> 20} MiB, which is not read")

    def _too_long(self, what: str, length: int, most: int) -> InvalidModel:
        return self._broken(f"{what} claims `{length}` bytes, more than {most} or than the file has")

    def _broken(self, fault: str) -> InvalidModel:
        return InvalidModel(f"{self.where}: {fault}")
