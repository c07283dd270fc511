"""How `show` tells what the layers of a model see and keep: kinds of attention or states, and their pattern."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

from edge_llm.models.layer import Decoder
from edge_llm.operations.layer import Layer


def layers_report(decoder: Decoder) -> dict[str, Any]:
    """Kinds of layers by their numbers, and the kind of every layer; empty where all layers see the whole text alike."""
    facts = [_facts(layer) for layer in decoder.layers]
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


def _facts(layer: Layer) -> dict[str, Any]:
    states = {"state_bytes": kept} if (kept := sum(one.nbytes for one in layer.fixed)) else {}
    if not layer.attentions:
        return states
    return {"window": layer.attention.scores.window, "rotated": layer.attention.rope.dim > 0, **states}


def _words(kind: dict[str, Any]) -> str:
    state = f"state of {kind['state_bytes']} bytes" if "state_bytes" in kind else ""
    if "window" not in kind:
        return state
    seen = f"window {kind['window']}" if kind["window"] else "full"
    seen = seen if kind["rotated"] else f"{seen} without positions"
    return f"{seen} and {state}" if state else seen


def _period(pattern: list[int]) -> int:
    """The smallest number of layers that are repeated to the end."""
    return next(n for n in range(1, len(pattern) + 1) if all(kind == pattern[i % n] for i, kind in enumerate(pattern)))
