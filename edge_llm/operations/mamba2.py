"""Mamba2's mixer (Dao and Gu, 2024, arXiv 2405.21060)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from edge_llm.operations.base import Back, Buffers, FloatRun
from edge_llm.operations.recurrent import Columns, Recurrent
from edge_llm.operations.recurrent_back import way_back


@dataclass(frozen=True)
class Mamba2(Recurrent):
    """Of ``reads`` [tokens, gate | v | k | q | steps], of which v, k and q are convolved: the paper's z, x, B, C and dt.

    S = decay S + k step v; what q S gives, and v itself times ``skip``, is gated, then normed by groups of heads.
    """

    KIND: ClassVar[str] = "mamba2"
    HOST_ALONE: ClassVar[str] = "Mamba2's mixer"
    CORRECTS: ClassVar[bool] = False
    GATE_FIRST: ClassVar[bool] = True

    @cached_property
    def columns(self) -> Columns:
        keys, values = self.groups * self.key_dim, self.write_width
        end = 2 * values + 2 * keys
        return Columns(
            gate=slice(0, values),
            convolved=slice(values, end),
            v=slice(0, values),
            k=slice(values, values + keys),
            q=slice(values + keys, values + 2 * keys),
            steps=slice(end, end + self.heads),
            write=None,
        )

    @property
    def read_width(self) -> int:
        return self.columns.steps.stop

    @property
    def group(self) -> int:
        return self.write_width // self.groups

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        return way_back(self, buffers[self.reads], self.constants(run.weights.gains), self.forward(buffers, run))
