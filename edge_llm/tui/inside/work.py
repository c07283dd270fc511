"""Kinds of work on the host: a bar of their shares, and tokens a second beside what this memory allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from textual.strip import Strip

from edge_llm.tui.inside.drawing import KINDS, Palette, Piece, flow, share, words
from edge_llm.tui.units import byte_size

if TYPE_CHECKING:
    from edge_llm.engine.inside import Inside

_NAMES = {
    "products": "products", "attention": "attention", "keys": "keys and values", "norms": "norms", "output": "output",
    "flash": "waiting for flash", "rest": "rest",
}  # fmt: skip
_SHADES = "█▓▒"
"""With the colours, so that neighbours differ where there are few of those."""
_REST = ("░", "quiet")


def draw_step(inside: Inside, rate: float | None, width: int, palette: Palette) -> list[Strip]:
    """Lines of what the tokens of the last answer took; ``rate`` is its tokens a second."""
    spent = {} if inside.step is None else inside.step.seconds
    lines = [*(kinds(spent, width) if spent else []), *_roof(inside, rate, width)]
    return [palette.line(width, pieces) for pieces in lines]


def kinds(seconds: Mapping[str, float], width: int) -> list[list[Piece]]:
    """A bar of the shares of ``seconds``, and their names; every kind that took time has a cell at least."""
    whole = sum(seconds.values())
    styles = {kind: (_SHADES[at % len(_SHADES)], f"kind-{at % KINDS}") for at, kind in enumerate(_NAMES)} | {"rest": _REST}
    shown = sorted(((kind, taken) for kind, taken in seconds.items() if taken > 0), key=lambda pair: -pair[1])
    bar: list[Piece] = []
    left = width
    for place, (kind, taken) in enumerate(shown):
        after = len(shown) - place - 1
        cells = left if not after else max(1, min(left - after, round(width * taken / whole)))
        mark, style = styles.get(kind, _REST)
        bar.append((mark * max(0, min(cells, left)), style))
        left -= cells
    names: list[list[Piece]] = [
        [styles.get(kind, _REST), (f" {_NAMES.get(kind, kind)} ", ""), (share(taken, whole), "quiet")] for kind, taken in shown
    ]
    return [bar, *flow(names, width)]


def _roof(inside: Inside, rate: float | None, width: int) -> list[list[Piece]]:
    """What the bytes of a step say about its speed, where they come from memory."""
    step, allowed = inside.step, inside.memory_tokens
    if step is None or not step.bytes or inside.streamed_bytes:
        return []
    about = f"{byte_size(step.bytes / max(1, step.runs))} a token"
    if allowed is None or inside.memory_rate is None:
        return words(f"{about}; what this memory allows is measured while no answer is under way", width)
    if rate is None:
        said = f"this memory allows {_count(allowed)} tokens/s"
    elif rate <= allowed:
        said = f"{_count(rate)} of {_count(allowed)} tokens/s that this memory allows"
    else:
        said = f"{_count(rate)} tokens/s; main memory alone allows {_count(allowed)}, caches and right guesses help"
    return [*words(said, width, ""), *words(f"{about} at {byte_size(inside.memory_rate)}/s", width)]


def _count(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
