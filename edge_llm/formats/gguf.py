"""GGUF files, read with bounds: the header is walked once, whatever it claims is held against the file before memory is taken.

Layout: ``GGUF``, version, counts; pairs of key and value; table of tensors; data, every tensor on a multiple of the alignment.
Numbers are little-endian.  Arrays are read when they are asked for, tensors as float32 piece by piece.  A model may be split
into files ``NAME-00001-of-00003.gguf``, of which the first has all that is said of it.

    with open_gguf(Path("model.gguf")) as model:
        model.text("general.architecture"), model.read("token_embd.weight")
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edge_llm.errors import EdgeLLMError, InvalidModel, ModelNotFound, UnsupportedModel
from edge_llm.files import RegularFile, shown
from edge_llm.formats.gguf_blocks import decode, decoded_names
from edge_llm.formats.gguf_header import MAGIC, NUMBERS, STRING, U64, GgufArray, GgufHeader, GgufTensor, Value
from edge_llm.formats.limits import MAX_WEIGHT

MAX_PARTS = 4096
"""Of one model."""

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE | re.DOTALL)
_PIECE_BYTES = 512 << 10
_T = TypeVar("_T")


class GgufFile:
    """One open file: ``pairs`` by key, ``tensors`` by name in the order of the data."""

    def __init__(self, file: RegularFile) -> None:
        self._file = file
        header = GgufHeader(file)
        self.pairs, self.tensors = header.pairs, header.tensors

    @property
    def path(self) -> Path:
        return self._file.path

    def strings(self, array: GgufArray) -> list[str]:
        """The elements of an array of strings.  Raises `InvalidModel` for one that is not UTF-8."""
        self._file.check_unchanged()
        data, found, at = self._file.read(array.nbytes, array.offset), [], 0
        try:
            for _ in range(array.count):
                end = at + 8 + U64.unpack_from(data, at)[0]
                found.append(data[at + 8 : end].decode())
                at = end
        except UnicodeDecodeError:
            raise InvalidModel(f"`{shown(self.path.name)}`: string {len(found)} of an array is not UTF-8") from None
        return found

    def numbers(self, array: GgufArray) -> np.ndarray:
        """The elements of an array of numbers, as they are."""
        self._file.check_unchanged()
        return np.frombuffer(self._file.read(array.nbytes, array.offset), NUMBERS[array.kind])

    def read(self, info: GgufTensor) -> np.ndarray:
        """The tensor as float32.

        Raises `UnsupportedModel` for a type that is not read, `InvalidModel` for NaN and what no model was trained to.
        """
        check_type(info, self.path)
        self._file.check_unchanged()
        try:
            out = np.empty(math.prod(info.shape), np.float32)
        except (MemoryError, ValueError):
            raise InvalidModel(f"`{shown(self.path.name)}`: tensor `{shown(info.name)}` does not fit into memory") from None
        step = _PIECE_BYTES // info.kind.nbytes
        blocks = out.size // info.kind.columns
        raw = np.empty(min(step, blocks) * info.kind.nbytes, np.uint8)
        for first in range(0, blocks, step):
            count = min(step, blocks - first)
            part = raw[: count * info.kind.nbytes]
            self._file.read_into(part, info.offset + first * info.kind.nbytes)
            piece = out[first * info.kind.columns : (first + count) * info.kind.columns]
            piece[...] = decode(info.kind, part)
            if not np.maximum(-piece.min(), piece.max()) <= MAX_WEIGHT:
                at = int(np.argmin(np.abs(piece) <= MAX_WEIGHT))
                raise InvalidModel(
                    f"`{shown(self.path.name)}`: tensor `{shown(info.name)}` holds `{piece[at]}` at element "
                    f"{first * info.kind.columns + at}; weights lie between -{MAX_WEIGHT:g} and {MAX_WEIGHT:g}, "
                    "download the file again"
                )
        return out.reshape(info.shape)

    def read_raw(self, info: GgufTensor) -> np.ndarray:
        """The bytes of the tensor as they are."""
        self._file.check_unchanged()
        found = np.empty(info.nbytes, np.uint8)
        self._file.read_into(found, info.offset)
        return found

    def close(self) -> None:
        self._file.close()


def check_type(info: GgufTensor, path: Path) -> None:
    """Raise `UnsupportedModel` unless the tensor's type is read."""
    if info.kind.decode is None:
        raise UnsupportedModel(
            f"`{shown(path.name)}`: tensor `{shown(info.name)}` is {info.kind.name}, which is not read here; take a file of "
            f"another quantization, such as Q4_K_M or Q8_0 ({decoded_names()} are read)"
        )


class GgufModel:
    """A model in one file or several: what its first file says, and the tensors of all."""

    def __init__(self, files: list[GgufFile]) -> None:
        self._files = files
        self.pairs = files[0].pairs
        self.where = f"`{shown(files[0].path.name)}`"
        self._of: dict[str, GgufFile] = {}
        for file in files:
            for name in file.tensors:
                if name in self._of:
                    raise InvalidModel(f"`{shown(file.path.name)}` has the tensor `{shown(name)}` of another part again")
                self._of[name] = file

    @property
    def files(self) -> list[Path]:
        return [file.path for file in self._files]

    @property
    def tensors(self) -> list[GgufTensor]:
        return [file.tensors[name] for name, file in self._of.items()]

    def tensor(self, name: str) -> GgufTensor:
        """Where ``name`` lies; an unknown name raises `InvalidModel`."""
        if name not in self._of:
            raise InvalidModel(f"{self.where} has no tensor `{shown(name)}`")
        return self._of[name].tensors[name]

    def has_tensor(self, name: str) -> bool:
        return name in self._of

    def check_types(self) -> None:
        """Raise `UnsupportedModel` where a tensor is of a type that is not read."""
        for name, file in self._of.items():
            check_type(file.tensors[name], file.path)

    def read(self, name: str, rows: range | None = None) -> np.ndarray:
        """`GgufFile.read` of the tensor ``name``, or of ``rows`` of it."""
        info = self.tensor(name)
        return self._of[name].read(info if rows is None else info.rows(rows.start, len(rows)))

    def read_raw(self, name: str, rows: range) -> np.ndarray:
        """`GgufFile.read_raw` of ``rows`` of the matrix ``name``."""
        return self._of[name].read_raw(self.tensor(name).rows(rows.start, len(rows)))

    def text(self, key: str, default: str | None = None) -> str:
        """A string; without a ``default`` one that is missing raises `InvalidModel`."""
        return self._typed(key, default, lambda value: value if isinstance(value, str) else None, "a string")

    def flag(self, key: str, default: bool | None = None) -> bool:
        return self._typed(key, default, lambda value: value if isinstance(value, bool) else None, "true or false")

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number in [low, high], of whatever type; an array whose numbers are all the same is that number."""

        def found(value: Value) -> int | None:
            one = self._same(value)
            return one if type(one) is int and low <= one <= high else None

        return self._typed(key, default, found, f"a whole number from {low} to {high}")

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        def found(value: Value) -> float | None:
            return float(value) if type(value) in (int, float) and low <= float(value) <= high else None  # type: ignore[arg-type]

        return self._typed(key, default, found, f"a number from {low:g} to {high:g}")

    def strings(self, key: str) -> list[str]:
        """An array of strings; empty where there is none."""
        array = self.pairs.get(key)
        if array is None:
            return []
        if not isinstance(array, GgufArray) or array.kind != STRING:
            raise InvalidModel(f"{self.where}: `{shown(key)}` must be an array of strings")
        return self._files[0].strings(array)

    def numbers(self, key: str) -> np.ndarray | None:
        """An array of numbers, None where there is none."""
        array = self.pairs.get(key)
        if array is None:
            return None
        if not isinstance(array, GgufArray) or array.kind == STRING:
            raise InvalidModel(f"{self.where}: `{shown(key)}` must be an array of numbers")
        return self._files[0].numbers(array)

    def _same(self, value: Value) -> Any:
        if not isinstance(value, GgufArray) or value.kind == STRING or not value.count:
            return value
        numbers = self._files[0].numbers(value)
        return numbers[0].item() if (numbers == numbers[0]).all() else None

    def _typed(self, key: str, default: _T | None, found: Callable[[Value], _T | None], wanted: str) -> _T:
        value = self.pairs.get(key)
        if value is None:
            if default is None:
                raise InvalidModel(f"{self.where} lacks `{shown(key)}`; take a file that llama.cpp's converter made")
            return default
        if (good := found(value)) is None:
            is_array = isinstance(value, GgufArray)
            got = "an array of different values" if is_array else f"`{shown(value)}`"
            raise InvalidModel(f"{self.where}: `{shown(key)}` must be {wanted}, not {got}")
        return good

    def close(self) -> None:
        """Close every file; more than once is fine."""
        for file in self._files:
            file.close()

    def __enter__(self) -> GgufModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_gguf(path: Path) -> GgufModel:
    """Open and check the model at ``path``, any part of it where it is split.

    Raises `InvalidModel` that names the file and the first broken rule, `UnsupportedModel`, `ModelNotFound` or `StorageError`.
    """
    files: list[GgufFile] = []
    try:
        for part in parts_of(path):
            files.append(_open(part, is_part=part != path))
        _check_parts(files)
        return GgufModel(files)
    except BaseException:
        for file in files:
            file.close()
        raise


def is_gguf(path: Path) -> bool:
    """Whether ``path`` is called as a GGUF file is, and is no folder."""
    return path.suffix.lower() == ".gguf" and not path.is_dir()


def begins_as_gguf(path: Path) -> bool:
    """Whether ``path`` is a regular file that begins as a GGUF file does, whatever it is called."""
    try:
        with contextlib.closing(RegularFile(path)) as file:
            return file.size >= len(MAGIC) and file.read(len(MAGIC), 0) == MAGIC
    except EdgeLLMError:
        return False


def parts_of(path: Path) -> list[Path]:
    """All files of the model that the name of ``path`` says there are, in order."""
    return [path.with_name(name) for name in parts_of_name(path.name)]


def parts_of_name(name: str) -> list[str]:
    """The same for the name of a file.  Raises `InvalidModel` for more parts than are read."""
    named = _PART.fullmatch(name)
    if named is None:
        return [name]
    stem, _, count, suffix = named.groups()
    if not 1 <= int(count) <= MAX_PARTS:
        raise InvalidModel(f"`{shown(name)}` is one of `{int(count)}` files; 1 to {MAX_PARTS} are read")
    return [f"{stem}-{number:05d}-of-{count}{suffix}" for number in range(1, int(count) + 1)]


def first_part(path: Path) -> Path:
    """The file that the model at ``path`` begins with: its first part where it is split and that is there, else ``path``."""
    try:
        parts = parts_of(path)
    except InvalidModel:  # which is told when it is opened
        return path
    return parts[0] if path in parts and parts[0].exists() else path


def missing_part(path: Path) -> InvalidModel:
    """The error for a part that is not there."""
    return InvalidModel(f"`{shown(path.name)}`, a part of the model, is missing; download it too")


def without_part(name: str) -> str:
    """The name of a file without the number of its part and its suffix."""
    named = _PART.fullmatch(name)
    return named[1] if named else re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE)


def _open(path: Path, *, is_part: bool) -> GgufFile:
    try:
        file = RegularFile(path)
    except ModelNotFound:
        if is_part:
            raise missing_part(path) from None
        raise
    try:
        return GgufFile(file)
    except BaseException:
        file.close()
        raise


def _check_parts(files: list[GgufFile]) -> None:
    for number, file in enumerate(files):
        count, mine = file.pairs.get("split.count", 1), file.pairs.get("split.no", 0)
        if count in (0, 1) and len(files) == 1:
            return
        where = f"`{shown(file.path.name)}`"
        if count != len(files):
            raise InvalidModel(
                f"{where} says that it is one of `{shown(count)}` files, its name that it is one of {len(files)}; give it the "
                "name that it had"
            )
        if mine != number:
            raise InvalidModel(f"{where} says that it is part `{shown(mine)}`, counted from 0, its name says {number}")
        if number and file.pairs.get("general.architecture", files[0].pairs.get("general.architecture")) != files[0].pairs.get(
            "general.architecture"
        ):
            raise InvalidModel(f"{where} is a part of another model")
    total, found = files[0].pairs.get("split.tensors.count"), sum(len(file.tensors) for file in files)
    if total is not None and total != found:
        raise InvalidModel(
            f"`{shown(files[0].path.name)}` says that its parts have `{shown(total)}` tensors, they have {found}; "
            "a part is of another model"
        )
