"""How likely a prompt's own tokens were: the log-probabilities that evaluations sum up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edge_llm.decoding.logprobs import TokenLogprobs, token_logprobs
from edge_llm.kernels import ThreadPool

_LOGIT_BYTES = 32 << 20
"""Memory for the logits of one step of a prompt."""


class PromptScores:
    """Collects the log-probabilities of ``prompt`` with ``top`` alternatives each, token by token as its rows come.

    ``piece`` tells what a token adds to the text where it stands, and goes on behind it.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        top: int,
        piece: Callable[[int], bytes],
        pass_by: Callable[[int], object],
        pool: ThreadPool | None = None,
    ) -> None:
        self._prompt = prompt
        self._top = top
        self._piece, self._pass_by = piece, pass_by
        self._pool = pool
        self._found = [TokenLogprobs(prompt[0], 0.0, (), piece(prompt[0]), is_first=True)]
        pass_by(prompt[0])

    @property
    def found(self) -> tuple[TokenLogprobs, ...]:
        """One for each token of the prompt, in order."""
        return tuple(self._found)

    def most_rows(self, vocab_size: int) -> int:
        """Rows of logits that one step may have."""
        return max(1, _LOGIT_BYTES // (4 * vocab_size))

    def take(self, first: int, logits: np.ndarray) -> None:
        """``logits`` float32 [rows, V] behind the tokens of the prompt from ``first`` on; what is known is passed over."""
        for at, row in enumerate(logits, start=first + 1):
            if at == len(self._found) < len(self._prompt):
                token = self._prompt[at]
                self._found += token_logprobs(row, token, self._top, self._piece, self._pool, ranked=True)
                self._pass_by(token)
