"""The host CPU: every operation is one call of a native kernel, on one thread pool and one lane."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.devices.base import Buffers, Op, Rows, RunSubgraph, Subgraph, buffer_widths
from edge_llm.kv.store import LayerPages
from edge_llm.quant.linear import BlockWeights, LinearWeights
from edge_llm.weights.base import Weights
from kernels import ThreadPool
from kernels.attention import paged_attention, rope_append
from kernels.layout import gather_rows
from kernels.linear import linear
from kernels.pointwise import rms_norm, swiglu

_RunOp = Callable[[BlockWeights, Buffers, Rows, LayerPages | None], None]


class HostDevice:
    """Runs subgraphs with ``threads`` threads, on ``cores`` (one each) if they are given.

    ``shadow=False`` drops the outliers, to see what they are worth.
    """

    name = "host"
    lanes: tuple[str, ...] = ("cpu",)

    def __init__(self, threads: int, *, shadow: bool = True, cores: list[int] | None = None) -> None:
        self.pool = ThreadPool(threads, cores)
        self._shadow = shadow

    def weights(self, weights: Weights, layers: int) -> Weights:
        return weights

    def buffers(self, config: ModelConfig, rows: int) -> Buffers:
        return {name: np.zeros((rows, width), np.float32) for name, width in buffer_widths(config).items()}

    def build(self, subgraph: Subgraph, config: ModelConfig, rope: tuple[np.ndarray, np.ndarray]) -> RunSubgraph:
        steps = tuple(self._build_op(op, config, rope) for op in subgraph.ops)

        def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
            for step in steps:
                step(weights, buffers, rows, pages)

        return run

    def embed(self, table: LinearWeights, rows: Rows, hidden: np.ndarray) -> None:
        values = gather_rows(table.tiles, rows.tokens, table.columns)
        out = hidden[: rows.count]
        np.multiply(values, table.weight_scale[rows.tokens, None], out=out)
        if len(table.hot_index):
            out[:, table.hot_index] = table.hot_weight[:, rows.tokens].T

    def _build_op(self, op: Op, config: ModelConfig, tables: tuple[np.ndarray, np.ndarray]) -> _RunOp:
        pool = self.pool
        shadow = self._shadow
        cos, sin = tables
        heads = config.num_heads
        kv_heads = config.num_kv_heads
        head_dim = config.head_dim
        q_end = config.q_size

        def run_norm(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
            n = rows.count
            gain = weights.gains[op.weights]
            rms_norm(buffers[op.reads][:n], gain, config.norm_eps, pool, out=buffers[op.writes][:n])

        def run_linear(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
            n = rows.count
            w = weights.linears[op.weights]
            linear(
                buffers[op.reads][:n],
                w.tiles,
                w.rows,
                w.input_scale,
                w.scale,
                w.row_sum,
                w.hot_index,
                w.hot_weight,
                pool,
                bias=w.bias,
                add=buffers[op.adds][:n] if op.adds else None,
                shadow=shadow and w.residual,
                gain=weights.gains[op.norm] if op.norm else None,
                eps=config.norm_eps,
                swiglu=op.kind == "linear_swiglu",
                out=buffers[op.writes][:n],
            )

        def run_swiglu(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
            n = rows.count
            swiglu(buffers[op.reads][:n], pool, out=buffers[op.writes][:n])

        def run_rope_append(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
            assert pages is not None
            n = rows.count
            gains = weights.gains
            rope_append(
                buffers[op.reads][:n],
                heads,
                kv_heads,
                head_dim,
                rows.position,
                cos,
                sin,
                gains["q_norm"] if config.qk_norm else None,
                gains["k_norm"] if config.qk_norm else None,
                config.norm_eps,
                # The same vector off every key of a head changes no softmax, and leaves less to quantize.
                gains["k_offset"],
                pages.k,
                pages.k_scale,
                pages.v,
                pages.v_scale,
                rows.slots,
                pool,
            )

        def run_attention(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
            assert pages is not None
            n = rows.count
            q = buffers[op.reads][:n, :q_end].reshape(n, heads, head_dim)
            paged_attention(
                q,
                pages.k,
                pages.k_scale,
                pages.v,
                pages.v_scale,
                rows.page_table,
                rows.sequence,
                rows.position,
                head_dim**-0.5,
                pool,
                out=buffers[op.writes][:n].reshape(n, heads, head_dim),
            )

        kinds: dict[str, _RunOp] = {
            "rms_norm": run_norm,
            "linear": run_linear,
            "linear_swiglu": run_linear,
            "swiglu": run_swiglu,
            "rope_append": run_rope_append,
            "attention": run_attention,
        }
        return kinds[op.kind]
