"""Products with the named neurons of an MLP, in exact int32."""

from __future__ import annotations

import numpy as np

from edge_llm.kernels.types import I8, I32, I64


def add_columns(q: I8, neurons: I64, held: I8, places: I64, sums: I32) -> None:
    """In place: sums[M, N] += q[:, neurons] @ columns, of the N bytes of `held` at each place."""
    sums += q[:, neurons].astype(np.int32) @ _taken(held, places, sums.shape[1])


def dot_rows(q: I8, neurons: I64, held: I8, places: I64, sums: I32) -> None:
    """In place: sums[M, N][:, neurons] = q @ rows.T, of the K bytes of `held` at each place."""
    sums[:, neurons] = q.astype(np.int32) @ _taken(held, places, q.shape[1]).T


def _taken(held: I8, places: I64, width: int) -> I32:
    return np.array([held[place : place + width] for place in places.tolist()], np.int32).reshape(-1, width)
