"""The probes of the self-test, in their order: what fails early says why later ones do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edge_llm.npu import probes_beyond, probes_copies, probes_graphs, probes_layers, probes_products
from edge_llm.npu.probes_ground import Figures, Ground

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
    Probe(probes_copies.software),
    Probe(probes_copies.memory),
    Probe(probes_copies.copies),
    Probe(probes_copies.launch),
    Probe(probes_copies.views),
    Probe(probes_beyond.float_operators),
    Probe(probes_products.packed_scale),
    Probe(probes_products.quantize),
    Probe(probes_products.quant_matmul, seconds=2 * SECONDS),
    Probe(probes_products.saturation),
    Probe(probes_products.output_matrix),
    Probe(probes_products.weight_formats, needed=False),
    Probe(probes_products.product_speed),
    Probe(probes_products.float_product),
    Probe(probes_products.rows_of_products, needed=False),
    Probe(probes_layers.rms_norm),
    Probe(probes_layers.swiglu),
    Probe(probes_layers.rotate),
    Probe(probes_layers.write_keys),
    Probe(probes_layers.paged_attention),
    Probe(probes_layers.chunk_attention),
    Probe(probes_layers.chunk_equals_rows, needed=False),
    Probe(probes_layers.rows_of_layers, needed=False),
    Probe(probes_layers.keys_out_and_back),
    Probe(probes_graphs.replay),
    Probe(probes_graphs.replay_lengths),
    Probe(probes_graphs.eager_and_replay),
    Probe(probes_graphs.many_graphs, seconds=2 * SECONDS),
    Probe(probes_beyond.bfloat16, needed=False),
    Probe(probes_beyond.int32_product, needed=False),
    Probe(probes_beyond.row_scales, needed=False),
    Probe(probes_beyond.dynamic_quant, needed=False),
    Probe(probes_beyond.int8_keys_written, needed=False),
    Probe(probes_beyond.int8_keys, needed=False),
    Probe(probes_beyond.int8_keys_captured, needed=False),
    Probe(probes_beyond.s8gemm, needed=False),
)
