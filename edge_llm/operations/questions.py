"""What operations, their layer and the calls of devices ask of each other.

Files of operations know these questions, and `edge_llm.operations.layer` alone knows the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from edge_llm.kernels.activation import Activation
    from edge_llm.operations.float_kv import FloatKV
    from edge_llm.operations.rope_kinds import Rope


Tables = tuple[np.ndarray, np.ndarray]
"""Cosines and sines of every position's angles, each float32 [positions, dim / 2]."""


class AllTables(Protocol):
    """The tables of every rotary embedding of a model."""

    def __getitem__(self, rope: Rope) -> Tables: ...


class AnyGain(Protocol):
    """A vector that a norm multiplies with."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...


class AnyOperation(Protocol):
    """What an operation is asked by the others of its layer; `edge_llm.operations.base.Operation` says what it means."""

    @property
    def reads(self) -> str: ...
    @property
    def writes(self) -> str: ...
    @property
    def adds(self) -> str: ...
    @property
    def read_by(self) -> tuple[str, ...]: ...
    @property
    def linears(self) -> tuple[AnyLinear, ...]: ...
    @property
    def gate(self) -> Activation | None: ...
    def gate_in_writer(self, layer: AnyLayer) -> AnyLinear | None: ...
    def norm_in_readers(self, layer: AnyLayer) -> AnyNorm | None: ...


class AnyLinear(AnyOperation, Protocol):
    """A product with a weight [rows, columns]."""

    @property
    def name(self) -> str: ...
    @property
    def columns(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def bias(self) -> bool: ...
    @property
    def scheme(self) -> str: ...


class AnyNorm(AnyOperation, Protocol):
    """A norm that linears do first."""

    @property
    def gain(self) -> AnyGain: ...
    @property
    def eps(self) -> float: ...


class AnyAttention(AnyOperation, Protocol):
    """An operation that keeps something of a sequence."""

    def float_kv(self) -> FloatKV: ...


class AnyLayer(Protocol):
    """What operations ask of the layer that they are in; `edge_llm.operations.layer.Layer` says what it means."""

    @property
    def projection(self) -> AnyLinear: ...
    def writer(self, buffer: str, reader: AnyOperation) -> AnyOperation | None: ...
    def readers(self, written: AnyOperation) -> Iterator[AnyOperation]: ...
    def between(self, first: AnyOperation, last: AnyOperation) -> tuple[AnyOperation, ...]: ...
    def is_result(self, operation: AnyOperation) -> bool: ...
    def multipliers(self, written: AnyOperation) -> tuple[AnyLinear, ...]: ...
    def gives_only(self, written: AnyOperation, reader: AnyOperation) -> bool: ...


class AnyOp(Protocol):
    """A call of a device, as who adds it to a program asks; `edge_llm.operations.base.Op` says what it means."""

    @property
    def kind(self) -> str: ...
    @property
    def reads(self) -> tuple[str, ...]: ...
    @property
    def writes(self) -> tuple[str, ...]: ...
    @property
    def norm(self) -> AnyNorm | None: ...
    @property
    def gate(self) -> Activation | None: ...
    @property
    def adds(self) -> str: ...
