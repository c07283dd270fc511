"""The version of the numerics: other code may compute keys and values with other last bits, so stored ones name theirs.

It is a digest of the code, compiled kernels included, so nobody has to remember to raise a number.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import edge_llm
from edge_llm import kernels
from edge_llm.kernels import _native

ROOMS = (
    "config.py", "devices", "formats", "kv", "models", "operations", "quant", "runner", "schemes", "subgraphs", "weights",
    "ascend/devices", "ascend/npu",
)  # fmt: skip
"""Parts of `edge_llm` that a runner computes with; `tests/test_house.py` checks that the list is complete."""


@functools.cache
def numerics_version() -> str:
    """Hexadecimal digits that change with the code that computes keys and values."""
    digest = hashlib.sha256(f"{edge_llm.__version__} numpy {np.__version__}".encode())
    for path in numeric_files():
        digest.update(f"\n{path.parent.name}/{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def numeric_files() -> Iterator[Path]:
    """The files of that code, in a fixed order."""
    package = Path(edge_llm.__file__).parent
    for room in (*(package / name for name in ROOMS), Path(kernels.__file__).parent):
        files = room.rglob("*") if room.is_dir() else [room]
        yield from sorted(path for path in files if path.suffix == ".py")
    yield Path(_native.__file__)  # an editable install keeps it elsewhere
