"""Texts on their way to vectors, or to scores: of a text's last hidden states the mean, the first or the last, and what is
made of it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_llm.engine.request import Delta, Finish, Timings, Usage
from edge_llm.errors import ContextOverflow, NumericError, OutOfMemory, Unavailable, UsageError
from edge_llm.files import shown
from edge_llm.models.reading import FIRST, LAST, MEAN, Reading
from edge_llm.runner.base import Cancel, Memory, Segment
from edge_llm.text.tokenizer import Tokenizer


def text_tokens(
    tokenizer: Tokenizer, reading: Reading | None, text: str, prompt: str | None, most: int, *, truncate: bool,
    named: str = "input",
) -> list[int]:
    """`edge_llm.engine.engine.Engine.text_tokens` for texts of at most ``most`` tokens; a request calls them ``named``."""
    before = _prompt(reading or Reading(), prompt)
    begin, end = tokenizer.begun if reading is None else tokenizer.frame
    beside = len(begin) + len(end)
    room = max(1, most - beside)
    try:
        ids = tokenizer.encode(before + text, most=None if truncate else room) if text else []
    except ContextOverflow as error:
        raise ContextOverflow(error.prompt_tokens + beside, most, at_least=error.at_least) from None
    if not ids:
        raise UsageError(f"{named} is empty; give at least one character", param=named)
    return [*begin, *ids[:room], *end]


def _prompt(reading: Reading, name: str | None) -> str:
    """The text of the prompt ``name``, None: the default one."""
    name = reading.default_prompt if name is None else name
    found = reading.prompt(name) if name else ""
    if found is None:
        known = ", ".join(f"`{one.name}`" for one in reading.prompts) or "none"
        raise UsageError(f"this model has no prompt `{shown(name)}`; there are: {known}", param="prompt_name")
    return found


def shortened(vectors: np.ndarray, dimensions: int | None) -> np.ndarray:
    """The first ``dimensions`` numbers of each of ``vectors`` [texts, size], made as long as 1 again; None: all of them.

    Models that were trained so (Matryoshka: Kusupati et al., 2022, arXiv 2205.13147) lose little by it.  Raises
    `UsageError` for more numbers than there are.
    """
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    if not 1 <= dimensions <= vectors.shape[1]:
        most = vectors.shape[1]
        raise UsageError(f"dimensions must be from 1 to {most} with this model, got `{dimensions}`", param="dimensions")
    short = vectors[:, :dimensions]
    return np.asarray(short / np.maximum(np.linalg.norm(short, axis=1, keepdims=True), 1e-12), np.float32)


def unit(pooled: np.ndarray) -> np.ndarray:
    """``pooled`` [size] made as long as 1.  Raises `NumericError` where it has no length."""
    length = float(np.linalg.norm(pooled))
    if not math.isfinite(length) or length == 0.0:
        raise NumericError(f"the hidden states have the length `{length}`; the model or the device computed nonsense")
    return np.asarray(pooled / length, np.float32)


@dataclass(frozen=True)
class Taking:
    """What is taken of a text."""

    pooling: str = MEAN
    """Of its states the mean, the first or the last."""
    finish: Callable[[np.ndarray], np.ndarray] = unit
    """From what is pooled, float32 [hidden], to what is wanted; of logits where these are taken."""
    whole: bool = False
    """Whether all of it is computed at once, as encoders need it."""
    logits: bool = False
    """Whether the last token's logits are taken, not states; then texts that begin alike share what is kept of it."""
    adapter: int = 0
    """The number of the adapter that it is computed with; 0: none."""


VECTOR = Taking()
"""The mean of all states, as long as 1."""


class Embedding:
    """The state of one text, from its first token to its vector.

    Its tokens may be computed in any pieces, and after a preemption all over again: states are added up one by one, in
    order, so none of this changes a bit.  ``second`` is where the second text of a pair begins, 0: there is none.
    """

    background = True
    decoding = False
    room = 0

    def __init__(
        self, tokens: Sequence[int], cancelled: Cancel = lambda: False, taking: Taking = VECTOR, second: int = 0
    ) -> None:
        self.known = tokens
        self.sequence: Any = None
        """Keys and values while it runs; None while it waits."""
        self.cancelled = cancelled
        self.finished = False
        self.vector: np.ndarray | None = None
        """float32 [size] once it is finished, of length 1 where it is not a score."""
        self._sum: np.ndarray | float = 0.0
        self._taking, self._second = taking, second

    def offer(self, guesses: Sequence[int]) -> None:
        """Nothing: all of its tokens are known."""

    def start(self, memory: Memory[Any]) -> None:
        """Begin in a sequence of ``memory``: an empty one where states are needed, which pages of earlier texts hold not."""
        self.sequence = memory.open(self.known if self._taking.logits else (), self._taking.adapter)
        self._sum = 0.0

    def segment(self, most: int) -> Segment[Any]:
        """At most ``most`` tokens to compute next, or the whole text, and the states that its vector is made of."""
        taking, start = self._taking, self.sequence.length
        tokens = self.known if taking.whole else self.known[start : start + most]
        ends = start + len(tokens) == len(self.known)
        wanted = int(ends) if taking.pooling == LAST else len(tokens)
        return Segment(self.sequence, tokens, wanted, states=not taking.logits, second=self._second)

    def take(self, states: np.ndarray) -> Iterator[Delta]:
        """Add ``states`` of the tokens that were computed: float32 [tokens, hidden_size]."""
        pooling = self._taking.pooling
        if pooling == LAST:
            self._sum = states[-1].astype(np.float64)
        elif pooling == FIRST:
            self._sum = states[0].astype(np.float64) if self.sequence.length == len(states) else self._sum
        else:
            for state in states:
                self._sum = self._sum + state.astype(np.float64)
        if self.sequence.length == len(self.known):
            count = len(self.known) if pooling == MEAN else 1
            self.vector = self._taking.finish(np.asarray(self._sum / count, np.float32))
            yield self.end("stop")

    def remember(self, memory: Memory[Any]) -> None:
        """What pairs of one query share; else nothing: texts to embed seldom begin alike, and chats want the memory."""
        if self._taking.logits and self.finished:
            memory.remember(self.sequence, self.known)

    def end(self, reason: str) -> Delta:
        """The last and only delta."""
        self.finished = True
        return Delta("", finish=Finish(reason, Usage(len(self.known), 0, 0), Timings(0.0, 0.0, 0.0, 0.0, 0.0)))

    def strand(self, error: OutOfMemory) -> OutOfMemory:
        """Its end when there is not enough memory for it alone."""
        return error


class _Wanted(Future[np.ndarray]):
    """A future that remembers that it was cancelled while its work ran."""

    unwanted = False

    def cancel(self) -> bool:
        self.unwanted = True
        return super().cancel()


class EmbeddingJob:
    """Texts to embed (at least one), and the future of whoever waits for all of them.

    ``cancelled`` asks to stop, and so does cancelling the future.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        cancelled: Cancel = lambda: False,
        taking: Taking = VECTOR,
        second_starts: Sequence[int] = (),
    ) -> None:
        """``second_starts``: where the second text of each pair begins; empty: they are no pairs."""
        self.future = _Wanted()
        """float32 [prompts, size]."""
        self.begun = False
        self._prompts = prompts
        self._cancelled = cancelled
        self._taking, self._second_starts = taking, second_starts or [0] * len(prompts)
        self._given = 0
        self._vectors: dict[int, np.ndarray] = {}

    def next_part(self) -> tuple[Embedding, _Place] | None:
        """The next text to embed, and where its vector goes; None when there is none."""
        if not self.begun:
            self.begun = self.future.set_running_or_notify_cancel()
        if self._unwanted():
            self.stop()
        if self._given == len(self._prompts) or self.future.done():
            return None
        work = Embedding(self._prompts[self._given], self._unwanted, self._taking, self._second_starts[self._given])
        place = _Place(self, self._given, work)
        self._given += 1
        return work, place

    def put(self, place: int, vector: np.ndarray) -> None:
        """The vector of one text."""
        self._vectors[place] = vector
        if len(self._vectors) == len(self._prompts):
            with contextlib.suppress(InvalidStateError):
                self.future.set_result(np.stack([self._vectors[each] for each in range(len(self._prompts))]))

    def stop(self) -> None:
        """End without a result, because it was asked to."""
        self.fail(Unavailable("the service is shutting down; ask again later"))

    def fail(self, error: BaseException) -> None:
        """End with ``error``, if it has not ended yet; the rest of the work is cancelled."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)

    def _unwanted(self) -> bool:
        return self.future.unwanted or self.future.done() or self._cancelled()


class _Place:
    """The mailbox of one text of a job."""

    def __init__(self, job: EmbeddingJob, place: int, work: Embedding) -> None:
        self._job = job
        self._place = place
        self._work = work

    def put(self, delta: Delta) -> None:
        if self._work.vector is None:
            self._job.stop()
        else:
            self._job.put(self._place, self._work.vector)

    def fail(self, error: BaseException) -> None:
        self._job.fail(error)
