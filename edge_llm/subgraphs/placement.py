"""What runs where: a layer's description becomes parts, each for one lane.

A placement is a function from a `Layer` to its parts in program order.  Which parts wait for which follows from what their
operations read and write; a read that nobody writes is refused here, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from edge_llm.devices.base import HOT, PAGES, QUANTIZED, RESIDUAL, SHADOW, Op, Part
from edge_llm.models.layer import HIDDEN, Attention, Decoder, Layer, Linear, Norm, Operation, SwiGLU, read_by
from edge_llm.schemes import int8

Placement = Callable[[Layer], tuple[Part, ...]]

HOST_LANE, CARD_LANE = "cpu", "npu"
CARD_SCHEMES = (int8.NAME,)
"""What a card multiplies; linears of other schemes stay with the CPU."""


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
            parts.append(Part(operation.writes, HOST_LANE, (_swiglu(operation),)))
    return connect(parts)


def split(layer: Layer) -> tuple[Part, ...]:
    """A card does the INT8 products, the CPU all that is float: llm.npu (arXiv 2407.05858), §3.3 and §3.4."""
    parts: list[Part] = []
    ops: list[Op] = []
    for operation in layer.operations:
        if isinstance(operation, Linear) and operation.scheme not in CARD_SCHEMES:
            ops.append(_whole_linear(layer, operation))
        elif isinstance(operation, Linear):
            parts += [_cpu_part([*ops, _quantize(layer, operation)]), *_product(operation)]
            ops = [_merge(operation)]
        elif isinstance(operation, Attention):
            parts.append(_cpu_part([*ops, _append(operation)]))
            ops = [_attend(operation)]
        elif isinstance(operation, SwiGLU):
            linear = _linear_of(layer, operation)
            if linear is None or linear.scheme in CARD_SCHEMES:
                ops.append(_swiglu(operation))
        elif not _in_its_linears(layer, operation):
            ops.append(_norm(operation))
    return connect([*parts, _cpu_part(ops)] if ops else parts)


PLACEMENTS: dict[str, Placement] = {"host": place_on_host, "split": split}
"""By the name that a device gives."""


def place(decoder: Decoder, name: str) -> tuple[tuple[Part, ...], ...]:
    """The parts of every layer under the placement ``name``, in program order; like layers have the same."""
    placed = {layer.operations: PLACEMENTS[name](layer) for layer in {replace(one, prefix="") for one in decoder.layers}}
    return tuple(placed[layer.operations] for layer in decoder.layers)


def final_norm_part(decoder: Decoder) -> Part:
    """The last norm alone."""
    return Part("final_norm", HOST_LANE, (_norm(decoder.norm),))


def head_part(decoder: Decoder) -> Part:
    """The output matrix behind the last norm."""
    output = decoder.output
    op = Op("linear", reads=(decoder.norm.reads,), writes=(output.writes,), of=output, norm=decoder.norm)
    return Part("head", HOST_LANE, (op,))


def connect(parts: Iterable[Part]) -> tuple[Part, ...]:
    """``parts`` of one layer in program order, each told what it waits for.

    It waits for who wrote what it reads, and for who still reads or wrote what it writes.  Keys and values in `PAGES` come
    from earlier chunks too.  Raises ValueError for a read of what nobody wrote.
    """
    connected: list[Part] = []
    for part in parts:
        reads, writes = _reads(part), {name for op in part.ops for name in op.writes}
        for name in reads - {HIDDEN}:
            if not any(name in op.writes for earlier in connected for op in earlier.ops):
                raise ValueError(f"part `{part.name}` reads `{name}`, which no part before it writes")
        after = list(_last(connected, reads, writes))
        direct = tuple(one.name for one in after if not any(one.name in _ancestors(other, connected) for other in after))
        earlier_chunks = tuple(one.name for one in connected if any(PAGES in op.writes for op in one.ops))
        connected.append(replace(part, after=direct, after_earlier=earlier_chunks if PAGES in reads else ()))
    return tuple(connected)


def last_parts(parts: Sequence[Part]) -> tuple[str, ...]:
    """The names of the ``parts`` that no other of them waits for: when they have ended, all have."""
    waited_for = {name for part in parts for name in part.after}
    return tuple(part.name for part in parts if part.name not in waited_for)


def _reads(part: Part) -> set[str]:
    """What ``part`` reads of others: not what it wrote itself before."""
    reads: set[str] = set()
    written: set[str] = set()
    for op in part.ops:
        reads |= set(op.reads) - written
        written |= set(op.writes)
    return reads


def _last(parts: Sequence[Part], reads: set[str], writes: set[str]) -> Iterator[Part]:
    """The parts, latest first, that one waits for which reads ``reads`` and overwrites ``writes``."""
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
    """Whether every reader of ``norm`` is a linear that can norm its own rows: what the norm reads has not changed by then."""
    start = layer.operations.index(norm)
    readers = list(layer.readers(norm))
    last = max((layer.operations.index(reader) for reader in readers), default=start)
    between = layer.operations[start + 1 : last]
    return all(isinstance(reader, Linear) for reader in readers) and all(one.writes != norm.reads for one in between)


def _norm_of(layer: Layer, linear: Linear) -> Norm | None:
    """The norm that ``linear`` does itself."""
    writer = layer.writer(linear.reads, linear)
    return writer if isinstance(writer, Norm) and _in_its_linears(layer, writer) else None


def _linear_of(layer: Layer, swiglu: SwiGLU) -> Linear | None:
    """The linear that does ``swiglu`` in its own pass."""
    writer = layer.writer(swiglu.reads, swiglu)
    return writer if isinstance(writer, Linear) and not writer.adds and list(layer.readers(writer)) == [swiglu] else None


def _whole_linear(layer: Layer, linear: Linear) -> Op:
    norm = _norm_of(layer, linear)
    reads = (norm.reads if norm else linear.reads, *read_by(linear)[1:])
    swiglu = next((one for one in layer.readers(linear) if isinstance(one, SwiGLU) and _linear_of(layer, one) == linear), None)
    if swiglu is None:
        return Op("linear", reads, (linear.writes,), linear, norm)
    return Op("linear_swiglu", reads, (swiglu.writes,), linear, norm)


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
    return Op("quantize", (norm.reads if norm else linear.reads,), (QUANTIZED, HOT, RESIDUAL), linear, norm)


def _product(linear: Linear) -> tuple[Part, Part]:
    """The INT8 product of ``linear`` on the card, and its hot channels on the CPU beside it."""
    return (
        Part(linear.name, CARD_LANE, (Op("matmul", (QUANTIZED,), (linear.name,), linear),)),
        Part(f"{linear.name}.shadow", HOST_LANE, (Op("shadow", (HOT,), (SHADOW,), linear),)),
    )


def _merge(linear: Linear) -> Op:
    """Product and shadow of ``linear`` become its result."""
    return Op("merge", (linear.name, SHADOW, RESIDUAL, *read_by(linear)[1:]), (linear.writes,), linear)


_NAMED = {"rope_append": "keys", "attention": "attention", "swiglu": "swiglu"}


def _cpu_part(ops: Sequence[Op]) -> Part:
    """Named after the most telling of its operations."""
    told = next((_NAMED[op.kind] for op in ops if op.kind in _NAMED), None)
    return Part(told or f"{_name_of(ops[-1].of)}.{ops[-1].kind}", HOST_LANE, tuple(ops))


def _name_of(operation: Operation) -> str:
    return operation.name if isinstance(operation, Linear) else operation.writes
