"""The gated delta rule of Qwen3-Next and Qwen3.5 (Yang et al., 2024, arXiv 2412.06464)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from edge_llm.operations.base import Back, Buffers, FloatRun
from edge_llm.operations.recurrent import Columns, Recurrent
from edge_llm.operations.recurrent_back import way_back


@dataclass(frozen=True)
class GatedDelta(Recurrent):
    """Of ``reads`` [tokens, q | k | v | gate | write | steps], of which q, k and v are convolved.

    S = decay S + k strength (v - decay k S); what q S gives is normed by heads, then gated.
    """

    KIND: ClassVar[str] = "gated_delta"
    HOST_ALONE: ClassVar[str] = "a gated delta rule"
    CORRECTS: ClassVar[bool] = True
    GATE_FIRST: ClassVar[bool] = False

    @cached_property
    def columns(self) -> Columns:
        keys, values, heads = self.groups * self.key_dim, self.write_width, self.heads
        wide = 2 * keys + values
        write = wide + values
        return Columns(
            convolved=slice(0, wide),
            q=slice(0, keys),
            k=slice(keys, 2 * keys),
            v=slice(2 * keys, wide),
            gate=slice(wide, write),
            write=slice(write, write + heads),
            steps=slice(write + heads, write + 2 * heads),
        )

    @property
    def read_width(self) -> int:
        return self.columns.steps.stop

    @property
    def group(self) -> int:
        return self.value_dim

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        return way_back(self, buffers[self.reads], self.constants(run.weights.gains), self.forward(buffers, run))
