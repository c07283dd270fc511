"""How much is computed in one step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How much a batcher does at a time."""

    step_tokens: int = 1024
    """Tokens of a step that has prompts only."""
    mixed_tokens: int = 256
    """Tokens of a step that answers wait for too."""
    prompt_tokens: int = 16
    """Tokens of prompts that such a step has room for, however many answers wait."""
    background_tokens: int = 16
    """Tokens of background work in a step that others wait for."""
    most_running: int = 64
    """Answers that run at a time, if memory lets them."""
    after_loss: Limits | None = None
    """Those of what takes the place of a lost device; None: these."""
