"""What is float of a linear that a card multiplies: quantize before the product, shadow beside it, merge after it.

    quantized, hot, residual = quantize(turn(norm(x)))
    product = card(quantized);  shadow = hot @ hot_weight;  overflow = residual @ W.T
    y = product + shadow + product_scale * overflow (+ add)

The CPU does it, or the float units of a card that does everything.  The sums are made in the order of
`kernels.linear.linear`, so a card whose product is exact gives the host's bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edge_llm.devices.base import Buffers, Rows, RunSubgraph
from edge_llm.devices.kv_pages import LayerPages
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.linear import hot_product, merge, overflow_product, quantize
from edge_llm.kernels.pointwise import rms_norm
from edge_llm.kernels.types import TILE_DEPTH
from edge_llm.operations.base import HOT, NORMED, OVERFLOW, QUANTIZED, RESIDUAL, SHADOW, Op
from edge_llm.schemes.base import BlockWeights
from edge_llm.schemes.int8_weight import Int8Product


def build_split_op(op: Op, pool: ThreadPool, shadow: bool) -> RunSubgraph | None:
    """``op`` on ``pool`` if it is a quantize, shadow or merge, else None.  Without ``shadow`` the outliers are dropped."""
    kinds: dict[str, Callable[[Op, ThreadPool, bool], RunSubgraph]] = {
        "quantize": _build_quantize,
        "shadow": _build_shadow,
        "merge": _build_merge,
    }
    build = kinds.get(op.kind)
    return None if build is None else build(op, pool, shadow)


def _int8(weights: BlockWeights, op: Op) -> Int8Product:
    linear = weights.linears[op.linear.name]
    assert isinstance(linear, Int8Product), f"the placement sent `{op.linear.name}` to the card"
    return linear


def _build_quantize(op: Op, pool: ThreadPool, shadow: bool) -> RunSubgraph:
    def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
        x = buffers[op.reads[0]][: rows.count]
        linear = _int8(weights, op)
        if op.norm:
            gain = weights.gains[op.norm.gain.name]
            x = rms_norm(x, gain, op.norm.eps, pool, out=_block(buffers[NORMED], *x.shape))
        kept = shadow and linear.residual
        moved = linear.shifted(x)
        quantized, residual = quantize(moved, linear.input_scale, linear.hot_index, pool, residual=kept, turn=linear.turn)
        buffers[QUANTIZED] = quantized
        buffers[HOT] = np.take(x, linear.hot_index, axis=1)
        buffers[RESIDUAL] = residual

    return run


def _build_shadow(op: Op, pool: ThreadPool, shadow: bool) -> RunSubgraph:
    def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
        linear = _int8(weights, op)
        if shadow and len(linear.hot_index):
            every = np.arange(len(linear.hot_index), dtype=np.int32)
            hot_product(buffers[HOT], every, linear.hot_weight, pool, out=_block(buffers[SHADOW], rows.count, linear.rows))
        if shadow and linear.residual:
            tiles, residual = linear.overflow(buffers[RESIDUAL])
            out = _block(buffers[OVERFLOW], rows.count, linear.rows)
            overflow_product(residual, tiles, linear.rows, TILE_DEPTH * tiles.shape[1], pool, out=out)

    return run


def _block(buffer: np.ndarray, rows: int, width: int) -> np.ndarray:
    """The first ``rows`` * ``width`` values of a buffer that linears of several widths share, as one block of that shape."""
    values = buffer.reshape(-1)
    return values[: rows * width].reshape(rows, width)


def _build_merge(op: Op, pool: ThreadPool, shadow: bool) -> RunSubgraph:
    product, result = op.reads[0], op.writes[0]

    def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
        linear = _int8(weights, op)
        y = buffers[product][: rows.count]
        hot_sum = _block(buffers[SHADOW], *y.shape) if shadow and len(linear.hot_index) else None
        kept = shadow and linear.residual
        residual, overflow_sum = (buffers[RESIDUAL], _block(buffers[OVERFLOW], *y.shape)) if kept else (None, None)
        add = buffers[op.adds][: rows.count] if op.adds else None
        merge(y, hot_sum, residual, overflow_sum, linear.product_scale, pool, add=add)
        if result != product:
            buffers[result][: rows.count] = y

    return run
