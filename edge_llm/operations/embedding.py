"""The rows of a table that tokens number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from edge_llm.config import DEFAULT_SCHEME
from edge_llm.operations.base import HIDDEN, Op, Runnable

if TYPE_CHECKING:
    from edge_llm.operations.host_call import HostCall


@dataclass(frozen=True)
class Embedding(Runnable):
    """``writes`` = the rows of a table [rows, columns] that tokens number."""

    CHOSEN: ClassVar[tuple[str, ...]] = ("scheme",)

    source: str
    """Its tensor in the source."""
    rows: int
    """Tokens of the vocabulary."""
    columns: int
    writes: str = HIDDEN
    factor: float = 1.0
    """What the source's table is multiplied with.  Where the output matrix is the same table, the last norm divides by it.
    In blocks it cannot be in the table, so rows are multiplied with it when they are looked up."""
    scheme: str = DEFAULT_SCHEME
    """How the table is stored, where it is not the output matrix too."""

    def op(self) -> Op:
        """The look-up, on a device."""
        return Op("embedding", (), (self.writes,), self)

    def op_widths(self, op: Op) -> dict[str, int]:
        return {op.writes[0]: self.columns}

    def add_call(self, call: HostCall) -> None:
        call.table.add_rows(call.native, self.factor, out=call.buffers[call.op.writes[0]])
