"""Weights on their way to a card: each layer passes through a buffer of the host, which keeps what the CPU computes with.

That is the vectors beside the INT8 matrices, and all of the linears that the CPU multiplies.  What an overflow needs of an
INT8 matrix comes from flash (`edge_llm.weights.cold`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

import numpy as np

from edge_llm.formats.bundle import Bundle
from edge_llm.formats.layout import layer_name
from edge_llm.progress import CountProgress
from edge_llm.schemes.base import BlockWeights, Weight
from edge_llm.schemes.int8_weight import CodedProduct, Int8Product, Int8Weight, no_channels
from edge_llm.weights.cold import ColdChannels, ColdWeight
from edge_llm.weights.memory_plan import StagingPlan
from edge_llm.weights.pools import Budget
from edge_llm.weights.streamed import StreamedWeights
from edge_llm.weights.token_bytes import card_token


class StagedWeights(StreamedWeights):
    """The weights of ``bundle`` under ``staging``: no layer stays here, and any layer may be requested."""

    def __init__(self, bundle: Bundle, staging: StagingPlan, progress: CountProgress | None = None) -> None:
        budget = Budget(staging.plan.held_bytes + staging.cold_bytes)
        super().__init__(bundle, staging.plan, progress, streams=staging.hosted, budget=budget)
        self.hosted = {index: bundle.blocks[layer_name(index)].nbytes for index in staging.hosted}
        self.token_bytes = card_token(bundle, staging)
        budget.take("layers for a card", staging.hosted_bytes)
        self._cold = ColdChannels(bundle, budget, staging.cold_bytes)

    def host_part(self, index: int) -> BlockWeights:
        block = self.use(index)
        on_card = {f"{name}.{integers}" for name, linear in block.linears.items() for integers in _integers(linear)}
        copies = block.moved({name: _copy(array, name in on_card) for name, array in block.tensors.items()})
        linears = {name: self._cold_linear(f"layers.{index}.{name}", linear) for name, linear in copies.linears.items()}
        return BlockWeights(linears, copies.gains)

    def _cold_linear(self, name: str, linear: Weight) -> Weight:
        if not isinstance(linear, Int8Product):
            return linear
        without = linear.with_tiles(no_channels(linear.rows)) if isinstance(linear, CodedProduct) else linear
        values = {field.name: getattr(without, field.name) for field in fields(Int8Weight)}
        return ColdWeight(**values, names=tuple(f"{name}.{integers}" for integers in linear.integers), channels=self._cold)


def _integers(linear: Weight) -> Iterable[str]:
    """What the tensors are called, behind the name of the linear, that lie on a card alone."""
    return linear.integers if isinstance(linear, Int8Product) else ()


def _copy(array: np.ndarray, on_card: bool) -> np.ndarray:
    """``array`` in memory of its own; of a matrix ``on_card`` no input channel."""
    return array[:, :0].copy() if on_card else array.copy()
