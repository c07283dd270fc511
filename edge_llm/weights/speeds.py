"""The speeds that follow from a plan of memory and the rates of a machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edge_llm.weights.memory_plan import MemoryPlan


@dataclass(frozen=True)
class Work:
    """The work that a model takes per token."""

    operations: int
    """INT8 operations of one token of a prompt (a multiply-add is two)."""
    weight_bytes: int
    """Bytes of weights that one generated token needs."""


@dataclass(frozen=True)
class Rates:
    """The rates of a machine, measured or assumed."""

    disk: float
    """Bytes per second from flash."""
    memory: float
    """Bytes per second from main memory."""
    operations: float
    """INT8 operations per second."""
    copies: float = math.inf
    """Bytes per second from main memory to a card."""


@dataclass(frozen=True)
class Prediction:
    """Speeds when reading and computing overlap wholly, so that the slower of the two decides."""

    decode: float
    """Tokens per second of generation."""
    prefill: float
    """Tokens per second of a prompt that fills the window."""
    free_prompt: int
    """Length of the prompt that takes as long to compute as the streamed weights take to read; longer ones hide the reading."""


def predict(plan: MemoryPlan, work: Work, rates: Rates, window: int, sent: int = 0) -> Prediction:
    """Speeds of ``plan`` on a machine of these ``rates``.

    ``window`` is the tokens that share one sweep, ``sent`` the bytes that it copies to a card.
    """
    read = max(plan.streamed_bytes / rates.disk, sent / rates.copies)
    swept = read if plan.experts is None else plan.experts.sweep_bytes / rates.disk
    weights = work.weight_bytes / rates.memory
    token = work.operations / rates.operations
    return Prediction(
        decode=1 / max(read, weights),
        prefill=window / max(swept, weights, window * token),
        free_prompt=0 if swept <= weights else math.ceil(swept / token),
    )
