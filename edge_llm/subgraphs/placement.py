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
from edge_llm.models.layer import HIDDEN, Attention, Decoder, Embedding, Layer, Linear, Norm, Operation, SwiGLU, read_by
from edge_llm.schemes.parts import is_multiplied_as_int8, swiglu_in_one_pass
from edge_llm.subgraphs.ops import (
    CARD_LANE,
    DEVICE_BUFFERS,
    HOST_LANE,
    HOT,
    NORMED,
    OVERFLOW,
    PAGES,
    PRODUCT,
    QUANTIZED,
    RESIDUAL,
    SHADOW,
    SHADOW_PART,
    Op,
    Part,
)


def place_on_host(layer: Layer) -> tuple[Part, ...]:
    """The CPU does everything, every linear in one pass with the norm before it and the SwiGLU behind it."""
    parts: list[Part] = []
    for operation in layer.operations:
        if isinstance(operation, Attention):
            parts.append(Part("keys", HOST_LANE, (_append(operation),)))
            parts.append(Part("attention", HOST_LANE, (_attend(operation),)))
        elif isinstance(operation, Linear):
            parts.append(Part(operation.name, HOST_LANE, (_whole_linear(layer, operation),)))
        elif isinstance(operation, Norm) and not _in_its_linears(layer, operation):
            parts.append(Part(operation.gain.name, HOST_LANE, (_norm(operation),)))
        elif isinstance(operation, SwiGLU) and _linear_of(layer, operation) is None:
            parts.append(Part(f"{operation.reads}.{operation.writes}.swiglu", HOST_LANE, (_swiglu(operation),)))
    return connect(parts)


def split(layer: Layer) -> tuple[Part, ...]:
    """A card does the INT8 products, the CPU all that is float: llm.npu (arXiv 2407.05858), §3.3 and §3.4.

    Codes are multiplied once they are expanded.
    """
    parts: list[Part] = []
    ops: list[Op] = []
    for operation in layer.operations:
        if isinstance(operation, Linear) and not is_multiplied_as_int8(operation.scheme):
            ops.append(_whole_linear(layer, operation))
        elif isinstance(operation, Linear):
            parts += [_cpu_part([*ops, _quantize(layer, operation)], parts), *_product(operation)]
            ops = [_merge(operation)]
        elif isinstance(operation, Attention):
            parts.append(_cpu_part([*ops, _append(operation)], parts))
            ops = [_attend(operation)]
        elif isinstance(operation, SwiGLU):
            linear = _linear_of(layer, operation)
            if linear is None or is_multiplied_as_int8(linear.scheme):
                ops.append(_swiglu(operation))
        elif not _in_its_linears(layer, operation):
            ops.append(_norm(operation))
    return connect([*parts, _cpu_part(ops, parts)] if ops else parts)


def on_card(layer: Layer) -> tuple[Part, ...]:
    """A card does the whole layer in one launch: the operations of `split` in the same order."""
    return connect([Part("layer", CARD_LANE, tuple(op for part in split(layer) for op in part.ops))])


def _whole_head(norm: Norm, output: Linear) -> tuple[Op, ...]:
    """The output matrix behind the last norm, in one pass."""
    return (Op("linear", reads=(norm.reads,), writes=(output.writes,), of=output, norm=norm),)


def _head_on_card(norm: Norm, output: Linear) -> tuple[Op, ...]:
    """The same, cut as `split` cuts a linear."""
    quantize = Op("quantize", (norm.reads,), (QUANTIZED, HOT, RESIDUAL, NORMED), output, norm)
    return (quantize, *(op for part in _product(output) for op in part.ops), _merge(output))


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
    return Part("embedding", cut.lane, (Op("embedding", (), (decoder.embedding.writes,), decoder.embedding),))


def final_norm_part(decoder: Decoder, cut: Cut) -> Part:
    """The last norm alone."""
    return Part("final_norm", cut.lane, (_norm(decoder.norm),))


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


def _in_its_linears(layer: Layer, norm: Norm) -> bool:
    """Whether all readers of ``norm`` are linears that can do it themselves: what the norm reads has not changed by then."""
    readers = layer.multipliers(norm)
    return bool(readers) and all(one.writes != norm.reads for one in _between(layer, norm, readers[-1]))


def _between(layer: Layer, first: Operation, last: Operation) -> tuple[Operation, ...]:
    """The operations after ``first`` and before ``last``."""
    return layer.operations[layer.operations.index(first) + 1 : layer.operations.index(last)]


def _norm_of(layer: Layer, linear: Linear) -> Norm | None:
    """The norm that ``linear`` does itself; None if it does none."""
    writer = layer.writer(linear.reads, linear)
    return writer if isinstance(writer, Norm) and _in_its_linears(layer, writer) else None


def _linear_of(layer: Layer, swiglu: SwiGLU) -> Linear | None:
    """The linear that does ``swiglu`` in its own pass; None if others need its product or what the result would overwrite."""
    writer = layer.writer(swiglu.reads, swiglu)
    if not isinstance(writer, Linear) or not layer.gives_only(writer, swiglu):
        return None
    used = {name for one in _between(layer, writer, swiglu) for name in (one.writes, *read_by(one))}
    return None if swiglu.writes in used else writer


def _whole_linear(layer: Layer, linear: Linear) -> Op:
    norm = _norm_of(layer, linear)
    reads = (norm.reads if norm else linear.reads, *read_by(linear)[1:])
    swiglu = next((one for one in layer.readers(linear) if isinstance(one, SwiGLU) and _linear_of(layer, one) == linear), None)
    if swiglu is None:
        return Op("linear", reads, (linear.writes,), linear, norm)
    product = () if swiglu_in_one_pass(linear) else (PRODUCT,)  # gate and up channels meet in one pass, or in a second
    return Op("linear_swiglu", reads, (swiglu.writes, *product), linear, norm)


def _norm(norm: Norm) -> Op:
    return Op("rms_norm", (norm.reads,), (norm.writes,), norm)


def _swiglu(swiglu: SwiGLU) -> Op:
    return Op("swiglu", (swiglu.reads,), (swiglu.writes,), swiglu)


def _append(attention: Attention) -> Op:
    return Op("rope_append", (attention.reads,), (attention.reads, PAGES), attention)


def _attend(attention: Attention) -> Op:
    return Op("attention", (attention.reads, PAGES), (attention.writes,), attention)


def _quantize(layer: Layer, linear: Linear) -> Op:
    """Rows for ``linear``: INT8, hot channels, overflow."""
    norm = _norm_of(layer, linear)
    normed = (NORMED,) if norm else ()
    return Op("quantize", (norm.reads if norm else linear.reads,), (QUANTIZED, HOT, RESIDUAL, *normed), linear, norm)


def _product(linear: Linear) -> tuple[Part, Part]:
    """The INT8 product of ``linear`` on the card, and its hot channels and overflow on the CPU beside it."""
    return (
        Part(linear.name, CARD_LANE, (Op("matmul", (QUANTIZED,), (_product_buffer(linear),), linear),)),
        Part(f"{linear.name}{SHADOW_PART}", HOST_LANE, (Op("shadow", (HOT, RESIDUAL), (SHADOW, OVERFLOW), linear),)),
    )


def _merge(linear: Linear) -> Op:
    """Product and shadow of ``linear`` become its result."""
    beside = SHADOW, OVERFLOW, RESIDUAL
    return Op("merge", (_product_buffer(linear), *beside, *read_by(linear)[1:]), (linear.writes,), linear)


def _product_buffer(linear: Linear) -> str:
    """The buffer of the product: the result's own, or another one if a buffer is added, because that may be the result's."""
    return f"{linear.name}.product" if linear.adds else linear.writes


_NAMED = {"rope_append": "keys", "attention": "attention", "swiglu": "swiglu"}


def _cpu_part(ops: Sequence[Op], before: Sequence[Part]) -> Part:
    """A part of ``ops``, named after keys, attention or swiglu; after its last operation if a part ``before`` has that name."""
    last = f"{_name_of(ops[-1].of)}.{ops[-1].kind}"
    told = next((_NAMED[op.kind] for op in ops if op.kind in _NAMED), last)
    return Part(last if any(one.name == told for one in before) else told, HOST_LANE, tuple(ops))


def _name_of(operation: Operation | Embedding) -> str:
    return operation.name if isinstance(operation, Linear) else operation.writes
