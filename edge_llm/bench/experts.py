"""What caches of experts of several sizes do with a trace of routing, under every policy and at best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from edge_llm.bench.report import Column, Row, table_of
from edge_llm.errors import UsageError
from edge_llm.weights.policies import OPTIMUM, POLICIES
from edge_llm.weights.replay import GuessRates, Replayed, guess_rates, named_policy, replay, tokens_of
from edge_llm.weights.routing_trace import RoutingTrace

SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4)
"""Of the experts of a layer: the sizes of a curve."""
NAMES = (*POLICIES, OPTIMUM)


def curve(trace: RoutingTrace) -> list[int]:
    """Slots of a layer that show how a cache of each of `SHARES` does."""
    return sorted({max(1, round(trace.shape.experts * share)) for share in SHARES})


def slots_within(trace: RoutingTrace, budget: int) -> int:
    """Slots of a layer that ``budget`` bytes hold.  Raises `UsageError` where they hold none."""
    least = sum(trace.shape.expert_bytes)
    if budget < least:
        raise UsageError(
            f"--memory of {budget} bytes holds no expert of each layer, which takes {least} bytes; give more", param="memory"
        )
    return min(budget // least, trace.shape.experts)


def rows(trace: RoutingTrace, slots: Iterable[int]) -> list[dict[str, Any]]:
    """A row for each number of ``slots`` a layer and each of `NAMES`.  Raises `UsageError` for more slots than experts."""
    tokens, guessed, found = tokens_of(trace), guess_rates(trace), []
    layers = {layer: guess_rates(trace, layer).recall for layer in range(len(trace.shape.expert_bytes))}
    by_layer = {str(layer): recall for layer, recall in layers.items() if recall is not None}
    for quota in slots:
        if not 1 <= quota <= trace.shape.experts:
            raise UsageError(f"--slots `{quota}`: a layer of this trace has {trace.shape.experts} experts", param="slots")
        for name in NAMES:
            done = replay(trace, named_policy(trace, name), quota)
            found.append(_row(trace, quota, name, done, tokens, guessed, by_layer))
    return found


def _row(
    trace: RoutingTrace,
    quota: int,
    name: str,
    found: Replayed,
    tokens: int,
    guessed: GuessRates,
    by_layer: dict[str, float],
) -> dict[str, Any]:
    return {
        "slots": quota,
        "experts": trace.shape.experts,
        "cache_bytes": quota * sum(trace.shape.expert_bytes),
        "policy": name,
        "tokens": tokens,
        "used": found.uses.used,
        "read": found.uses.read,
        "hit_rate": found.uses.hit_rate,
        "hit_rate_single": found.single.hit_rate if found.single.used else None,
        "bytes_per_token": found.read_bytes / tokens if tokens else 0.0,
        "guess_recall": guessed.recall,
        "guess_recall_by_layer": by_layer,
        "guess_named": guessed.named,
        "guess_foretold": guessed.foretold,
        "guess_recalled": guessed.recalled,
        "guess_fetched": found.fetched,
        "guess_right": found.right,
        "guess_vain": found.fetched - found.right,
    }


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table, and what was guessed below it."""
    table = table_of(rows, COLUMNS)
    if not rows or rows[0]["guess_recall"] is None:
        return table
    named, foretold = rows[0]["guess_named"], rows[0]["guess_foretold"]
    recall = rows[0]["guess_recall"]
    by_layer = ", ".join(f"{layer}: {share:.1%}" for layer, share in rows[0]["guess_recall_by_layer"].items())
    said = f"Guesses named {named} experts where steps wanted {foretold}, and {recall:.1%} of these"
    return f"{table}\n\n{said} (by layer, {by_layer})."


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


COLUMNS = (
    Column("slots", lambda row: f"{row['slots']} of {row['experts']}"),
    Column("cache", lambda row: f"{row['cache_bytes'] / 2**20:.1f} MiB"),
    Column("policy", lambda row: row["policy"], right=False),
    Column("hits", lambda row: _share(row["hit_rate"])),
    Column("of single rows", lambda row: _share(row["hit_rate_single"])),
    Column("read a token", lambda row: f"{row['bytes_per_token'] / 2**20:.3f} MiB"),
    Column("guessed reads", lambda row: str(row["guess_fetched"])),
    Column("right", lambda row: str(row["guess_right"])),
    Column("in vain", lambda row: str(row["guess_vain"])),
)
