"""Writes a bundle: tensors as they come, side files, and the manifest last, everything made durable on the way."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.config import DEFAULT_SCHEME, ModelConfig
from edge_llm.files import write_whole
from edge_llm.formats.bundle import read_manifest
from edge_llm.formats.checksum import combine_crc32c
from edge_llm.formats.description import encode_description, model_record
from edge_llm.formats.layout import (
    BLOCK_ALIGNMENT,
    TABLES,
    TENSOR_ALIGNMENT,
    TensorRange,
    align,
    tensor_layout,
    unit_of,
)
from edge_llm.formats.manifest import (
    FOLDS,
    FORMAT,
    MANIFEST,
    SIDE_FILES,
    SOURCE_FILES,
    WEIGHTS,
    encode_manifest,
    head_turns_record,
    linear_records,
    tensor_record,
    version_of,
)
from edge_llm.formats.output import Output, storage_errors, sync_folder
from edge_llm.kernels.checksum import crc32c
from edge_llm.models import describe
from edge_llm.models.layer import Decoder
from edge_llm.operations.base import HeadTurns
from edge_llm.operations.linear import Linear
from edge_llm.schemes import Facts


class BundleWriter:
    """Writes a bundle into ``folder``; nothing is a bundle before `finish` has returned.

    The folder is empty, or what another writer left there, who got as far as ``written``: see `holds`.  ``add`` takes the
    tensors in the order of `tensor_layout`.  Every failed write raises `StorageError`.
    """

    def __init__(self, folder: Path, written: Sequence[TensorRange] = ()) -> None:
        self.folder = folder
        self._tensors = list(written)
        self._files: list[dict[str, Any]] = []
        self._offset = written[-1].offset + written[-1].nbytes if written else 0
        self._unit = unit_of(written[-1].name) if written else ""
        self._out = Output(folder / WEIGHTS, self._offset)

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._out.close()

    def add(self, name: str, array: np.ndarray) -> None:
        """Append one tensor."""
        self.add_runs(name, array.shape, [np.ascontiguousarray(array)], array.dtype)

    def add_runs(self, name: str, shape: Sequence[int], runs: Iterable[np.ndarray], dtype: np.dtype[Any]) -> None:
        """Append a tensor in runs along its first dimension; those of `TABLES` are of whole pieces, but for the last."""
        unit = unit_of(name)
        offset = align(self._offset, TENSOR_ALIGNMENT if unit == self._unit else BLOCK_ALIGNMENT)
        nbytes = math.prod(shape) * dtype.itemsize
        tensor = TensorRange(name, dtype.name, tuple(shape), offset, nbytes, 0)
        self._out.write(bytes(offset - self._offset))
        crc, done, pieces = 0, 0, []
        for run in runs:
            data = run.reshape(-1).view(np.uint8)
            self._out.write(data)
            crc = combine_crc32c(crc, crc32c(data), len(data)) if done else crc32c(data)
            if name in TABLES:
                if done % tensor.piece_bytes:
                    raise ValueError(f"a run of `{name}` ends within a piece")
                starts = range(0, len(data), tensor.piece_bytes)
                pieces += [crc32c(data[start : start + tensor.piece_bytes]) for start in starts]
            done += len(data)
        if done != nbytes:
            raise ValueError(f"the runs of `{name}` have {done} bytes, its shape {nbytes}")
        self._tensors.append(dataclasses.replace(tensor, crc32c=crc, pieces=tuple(pieces)))
        self._offset = offset + nbytes
        self._unit = unit

    def written(self) -> list[TensorRange]:
        """The tensors so far, which now are on the disk."""
        self._out.sync()
        return list(self._tensors)

    def add_file(self, name: str, chunks: Iterable[bytes | np.ndarray]) -> None:
        """Write the side file ``name`` (one of `SIDE_FILES` or `SOURCE_FILES`, or `FOLDS`) from pieces: bytes or uint8 [n]."""
        if name not in (*SIDE_FILES, *SOURCE_FILES, FOLDS):
            raise ValueError(f"a bundle has no file {name!r}")
        path = self.folder / name
        with storage_errors(path):
            path.parent.mkdir(mode=0o700, exist_ok=True)
        crc, size = 0, 0
        with Output(path) as out:
            for chunk in chunks:
                out.write(chunk)
                crc = combine_crc32c(crc, crc32c(chunk), len(chunk))
                size += len(chunk)
            out.sync()
        if path.parent != self.folder:
            sync_folder(path.parent)
        self._files.append({"name": name, "bytes": size, "crc32c": crc})

    def finish(
        self,
        config: ModelConfig,
        input_scales: Mapping[str, float],
        *,
        profile: Mapping[str, Any],
        source: Mapping[str, str | None],
        created_with: str,
        shadows: Mapping[str, str] | None = None,
        schemes: Mapping[str, str] | None = None,
        facts: Mapping[str, Facts] | None = None,
        turns: Mapping[str, int] | None = None,
        heads: HeadTurns | None = None,
    ) -> None:
        """Make everything durable, the manifest last.  The caller publishes the folder with a rename.

        shadows: which one every linear keeps (none, cold or full); default: all of them.  schemes: the weight schemes of
        linears that are not INT8; facts: what these say of linears in place of input scale and shadow.  turns: those of
        linears; heads: those of queries and keys, and of values; default: none.
        """
        self._out.write(bytes(align(self._offset, BLOCK_ALIGNMENT) - self._offset))
        self._out.sync()
        self._out.close()
        plain = describe(config)
        decoder = plain.with_schemes(schemes or {}).with_turns(turns or {}, heads or HeadTurns())
        tensors = self._laid_out(decoder)

        def said(name: str, linear: Linear) -> Facts:
            if linear.scheme != DEFAULT_SCHEME or name in (facts or {}):
                return (facts or {}).get(name, {})
            return {"input_scale": float(input_scales[name])} | ({} if shadows is None else {"shadow": shadows[name]})

        linears = linear_records(decoder, {name: said(name, one) for name, one in decoder.linears().items()})
        fields = {
            "format": FORMAT,
            "version": version_of(decoder),
            "created_with": created_with,
            "source": dict(source),
            "model": model_record(config),
            "description": encode_description(plain),
            "files": self._files,
            "linears": linears,
            "head_turns": head_turns_record(decoder),
            "tensors": [tensor_record(tensor) for tensor in tensors],
            "profile": dict(profile),
        }
        with Output(self.folder / MANIFEST) as out:
            out.write(encode_manifest(fields))
            out.sync()
        sync_folder(self.folder)

    def _laid_out(self, decoder: Decoder) -> list[TensorRange]:
        hot = {t.name.removesuffix(".hot_index"): t.shape[0] for t in self._tensors if t.name.endswith(".hot_index")}
        if decoder.tied:
            hot["output"] = hot.get("embedding", 0)
        layout = tensor_layout(decoder, hot)
        written = [dataclasses.replace(tensor, end=0, crc32c=0, pieces=()) for tensor in self._tensors]
        wanted = [dataclasses.replace(tensor, end=0) for tensor in layout]
        if written != wanted:
            wrong = next((w.name for w, t in zip(wanted, written, strict=False) if w != t), "the end")
            raise ValueError(f"tensors were not added in the model's order and shapes; first difference: {wrong}")
        return self._tensors


def renew_source(folder: Path, digest: str, changes: Mapping[str, str]) -> None:
    """Have the manifest of the bundle at ``folder`` say ``changes`` of its source, if that still has ``digest``.

    Raises `OSError`, and what `read_manifest` raises.
    """
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        here = Path(f"/proc/self/fd/{held}")  # this bundle, and none that takes its place meanwhile
        fields = read_manifest(here)
        if fields["source"].get("digest") == digest:
            for left in here.glob(f".{MANIFEST}.*"):  # by one that was killed
                left.unlink()
            del fields["checksum"]
            write_whole(here / MANIFEST, encode_manifest(fields | {"source": fields["source"] | changes}))
    finally:
        os.close(held)


def holds(folder: Path, tensors: Sequence[TensorRange]) -> bool:
    """Whether the weights in ``folder`` begin with these tensors."""
    at = 0
    try:
        with (folder / WEIGHTS).open("rb") as file:
            for tensor in tensors:
                if file.read(tensor.offset - at) != bytes(tensor.offset - at):
                    return False
                data = np.fromfile(file, np.uint8, tensor.nbytes)
                if len(data) != tensor.nbytes or crc32c(data) != tensor.crc32c:
                    return False
                at = tensor.offset + tensor.nbytes
    except OSError:
        return False
    return True
