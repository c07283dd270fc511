"""What a graph multiplies with: the arrays of one INT8 product, and where they lie in their layer's file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.formats.layout import BLOCK_ALIGNMENT, align
from edge_llm.formats.output import storage_errors
from edge_llm.schemes.int8_weight import Int8Weight


@dataclass(frozen=True)
class Initializer:
    """A named array of a product: ``nbytes`` from ``offset`` on, row by row, little-endian."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def kind(self) -> tuple[str, str, tuple[int, ...]]:
        """What it is in every layer that shares a graph."""
        return self.name, self.type, self.shape

    def record(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)


Product = tuple[Initializer, ...]
"""The initializers of one product in order."""


def write_products(
    path: Path, weights: Mapping[str, Int8Weight], arrays: Callable[[Int8Weight], Iterator[tuple[str, np.ndarray]]]
) -> dict[str, Product]:
    """Write the ``arrays`` of ``weights`` into the new file ``path``; where they lie, by the same names.

    Each begins on a page of its own, so that a runtime may map it.  Raises `StorageError`.
    """
    written: dict[str, Product] = {}
    with storage_errors(path), path.open("xb") as out:
        for name, weight in weights.items():
            product = []
            for initializer, array in arrays(weight):
                offset = align(out.tell(), BLOCK_ALIGNMENT)
                out.write(bytes(offset - out.tell()))
                out.write(array.data)
                product.append(Initializer(initializer, array.dtype.name, array.shape, offset, array.nbytes))
            written[name] = tuple(product)
        out.flush()
        os.fsync(out.fileno())
    return written
