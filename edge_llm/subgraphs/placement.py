"""What runs where: a layer's description becomes parts, each for one lane.

A `Cut` says how a model is cut into parts, a `Placement` which cut a prompt takes and which a decode step.  Which parts wait
for which follows from what their operations read and write; a read of a buffer that nothing writes is refused here, before
anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from edge_llm.config import ASKED_FOR
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.models.layer import Decoder
from edge_llm.operations.base import HIDDEN, PAGES, Op
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Cut as LinearCut
from edge_llm.operations.linear import Linear, norm_of
from edge_llm.operations.norm import Norm
from edge_llm.operations.questions import AnyLinear
from edge_llm.schemes.joint import gate_in_one_pass, is_multiplied_as_int8
from edge_llm.subgraphs.ops import (
    CARD_LANE,
    DEVICE_BUFFERS,
    HOST_LANE,
    SHADOW_PART,
    Part,
)


@dataclass(frozen=True)
class _HostPasses:
    """What linears do in one pass where those of ``cut`` schemes are cut in two."""

    cut: Callable[[str], bool]

    def whole(self, linear: AnyLinear) -> bool:
        return not self.cut(linear.scheme)

    def gate_in_tiles(self, linear: AnyLinear) -> bool:
        return gate_in_one_pass(linear)


_UNCUT = _HostPasses(lambda scheme: False)
_CUT = _HostPasses(is_multiplied_as_int8)


def place_on_host(layer: Layer) -> tuple[Part, ...]:
    """The CPU does everything, every linear in one pass with the norm before it and the gate behind it."""
    named = (one for operation in layer.operations for one in operation.host_parts(layer, _UNCUT))
    return connect(Part(name, HOST_LANE, (op,)) for name, op in named)


def split(layer: Layer) -> tuple[Part, ...]:
    """A card does the INT8 products, the CPU all that is float: llm.npu (arXiv 2407.05858), §3.3 and §3.4.

    Codes are multiplied once they are expanded.  A part of the CPU ends where a product or another chunk waits for it.
    """
    parts: list[Part] = []
    ops: list[Op] = []
    for operation in layer.operations:
        multiplied = [one for one in layer.linears_of(operation) if one in layer.for_cards and not _CUT.whole(one)]
        cut = {linear: linear.cut(norm_of(layer, linear)) for linear in multiplied}
        for linear, pieces in cut.items():
            parts += [_cpu_part([*ops, pieces.quantize], parts), *_product(linear.name, pieces)]
            ops = [pieces.merge]
        for _, op in () if cut else operation.host_parts(layer, _CUT):
            ops.append(op)
            if PAGES in op.writes:
                parts.append(_cpu_part(ops, parts))
                ops = []
    return connect([*parts, _cpu_part(ops, parts)] if ops else parts)


def on_card(layer: Layer) -> tuple[Part, ...]:
    """A card does the whole layer in one launch: the operations of `split` in the same order."""
    return connect([Part("layer", CARD_LANE, tuple(op for part in split(layer) for op in part.ops))])


def _whole_head(norm: Norm, output: Linear) -> tuple[Op, ...]:
    """The output matrix behind the last norm, in one pass."""
    if not norm.fits_linears:
        return norm.op(), Op("linear", (norm.writes,), (output.writes,), output)
    return (Op("linear", (norm.reads,), (output.writes,), output, norm),)


def _head_on_card(norm: Norm, output: Linear) -> tuple[Op, ...]:
    """The same, cut as `split` cuts a linear."""
    return output.cut(norm) if norm.fits_linears else (norm.op(), *output.cut(None))


@dataclass(frozen=True)
class Cut:
    """How a model is cut into parts."""

    layer: Callable[[Layer], tuple[Part, ...]]
    """The parts of a layer in program order."""
    head: Callable[[Norm, Linear], tuple[Op, ...]]
    """The operations of the last norm and of the output matrix, or of a run of its rows."""
    lane: str
    """Where the embedding, the output matrix and whole steps run, and where keys and values lie."""


HOST = Cut(place_on_host, _whole_head, HOST_LANE)
SPLIT = Cut(split, _whole_head, HOST_LANE)
CARD = Cut(on_card, _head_on_card, CARD_LANE)


@dataclass(frozen=True)
class Placement:
    """What runs where, by phase."""

    name: str
    prefill: Cut
    """Of the chunks of a prompt."""
    decode: Cut
    """Of a step of a few rows."""

    def __post_init__(self) -> None:
        if self.prefill.lane != self.decode.lane:
            raise ValueError(f"the placement `{self.name}` has keys and values in two places")

    @property
    def alone(self) -> bool:
        """Whether a card does everything."""
        return self.decode.lane == CARD_LANE

    @property
    def decodes_on_host(self) -> bool:
        """Whether a card multiplies prompts only, so that the host needs all weights as well."""
        return self.decode is HOST


PLACEMENTS = {
    placement.name: placement
    for placement in (
        Placement("host", HOST, HOST),
        Placement("split", SPLIT, SPLIT),
        Placement("split,host", SPLIT, HOST),
        Placement("card", CARD, CARD),
    )
}
"""By name: the cut of prompts and, behind a comma where it is another one, of decode steps."""
AUTO = "auto"


class Choice(NamedTuple):
    """A placement, and why it is this one."""

    placement: Placement
    reason: str


def unfit_beside_cards(decoder: Decoder | None) -> dict[str, str]:
    """The placements that cannot be for ``decoder`` on any card, each with the reason."""
    if decoder is None or not decoder.beside_cards:
        return {}
    reason = f"the host does {decoder.beside_cards}, and steps as a whole, beside the card"
    return {name: reason for name, one in PLACEMENTS.items() if one.decode is not HOST}


def choose_placement(name: str, able: Sequence[str], who: str, unfit: Mapping[str, str] | None = None) -> Choice:
    """The placement ``name``, one of those that ``who`` is ``able`` to do; `auto` is the first of them.

    ``unfit`` are those of them that cannot be for this model, each with the reason: `auto` passes over them.  Raises
    `UsageError` for any other.
    """
    unfit = unfit or {}
    fit = [one for one in able if one not in unfit]
    if name == AUTO and fit:
        missed = [unfit[one] for one in able[: able.index(fit[0])]]
        return Choice(PLACEMENTS[fit[0]], "; ".join(missed) or f"the default of {who}")
    if name in fit:
        return Choice(PLACEMENTS[name], ASKED_FOR)
    if name == AUTO:
        reason = "; ".join(unfit.values())
    else:
        reason = unfit.get(name, f"{who} does not do it") if name in PLACEMENTS else "it is no placement"
    raise UsageError(f"--placement `{shown(name)}`: {reason}; {who} does: {', '.join(fit) or 'none'}", param="placement")


def place(decoder: Decoder, cut: Cut) -> tuple[tuple[Part, ...], ...]:
    """The parts of every layer under ``cut``, in program order; like layers have the same."""
    placed = {layer.operations: cut.layer(layer) for layer in {replace(one, prefix="") for one in decoder.layers}}
    return tuple(placed[layer.operations] for layer in decoder.layers)


def whole_layers(layer_parts: Sequence[tuple[Part, ...]]) -> tuple[tuple[Part, ...], ...]:
    """One part for each layer, with all operations of its parts, which are on one lane; like layers have the same."""
    whole = {parts: connect([_whole(parts)]) for parts in layer_parts}
    return tuple(whole[parts] for parts in layer_parts)


def _whole(parts: Sequence[Part]) -> Part:
    return Part("layer", parts[0].lane, tuple(op for part in parts for op in part.ops))


def embedding_part(decoder: Decoder, cut: Cut) -> Part:
    """The look-up of the tokens' embeddings."""
    return Part("embedding", cut.lane, (decoder.embedding.op(),))


def final_norm_part(decoder: Decoder, cut: Cut) -> Part:
    """The last norm alone."""
    return Part("final_norm", cut.lane, (decoder.norm.op(),))


def head_part(decoder: Decoder, cut: Cut, rows: int | None = None) -> Part:
    """The output matrix behind the last norm, or a run of ``rows`` of its rows."""
    output = decoder.output
    if rows is not None and rows != output.rows:
        output = replace(output, sources=(replace(output.sources[0], count=rows),))
    return Part("head", cut.lane, cut.head(decoder.norm, output))


def connect(parts: Iterable[Part]) -> tuple[Part, ...]:
    """``parts`` of one layer in program order, each with the parts that it waits for.

    A part waits for the parts that wrote what it reads, and for those that read or wrote what it overwrites.  A part that reads
    `PAGES` also waits for the keys and values of earlier chunks.  Raises ValueError for a buffer that is read before it is
    written, for two parts of one name, and for a buffer of the layer that is called like one of the devices' own.
    """
    connected: list[Part] = []
    for part in parts:
        _check_names(part, connected)
        reads, writes = _reads(part), {name for op in part.ops for name in op.writes}
        for name in reads - {HIDDEN}:
            if not any(name in op.writes for earlier in connected for op in earlier.ops):
                raise ValueError(f"part `{part.name}` reads `{name}`, which no part before it writes")
        after = list(_last(connected, reads, writes))[::-1]
        direct = tuple(one.name for one in after if not any(one.name in _ancestors(other, connected) for other in after))
        connected.append(replace(part, after=direct))
    writers = tuple(part.name for part in connected if any(PAGES in op.writes for op in part.ops))
    return tuple(replace(part, after_earlier=writers) if _attends(part) else part for part in connected)


def _attends(part: Part) -> bool:
    """Whether ``part`` reads keys and values."""
    return any(PAGES in op.reads for op in part.ops)


def _check_names(part: Part, before: Sequence[Part]) -> None:
    if any(one.name == part.name for one in before):
        raise ValueError(f"two parts of a layer are called `{part.name}`")
    taken = {op.of.writes for op in part.ops} & DEVICE_BUFFERS
    if taken:
        raise ValueError(f"part `{part.name}` computes a buffer `{min(taken)}`, which is a name of the devices' own")


def last_parts(parts: Sequence[Part]) -> tuple[str, ...]:
    """The names of the ``parts`` that no other of them waits for: when they have ended, all have."""
    waited_for = {name for part in parts for name in part.after}
    return tuple(part.name for part in parts if part.name not in waited_for)


def _reads(part: Part) -> set[str]:
    """The buffers that ``part`` reads before it writes them."""
    reads: set[str] = set()
    written: set[str] = set()
    for op in part.ops:
        reads |= set(op.reads) - written
        written |= set(op.writes)
    return reads


def _last(parts: Sequence[Part], reads: set[str], writes: set[str]) -> Iterator[Part]:
    """The ``parts``, latest first, that a part must wait for if it reads ``reads`` and writes ``writes``."""
    wanted = set(reads)
    for part in reversed(parts):
        written = {name for op in part.ops for name in op.writes}
        if written & (wanted | writes) or _reads(part) & writes:
            yield part
        wanted -= written


def _ancestors(part: Part, parts: Sequence[Part]) -> set[str]:
    """The names of all parts that ``part`` waits for, directly or not."""
    found: set[str] = set()
    waiting = list(part.after)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += next(one.after for one in parts if one.name == name)
    return found


def _product(name: str, cut: LinearCut) -> tuple[Part, Part]:
    """The INT8 product of the linear ``name`` on the card, and its hot channels and overflow on the CPU beside it."""
    return Part(name, CARD_LANE, (cut.matmul,)), Part(f"{name}{SHADOW_PART}", HOST_LANE, (cut.shadow,))


_NAMED = {"rope_append": "keys", "attention": "attention", "glu": "glu"}


def _cpu_part(ops: Sequence[Op], before: Sequence[Part]) -> Part:
    """A part of ``ops``, named after keys, attention or glu; after its last operation if a part ``before`` has that name."""
    last = f"{_name_of(ops[-1])}.{ops[-1].kind}"
    told = next((_NAMED[op.kind] for op in ops if op.kind in _NAMED), last)
    return Part(last if any(one.name == told for one in before) else told, HOST_LANE, tuple(ops))


def _name_of(op: Op) -> str:
    return op.linear.name if len(op.of.linears) == 1 else op.of.writes
