"""The files of an export: safetensors of one block each, their index, and what stands beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.export.forms import Stored
from edge_llm.formats.model_folder import MODEL
from edge_llm.formats.output import Output, storage_errors
from edge_llm.formats.safetensors import safetensors_header

_INDEX = f"{MODEL}.safetensors.index.json"


class Shards:
    """Weight files in ``folder``, ``count`` of them, written one after the other."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count = folder, count
        self._where: dict[str, str] = {}
        self._total = 0

    def add(self, tensors: Mapping[str, Stored]) -> None:
        """Write the next file.  Raises `StorageError`."""
        number = len(set(self._where.values())) + 1
        name = f"{MODEL}-{number:05}-of-{self._count:05}.safetensors"
        with Output(self._folder / name) as out:
            out.write(safetensors_header((tensor, kind, array.shape) for tensor, (kind, array) in tensors.items()))
            for _, array in tensors.values():
                out.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
                self._total += array.nbytes
            out.sync()
        self._where |= dict.fromkeys(tensors, name)

    def finish(self) -> None:
        """Write the index."""
        assert len(set(self._where.values())) == self._count, "every block has a file"
        write_json(self._folder / _INDEX, {"metadata": {"total_size": self._total}, "weight_map": self._where})


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write ``value`` into the new file ``path``.  Raises `StorageError`."""
    write_bytes(path, json.dumps(value, indent=2, ensure_ascii=False).encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write the new file ``path``, in a new folder where that is not there.  Raises `StorageError`."""
    with storage_errors(path):
        path.parent.mkdir(exist_ok=True)
    with Output(path) as out:
        out.write(data)
        out.sync()
