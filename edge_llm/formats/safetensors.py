"""Safetensors files: a bounded reader of our own, and the header of files that we write.

A file is eight bytes (header length N, little endian), N bytes of JSON that give each tensor's dtype, shape and byte range,
then the data; ranges must tile the data exactly, without hole or overlap.  All of that is checked at open, from the header
alone; `read` then takes only the bytes of one tensor.  `edge_llm.formats.model_folder` has whole models.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import RegularFile, shown
from edge_llm.kernels.floats import widen
from edge_llm.strict_json import parse_object

MAX_HEADER_BYTES = 4 << 20
MAX_TENSORS = 16_384
"""In one file; large models have some thousand, in many files."""
MAX_HEADER_VALUES = 10 * MAX_TENSORS
"""Commas, brackets and braces of a header; a tensor of two dimensions costs 8."""
MAX_DIMS = 8
MAX_NAME = 1024
MAX_STACK = 4096
"""Matrices of a tensor that are read one by one."""
_BLOCK_BYTES = 512 << 10
"""Read at a time, so that it is widened where it still is: in a core's cache."""
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_INTEGERS: dict[str, np.dtype[Any]] = {
    "I8": np.dtype("<i1"), "I32": np.dtype("<i4"), "I64": np.dtype("<i8"), "F8_E4M3": np.dtype("<u1"),
    "U8": np.dtype("<u1"),
}  # fmt: skip
"""What is read as it is; floats of 8 bits as their codes."""
_FLOATS: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies in its file; ``offset`` counts from the start of the file, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SafetensorsFile:
    """One open file.  ``tensors`` maps names to `TensorInfo`, in the order of the data."""

    def __init__(self, file: RegularFile, tensors: dict[str, TensorInfo]) -> None:
        self._file = file
        self.tensors = tensors

    @property
    def path(self) -> Path:
        return self._file.path

    def apart(self, stacks: Mapping[str, str]) -> SafetensorsFile:
        """The same file, whose stacks of matrices or vectors are read one by one.

        ``stacks`` gives to the last two words of a tensor's name what one of them is called, with braces for its number.
        """
        found: dict[str, TensorInfo] = {}
        for name, info in self.tensors.items():
            words = name.split(".")
            own = stacks.get(".".join(words[-2:]))
            least = 2 if own is not None and own.endswith("bias") else 3
            if own is None or len(info.shape) < least or not 1 <= info.shape[0] <= MAX_STACK:
                found[name] = info
                continue
            each = info.nbytes // info.shape[0]
            for number in range(info.shape[0]):
                one = ".".join([*words[:-2], own.format(number)])
                found[one] = replace(info, name=one, shape=info.shape[1:], offset=info.offset + number * each, nbytes=each)
        return SafetensorsFile(self._file, found)

    def read(self, name: str, *, most: float | None = None) -> np.ndarray:
        """The tensor as float32 in an array of its own; ``most`` refuses NaN and what is farther from zero.

        Raises `UnsupportedModel` for a dtype other than F32, F16 and BF16, `InvalidModel` when the file changed.
        """
        info = self._info(name)
        dtype = _FLOATS.get(info.dtype)
        if dtype is None:
            raise UnsupportedModel(
                f"`{self.path.name}`: tensor `{shown(name)}` is {info.dtype}; weights must be F32, F16 or BF16"
            )
        self._file.check_unchanged()
        out = self._room(info, np.dtype(np.float32)).reshape(-1)
        # block by block: the peak is the result plus one block, whatever the dtype
        step = _BLOCK_BYTES // dtype.itemsize
        block = np.empty(min(step, out.size) * dtype.itemsize, np.uint8)
        for start in range(0, out.size, step):
            piece = out[start : start + step]
            raw = block[: piece.size * dtype.itemsize]
            self._file.read_into(raw, info.offset + start * dtype.itemsize)
            largest = _widen(raw.view(dtype), piece, info.dtype)
            if most is not None and not largest <= most:
                at = start + int(np.argmin(np.abs(piece) <= most))
                raise InvalidModel(
                    f"`{self.path.name}`: tensor `{shown(name)}` holds `{out[at]}` at element {at}; "
                    f"weights lie between -{most:g} and {most:g}, export the model again"
                )
        return out.reshape(info.shape)

    def read_integers(self, name: str) -> np.ndarray:
        """The tensor as it is: I8, I32, I64, U8, or the codes of F8_E4M3 as uint8; else `UnsupportedModel`."""
        info = self._info(name)
        dtype = _INTEGERS.get(info.dtype)
        if dtype is None:
            read = ", ".join(_INTEGERS)
            raise UnsupportedModel(f"`{self.path.name}`: tensor `{shown(name)}` is {info.dtype}; {read} are read")
        self._file.check_unchanged()
        out = self._room(info, dtype)
        self._file.read_into(out.reshape(-1).view(np.uint8), info.offset)
        return out

    def _room(self, info: TensorInfo, dtype: np.dtype[Any]) -> np.ndarray:
        try:
            return np.empty(info.shape, dtype)
        except (MemoryError, ValueError):
            what = f"tensor `{shown(info.name)}` {list(info.shape)}"
            raise InvalidModel(f"`{self.path.name}`: {what} does not fit into memory") from None

    def _info(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise InvalidModel(f"`{self.path.name}` has no tensor `{shown(name)}`")
        return info

    def close(self) -> None:
        """Close the file; more than once is fine."""
        self._file.close()

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _widen(raw: np.ndarray, out: np.ndarray, dtype: str) -> float:
    """Put ``raw`` into ``out`` as float32; the largest magnitude, NaN where there is one."""
    if dtype != "F32":
        return widen(raw.view(np.uint16), out, bfloat16=dtype == "BF16")
    out[...] = raw
    return float(np.maximum(-out.min(), out.max()))


def open_safetensors(path: Path) -> SafetensorsFile:
    """Open and check ``path``; raises `InvalidModel` that names the file and the first broken rule."""
    file = RegularFile(path)
    try:
        return SafetensorsFile(file, _read_header(file))
    except BaseException:
        file.close()
        raise


def _read_header(file: RegularFile) -> dict[str, TensorInfo]:
    where = f"`{shown(file.path.name)}`"
    if file.size < 8:
        raise InvalidModel(f"{where} has {file.size} bytes, too few for a safetensors file; download it again")
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise InvalidModel(f"{where}: a header of `{length}` bytes; at most {MAX_HEADER_BYTES} are read")
    if 8 + length > file.size:
        raise InvalidModel(
            f"{where}: a header of `{length}` bytes in a file of {file.size}; it is truncated, download it again"
        )
    header = file.read(length, 8)
    if not header.startswith(b"{") or not header.rstrip(b" ").endswith(b"}"):
        raise InvalidModel(f"{where}: the header is not one JSON object; this is not a safetensors file")
    entries = parse_object(header, file.path.name, max_bytes=MAX_HEADER_BYTES, max_depth=3, max_values=MAX_HEADER_VALUES)
    _check_metadata(entries.pop("__metadata__", {}), where)
    if len(entries) > MAX_TENSORS:
        raise InvalidModel(f"{where} lists `{len(entries)}` tensors; at most {MAX_TENSORS} are read")
    start = 8 + length
    infos = [_tensor(name, entry, start, where) for name, entry in entries.items()]
    infos.sort(key=lambda info: (info.offset, info.nbytes))
    end = start
    for info in infos:
        if info.offset != end:
            fault = "overlaps the tensor before it" if info.offset < end else "leaves a hole before it"
            raise InvalidModel(f"{where}: tensor `{shown(info.name)}` at byte {info.offset} {fault} (byte {end})")
        end += info.nbytes
    if end != file.size:
        fault = "truncated" if end > file.size else "followed by foreign bytes"
        raise InvalidModel(f"{where}: the tensors end at byte {end}, the file at {file.size}; it is {fault}")
    return {info.name: info for info in infos}


def _check_metadata(metadata: Any, where: str) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise InvalidModel(f"{where}: `__metadata__` must map strings to strings")


def _tensor(name: str, entry: Any, start: int, where: str) -> TensorInfo:
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidModel(f"{where}: `{shown(name)}` cannot be a tensor name (1 to {MAX_NAME} printable characters)")
    where = f"{where}: tensor `{shown(name)}`"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise InvalidModel(f"{where} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise InvalidModel(f"{where} has the unknown dtype `{shown(dtype)}`")
    if not _naturals(shape) or len(shape) > MAX_DIMS:
        raise InvalidModel(f"{where} has the shape `{shown(shape)}`; at most {MAX_DIMS} whole numbers below 2^63")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise InvalidModel(f"{where} has the data_offsets `{shown(offsets)}`; two ascending byte positions are needed")
    bits = math.prod(shape) * _BITS[dtype]
    nbytes = offsets[1] - offsets[0]
    if bits != nbytes * 8:
        raise InvalidModel(f"{where} has {nbytes} bytes, but {dtype} {shape} needs {shown(-(-bits // 8))}")
    return TensorInfo(name, dtype, tuple(shape), start + offsets[0], nbytes)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in value)


def safetensors_header(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> bytes:
    """Everything before the data of a new file, for tensors (name, dtype, shape) that follow without gaps in this order."""
    header: dict[str, object] = {}
    offset = 0
    for name, dtype, shape in tensors:
        end = offset + math.prod(shape) * _BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins on a multiple of 8
    return struct.pack("<Q", len(text)) + text
