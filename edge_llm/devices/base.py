"""The contract between a runner and a device: what a device is given, what it must do, and what the runner knows of it.

A device owns every array: weights, activations, keys and values, the output matrix.  The runner knows rows of chunks and
numbers of pages; what a row is made of stays where the device has it, until logits or states are asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from edge_llm.devices.kv_pages import LayerPages
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.formats.layout import TensorRange
from edge_llm.kernels import LowRank, ThreadPool
from edge_llm.kv.sequence import KVPages
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import RopeTables
from edge_llm.operations.base import Op
from edge_llm.operations.keeps import Span
from edge_llm.schemes.base import BlockWeights
from edge_llm.subgraphs.ops import Part, Subgraph
from edge_llm.subgraphs.placement import AUTO, Placement
from edge_llm.subgraphs.shelf import Sharing
from edge_llm.weights.adapters import Adapters, Scratch
from edge_llm.weights.base import Turn, Weights


@dataclass(frozen=True)
class Rows:
    """What the rows of a chunk are: ``count`` of them, in activations of ``static`` rows, of which the rest hold anything.

    tokens int64 [count]; sequence int32 [count] (row of ``page_table``); position int32 [count];
    slots int64 [count] (where keys and values are written); page_table int32 [sequences, pages]; kinds int32 [count] (0 in a
    first text, 1 in the second of a pair), None where there are no pairs; spans: all rows in order, for what is kept in a fixed
    shape.
    adapters int32 [count]: numbers of `edge_llm.weights.adapters`, 0 for none; None: no row has one.
    """

    static: int
    tokens: np.ndarray
    sequence: np.ndarray
    position: np.ndarray
    slots: np.ndarray
    page_table: np.ndarray
    kinds: np.ndarray | None = None
    spans: Sequence[Span] = ()
    adapters: np.ndarray | None = None

    @property
    def count(self) -> int:
        return len(self.tokens)


def static_length(tokens: int, lengths: Sequence[int]) -> int:
    """The shortest of the ascending ``lengths`` that holds ``tokens`` tokens."""
    return lengths[bisect_left(lengths, tokens)]


@dataclass(frozen=True)
class Chunk:
    """Rows that go through the model together, and which of them are asked for what."""

    index: int
    """Its number in the window.  Each chunk of a window has activations of its own."""
    rows: Rows
    logits: np.ndarray
    """int64, ascending: the rows whose logits are wanted."""
    states: np.ndarray
    """int64, ascending: the rows whose normed last hidden states are wanted."""


Buffers = MutableMapping[str, Any]
"""Named activations of one chunk: float32 [rows, width], for a card INT8 too; `residual` is what the last quantize cut off."""

Completion = Callable[[], None]
"""Work that a device goes on with: a call returns when it has ended, or raises what went wrong; so does a second call."""

LATE = None
"""Stands for an array that bound operations write to, and that every run brings with it."""

RunSubgraph = Callable[[BlockWeights, Buffers, Rows, LayerPages | None], Completion | None]
"""A built subgraph: weights of the layer, buffers and rows of the chunk, pages of the layer (None outside of layers).

It has ended when it returns, unless it returns a completion.
"""


@dataclass(frozen=True)
class BoundArrays:
    """What operations work in: weights of a block, buffers of a chunk, pages of a layer."""

    weights: BlockWeights
    buffers: Buffers
    pages: LayerPages | None
    adapted: AdaptedLinears | None = None
    """What adapters add to linears of the block, where rows have some."""


@dataclass(frozen=True)
class AdaptedLinears:
    """What adapters add to linears, by the linears' names, and memory for what comes between."""

    low_ranks: Mapping[str, LowRank]
    scratch: Scratch


@dataclass(frozen=True)
class BoundParts:
    """Parts of a block, and the arrays that they work in.  Of all that are fused, one linear may write to `LATE`."""

    parts: Sequence[Part]
    arrays: BoundArrays
    turn: Turn | None = None
    """Of a streamed layer: its weights are awaited before its operations, and make room for others behind them."""


Stopped = Callable[[int], None]
"""Called with the layer before which a run stopped: its weights did not come whole, or the run may be cancelled by now.

Returns when the weights are there, or raises why the run ends.
"""
RunRow = Callable[[int, int, np.ndarray], np.ndarray]
"""Runs what is bound for a token at a position of a sequence with pages int32 [pages]; gives what is bound to `LATE`."""


class Fused(Protocol):
    """Parts that follow each other, bound to arrays, as one call."""

    def __call__(self, rows: Rows, late: np.ndarray | None, stopped: Stopped | None) -> None:
        """Run them for the rows of a chunk; what is bound to `LATE` is written to ``late``."""
        ...

    @property
    def run_row(self) -> RunRow | None:
        """The same for one row; None where they await weights or need Python in between."""
        ...


Fuse = Callable[[Sequence[BoundParts]], Fused]
"""Makes one call of parts; their arrays must stay where they are."""


@dataclass(frozen=True)
class WatchedOp:
    """An operation that ran: of which part, and with what."""

    part: str
    op: Op
    weights: BlockWeights
    pages: LayerPages | None
    calls: slice
    """Its own among the times of the run."""


Watch = Callable[[Sequence[WatchedOp], np.ndarray, np.ndarray], None]
"""Told of every run that ended: its operations, the positions of its rows int32 [rows], the seconds of its calls float64."""


BESIDE_HOST = ("card", "copy in", "copy out")
"""Kinds of watched operations that a card does while the host does others: computing, and copies either way."""


@dataclass
class Watching:
    """Who is told of the runs from now on; whoever runs the model changes it between two of them."""

    watch: Watch | None = None


Task = Callable[[], Completion | None]
"""What a lane does in one go; with a completion it has only sent the work to the device, which does such tasks in order."""


class DeviceModel(Protocol):
    """One model on a device."""

    decoder: Decoder
    layer_parts: Sequence[Sequence[Part]]
    """What every layer of a prompt is cut into, in program order; like layers have the same."""
    lane: str
    """Where embeddings, whole steps and the output matrix run."""
    take_turns: bool
    """Whether the chunks of a window go through each layer one after the other, because one lane does everything."""
    weights: Weights
    """Blocks are requested and awaited here; what they hold is the device's."""
    kv: KVPages
    """Pages of keys and values by their numbers, of as many tokens as the device likes."""
    step_row: RunRow | None
    """A step of one token of one sequence as one call, with its logits; None where a chunk must be walked."""
    watching: Watching | None
    """Where a watch may come and go while the model is open; None where watching it would change how it is run."""

    @property
    def clipped(self) -> int:
        """Inputs of linears that were cut off in prompts so far, where what INT8 does not hold is not added back."""
        ...

    @property
    def sharing(self) -> Sharing:
        """What sharing subgraphs between chunks and layers saved so far."""
        ...

    def ahead(self) -> Sequence[Callable[[], None]]:
        """What can be done before the first step, so that none waits for it; nothing else runs meanwhile."""
        ...

    def stretches(self, chunks: Sequence[Chunk]) -> Sequence[range]:
        """All layers in order, in runs that one task each carries any of a prompt's ``chunks`` through.

        Layers that share a run have a single part each and are resident, and their work is soon done.
        """
        ...

    def part(self, layers: range, part: Part, chunk: Chunk) -> Task:
        """The task of one of `layer_parts`, in all ``layers``, which are one of `stretches`."""
        ...

    def walk(self, blocks: range, chunk: Chunk) -> Callable[[], None]:
        """The task that carries ``chunk`` through ``blocks``: 0 is the embedding, i + 1 is layer i, the last is the head.

        All of its work has ended when it returns.
        """
        ...

    def step_streamed(self, chunk: Chunk, look: Callable[[], None]) -> bool:
        """Carry ``chunk`` through all blocks and read the streamed layers on the way.

        False, with nothing computed, where the caller must do it with `walk`.  ``look`` is called now and then; it may raise to
        give the step up.
        """
        ...

    def outputs(self, chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
        """Logits float32 [len(chunk.logits), vocab] and states float32 [len(chunk.states), hidden_size].

        Asked for once, after the head.
        """
        ...


@runtime_checkable
class Adaptable(Protocol):
    """A model on a device whose rows may have adapters."""

    def adapt(self, adapters: Adapters) -> None:
        """From now on rows may have the numbers of ``adapters``; before the first step."""
        ...


@dataclass(frozen=True)
class Room:
    """What a model is opened for."""

    tokens: int
    """Tokens whose keys and values are held."""
    positions: int
    """Tokens of the longest sequence."""
    lengths: Sequence[int]
    """Static lengths of chunks, ascending."""
    window: int
    """Chunks that are computed together."""
    states: int = 0
    """States that are kept in a fixed shape, where layers keep one; fewer than the least count as that."""


class Device(Protocol):
    """Where models run.  It is found by `edge_llm.devices.open_device`; its threads begin when it opens a model."""

    name: str
    numerics: str
    """Names how its numbers come about, such as chip and route: keys of like numerics and placement are the same bits."""
    placement: Placement
    """What runs where."""
    keys: str
    """How keys and values are kept: int8 or float16."""
    activations: tuple[str, ...]
    """The scales of activations that it can do, of `edge_llm.config.ACTIVATIONS`, the preferred first."""
    host_embeds: bool
    """Whether the host looks embeddings up, also of a model that lies on a card as a whole."""

    @property
    def placement_reason(self) -> str:
        """Why it is this one, in a few words; what is learnt later, such as what a card refuses, is among them."""
        ...

    @property
    def pool(self) -> ThreadPool:
        """The threads of the host, which wait between two steps and may then share the work on logits."""
        ...

    @property
    def overflow(self) -> int | None:
        """Activation values that overflowed INT8 so far and were added back; None where nobody counts.  Any thread may ask."""
        ...

    def open(
        self, decoder: Decoder, weights: Weights, tables: RopeTables, room: Room, watch: Watch | None = None
    ) -> DeviceModel:
        """The model with these ``weights`` here; ``tables`` reach over its context.

        Raises `DeviceError` when a card has no room for it.
        """
        ...

    def streamed(self, decoder: Decoder, tensors: Mapping[str, TensorRange], room: Room) -> tuple[int, ...]:
        """The layers that are streamed to the device's own memory because they do not fit there; () on the host.

        ``tensors`` are those of the bundle of ``decoder``.  Raises `UsageError` when even two layers at a time do not fit.
        """
        ...

    def page_bytes(self, decoder: Decoder) -> int:
        """Bytes of a host page of keys and values of ``decoder`` here."""
        ...

    def kv_bytes(self, decoder: Decoder, tokens: int) -> int:
        """Bytes of memory that keys and values of ``tokens`` tokens take here, all told; never fewer for more tokens."""
        ...

    def build(self, subgraph: Subgraph, tables: RopeTables) -> RunSubgraph:
        """Build a subgraph once; ``tables`` reach over the whole context."""
        ...


class CardNeeds(Protocol):
    """What a model takes of a card's memory."""

    @property
    def layers(self) -> Sequence[int]:
        """Bytes of each layer."""
        ...

    @property
    def pinned(self) -> Sequence[int] | None:
        """Bytes of pinned main memory that each layer takes on its way to the card; None where it takes none."""
        ...

    def held(self, streamed: Sequence[int]) -> int:
        """Bytes in all when these layers are streamed."""
        ...

    def weights(self, streamed: Sequence[int]) -> int:
        """Bytes of weights that lie on the card for good when these layers are streamed."""
        ...


@runtime_checkable
class CardKeeper(Protocol):
    """A device with memory of its own."""

    def needs(self, decoder: Decoder, tensors: Mapping[str, TensorRange], room: Room) -> CardNeeds:
        """What the model takes of the card's memory."""
        ...

    def most(self, weights: int) -> int:
        """Bytes of the card's memory that a model may take, ``weights`` bytes of weights among them."""
        ...


INT8_KEYS = "int8"


def no_device(name: str, hint: str) -> UsageError:
    """What refuses the ``name`` of a device that there is nowhere, and says with ``hint`` which there are."""
    return UsageError(f"no device `{shown(name)}`; {hint}", param="device")


def check_int8_keys(asked: str, who: str) -> None:
    """Raises `UsageError` if another form of keys was asked of ``who``, which has this one."""
    if asked not in (AUTO, INT8_KEYS):
        raise UsageError(f"--kv `{shown(asked)}`: {who} keeps keys and values as {INT8_KEYS}", param="keys")


@dataclass(frozen=True)
class DeviceOptions:
    """How a device is opened."""

    threads: int
    """CPU threads, those that stand for a chip included."""
    shadow: bool = True
    """Add the shadow outliers."""
    placement: str = AUTO
    """A name of `PLACEMENTS`, or auto: the first that the device can do."""
    keys: str = AUTO
    """How keys and values are kept: int8, float16, or auto."""
    card_memory: int | None = None
    """Most bytes of the card's own memory; None: what the card has."""
    decoder: Decoder | None = None
    """The model that will be opened, where it is known: a placement may not do every shape."""
