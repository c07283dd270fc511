"""Weights in the blocks of GGUF files: their codes, scales and minimums as they are in the file, laid out for products.

    w[n, k] = scale[n, k / width] * (value of code[n, k]) - least[n, k / 32]

Activations are INT8 with one scale for 32 columns of a row, as llama.cpp has them, so a row depends on nothing but itself.
`kernels.reference.blocks` reads panels byte by byte and defines every function; it has the tables from here.
All raise ValueError, naming the argument, for a wrong type, shape or value.

    panels = lay_out(raw, KINDS["q4_k"], rows, columns, pool)
    y = block_linear(x, BlockLinear([(panels, KINDS["q4_k"], rows)], columns), pool)
"""

from __future__ import annotations

from collections.abc import Sequence

from edge_llm.kernels import _native
from edge_llm.kernels._native import ThreadPool
from edge_llm.kernels.activation import Activation, numbers
from edge_llm.kernels.block_kinds import GROUP, KINDS, BlockKind
from edge_llm.kernels.types import F32, I64, U8

__all__ = ["GROUP", "KINDS", "BlockKind", "BlockLinear", "block_linear", "lay_out", "rows_of"]


def lay_out(raw: U8, kind: BlockKind, n: int, k: int, pool: ThreadPool) -> U8:
    """The bytes ``raw`` of ``n`` rows of ``k`` columns in a file -> panels[ceil(N/16), panel_bytes(K)].

    A panel holds 16 rows: first the scales, block after block, up to a whole line of 64 bytes (`kernels.reference.blocks.heads`
    has their places), then the codes of 32 columns after 32 columns.  Codes of 4 bits lie as in `kernels.w4`: the low half of
    byte [b, i, j] of [4, 16, 4] is column 8b + j of row i, the high half column 8b + 4 + j.  Behind them lie the bits above:
    of 5 bits [16, 4] bytes, bit t of byte [i, j] for column 4t + j; of 6 bits [2, 16, 4] bytes, bits 2t and 2t + 1 of byte
    [h, i, j] for column 16h + 4t + j.  Codes of 8 bits are [8, 16, 4] bytes, 128 above the value.  Rows beyond N are 0.
    """
    return _native.lay_out_blocks(raw, kind.number, n, k, pool)


def rows_of(panels: U8, kind: BlockKind, k: int, rows: I64, pool: ThreadPool) -> F32:
    """The values [M, K] of ``rows`` of ``panels``, as ggml has them; MXFP4's smallest exponent, of 2^-128, makes them 0."""
    return _native.block_rows(panels, kind.number, k, rows, pool)


class BlockLinear(_native.BlockLinear):
    """A linear of ``parts``: panels, their kind and their output channels, in order; ``columns`` K is a multiple of 32."""

    def __init__(self, parts: Sequence[tuple[U8, BlockKind, int]], columns: int) -> None:
        panels = [one for one, _, _ in parts]
        super().__init__(panels, [kind.number for _, kind, _ in parts], [rows for _, _, rows in parts], columns)


def block_linear(
    x: F32,
    weight: BlockLinear,
    pool: ThreadPool,
    *,
    bias: F32 | None = None,
    add: F32 | None = None,
    gain: F32 | None = None,
    eps: float = 0.0,
    gate: Activation | None = None,
    out: F32 | None = None,
) -> F32:
    """x[M, K] times the weight [N, K] (+ bias[N]) (+ add[M, N]) -> [M, N].

    With `gain` f32[K] x is `rms_norm(x, gain, eps)` first. With a `gate`, which excludes `add`, the result is `gated(y, gate)`
    [M, N/2]; the weight then has one part whose halves are whole panels (`BlockLinear.gated_in_one_pass`). `out` may be `x` or
    `add`: all rows are rounded before anything is written. Raises ValueError that names a wrong argument, and for an
    activation that is not finite; `out` is then left as it was.
    """
    return _native.block_linear(x, weight, pool, bias, add, gain, eps, *numbers(gate), out)
