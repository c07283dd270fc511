"""Speeds as sparklines, counters as sentences, memory as a bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.strip import Strip

from edge_llm.tui.inside.drawing import PARTS, Palette, Piece, flow, share, spark, words
from edge_llm.tui.units import byte_size, measured_time

if TYPE_CHECKING:
    from edge_llm.engine.inside import Inside

NO_ANSWER = "No answer yet."


def draw_speeds(
    rates: Sequence[float], answers: Sequence[float], firsts: Sequence[float], width: int, palette: Palette
) -> list[Strip]:
    """Lines of the speed now, of the last answers, and of their first tokens (seconds)."""
    rows = [
        ("now", rates, "used", lambda value: f"{value:.1f} tokens/s"),
        ("answers", answers, "used", lambda value: f"{value:.1f} tokens/s"),
        ("first token", firsts, "cached", measured_time),
    ]
    lines: list[list[Piece]] = []
    for name, values, style, say in rows:
        if values:
            last = say(values[-1])
            room = max(0, width - 12 - len(last) - 1)
            lines.append([(f"{name:<12}", "quiet"), (f"{last} ", ""), (spark(values, room), style)])
    return [palette.line(width, pieces) for pieces in lines or words(NO_ANSWER, width)]


def draw_counters(inside: Inside, width: int, palette: Palette) -> list[Strip]:
    """Lines of what was counted since the model was loaded."""
    return [palette.line(width, pieces) for pieces in flow(_counted(inside), width)]


def _counted(inside: Inside) -> list[list[Piece]]:
    counters, facts = inside.counters, inside.facts
    phrases = [
        _said("answers", f"{counters.requests:,}"),
        _said("running", f"{inside.running:,}", f", {inside.waiting:,} waiting"),
        _said("prompts", f"{counters.prompt_tokens:,} tokens"),
        _said("cached", share(counters.cached_tokens, counters.prompt_tokens), " of them"),
        _said("generated", f"{counters.generated_tokens:,} tokens"),
        _said("accepted", share(counters.accepted_tokens, counters.drafted_tokens), f" of {counters.drafted_tokens:,} drafted"),
        _said("preempted", f"{inside.preemptions:,}"),
        _said("shadow", f"{facts.shadowed_linears} of {facts.linears} linears"),
        _said("outlier channels", f"{facts.hot_channels:,}"),
    ]
    if inside.overflow is not None:
        phrases.append(_said("overflow", f"{inside.overflow:,}", " added back"))
    if inside.clipped:
        phrases.append(_said("cut off by the card", f"{inside.clipped:,}"))
    if inside.streamed_bytes:
        phrases.append(_said("from flash", byte_size(inside.streamed_bytes), " a token"))
        phrases.append(_said("read", byte_size(inside.read_bytes)))
    if (experts := inside.experts) is not None and experts.used:
        hits = share(experts.used - experts.read, experts.used)
        phrases.append(_said(f"{experts.NAME}s in memory", hits, f" of {experts.used:,} used"))
        if experts.guessed:
            phrases.append(_said("guessed", share(*experts.guessed), " of them, for the next layer"))
    if inside.prefix_disk:
        disk = inside.prefix_disk
        phrases.append(_said("pages on disk", f"{disk.get('read', 0):,} read, {disk.get('written', 0):,} written"))
    return phrases


def _said(name: str, value: str, more: str = "") -> list[Piece]:
    return [(f"{name} ", "quiet"), (value, ""), (more, "quiet")]


def draw_memory(inside: Inside, width: int, palette: Palette) -> list[Strip]:
    """A bar of the machine's memory, and what each of its parts is."""
    memory = inside.memory
    total = max(1, memory.total)
    weights, keys = inside.weight_bytes or 0, inside.kv_bytes or 0
    rest = max(0, memory.resident - weights - keys)
    others = max(0, total - memory.available - max(memory.resident, weights + keys))
    parts = dict(zip(PARTS, (weights, keys, rest, others), strict=True))
    names = {"weights": "weights", "keys": "keys and values", "rest": "rest of this process", "others": "others"}
    legend = [[("■", part), (f" {names[part]} ", ""), (byte_size(count), "quiet")] for part, count in parts.items()]
    legend.append([("free ", ""), (f"{byte_size(memory.available)} of {byte_size(memory.total)}", "quiet")])
    if inside.facts.plan:
        legend.append(_said("planned", byte_size(inside.facts.plan["memory"]["main"])))
    if inside.facts.budget is not None:
        legend.append(_said("budget of weights", byte_size(inside.facts.budget)))
    lines: list[list[Piece]] = [_bar(parts, total, width), *flow(legend, width)]
    return [palette.line(width, pieces) for pieces in lines]


def _bar(parts: dict[str, int], total: int, width: int) -> list[Piece]:
    """Every part that is there has a cell at least."""
    pieces: list[Piece] = []
    left = width
    for part, count in parts.items():
        cells = min(left, max(1, round(width * count / total))) if count else 0
        pieces.append(("█" * cells, part))
        left -= cells
    return [*pieces, ("░" * left, "quiet")]
