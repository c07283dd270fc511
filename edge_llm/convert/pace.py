"""How fast this machine imports now: a short probe, beside what `IMPORT_SECONDS` was measured on."""

from __future__ import annotations

import time

import numpy as np

from edge_llm.convert.parallel import core_count, workers
from edge_llm.kernels import floats
from edge_llm.progress import import_seconds

SMALL = 50e6
"""Parameters of a model whose import is over before a probe would pay."""
_ROWS, _COLUMNS = 64, 512
_RATE = 2900.0
"""Products per second of one core of the machine that `IMPORT_SECONDS` was measured on, with all of its cores at work."""
_SECONDS = 0.5
_STAYS_SECONDS = 30.0
"""So long what was measured counts."""
_LEAST, _MOST = 0.2, 50.0


def expected_seconds(parameters: int, kind: str) -> float:
    """What an import of so many parameters takes here: ``kind`` as in `IMPORT_SECONDS`."""
    return sum(import_seconds(2 * parameters, kind, slowness=slowness(parameters)).values())


def slowness(parameters: int) -> float:
    """How many times as long as expected products take now, on all cores that this process may use; 1 for a small model."""
    if parameters < SMALL:
        return 1.0
    if not _measured or time.monotonic() > _measured[0] + _STAYS_SECONDS:
        rate = _products_per_second()
        _measured[:] = time.monotonic(), min(_MOST, max(_LEAST, _RATE / max(rate, 1e-9)))
    return _measured[1]


_measured: list[float] = []
"""When, and what `slowness` was."""


def _products_per_second() -> float:
    """Of one core, while all are at work."""
    rows, weight = np.ones((_ROWS, _COLUMNS), np.float32), np.ones((_COLUMNS, _COLUMNS), np.float32)
    begun = time.monotonic()

    def count(_: int) -> int:
        done = 0
        while time.monotonic() < begun + _SECONDS:
            floats.product(rows, weight)
            done += 1
        return done

    with workers() as pool:
        products = sum(pool.map(count, range(core_count())))
    return products / (time.monotonic() - begun) / core_count()
