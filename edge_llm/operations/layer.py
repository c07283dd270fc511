"""A layer: operations over named buffers, in order.

    Layer("model.layers.0.", (
        Norm(Gain("attention_norm", "input_layernorm.weight", 64), 1e-5, reads="hidden", writes="normed"),
        Linear("qkv", (SourceRows("self_attn.q_proj", 64), ...), 64, reads="normed", writes="qkv"),
        ...))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

from edge_llm.operations.base import HIDDEN, Gain, Operation
from edge_llm.operations.float_kv import FloatKV
from edge_llm.operations.keeps import Fixed

if TYPE_CHECKING:
    from edge_llm.operations.attention import Attention
    from edge_llm.operations.linear import Linear
    from edge_llm.operations.questions import AnyOperation


@dataclass(frozen=True)
class Layer:
    """One decoder layer: where its tensors begin in the source, and its operations in order."""

    prefix: str
    operations: tuple[Operation, ...]

    def __post_init__(self) -> None:
        written = {HIDDEN}
        names = [linear.name for linear in self.linears] + [gain.name for gain in self.gains]
        if len(set(names)) < len(names):
            raise ValueError(f"two linears or gains of layer `{self.prefix}` have one name: {names}")
        if len(set(self.operations)) < len(self.operations):
            raise ValueError(f"layer `{self.prefix}` has the same operation twice")
        for operation in self.operations:
            for buffer in operation.read_by:
                if buffer not in written:
                    raise ValueError(f"layer `{self.prefix}` reads the buffer `{buffer}` before anything writes it")
            written.add(operation.writes)
        if len(self.attentions) > 1 or len(set(one.name for one in self.fixed)) < len(self.fixed):
            raise ValueError(f"layer `{self.prefix}` has two attentions, or two states of one name")
        _ = self.projection if self.attentions else None, self.widths

    @cached_property
    def linears(self) -> tuple[Linear, ...]:
        """Its linears in order."""
        return tuple(linear for operation in self.operations for linear in self.linears_of(operation))

    @cached_property
    def for_cards(self) -> tuple[Linear, ...]:
        """Those of operations that a card does, in order."""
        return tuple(linear for one in self.operations if not one.BESIDE_CARDS for linear in self.linears_of(one))

    @cached_property
    def gains(self) -> tuple[Gain, ...]:
        """The vectors of its norms in order."""
        return tuple(gain for operation in self.operations for gain in operation.gains)

    @cached_property
    def attentions(self) -> tuple[Attention, ...]:
        """Its attention, if it has one: layers that keep a state of a fixed shape may do without."""
        return cast("tuple[Attention, ...]", tuple(one for operation in self.operations for one in operation.attentions))

    @property
    def attention(self) -> Attention:
        """Its one attention."""
        if not self.attentions:
            raise ValueError(f"layer `{self.prefix}` has no attention")
        return self.attentions[0]

    @cached_property
    def fixed(self) -> tuple[Fixed, ...]:
        """What its operations keep of a sequence in a fixed shape, in order."""
        return tuple(kept for operation in self.operations for kept in operation.keeps if isinstance(kept, Fixed))

    def float_past(self) -> FloatKV:
        """What it keeps of a sequence in float32, empty."""
        return self.attention.float_kv() if self.attentions else FloatKV()

    @cached_property
    def projection(self) -> Linear:
        """The linear that gives queries, keys and values to its attention, and to nobody else."""
        found = self.writer(self.attention.reads, self.attention)
        if found is None or found not in self.linears or found.write_width != self.attention.read_width:
            raise ValueError(f"the attention of layer `{self.prefix}` does not read the q | k | v of one linear")
        (linear,) = self.linears_of(found)
        if not self.gives_only(linear, self.attention):
            raise ValueError(f"the q | k | v of layer `{self.prefix}` are not for its attention alone")
        return linear

    @cached_property
    def widths(self) -> dict[str, int]:
        """Values per token of every buffer: one width each, however often it is written."""
        widths: dict[str, int] = {}
        for operation in self.operations:
            written = operation.write_width
            found = [(operation.reads, operation.read_width), *((name, written) for name in operation.read_by[1:])]
            for buffer, width in (*found, (operation.writes, written)):
                if widths.setdefault(buffer, width) != width:
                    raise ValueError(f"the buffer `{buffer}` of layer `{self.prefix}` is {widths[buffer]} wide, not {width}")
        return widths

    def linears_of(self, operation: AnyOperation) -> tuple[Linear, ...]:
        """Those that ``operation`` multiplies with, whole: operations know only what they ask of each other."""
        return cast("tuple[Linear, ...]", operation.linears)

    def linear(self, name: str) -> Linear:
        """The linear called ``name``."""
        return next(linear for linear in self.linears if linear.name == name)

    def writer(self, buffer: str, reader: AnyOperation) -> Operation | None:
        """The operation whose result ``reader`` finds in ``buffer``; None if the buffer comes from before the layer, or if
        ``reader`` is a part of an operation."""
        before = self.operations[: self.operations.index(reader)] if reader in self.operations else ()
        return next((operation for operation in reversed(before) if operation.writes == buffer), None)

    def readers(self, written: AnyOperation) -> Iterator[Operation]:
        """The operations that read what ``written`` writes, up to the next that writes there; of a part
        of an operation none.
        """
        if written not in self.operations:
            return
        for operation in self.operations[self.operations.index(written) + 1 :]:
            if written.writes in operation.read_by:
                yield operation
            if operation.writes == written.writes:
                return

    def between(self, first: AnyOperation, last: AnyOperation) -> tuple[Operation, ...]:
        """The operations after ``first`` and before ``last``."""
        return self.operations[self.operations.index(first) + 1 : self.operations.index(last)]

    def is_result(self, operation: AnyOperation) -> bool:
        """Whether what ``operation`` writes is what the layer hands on."""
        after = self.operations[self.operations.index(operation) + 1 :]
        return operation.writes == HIDDEN and all(later.writes != HIDDEN for later in after)

    def multipliers(self, written: AnyOperation) -> tuple[Linear, ...]:
        """The linears that multiply what ``written`` writes; empty if anything else reads it too."""
        readers = list(self.readers(written))
        found = [self.linears_of(one) for one in readers if one.adds != written.writes]
        alone = len(found) == len(readers) and all(len(linears) == 1 for linears in found)
        return tuple(linear for linears in found for linear in linears) if alone and not self.is_result(written) else ()

    def gives_only(self, written: AnyOperation, reader: AnyOperation) -> bool:
        """Whether ``reader`` alone sees the result of ``written``, to which nothing is added."""
        return not written.adds and not self.is_result(written) and list(self.readers(written)) == [reader]
