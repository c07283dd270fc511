"""Guesses of the next tokens, checked by the model in one step of several rows: speculative decoding.

A drafter gets the tokens so far and the most guesses that make sense; a wrong guess costs a row, never a token: what
comes out is what the model would have chosen without any.  It serves one answer, whose tokens only ever grow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edge_llm.decoding.gain import MOST_GUESSES
from edge_llm.errors import UsageError
from edge_llm.files import shown

NO_MODELS = LOOKUP, NO_DRAFT = "lookup", "none"
"""What `--draft` may say that names no model."""
OWN = "self"
"""The model's own first layers guess, as many as stand behind it and a colon."""

Drafter = Callable[[Sequence[int], int], list[int]]


def own_layers(draft: str) -> int | None:
    """How many of the model's own first layers guess ahead where `--draft` says ``draft``; None where others do, or nobody.

    Raises `UsageError` for what looks like it and names no number of layers.
    """
    word, _, number = draft.partition(":")
    if word.strip().lower() != OWN:
        return None
    if word == OWN and number.isascii() and number.isdigit() and len(number) <= 6 and int(number) > 0:
        return int(number)
    raise UsageError(
        f"--draft `{shown(draft)}` names no number of layers; write self:6 for the first 6, or ./self for a folder of the name",
        param="draft",
    )


def no_draft(tokens: Sequence[int], most: int) -> list[int]:
    """No guess."""
    return []


def prompt_lookup(length: int = 3) -> Drafter:
    """Guess that what followed the last ``length`` tokens when they stood in the text before follows them again.

    Their latest occurrence decides (Saxena, prompt lookup decoding).  Costs one look into a table per token.
    """
    after: dict[tuple[int, ...], int] = {}  # what followed these tokens begins at this place
    seen = length

    def draft(tokens: Sequence[int], most: int) -> list[int]:
        nonlocal seen
        for place in range(seen, len(tokens)):
            after[tuple(tokens[place - length : place])] = place
        seen = max(seen, len(tokens))
        place = after.get(tuple(tokens[-length:]), len(tokens))
        return list(tokens[place : place + most])

    return draft


class DraftLength:
    """How many guesses to ask for: few when the last ones were wrong, twice as many when all were right."""

    def __init__(self) -> None:
        self.guesses = 2

    def learn(self, guessed: int, right: int) -> None:
        """Of ``guessed`` guesses so many were right."""
        if guessed:
            self.guesses = min(MOST_GUESSES, 2 * self.guesses) if right == guessed else max(1, right)
