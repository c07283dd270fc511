"""How `show` tells what the layers of a model see: kinds of attention and their pattern."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

from edge_llm.models.layer import Decoder
from edge_llm.operations.attention import Attention


def layers_report(decoder: Decoder) -> dict[str, Any]:
    """Kinds of attention by their numbers, and the kind of every layer; empty where all layers see the whole text alike."""
    facts = [_facts(attention) for attention in decoder.attentions]
    kinds = [dict(kind) for kind in dict.fromkeys(tuple(one.items()) for one in facts)]
    if len(kinds) == 1 and kinds == [{"window": 0, "rotated": True}]:
        return {}
    pattern = [kinds.index(one) for one in facts]
    layers = Counter(pattern)
    return {"kinds": [{"layers": layers[number], **kind} for number, kind in enumerate(kinds)], "pattern": pattern}


def layers_lines(report: dict[str, Any]) -> list[str]:
    """`layers_report` for people: ``26 layers: 22 x window 512, 4 x full (5 and 1 in turn)``."""
    kinds, pattern = report["kinds"], report["pattern"]
    told = ", ".join(f"{kind['layers']} x {_words(kind)}" for kind in kinds)
    period = _period(pattern)
    runs = [str(len([*run])) for _, run in groupby(pattern[:period])]
    turn = f" ({' and '.join(runs)} in turn)" if 1 < period < len(pattern) else ""
    return [f"{len(pattern)} layers: {told}{turn}"]


def _facts(attention: Attention) -> dict[str, Any]:
    return {"window": attention.scores.window, "rotated": attention.rope.dim > 0}


def _words(kind: dict[str, Any]) -> str:
    seen = f"window {kind['window']}" if kind["window"] else "full"
    return seen if kind["rotated"] else f"{seen} without positions"


def _period(pattern: list[int]) -> int:
    """The smallest number of layers that are repeated to the end."""
    return next(n for n in range(1, len(pattern) + 1) if all(kind == pattern[i % n] for i, kind in enumerate(pattern)))
