"""Scheme ``float16``: a linear that is too sensitive for INT8 keeps its weight in float16 and its input in float32.

Each output is one chain of fused multiply-adds over the input channels in ascending order (`kernels.half_linear`), as hot
channels of INT8 linears are, so it has the same bits in any batch, at any number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_llm.config import FLOAT16
from edge_llm.errors import InvalidModel
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.activation import Activation
from edge_llm.kernels.half_linear import half_linear
from edge_llm.kernels.program import Program
from edge_llm.operations.linear import Linear
from edge_llm.quant.shadow import Treatment, shadow_cost
from edge_llm.schemes.base import Facts, TensorSpec, check_keys

NAME = FLOAT16


@dataclass(frozen=True)
class Float16Weight:
    """weight: float16 [K, N]; bias: float32 [N] or None."""

    weight: np.ndarray
    bias: np.ndarray | None = None

    @property
    def rows(self) -> int:
        return int(self.weight.shape[1])

    @property
    def columns(self) -> int:
        return int(self.weight.shape[0])

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def apply(
        self,
        x: np.ndarray,
        pool: ThreadPool,
        *,
        add: np.ndarray | None = None,
        shadow: bool = True,
        gain: np.ndarray | None = None,
        eps: float = 0.0,
        gate: Activation | None = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        return half_linear(x, self.weight, pool, bias=self.bias, add=add, gain=gain, eps=eps, gate=gate, out=out)

    def add_to(
        self,
        program: Program,
        x: np.ndarray,
        *,
        add: np.ndarray | None,
        shadow: bool,
        gain: np.ndarray | None,
        eps: float,
        gate: Activation | None,
        out: np.ndarray,
    ) -> bool:
        program.half_linear(x, self.weight, bias=self.bias, add=add, gain=gain, eps=eps, gate=gate, out=out)
        return True

    @property
    def in_experts(self) -> None:
        return None

    def prepare(self, first: Float16Weight) -> None:
        return  # the arrays are all that a program needs


def tensors(linear: Linear, hot: int) -> list[TensorSpec]:
    return [("weight", "float16", (linear.columns, linear.rows))]


def facts(record: Mapping[str, Any]) -> Facts:
    check_keys(record, set())
    return {}


def facts_of(treatment: Treatment) -> Facts:
    return {}


def convert(weight: np.ndarray, hot: np.ndarray, name: str) -> dict[str, np.ndarray]:
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(weight.T, np.float16)
    if not np.isfinite(narrow).all():
        raise InvalidModel(f"`{name}` holds a value that is not finite in float16, so it cannot be kept so")
    return {"weight": narrow}


def check(linear: Linear, name: str, array: np.ndarray) -> None:
    """Nothing: the matrix is all there is, and what is not finite in it is found when it is multiplied."""


def open(linear: Linear, arrays: Mapping[str, np.ndarray], facts: Facts) -> Float16Weight:
    return Float16Weight(arrays["weight"], arrays.get("bias"))


def cost(linear: Linear) -> float:
    return shadow_cost(linear.rows, linear.columns, linear.columns, 0.0)
