"""What an import has found out so far, in files beside its bundle, so that another process can go on from there.

A file holds one value: numbers, text, arrays, and collections and records of these.  It appears whole, by a rename, and its
checksum says whether it still is what was written.

    length of the description, 8 bytes | description, JSON | every array's bytes | CRC32C, 4 bytes
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.formats.checksum import combine_crc32c
from edge_llm.formats.output import Output, storage_errors
from edge_llm.kernels.checksum import crc32c

_PRESENT = ".saved"
_COMING = ".new"


class Saved:
    """The values that are saved in ``folder``, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, name: str, value: object) -> None:
        """Write ``value`` down, in place of what was saved under ``name``.  Raises `StorageError`; then that stays."""
        arrays: list[np.ndarray] = []
        described = _described(value, arrays)
        kinds = [(array.dtype.str, array.shape) for array in arrays]
        head = json.dumps({"value": described, "arrays": kinds}).encode()
        path = self._path(name)
        coming = path.with_suffix(_COMING)
        with storage_errors(coming):
            coming.unlink(missing_ok=True)
        try:
            _write(coming, [len(head).to_bytes(8, "little"), head, *(_bytes_of(array) for array in arrays)])
            with storage_errors(path):
                coming.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                coming.unlink()
            raise

    def load(self, name: str, *kinds: type) -> Any:
        """The value that was saved under ``name``, its records of these ``kinds``; None if there is none, or none whole."""
        try:
            with self._path(name).open("rb") as file:
                return _read(file, {kind.__name__: kind for kind in kinds})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _path(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '-')}{_PRESENT}"


def _described(value: Any, arrays: list[np.ndarray]) -> Any:
    """``value`` as JSON has it; its ``arrays`` are appended, and stand in it by their number."""
    if isinstance(value, np.ndarray | np.generic):
        arrays.append(np.ascontiguousarray(value))
        return {"array" if isinstance(value, np.ndarray) else "number": len(arrays) - 1}
    if isinstance(value, Mapping):
        return {"mapping": [[key, _described(one, arrays)] for key, one in value.items()]}
    if is_dataclass(value):
        return {type(value).__name__: [_described(getattr(value, field.name), arrays) for field in fields(value)]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_described(one, arrays) for one in value]}
    return value


def _restored(value: Any, arrays: list[np.ndarray], kinds: Mapping[str, type]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, found),) = value.items()
    if kind == "array":
        return arrays[found]
    if kind == "number":
        return arrays[found][0]
    if kind == "mapping":
        return {key: _restored(one, arrays, kinds) for key, one in found}
    inside = [_restored(one, arrays, kinds) for one in found]
    if kind == "list":
        return inside
    return tuple(inside) if kind == "tuple" else kinds[kind](*inside)


def _write(path: Path, pieces: list[bytes | np.ndarray]) -> None:
    crc = 0
    with Output(path) as out:
        for piece in pieces:
            out.write(piece)
            crc = combine_crc32c(crc, crc32c(piece), len(piece))
        out.write(crc.to_bytes(4, "little"))
        out.sync()


def _read(file: Any, kinds: Mapping[str, type]) -> Any:
    """Raises `ValueError` where the file is not whole."""
    length = file.read(8)
    size, left = int.from_bytes(length, "little"), os.fstat(file.fileno()).st_size - 8
    head = file.read(min(size, left))
    crc, left = combine_crc32c(crc32c(length), crc32c(head), len(head)), left - size - 4
    described = json.loads(head)
    arrays = []
    for dtype, shape in described["arrays"]:
        left -= math.prod(shape) * np.dtype(dtype).itemsize
        if left < 0:
            raise ValueError("cut")
        array = np.empty(shape, np.dtype(dtype))
        data = _bytes_of(array)
        file.readinto(data)
        crc = combine_crc32c(crc, crc32c(data), len(data))
        arrays.append(array)
    if int.from_bytes(file.read(), "little") != crc:
        raise ValueError("damaged")
    return _restored(described["value"], arrays, kinds)


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """A view of the bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8)
