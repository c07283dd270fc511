"""What an engine's answers came to since it was loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Plain numbers, written by whoever runs the steps, one thread at a time; any thread may read them."""

    requests: int = 0
    """That were begun; texts to embed are not among them."""
    prompt_tokens: int = 0
    """Of those requests."""
    cached_tokens: int = 0
    """Prompt tokens whose keys and values were there already."""
    generated_tokens: int = 0
    drafted_tokens: int = 0
    """Tokens that a drafter guessed."""
    accepted_tokens: int = 0
    """Guesses that were right."""
    drafts: int = 0
    """Times that a drafter guessed."""

    def begin(self, prompt_tokens: int, cached_tokens: int) -> None:
        """A request begins."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
