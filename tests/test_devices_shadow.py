"""What each kind of shadow adds to an INT8 product, on the host and where a card multiplies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_llm.devices.base import Rows
from edge_llm.devices.host import HostDevice
from edge_llm.devices.split import build_split_op
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.layout import unpack_tiles
from edge_llm.kernels.linear import linear_int8
from edge_llm.models.rope import RopeTables
from edge_llm.operations.base import Op
from edge_llm.operations.linear import Linear, SourceRows
from edge_llm.quant.scheme import quantize_weight
from edge_llm.schemes import BlockWeights
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.subgraphs.ops import Part, Subgraph, buffer_widths

TOKENS, COLUMNS, OUTPUTS = 5, 40, 24
HOT = np.array([3, 17], np.int32)
LINEAR = Linear("w", (SourceRows("w", OUTPUTS),), COLUMNS, reads="x", writes="y")
SCALE = np.float32(0.02)


def make(shadow: str) -> Int8Weight:
    weight = np.random.default_rng(0).standard_normal((OUTPUTS, COLUMNS)).astype(np.float32)
    made = quantize_weight(weight, HOT if shadow == "full" else HOT[:0])
    return Int8Weight(
        tiles=made.tiles, rows=OUTPUTS, columns=COLUMNS, input_scale=float(SCALE), weight_scale=made.weight_scale,
        row_sum=made.row_sum, hot_index=made.hot_index, hot_weight=made.hot_weight,
        residual=shadow != "none",
    )  # fmt: skip


def loud_rows() -> np.ndarray:
    """Activations float32 [tokens, K] with loud hot channels and two more values that overflow."""
    x = np.random.default_rng(1).standard_normal((TOKENS, COLUMNS)).astype(np.float32)
    x[:, HOT] *= 50.0
    x[1, 5], x[4, 30] = 9.0, -7.0
    return x


def rows() -> Rows:
    zeros = np.zeros(TOKENS, np.int32)
    return Rows(TOKENS, zeros.astype(np.int64), zeros, zeros, zeros.astype(np.int64), np.zeros((1, 1), np.int32))


def on_host(weights: Int8Weight, x: np.ndarray) -> np.ndarray:
    op = Op("linear", reads=("x",), writes=("y",), of=LINEAR)
    buffers = {"x": x, "y": np.empty((TOKENS, OUTPUTS), np.float32)}
    run = HostDevice(1).build(Subgraph("w", "cpu", TOKENS, (op,)), RopeTables(1))
    run(BlockWeights({"w": weights}, {}), buffers, rows(), None)
    return buffers["y"]


def split(weights: Int8Weight, x: np.ndarray) -> np.ndarray:
    """The same with the product made apart, as a card would."""
    pool = ThreadPool(1)
    ops = (
        Op("quantize", reads=("x",), writes=("quantized", "hot", "residual"), of=LINEAR),
        Op("shadow", reads=("hot", "residual"), writes=("shadow", "overflow"), of=LINEAR),
        Op("merge", reads=("y", "shadow", "overflow", "residual"), writes=("y",), of=LINEAR),
    )
    widths = buffer_widths([Part("w", "cpu", ops)], COLUMNS)
    buffers = {**{name: np.zeros((TOKENS, width), np.float32) for name, width in widths.items()}, "x": x}
    block = BlockWeights({"w": weights}, {})
    for op in ops:
        if op.kind == "merge":
            q = buffers["quantized"]
            buffers["y"] = linear_int8(q, weights.tiles, OUTPUTS, weights.product_scale, weights.row_sum, pool)
        run = build_split_op(op, pool, shadow=True)
        assert run is not None
        run(block, buffers, rows(), None)
    return buffers["y"]


def wanted(weights: Int8Weight, x: np.ndarray) -> np.ndarray:
    """The formula in float64: float64 [tokens, N]."""
    steps = x.astype(np.float64) / float(SCALE)
    hot = steps[:, weights.hot_index] * float(SCALE)
    steps[:, weights.hot_index] = 0.0
    whole = np.clip(np.rint(steps), -127, 127)
    if weights.residual:
        whole = np.where(np.abs(steps) > 127.5, steps, whole)
    matrix = unpack_tiles(weights.tiles, OUTPUTS, COLUMNS).astype(np.float64)
    return whole @ matrix.T * weights.product_scale + hot @ weights.hot_weight.astype(np.float64)


@pytest.mark.parametrize("shadow", ["none", "cold", "full"])
def test_a_linear_adds_the_shadow_that_it_keeps(shadow: str) -> None:
    weights, x = make(shadow), loud_rows()
    np.testing.assert_allclose(on_host(weights, x), wanted(weights, x), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(split(weights, x), on_host(weights, x))


def test_without_a_residual_what_overflows_is_clipped() -> None:
    x = loud_rows()
    clipped = np.clip(x, -127 * SCALE, 127 * SCALE)
    cold = make("cold")
    none = replace(cold, residual=False)
    np.testing.assert_array_equal(on_host(none, x), on_host(none, clipped))
    assert not np.allclose(on_host(cold, x), on_host(none, x))
