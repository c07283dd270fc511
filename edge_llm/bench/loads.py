"""What many answers at once are, and who is asked for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Load:
    """So many answers at once, each of a prompt and tokens to generate; the prompts have nothing in common."""

    streams: int
    prompt: int
    generate: int


@dataclass(frozen=True)
class Outcome:
    """One answer."""

    tokens: int
    first_seconds: float
    """From the request to the first token."""
    more_seconds: float
    """From there to the end."""


class Face(Protocol):
    """What is asked for many answers at once."""

    vocab_size: int

    def bare(self, load: Load) -> float:
        """Tokens per second of the runner alone, after a prompt of ``load``."""
        ...

    def run(self, prompts: Sequence[Sequence[int]], generate: int) -> list[Outcome]:
        """What became of the answers to ``prompts``, which are asked for at once."""
        ...
