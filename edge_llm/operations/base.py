"""What every operation of a layer says of itself, and what it is given when it runs.

Whoever walks a layer asks in these words: `FloatRun` is the float reference, `Op` a call of a device (on the host as a
`HostCall`), `Place` channels whose size may be folded into weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

import numpy as np

if TYPE_CHECKING:
    from edge_llm.kernels.activation import Activation
    from edge_llm.operations.float_kv import FloatKV
    from edge_llm.operations.host_call import HostCall
    from edge_llm.operations.keeps import Fixed, Kept
    from edge_llm.operations.questions import AllTables, AnyAttention, AnyLayer, AnyLinear, AnyNorm

HIDDEN = "hidden"
"""The buffer that layers hand on: float32 [tokens, hidden size]."""
PAGES = "pages"
"""What calls name the keys and values of their layer."""
NORMED = "normed_rows"
"""Where quantize puts the rows that it normed."""
PRODUCT = "product_rows"
"""Where a linear puts its product when its gate is a pass of its own."""
QUANTIZED, HOT, RESIDUAL = "quantized", "hot", "residual"
"""Between a linear's float rows and its product: INT8 rows, hot channels, what the scale cut off."""
SHADOW, OVERFLOW = "shadow", "overflow"
"""Beside the product: that of the hot channels, and that of what the scale cut off."""


@dataclass(frozen=True)
class Gain:
    """A vector of a norm, or a matrix such as a router's: its name here, its tensor in the source, its length.

    It is ``(tensor + plus) * factor``, in float32.
    """

    name: str
    source: str
    size: int
    plus: float = 0.0
    """Gemma's norms keep their gain less 1."""
    factor: float = 1.0
    rows: int = 0
    """Of a matrix, each ``size`` long; 0: it is a vector."""
    source_shape: tuple[int, ...] = ()
    """Of the tensor in the source, where that is another than `shape`."""
    whole_name: bool = False
    """Whether ``source`` does not begin where the layer's other tensors do."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, self.size) if self.rows else (self.size,)


@dataclass(frozen=True)
class Vector:
    """A float32 tensor that a bundle keeps for an operation, beside its linears."""

    name: str
    shape: tuple[int, ...]


# -- the float reference ---------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Arithmetic:
    """What processors do differently, in float32."""

    product: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """x [..., M, K], weight [..., N, K] -> [..., M, N]."""
    exp: Callable[[np.ndarray], np.ndarray]
    attention: Callable[[np.ndarray, np.ndarray, np.ndarray, float], np.ndarray] | None = None
    """q [T, Hq, D] at the last T positions, k and v [Hkv, S, D], scale -> [T, Hq, D]; None: made of the two above."""


NUMPY = Arithmetic(lambda x, weight: x @ weight.swapaxes(-1, -2), np.exp)
"""By all cores; the last bits are the processor's."""


@dataclass(frozen=True)
class FloatLinear:
    """A linear in float32: weight [N, K], bias [N] or None."""

    weight: np.ndarray
    bias: np.ndarray | None = None


ApplyLinear = Callable[["AnyLinear", FloatLinear, np.ndarray], np.ndarray]
"""What a linear makes of its input [T, K], without what is added to it: [T, N]."""
KVRounding = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""What a cache gives back of keys (rotated) and values, each [T, kv heads, head_dim]."""
Mix = Callable[["AnyAttention", Mapping[str, np.ndarray], np.ndarray], np.ndarray]
"""What attention with the layer's gains makes of qkv [T, q | k | v]: [T, heads * head_dim]."""
Observe = Callable[[str, np.ndarray], None]
"""Told the name of a linear and its float input [T, K]."""
ObserveGradient = Callable[[str, np.ndarray, np.ndarray], None]
"""Told a linear's name, its input [T, K] and the gradient at its product [T, N]."""
Buffers = Mapping[str, np.ndarray]
"""The buffers of a layer, each float32 [T, `write_width`]."""
Back = Callable[[np.ndarray], Sequence[tuple[str, np.ndarray]]]
"""From the gradient at what an operation writes to those at the buffers that it reads."""


@dataclass(frozen=True)
class LayerWeights:
    """One layer in float32, by the names of its description."""

    linears: Mapping[str, FloatLinear]
    gains: Mapping[str, np.ndarray]


def unrounded(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values as they are."""
    return keys, values


@dataclass(frozen=True)
class FloatRun:
    """One layer that runs in float32 on rows of one sequence."""

    weights: LayerWeights
    tables: AllTables
    past: FloatKV | None = None
    """What the layer keeps of the tokens before these rows; it takes that of the rows.  None: the rows begin a sequence."""
    observe: Observe | None = None
    apply: ApplyLinear | None = None
    """Computes the products of linears; None: by ``arithmetic``."""
    rounding: KVRounding = unrounded
    mix: Mix | None = None
    """The attention of rows that are not one sequence."""
    arithmetic: Arithmetic = NUMPY
    observe_back: ObserveGradient | None = None
    """Told of every linear on the way back."""
    second: int = 0
    """Where the second text of a pair begins; 0: there is none."""
    pasts: Sequence[FloatKV] | None = None
    """`past` of every row its own, where each is the next token of another sequence."""

    def through(self, fixed: Fixed, rows: int, step: Callable[[slice, np.ndarray], np.ndarray]) -> None:
        """Call ``step`` for the rows of each sequence, with its state ``fixed`` before them; it gives that behind them."""
        pasts = [(slice(0, rows), self.past)]
        if self.pasts is not None:
            pasts = [(slice(row, row + 1), past) for row, past in enumerate(self.pasts)]
        for span, past in pasts:
            before = None if past is None else past.fixed.get(fixed.name)
            after = step(span, np.zeros(fixed.shape, np.float32) if before is None else before)
            if past is not None:
                past.fixed[fixed.name] = after


# -- calls on devices ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Op:
    """One call on a device: everything that it reads and writes, and what of the layer it does.

    In one pass: embedding, rms_norm, linear, linear_glu, glu, activate, rope_append, attention.  A linear that a card
    multiplies is cut into quantize (float to INT8, overflow apart), matmul (on the card: INT8 to float), shadow (hot channels
    and overflow) and merge.
    """

    kind: str
    reads: tuple[str, ...]
    """The input comes first.  The last of a linear or a merge may be the buffer that is added to the result."""
    writes: tuple[str, ...]
    of: Runnable
    norm: AnyNorm | None = None
    """The norm that a linear (or quantize) does first."""
    gate: Activation | None = None
    """Of a gate that a linear does behind its product."""

    @property
    def linear(self) -> AnyLinear:
        """What a linear, quantize, matmul, shadow or merge is a part of."""
        (linear,) = self.of.linears
        return linear

    @property
    def adds(self) -> str:
        """The buffer that is added to the result; empty when none is."""
        return self.reads[-1] if self.kind in ("linear", "merge") and self.linear.adds else ""


class Passes(Protocol):
    """What the linears of a place do in one pass."""

    def whole(self, linear: AnyLinear) -> bool:
        """Whether ``linear`` does its gate as well: it is not cut in two for a card."""
        ...

    def gate_in_tiles(self, linear: AnyLinear) -> bool:
        """Whether gate and up channels of ``linear`` meet while they are multiplied; else its product needs a buffer."""
        ...


class Runnable:
    """What a device can be given."""

    writes: str

    @property
    def linears(self) -> tuple[AnyLinear, ...]:
        """Those that it multiplies its input with."""
        return ()

    @property
    def share(self) -> float:
        """Of the weights of its linears, how much a row is multiplied with."""
        return 1.0

    def op_widths(self, op: Op) -> dict[str, int]:
        """Values per row of the buffers that ``op``, a call of this, writes."""
        raise NotImplementedError

    def add_call(self, call: HostCall) -> None:
        """Add ``call.op``, a call of this, to a program of the host."""
        raise NotImplementedError


# -- channels that are made even -------------------------------------------------------------------------------------------

Factors = Mapping[str, np.ndarray]
"""The factors f of a layer by place, float32 above 0, in the places' shapes."""


@dataclass
class Folding:
    """Weights of a layer that are being folded."""

    gains: dict[str, np.ndarray]
    rows: dict[str, np.ndarray]
    """What the rows of linears are multiplied by, by the linears' names."""


@dataclass(frozen=True)
class Place:
    """One place of a layer that can be folded: what makes its channels, and the linears that read them."""

    name: str
    maker: Operation
    readers: tuple[AnyLinear, ...]
    shape: tuple[int, ...]
    """Of its factors."""


@dataclass(frozen=True)
class HeadTurns:
    """Blocks of a head's channels that are turned in every attention of a model; 0: none."""

    keys: int = 0
    """Of queries and keys."""
    values: int = 0


# -- an operation ----------------------------------------------------------------------------------------------------------


class Operation(Runnable):
    """One step of a layer; a frozen dataclass of its fields."""

    KIND: ClassVar[str]
    """As a bundle names it."""
    CHOSEN: ClassVar[tuple[str, ...]] = ()
    """The fields that import chooses; a family's description leaves them at their defaults."""
    HOST_ALONE: ClassVar[str] = ""
    """What messages call it where no card can do it; empty: cards do it as well."""
    BESIDE_CARDS: ClassVar[str] = ""
    """What messages call it where the host does it beside a card that does the rest of its layer; empty: it does not."""
    reads: str

    # what it reads and writes

    @property
    def adds(self) -> str:
        """A buffer that is added to the result, such as the residual stream; empty: none."""
        return ""

    @property
    def read_by(self) -> tuple[str, ...]:
        """The buffers that it reads."""
        return (self.reads, self.adds) if self.adds else (self.reads,)

    @property
    def read_width(self) -> int:
        """Values per token of what it reads, ``adds`` left out."""
        raise NotImplementedError

    @property
    def write_width(self) -> int:
        """Values per token of what it writes."""
        raise NotImplementedError

    # what it keeps

    @property
    def keeps(self) -> tuple[Kept, ...]:
        """What it keeps of a sequence."""
        return ()

    @property
    def attentions(self) -> tuple[AnyAttention, ...]:
        """Those whose keys and values a sequence keeps."""
        return ()

    @property
    def gains(self) -> tuple[Gain, ...]:
        """The vectors of the source that it multiplies with."""
        return ()

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """Its tensors in a bundle, beside those of its linears, in order."""
        return tuple(Vector(gain.name, gain.shape) for gain in self.gains)

    # how it runs

    def forward(self, buffers: Buffers, run: FloatRun) -> np.ndarray:
        """What it writes: float32 [T, `write_width`]."""
        raise NotImplementedError

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        """The same of a whole sequence, and the way back of gradients."""
        raise NotImplementedError

    def host_parts(self, layer: AnyLayer, passes: Passes) -> Iterable[tuple[str, Op]]:
        """Its calls on the host in order, each with the name of its part; none where a linear does it in its own pass."""
        raise NotImplementedError

    def norm_in_readers(self, layer: AnyLayer) -> AnyNorm | None:
        """Itself, where it is a norm that the linears that read it do first, in their own pass."""
        return None

    @property
    def gate(self) -> Activation | None:
        """The activation of a gate that a linear may do behind its product."""
        return None

    def gate_in_writer(self, layer: AnyLayer) -> AnyLinear | None:
        """The linear that does it in its own pass, behind its product."""
        return None

    # what import chooses

    def with_schemes(self, scheme_of: Callable[[str], str | None]) -> Self:
        """It with the weight schemes of its linears, by their names; None leaves a linear as it is."""
        return self

    def with_turns(self, turn_of: Callable[[str], int], heads: HeadTurns) -> Self:
        """It with the turns of its linears, by their names, and of heads."""
        return self

    # what folds

    @property
    def evens_its_input(self) -> bool:
        """Whether the channels that it reads are folded themselves, so that their size says nothing of what they matter."""
        return False

    @property
    def zeroes(self) -> bool:
        """Whether most of what it writes is 0, because it ends in ReLU."""
        return False

    @property
    def pairs_its_input(self) -> bool:
        """Whether it reads a left and a right half together, which are kept in one scheme."""
        return False

    def places(self, layer: AnyLayer) -> Iterator[Place]:
        """The places of ``layer`` that it makes; a place with readers is one of `Layer.multipliers`."""
        return iter(())

    def fold(self, layer: AnyLayer, place: Place, factors: np.ndarray, folding: Folding) -> None:
        """Divide what it makes at ``place`` by ``factors``, in ``folding``."""
        raise NotImplementedError

    def for_columns(self, place: Place, factors: np.ndarray) -> np.ndarray:
        """The ``factors`` of ``place`` for each column of its readers: float32 [K]."""
        return factors
