"""The probes of the self-test, in their order: what fails early says why later ones do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edge_llm.ascend.selftest import beyond, copies, graphs, layers, numbers, products, rates
from edge_llm.ascend.selftest.ground import Figures, Ground

SECONDS = 120.0
"""Most that a probe may take; the first call of an operator may compile it."""


@dataclass(frozen=True)
class Probe:
    """A question to the card."""

    run: Callable[[Ground], Figures]
    needed: bool = True
    """Whether the backend relies on a good answer."""
    seconds: float = SECONDS

    @property
    def name(self) -> str:
        return self.run.__name__


PROBES = (
    Probe(copies.software),
    Probe(copies.memory),
    Probe(copies.copies),
    Probe(copies.launch),
    Probe(copies.views),
    Probe(beyond.float_operators),
    Probe(numbers.overflow),
    Probe(numbers.counting),
    Probe(numbers.small_writes),
    Probe(numbers.indexed_writes, needed=False),
    Probe(products.packed_scale),
    Probe(products.quantize),
    Probe(products.dynamic_quant),
    Probe(products.quant_matmul, seconds=2 * SECONDS),
    Probe(products.saturation),
    Probe(products.output_matrix),
    Probe(products.weight_formats, needed=False),
    Probe(products.product_speed),
    Probe(products.many_rows),
    Probe(products.float_product),
    Probe(products.float_fractals, needed=False),
    Probe(products.rows_of_products, needed=False),
    Probe(layers.rms_norm),
    Probe(layers.add_rms_norm, needed=False),
    Probe(layers.swiglu),
    Probe(layers.swiglu_float32, needed=False),
    Probe(layers.rotate),
    Probe(layers.write_keys),
    Probe(layers.paged_attention),
    Probe(layers.chunk_attention),
    Probe(layers.long_chunk_attention),
    Probe(layers.chunk_limits, needed=False),
    Probe(layers.chunk_equals_rows, needed=False),
    Probe(layers.rows_of_layers, needed=False),
    Probe(layers.keys_out_and_back),
    Probe(rates.launch_kinds),
    Probe(rates.prefill),
    Probe(graphs.replay),
    Probe(graphs.replay_lengths),
    Probe(graphs.eager_and_replay),
    Probe(graphs.many_graphs, seconds=2 * SECONDS),
    Probe(beyond.bfloat16, needed=False),
    Probe(beyond.int32_product, needed=False),
    Probe(beyond.row_scales, needed=False),
    Probe(beyond.int8_keys_written, needed=False),
    Probe(beyond.int8_keys, needed=False),
    Probe(beyond.int8_keys_captured, needed=False),
    Probe(beyond.s8gemm, needed=False),
    Probe(beyond.run_mode, needed=False),
    Probe(graphs.copies_while_capturing, needed=False),
)
