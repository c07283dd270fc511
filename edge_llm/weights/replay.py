"""Replays a trace of routing through a cache of experts: what a run with these slots counts, without the run."""

from __future__ import annotations

from dataclasses import dataclass

from edge_llm.weights.policies import OPTIMUM, Key, Optimum, Policy, Slots, Uses, policy_of, uses_of
from edge_llm.weights.routing_trace import RoutingTrace


@dataclass(frozen=True)
class Replayed:
    """What a cache does with a trace."""

    uses: Uses
    """Of all steps."""
    single: Uses
    """Of steps of one row: the next token of one answer."""
    read_bytes: int
    """Bytes of experts that were not in memory."""
    fetched: int
    """Guessed experts that were not in memory, so that a guess reads them."""
    right: int
    """Of these, those that the step wanted."""


@dataclass(frozen=True)
class GuessRates:
    """How well experts were guessed, in memory or not."""

    named: int = 0
    """Experts that guesses named."""
    foretold: int = 0
    """Experts that steps wanted for which there was a guess."""
    recalled: int = 0
    """Of these, those that the guess had named."""

    @property
    def recall(self) -> float | None:
        """Share of wanted experts that guesses had named; None where there was no guess."""
        return self.recalled / self.foretold if self.foretold else None


def named_policy(trace: RoutingTrace, name: str) -> Policy:
    """The policy ``name`` of `POLICIES`, or the `OPTIMUM` of ``trace``."""
    if name == OPTIMUM:
        return Optimum(Key(step.layer, expert) for step in trace.steps for expert in step.wanted)
    return policy_of(name, trace.shape.experts)


def replay(trace: RoutingTrace, policy: Policy, quota: int) -> Replayed:
    """What a cache of ``quota`` slots a layer under ``policy`` does with ``trace``."""
    slots, uses, single = Slots(policy, quota), Uses(), Uses()
    read_bytes = fetched = right = 0
    for step in trace.steps:
        new = set(step.guess or ()) - slots.held(step.layer)
        fetched += len(new)
        right += len(new.intersection(step.wanted))
        found = uses_of(slots.take(step.layer, step.wanted))
        uses += found
        single += found if len(step.experts) == 1 else Uses()
        read_bytes += found.read * trace.shape.expert_bytes[step.layer]
    return Replayed(uses, single, read_bytes, fetched, right)


def guess_rates(trace: RoutingTrace, layer: int | None = None) -> GuessRates:
    """How well the guesses in ``trace`` named what steps wanted, of one ``layer`` or of all."""
    steps = [step for step in trace.steps if step.guess and layer in (None, step.layer)]
    named = sum(len(step.guess or ()) for step in steps)
    recalled = sum(len(set(step.guess or ()).intersection(step.wanted)) for step in steps)
    return GuessRates(named, sum(len(step.wanted) for step in steps), recalled)


def tokens_of(trace: RoutingTrace) -> int:
    """Rows that went through the model."""
    rows = [0] * len(trace.shape.expert_bytes)
    for step in trace.steps:
        rows[step.layer] += len(step.experts)
    return max(rows)
