"""Products with some neurons of an MLP: those that a row activates, or that somebody names, wherever their weights lie.

`held` int8[B] is memory with weights in [-127, 127]; what belongs to `neurons`[a] (int64[A]) begins at byte `places`[a]
(int64[A]).  Activations q are in [-127, 127] too.  Sums are exact, so those of the named neurons are those of all where the
others have activations of 0, in any order and in any number of calls.  `kernels.reference.neurons` defines the results.  All
raise ValueError, naming the argument, for a wrong type, shape or value.
"""

from __future__ import annotations

from edge_llm.kernels import _native
from edge_llm.kernels.types import I8, I32, I64


def add_columns(q: I8, neurons: I64, held: I8, places: I64, sums: I32, pool: _native.ThreadPool) -> None:
    """In place: sums[M, N] += q[:, neurons] @ columns, of q[M, K] and the N bytes at each place."""
    _native.add_columns(q, neurons, held, places, sums, pool)


def dot_rows(q: I8, neurons: I64, held: I8, places: I64, sums: I32, pool: _native.ThreadPool) -> None:
    """In place: sums[M, N][:, neurons] = q @ rows.T, of q[M, K] and the K bytes at each place; the others stay as they are."""
    _native.dot_rows(q, neurons, held, places, sums, pool)
