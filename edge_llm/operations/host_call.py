"""A call on the host: the arrays that an operation is given, and the program that its kernel calls go to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from edge_llm.operations.base import AllTables, Op
    from edge_llm.operations.linear import HostWeight
    from kernels import ThreadPool
    from kernels.program import Program


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
    """A table whose rows are looked up: W [N, K] with its hot columns apart."""

    @property
    def integers(self) -> Mapping[str, np.ndarray]: ...
    @property
    def columns(self) -> int: ...
    @property
    def weight_scale(self) -> np.ndarray: ...
    @property
    def hot_index(self) -> np.ndarray: ...
    @property
    def hot_weight(self) -> np.ndarray: ...
    @property
    def turn(self) -> int: ...


class HostCall(Protocol):
    """A call that is added to a program of the host: its arrays, and where it goes."""

    @property
    def op(self) -> Op: ...
    @property
    def native(self) -> Program:
        """Takes kernel calls."""
        ...

    @property
    def buffers(self) -> Mapping[str, np.ndarray]: ...
    @property
    def linears(self) -> Mapping[str, HostWeight]: ...
    @property
    def table(self) -> HostTable:
        """Of an embedding."""
        ...

    @property
    def gains(self) -> Mapping[str, np.ndarray]: ...
    @property
    def pages(self) -> HostPages: ...
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
