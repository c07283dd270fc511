"""Documents in the order in which they answer a query, by what the model was trained for.

A cross-encoder reads query and document together and gives a score; an embedding model gives vectors, whose cosine it is; any
other model is asked whether the document answers the query, and the score is how sure it is of "yes" (as Qwen3-Reranker:
Zhang et al., 2025, arXiv 2506.05176).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edge_llm.engine.embedding import Taking, unit
from edge_llm.errors import NumericError
from edge_llm.models.head import Head
from edge_llm.models.reading import LAST, Reading
from edge_llm.runner.base import Runner
from edge_llm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edge_llm.text.chat import ChatTemplate

COSINE, PAIR, JUDGE = "cosine", "pair", "judge"
"""Ways to score: by vectors of query and documents, by a head over pairs, by the words yes and no."""
_YES, _NO = "yes", "no"


class RankingModel(Protocol):
    """What is asked of a model; `edge_llm.engine.engine.Engine` says what it means."""

    tokenizer: Tokenizer
    template: ChatTemplate
    head: Head

    @property
    def runner(self) -> Runner[Any]: ...
    @property
    def is_encoder(self) -> bool: ...
    @property
    def reading(self) -> Reading | None: ...


@dataclass(frozen=True)
class RankingPrompts:
    """The prompts whose results order documents by a query."""

    way: str
    """`COSINE`, `PAIR` or `JUDGE`."""
    prompts: Sequence[Sequence[int]]
    """Token ids: of the query and then the documents, or of each pair."""
    second_starts: Sequence[int]
    """Where the second text of each pair begins, 0 where the model does not tell them apart; empty with `COSINE`."""
    sigmoid: bool
    """Whether a score is the sigmoid of what the model gives."""

    @property
    def tokens(self) -> int:
        """That are computed."""
        return sum(map(len, self.prompts))

    def scores(self, found: np.ndarray, *, raw: bool | None = None) -> list[float]:
        """The score of every document, from the model's ``found`` float32 [prompts, size].

        raw: as the model gives them, or all of them from 0 to 1; None: as its author has it.  A cosine stays one.
        Raises `NumericError` where one is no number.
        """
        if not np.isfinite(found).all():
            raise NumericError("a score is not a finite number; the model or the device computed nonsense")
        if self.way == COSINE:
            return [float(score) for score in found[1:] @ found[0]]
        logits = found[:, 0].astype(np.float64)
        is_sigmoid = self.sigmoid if raw is None else not raw
        return [float(score) for score in (1 / (1 + np.exp(-np.clip(logits, -700, 700))) if is_sigmoid else logits)]


def taking_of(model: RankingModel, way: str) -> Taking:
    """What is taken of each prompt of that ``way``."""
    reading, head = model.reading or Reading(), model.head
    if way == JUDGE:
        yes, no = judging(model.tokenizer)
        return Taking(LAST, lambda logits: np.array([logits[yes] - logits[no]], np.float32), logits=True)
    if way == PAIR:
        return Taking(reading.pooling, head, whole=model.is_encoder)
    return Taking(reading.pooling, lambda pooled: unit(head(pooled)), whole=model.is_encoder)


def judging(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens of yes and no; empty where one of them is not one token."""
    words = [tokenizer.encode(word) for word in (_YES, _NO)]
    return tuple(ids[0] for ids in words) if all(len(ids) == 1 for ids in words) else ()
