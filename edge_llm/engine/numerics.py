"""The version of the numerics: keys and values that other code computed may differ in their last bits, and are not read.

It is a digest of the code that they come from, compiled kernels included, so that nobody has to remember to raise a number.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import edge_llm
import kernels

ROOMS = ("config.py", "devices", "formats", "kv", "models", "quant", "runner", "subgraphs", "weights")
"""Of `edge_llm`: all that a runner reaches and that knows numbers; `tests/test_house.py` holds it to that."""


@functools.cache
def numerics_version() -> str:
    """Hexadecimal digits that are others after any change in the code that computes keys and values."""
    digest = hashlib.sha256(f"{edge_llm.__version__} numpy {np.__version__}".encode())
    for path in numeric_files():
        digest.update(f"\n{path.parent.name}/{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def numeric_files() -> Iterator[Path]:
    """The files of that code, in a fixed order."""
    package, compiled = Path(edge_llm.__file__).parent, Path(kernels.__file__).parent
    for room in (*(package / name for name in ROOMS), compiled):
        files = room.rglob("*") if room.is_dir() else [room]
        yield from sorted(path for path in files if path.suffix in (".py", ".so"))
