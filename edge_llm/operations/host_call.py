"""A call on the host: the arrays that an operation is given, and the program that its kernel calls go to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from edge_llm.kernels import LowRank, ThreadPool
    from edge_llm.kernels.activation import Activation
    from edge_llm.kernels.experts import InExperts
    from edge_llm.kernels.program import Program
    from edge_llm.operations.keeps import Span
    from edge_llm.operations.questions import AllTables, AnyOp


class HostWeight(Protocol):
    """A weight W [N, K] that the host multiplies."""

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
        """x float32 [M, K] -> y [M, N] (+ ``add``), or with a ``gate`` its activation of the left half times the right one.

        With ``gain`` float32 [K] the rows are RMS normed first.  Without ``shadow`` outliers are dropped, to see what they
        are worth.  A row's result does not depend on the other rows, on threads or on the instruction set.  Raises ValueError
        for an activation that is not finite.
        """
        ...

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
        """Add `apply` to ``program``; false for a weight that no program can multiply."""
        ...

    @property
    def in_experts(self) -> InExperts | None:
        """The weight for a call of many experts (`kernels.experts`), and its bias; None: no such call takes it."""
        ...


class HostExperts(Protocol):
    """The experts of a layer, in memory or not."""

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        ...

    def runs(
        self, experts: Sequence[int], x: np.ndarray, pool: ThreadPool
    ) -> Iterator[Sequence[tuple[int, Sequence[HostWeight]]]]:
        """The linears of each of ``experts`` (ascending), which the rows x float32 [T, columns] go to: some at a time.

        What is in memory comes first, and each list is valid until the next is taken.  Raises `StorageError`, `CorruptBundle`.
        """
        ...


class HostPages(Protocol):
    """The keys and values of one layer, as the kernels keep them."""

    @property
    def k(self) -> np.ndarray: ...
    @property
    def k_scale(self) -> np.ndarray: ...
    @property
    def v(self) -> np.ndarray: ...
    @property
    def v_scale(self) -> np.ndarray: ...


class HostTable(Protocol):
    """A table whose rows are looked up: W [N, K]."""

    def add_rows(self, program: Program, factor: float, *, out: np.ndarray) -> None:
        """Add the look-up of the rows that tokens number, times ``factor``."""
        ...


class AnyRows(Protocol):
    """The rows of a run; `edge_llm.devices.base.Rows` says what they are."""

    @property
    def sequence(self) -> np.ndarray: ...
    @property
    def position(self) -> np.ndarray: ...
    @property
    def page_table(self) -> np.ndarray: ...
    @property
    def kinds(self) -> np.ndarray | None: ...
    @property
    def spans(self) -> Sequence[Span]: ...


class HostCall(Protocol):
    """A call that is added to a program of the host: its arrays, and where it goes."""

    @property
    def op(self) -> AnyOp: ...
    @property
    def native(self) -> Program:
        """Takes kernel calls."""
        ...

    @property
    def buffers(self) -> Mapping[str, np.ndarray]: ...
    @property
    def linears(self) -> Mapping[str, HostWeight]: ...
    @property
    def experts(self) -> HostExperts | None:
        """The experts that `linears` lacks, because they come from flash."""
        ...

    @property
    def table(self) -> HostTable:
        """Of an embedding."""
        ...

    @property
    def gains(self) -> Mapping[str, np.ndarray]: ...
    @property
    def low_ranks(self) -> Mapping[str, LowRank]:
        """What adapters add to linears, by the linears' names; empty where no row has one."""
        ...

    def scratch(self, use: str, rows: int, width: int) -> np.ndarray:
        """Memory for what is between an adapter's products, float32 [rows, width]; later calls of this ``use`` share it."""
        ...

    @property
    def pages(self) -> HostPages: ...
    @property
    def states(self) -> Mapping[str, np.ndarray]:
        """What the layer keeps of sequences in a fixed shape, by name: float32 [slots, *shape]."""
        ...

    @property
    def tables(self) -> AllTables: ...
    @property
    def pool(self) -> ThreadPool: ...
    @property
    def shadow(self) -> bool:
        """Whether outliers are added; else they are dropped, to see what they are worth."""
        ...

    def add(self, step: Callable[[int, np.ndarray | None], None]) -> None:
        """Add a step of Python: it is told how many rows there are, and the array of a result that every run brings."""
        ...

    def add_rows(self, step: Callable[[AnyRows], None]) -> None:
        """Add a step of Python that is told what the rows are."""
        ...
