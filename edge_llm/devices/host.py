"""The host CPU: every operation is one call of a native kernel, on one thread pool and one lane."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge_llm.devices.base import (
    INT8_KEYS,
    Buffers,
    DeviceModel,
    DeviceOptions,
    Room,
    Rows,
    RunSubgraph,
    Watch,
    check_int8_keys,
)
from edge_llm.devices.kv_pages import LayerPages
from edge_llm.devices.model import HostArrays, PlacedModel, builder
from edge_llm.devices.split import build_split_op
from edge_llm.errors import DeviceError, UsageError
from edge_llm.files import shown
from edge_llm.formats.layout import KEY_OFFSET, TensorRange
from edge_llm.kv.pages import page_bytes
from edge_llm.models.layer import Attention, Decoder, Embedding, Linear, Norm, SwiGLU
from edge_llm.models.rope import RopeTables
from edge_llm.schemes.base import BlockWeights
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.subgraphs.ops import Op, Subgraph
from edge_llm.subgraphs.placement import PLACEMENTS, choose_placement
from edge_llm.weights.base import Weights
from kernels import ThreadPool
from kernels.attention import paged_attention, rope_append
from kernels.layout import gather_rows
from kernels.pointwise import rms_norm, swiglu
from kernels.types import TILE_DEPTH


class HostDevice:
    """Runs subgraphs with ``threads`` threads, on ``cores`` (one each) if they are given.

    ``shadow=False`` drops the outliers, to see what they are worth.
    """

    name = numerics = "host"
    placement = PLACEMENTS["host"]
    placement_reason = "the default of the device `host`"
    keys = INT8_KEYS

    def __init__(self, threads: int, *, shadow: bool = True, cores: list[int] | None = None) -> None:
        self.pool = ThreadPool(threads, cores)
        self._shadow = shadow

    @property
    def overflow(self) -> int | None:
        return self.pool.overflow

    def open(
        self, decoder: Decoder, weights: Weights, tables: RopeTables, room: Room, watch: Watch | None = None
    ) -> DeviceModel:
        build = builder(self.build, tables, watch)
        return PlacedModel(decoder, weights, self.placement, build, HostArrays(), room)

    def streamed(self, decoder: Decoder, tensors: Mapping[str, TensorRange], room: Room) -> tuple[int, ...]:
        return ()

    def page_bytes(self, decoder: Decoder) -> int:
        return page_bytes(decoder.attentions)

    def build(self, subgraph: Subgraph, tables: RopeTables) -> RunSubgraph:
        steps = tuple(build_op(op, tables, self.pool, self._shadow) for op in subgraph.ops)

        def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
            for step in steps:
                step(weights, buffers, rows, pages)

        return run


def open_device(name: str, options: DeviceOptions) -> HostDevice:
    """The host.  Raises `DeviceError` for a name with parts: there is one host; `UsageError` for what only cards have."""
    if name != HostDevice.name:
        raise DeviceError(f"no device `{shown(name)}`; the host is called `{HostDevice.name}`")
    _, reason = choose_placement(options.placement, (HostDevice.placement.name,), f"the device `{name}`")
    check_int8_keys(options.keys, f"the device `{name}`")
    if options.card_memory is not None:
        raise UsageError("--card-memory has no meaning on the host; --memory limits its weights", param="card_memory")
    device = HostDevice(options.threads, shadow=options.shadow)
    device.placement_reason = reason
    return device


def build_op(op: Op, tables: RopeTables, pool: ThreadPool, shadow: bool) -> RunSubgraph:
    """``op`` as calls of kernels on ``pool``; without ``shadow`` the outliers are dropped.

    What is float around a product that a card makes is in `edge_llm.devices.split`.
    """
    beside_card = build_split_op(op, pool, shadow)
    if beside_card is not None:
        return beside_card
    if isinstance(op.of, Embedding):
        return _build_embedding(op)
    if isinstance(op.of, Norm):
        return _build_norm(op, op.of, pool)
    if isinstance(op.of, SwiGLU):
        return _build_swiglu(op, pool)
    if isinstance(op.of, Linear):
        return _build_linear(op, pool, shadow)
    return _build_append(op, op.of, tables, pool) if op.kind == "rope_append" else _build_attention(op, op.of, pool)


def _build_embedding(op: Op) -> RunSubgraph:
    def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
        table = weights.linears["embedding"]
        assert isinstance(table, Int8Weight)
        values = gather_rows(table.tiles, rows.tokens, TILE_DEPTH * table.tiles.shape[1])[:, : table.columns]
        out = buffers[op.writes[0]][: rows.count]
        np.multiply(values, table.weight_scale[rows.tokens, None], out=out)
        if len(table.hot_index):
            out[:, table.hot_index] = table.hot_weight[:, rows.tokens].T

    return run


def _build_norm(op: Op, norm: Norm, pool: ThreadPool) -> RunSubgraph:
    reads, writes, gain, eps = op.reads[0], op.writes[0], norm.gain.name, norm.eps

    def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
        n = rows.count
        rms_norm(buffers[reads][:n], weights.gains[gain], eps, pool, out=buffers[writes][:n])

    return run


def _build_linear(op: Op, pool: ThreadPool, shadow: bool) -> RunSubgraph:
    name, reads, writes, adds = op.linear.name, op.reads[0], op.writes[0], op.adds
    gain, eps = (op.norm.gain.name, op.norm.eps) if op.norm else ("", 0.0)
    swiglu = op.kind == "linear_swiglu"

    def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
        n = rows.count
        weights.linears[name].apply(
            buffers[reads][:n],
            pool,
            add=buffers[adds][:n] if adds else None,
            shadow=shadow,
            gain=weights.gains[gain] if gain else None,
            eps=eps,
            swiglu=swiglu,
            out=buffers[writes][:n],
        )

    return run


def _build_swiglu(op: Op, pool: ThreadPool) -> RunSubgraph:
    reads, writes = op.reads[0], op.writes[0]

    def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
        n = rows.count
        swiglu(buffers[reads][:n], pool, out=buffers[writes][:n])

    return run


def _build_append(op: Op, attention: Attention, tables: RopeTables, pool: ThreadPool) -> RunSubgraph:
    cos, sin = tables[attention.rope]
    reads, heads, kv_heads, head_dim, eps = op.reads[0], attention.heads, attention.kv_heads, attention.head_dim, attention.eps
    q_norm, k_norm = (gain.name if gain else "" for gain in (attention.q_norm, attention.k_norm))

    def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
        assert pages is not None
        gains = weights.gains
        rope_append(
            buffers[reads][: rows.count],
            heads,
            kv_heads,
            head_dim,
            rows.position,
            cos,
            sin,
            gains[q_norm] if q_norm else None,
            gains[k_norm] if k_norm else None,
            eps,
            # The same vector off every key of a head changes no softmax, and leaves less to quantize.
            gains[KEY_OFFSET],
            pages.k,
            pages.k_scale,
            pages.v,
            pages.v_scale,
            rows.slots,
            pool,
        )

    return run


def _build_attention(op: Op, attention: Attention, pool: ThreadPool) -> RunSubgraph:
    heads, head_dim, q_size = attention.heads, attention.head_dim, attention.q_size
    reads, writes, softmax_scale = op.reads[0], op.writes[0], attention.head_dim**-0.5

    def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
        assert pages is not None
        n = rows.count
        q = buffers[reads][:n, :q_size].reshape(n, heads, head_dim)
        paged_attention(
            q,
            pages.k,
            pages.k_scale,
            pages.v,
            pages.v_scale,
            rows.page_table,
            rows.sequence,
            rows.position,
            softmax_scale,
            pool,
            out=buffers[writes][:n].reshape(n, heads, head_dim),
        )

    return run
