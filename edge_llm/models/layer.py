"""What a decoder is, said once: its layers, and each layer as operations over named buffers.

A family describes its layers with these values.  Reading weights, the float reference, calibration, quantization, the bundle's
layout, subgraphs, buffers and costs walk over the description; none of them knows a linear by its name.

    Layer("model.layers.0.", (
        Norm(Gain("attention_norm", "input_layernorm.weight", 64), 1e-5, reads="hidden", writes="normed"),
        Linear("qkv", (SourceRows("self_attn.q_proj", 64), ...), 64, reads="normed", writes="qkv"),
        ...))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from edge_llm.config import DEFAULT_SCHEME, RopeScaling

HIDDEN = "hidden"
"""The buffer that layers hand on: float32 [tokens, hidden size]."""


@dataclass(frozen=True)
class Gain:
    """A vector of a norm: its name here, its tensor in the source, its length."""

    name: str
    source: str
    size: int


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of heads of ``dim`` channels (Su et al., 2021, arXiv 2104.09864)."""

    dim: int
    theta: float
    scaling: RopeScaling | None = None


@dataclass(frozen=True)
class SourceRows:
    """Output rows of a linear that come from one module of the source: ``<source>.weight``, and ``<source>.bias``."""

    source: str
    count: int


@dataclass(frozen=True)
class Norm:
    """``writes = reads / sqrt(mean(reads^2) + eps) * gain`` (RMS norm)."""

    gain: Gain
    eps: float
    reads: str
    writes: str


@dataclass(frozen=True)
class Linear:
    """``writes = reads @ W.T (+ bias) (+ adds)``; W [rows, columns] is its sources one under the other."""

    name: str
    sources: tuple[SourceRows, ...]
    columns: int
    """Input channels K."""
    reads: str
    writes: str
    adds: str = ""
    """A buffer that is added to the result, such as the residual stream."""
    bias: bool = False
    scheme: str = DEFAULT_SCHEME
    """How its weight is stored and multiplied: one of `edge_llm.schemes`."""
    turn: int = 0
    """Block of input channels that are turned before they are rounded (`kernels.pointwise.turn`); 0: none.  The stored weight
    has the inverse in its columns, so float paths, which multiply the source's weight, turn nothing."""

    @cached_property
    def rows(self) -> int:
        """Output channels N."""
        return sum(part.count for part in self.sources)


@dataclass(frozen=True)
class Attention:
    """Causal grouped attention of ``reads`` [tokens, q | k | v] after q/k norms and rotation."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    reads: str
    writes: str
    q_norm: Gain | None = None
    """Gain of an RMS norm of every query head, before the rotation."""
    k_norm: Gain | None = None
    eps: float = 0.0
    """Of these norms."""
    turn: int = 0
    """Block of a head's channels that are turned in queries and keys, behind the rotation; 0: none.  Scores grow by it."""
    value_turn: int = 0
    """Block of a head's channels in which the stored weight turns values; its reader's columns have the inverse."""

    def __post_init__(self) -> None:
        if (self.q_norm is None) != (self.k_norm is None):
            raise ValueError("an attention norms both its queries and its keys, or neither")

    @property
    def q_size(self) -> int:
        """Width of all queries, and of the result."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all keys, and of all values."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True)
class SwiGLU:
    """``writes = silu(gate) * up`` of ``reads`` [tokens, gate | up], each ``width`` wide (Shazeer, 2020, arXiv 2002.05202)."""

    width: int
    reads: str
    writes: str


@dataclass(frozen=True)
class Embedding:
    """``writes`` = the rows of a table [rows, columns] that tokens number."""

    source: str
    """Its tensor in the source."""
    rows: int
    """Tokens of the vocabulary."""
    columns: int
    writes: str = HIDDEN


Operation = Norm | Linear | Attention | SwiGLU


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
            for buffer in read_by(operation):
                if buffer not in written:
                    raise ValueError(f"layer `{self.prefix}` reads the buffer `{buffer}` before anything writes it")
            written.add(operation.writes)
        _ = self.projection, self.widths

    @cached_property
    def linears(self) -> tuple[Linear, ...]:
        """Its linears in order."""
        return tuple(operation for operation in self.operations if isinstance(operation, Linear))

    @cached_property
    def gains(self) -> tuple[Gain, ...]:
        """The vectors of its norms in order."""
        return tuple(gain for operation in self.operations for gain in gains_of(operation))

    @cached_property
    def attention(self) -> Attention:
        """Its one attention."""
        found = [operation for operation in self.operations if isinstance(operation, Attention)]
        if len(found) != 1:
            raise ValueError(f"layer `{self.prefix}` has {len(found)} attentions, not one")
        return found[0]

    @cached_property
    def projection(self) -> Linear:
        """The linear that gives queries, keys and values to its attention, and to nobody else."""
        found = self.writer(self.attention.reads, self.attention)
        if not isinstance(found, Linear) or found.rows != _read_width(self.attention):
            raise ValueError(f"the attention of layer `{self.prefix}` does not read the q | k | v of one linear")
        if not self.gives_only(found, self.attention):
            raise ValueError(f"the q | k | v of layer `{self.prefix}` are not for its attention alone")
        return found

    @cached_property
    def widths(self) -> dict[str, int]:
        """Values per token of every buffer: one width each, however often it is written."""
        widths: dict[str, int] = {}
        for operation in self.operations:
            written = _width(operation)
            found = [(operation.reads, _read_width(operation)), *((name, written) for name in read_by(operation)[1:])]
            for buffer, width in (*found, (operation.writes, written)):
                if widths.setdefault(buffer, width) != width:
                    raise ValueError(f"the buffer `{buffer}` of layer `{self.prefix}` is {widths[buffer]} wide, not {width}")
        return widths

    def linear(self, name: str) -> Linear:
        """The linear called ``name``."""
        return next(linear for linear in self.linears if linear.name == name)

    def writer(self, buffer: str, reader: Operation) -> Operation | None:
        """The operation whose result ``reader`` finds in ``buffer``; None if the buffer comes from before the layer."""
        before = self.operations[: self.operations.index(reader)]
        return next((operation for operation in reversed(before) if operation.writes == buffer), None)

    def readers(self, written: Operation) -> Iterator[Operation]:
        """The operations that read what ``written`` writes, up to the next that writes there."""
        for operation in self.operations[self.operations.index(written) + 1 :]:
            if written.writes in read_by(operation):
                yield operation
            if operation.writes == written.writes:
                return

    def is_result(self, operation: Operation) -> bool:
        """Whether what ``operation`` writes is what the layer hands on."""
        after = self.operations[self.operations.index(operation) + 1 :]
        return operation.writes == HIDDEN and all(later.writes != HIDDEN for later in after)

    def multipliers(self, written: Operation) -> tuple[Linear, ...]:
        """The linears that multiply what ``written`` writes; empty if anything else reads it too."""
        readers = list(self.readers(written))
        linears = tuple(one for one in readers if isinstance(one, Linear) and one.adds != written.writes)
        return linears if len(linears) == len(readers) and not self.is_result(written) else ()

    def gives_only(self, linear: Linear, reader: Operation) -> bool:
        """Whether ``reader`` alone sees the product of ``linear``, to which nothing is added."""
        return not linear.adds and not self.is_result(linear) and list(self.readers(linear)) == [reader]


@dataclass(frozen=True)
class HeadTurns:
    """Blocks of a head's channels that are turned in every attention of a model; 0: none."""

    keys: int = 0
    """Of queries and keys."""
    values: int = 0


@dataclass(frozen=True)
class Decoder:
    """A decoder: embedding, layers, last norm, output matrix."""

    embedding: Embedding
    layers: tuple[Layer, ...]
    norm: Norm
    output: Linear
    """The output matrix; its source is not read when the embedding is the output matrix too."""
    tied: bool

    @property
    def table(self) -> Linear:
        """How the embedding is stored: as the output matrix where that is the embedding too, turned back when it is read."""
        return self.output if self.tied else replace(self.output, scheme=DEFAULT_SCHEME, turn=0)

    @property
    def vocab_size(self) -> int:
        return self.output.rows

    @property
    def hidden_size(self) -> int:
        return self.output.columns

    @property
    def parameters(self) -> int:
        """Number of weights, biases left out."""
        table = self.vocab_size * self.hidden_size
        layers = sum(
            sum(linear.rows * linear.columns for linear in layer.linears) + sum(gain.size for gain in layer.gains)
            for layer in self.layers
        )
        return table * (1 if self.tied else 2) + layers + self.norm.gain.size

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention of every layer."""
        return tuple(layer.attention for layer in self.layers)

    @property
    def head_turns(self) -> HeadTurns:
        """Those that all attentions share."""
        return HeadTurns(self.layers[0].attention.turn, self.layers[0].attention.value_turn)

    def with_schemes(self, schemes: Mapping[str, str]) -> Decoder:
        """This decoder with the weight schemes that ``schemes`` gives, by the names that `linears` has."""
        layers = tuple(_with_schemes(layer, f"layers.{index}.", schemes) for index, layer in enumerate(self.layers))
        output = replace(self.output, scheme=schemes.get("output", self.output.scheme))
        return replace(self, layers=layers, output=output)

    def with_turns(self, turns: Mapping[str, int], heads: HeadTurns) -> Decoder:
        """This decoder with the ``turns`` of linears, by the names that `linears` has, and those of ``heads``."""
        layers = tuple(_with_turns(layer, f"layers.{index}.", turns, heads) for index, layer in enumerate(self.layers))
        return replace(self, layers=layers, output=replace(self.output, turn=turns.get("output", 0)))

    def linears(self) -> dict[str, Linear]:
        """Every linear of the model by its name in a bundle, in execution order."""
        named = {f"layers.{index}.{linear.name}": linear for index, layer in enumerate(self.layers) for linear in layer.linears}
        return named | {"output": self.output}


def _with_schemes(layer: Layer, prefix: str, schemes: Mapping[str, str]) -> Layer:
    """``layer`` itself where no scheme changes, so that like layers go on sharing their operations."""
    if all(schemes.get(prefix + linear.name, linear.scheme) == linear.scheme for linear in layer.linears):
        return layer
    return replace(layer, operations=tuple(_with_scheme(one, prefix, schemes) for one in layer.operations))


def _with_turns(layer: Layer, prefix: str, turns: Mapping[str, int], heads: HeadTurns) -> Layer:
    def turned(operation: Operation) -> Operation:
        if isinstance(operation, Linear):
            return replace(operation, turn=turns.get(prefix + operation.name, 0))
        if isinstance(operation, Attention):
            return replace(operation, turn=heads.keys, value_turn=heads.values)
        return operation

    operations = tuple(turned(one) for one in layer.operations)
    return layer if operations == layer.operations else replace(layer, operations=operations)


def _with_scheme(operation: Operation, prefix: str, schemes: Mapping[str, str]) -> Operation:
    if not isinstance(operation, Linear):
        return operation
    return replace(operation, scheme=schemes.get(prefix + operation.name, operation.scheme))


def read_by(operation: Operation) -> tuple[str, ...]:
    """The buffers that ``operation`` reads."""
    adds = operation.adds if isinstance(operation, Linear) else ""
    return (operation.reads, adds) if adds else (operation.reads,)


def gains_of(operation: Operation) -> tuple[Gain, ...]:
    """The vectors that ``operation`` multiplies with."""
    if isinstance(operation, Norm):
        return (operation.gain,)
    if isinstance(operation, Attention):
        return tuple(gain for gain in (operation.q_norm, operation.k_norm) if gain is not None)
    return ()


def _read_width(operation: Operation) -> int:
    """Values per token of what it reads, adds left out."""
    if isinstance(operation, Norm):
        return operation.gain.size
    if isinstance(operation, Linear):
        return operation.columns
    if isinstance(operation, Attention):
        return operation.q_size + 2 * operation.kv_size
    return 2 * operation.width


def _width(operation: Operation) -> int:
    """Values per token of what it writes."""
    if isinstance(operation, Norm):
        return operation.gain.size
    if isinstance(operation, Linear):
        return operation.rows
    return operation.q_size if isinstance(operation, Attention) else operation.width
