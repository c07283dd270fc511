"""The control tokens that a tokenizer's post-processor puts around a text, or around the two of a pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PairFrame:
    """The control tokens before, between and behind a pair of texts."""

    begin: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    two_kinds: bool = False
    """Whether the tokenizer tells the second text from the first."""
    early: int = 0
    """How many tokens between them belong to the second text already."""


def frame_of(probe: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What stands before and behind the text in the encoding ``probe`` of some text."""
    text = [at for at, special in enumerate(probe.special_tokens_mask) if not special]
    return (tuple(probe.ids[: text[0]]), tuple(probe.ids[text[-1] + 1 :])) if text else ((), ())


def pair_frame_of(probe: Any) -> PairFrame:
    """What stands around the texts in the encoding ``probe`` of some pair."""
    ids, kinds, numbers = probe.ids, probe.type_ids, probe.sequence_ids
    one, other = ([at for at, number in enumerate(numbers) if number == which] for which in (0, 1))
    if not one or not other:
        return PairFrame()
    between = slice(one[-1] + 1, other[0])
    early = sum(kinds[between]) if any(kinds) else 0
    return PairFrame(tuple(ids[: one[0]]), tuple(ids[between]), tuple(ids[other[-1] + 1 :]), any(kinds), early)
