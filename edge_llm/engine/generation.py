"""One request on its way: which tokens are computed next, and what their logits become."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from edge_llm.config import REPETITION
from edge_llm.decoding.draft import Drafter, DraftLength, no_draft
from edge_llm.decoding.edits import make_edit
from edge_llm.decoding.guided import Constraint
from edge_llm.decoding.logprobs import token_logprobs
from edge_llm.decoding.loops import LoopGuard
from edge_llm.decoding.sampler import Sampler, make_sampler
from edge_llm.decoding.stop import StopStrings
from edge_llm.engine.counters import Counters
from edge_llm.engine.prompt_scores import PromptScores
from edge_llm.engine.request import Delta, Finish, PromptProgress, Request, Timings, Usage
from edge_llm.engine.thought_budget import ThoughtBudget
from edge_llm.errors import OutOfMemory
from edge_llm.kernels import ThreadPool
from edge_llm.runner.base import Memory, Segment
from edge_llm.text.reasoning import CLOSE, OPEN, Thinking, ThoughtGate
from edge_llm.text.tokenizer import IncrementalDecoder, Tokenizer


class Generation:
    """The state of one request, from its first prompt token to its last delta.

    Its tokens may be computed in any pieces, after a preemption all over again, and with guesses of the drafter behind
    them: every token is chosen from the logits of the tokens before it, with one draw each, so none of this changes one.
    The threads of ``pool`` share the choice from a large vocabulary; their number changes no token either.
    """

    background = False

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        *,
        most_tokens: int,
        load_ms: float = 0.0,
        drafter: Drafter = no_draft,
        sampler: Sampler | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        counters: Counters | None = None,
        pool: ThreadPool | None = None,
    ) -> None:
        params = request.params
        self.request = request
        self.known = list(request.prompt)
        """The prompt and what was generated so far."""
        self.sequence: Any = None
        """Keys and values while it runs; None while it waits."""
        self.cancelled = cancelled
        self.most_tokens = most_tokens if params.max_tokens is None else min(most_tokens, params.max_tokens)
        self.finished = False
        self.progress = PromptProgress(len(request.prompt))
        """Of its prompt; any thread may look."""
        self._counters = counters or Counters()
        self._load_ms = load_ms
        self._drafter = drafter
        self._offered: list[int] = []
        self._guesses: list[int] = []
        self._draft_length = DraftLength()
        self._sampler = sampler or make_sampler(params, pool)
        self._pool = pool
        self._edit = make_edit(params, tokenizer.eos_ids, len(request.prompt), tokenizer.token_bytes)
        self._needs_raw = params.logprobs is not None or params.grammar is not None  # the mask falls back on them
        self._edited = np.empty(tokenizer.vocab_size, np.float32)
        """A copy of the logits for the edit; its memory serves all tokens, because new pages take longer than the copy."""
        self._constraint = None if params.grammar is None else Constraint(params.grammar, tokenizer)
        exact = params.grammar is not None and not params.grammar.parts  # one with parts may begin with free text
        self._decoder = IncrementalDecoder(
            tokenizer, skip_special=params.skip_special_tokens, continues=request.continues or exact
        )
        self._tokenizer = tokenizer
        self._scores = _scores(request, tokenizer, pool)
        self._budget = _budget(request, tokenizer)
        self._gate = ThoughtGate(request.thinking)
        self._thought_marks = frozenset(token for tag in (OPEN, CLOSE) if (token := tokenizer.token_id(tag)) is not None)
        self._stops = StopStrings(params.stop)
        self._enough = None if request.enough is None else request.enough()
        self._loops = LoopGuard() if params.guarded else None
        self._ends = params.stop_tokens | (frozenset() if params.ignore_eos else tokenizer.eos_ids)
        self._cached_tokens: int | None = None
        self._remembered = False
        self._drafted = 0
        self._accepted = 0
        self._started = time.perf_counter()
        self._first_token_at: float | None = None

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return len(self.known) - len(self.request.prompt)

    @property
    def decoding(self) -> bool:
        """Whether all that is known but the last token has been computed: the next step gives a token."""
        return self.sequence is not None and self.sequence.length == len(self.known) - 1 and self.generated > 0

    @property
    def room(self) -> int:
        """Guesses that the next step may check: the token behind the last of them is wanted too."""
        return self.most_tokens - self.generated - 1 if self.decoding else 0

    def offer(self, guesses: Sequence[int]) -> None:
        """``guesses`` go before those of its own drafter in the next step."""
        self._offered = [*guesses]

    def start(self, memory: Memory[Any]) -> None:
        """Run in a sequence of ``memory``, which may know a beginning of the text already."""
        self.sequence = memory.open(self.known if self._scoring is None else (), self.request.adapter)
        self._reached(self.sequence.length)
        if self._cached_tokens is None:
            self._cached_tokens = self.progress.cached = self.sequence.length
            self._counters.begin(len(self.request.prompt), self._cached_tokens)

    def segment(self, most: int) -> Segment[Any]:
        """At most ``most`` tokens to compute next, guesses included, and how many of the last of them need logits."""
        self._guesses = []
        self._reached(self.sequence.length)
        if (scores := self._scoring) is not None:
            first, most = self.sequence.length, min(most, scores.most_rows(self._tokenizer.vocab_size))
            rows = self.request.prompt[first : first + most]
            return Segment(self.sequence, rows, len(rows))
        ahead = self.known[self.sequence.length : self.sequence.length + most]
        if self.sequence.length + len(ahead) < len(self.known):
            return Segment(self.sequence, ahead, 0)
        room = min(most - len(ahead), self.room)
        if room > 0:
            self._guesses = self._offered[:room] or self._drafter(self.known, min(room, self._draft_length.guesses))
        return Segment(self.sequence, [*ahead, *self._guesses], 1 + len(self._guesses))

    def take(self, logits: np.ndarray) -> Iterator[Delta]:
        """Choose a token from each row of ``logits`` as long as the guess behind it was right: float32 [wanted, vocab].

        The rows are this request's own, and may be changed.
        """
        if (scores := self._scoring) is not None:
            scores.take(self.sequence.length - len(logits), logits)
            if self.sequence.length < len(self.request.prompt):
                return
            yield Delta("", prompt_logprobs=scores.found)
            logits = logits[-1:]
            if self.most_tokens == 0:
                yield self.end("length")
                return
        if self._first_token_at is None:
            self._first_token_at = time.perf_counter()
        self._reached(len(self.request.prompt))
        self._drafted += len(self._guesses)
        self._counters.drafted_tokens += len(self._guesses)
        self._counters.drafts += bool(self._guesses)
        right = 0
        for row, guess in zip(logits, [*self._guesses, None], strict=True):
            token, best = self._choose(row)
            self.known.append(token)
            if self._budget is not None:
                self._budget.push(token)
            self._counters.generated_tokens += 1
            yield from self._deltas(token, row, best)
            if self.finished or token != guess:
                break
            right += 1
            self._accepted += 1
            self._counters.accepted_tokens += 1
        self._draft_length.learn(len(self._guesses), right)
        self._guesses = []
        self.sequence.truncate(min(self.sequence.length, len(self.known) - 1))

    def end(self, reason: str, token: int | None = None) -> Delta:
        """The last delta: what was held back, and how it ended: by ``token``, where it is one that ends answers."""
        self.finished = True
        tail = "" if self._stops.stopped else self._tail()
        return Delta(tail, finish=Finish(reason, self._usage(), self._timings(), self._stops.found, token))

    def remember(self, memory: Memory[Any]) -> None:
        """Let ``memory`` remember what others may begin with: the prompt once it is through, and all of it at the end."""
        if self.finished or (self.generated and not self._remembered):
            self._remembered = True
            memory.remember(self.sequence, self.known)

    def strand(self, error: OutOfMemory) -> Delta | OutOfMemory:
        """Its end when there is not enough memory for it alone: an answer that has begun is as long as it can be."""
        return self.end("length") if self.generated else error

    @property
    def _scoring(self) -> PromptScores | None:
        """Where the prompt's rows go, until all of them have come: nothing is told twice."""
        return None if self.generated else self._scores

    def _reached(self, length: int) -> None:
        """Keys and values of ``length`` tokens are there."""
        self.progress.done = min(length, self.progress.total)

    def _choose(self, logits: np.ndarray) -> tuple[int, float | None]:
        """The next token, and the greatest of ``logits`` where they are what it was chosen from."""
        adjusted = logits
        due = None if self._budget is None else self._budget.due
        if self._edit is not None:
            if self._needs_raw:
                adjusted = self._edited
                np.copyto(adjusted, logits)
            self._edit(self.known, adjusted)
        if self._constraint is not None:
            masked = self._constraint.mask(adjusted, logits)
            if due is not None and masked[due] > -np.inf:
                return due, None
            return self._constraint.choose(self._sampler, masked, self.most_tokens - self.generated).token, None
        if due is not None:
            return due, None
        token, best = self._sampler(adjusted)
        return token, best if adjusted is logits else None

    def _deltas(self, token: int, logits: np.ndarray, best: float | None) -> Iterator[Delta]:
        if token in self._ends:
            yield self.end("stop", token)
            return
        if self._constraint is not None:
            self._constraint.accept(token)
        params, piece = self.request.params, self._decoder.piece
        logprobs = token_logprobs(logits, token, params.logprobs, piece, self._pool, best, also=params.logprob_tokens)
        text, ended = self._text(token)
        yield Delta(text, (token,), logprobs=logprobs)
        if ended or (self._constraint is not None and self._constraint.finished):
            yield self.end("stop")
        elif self.generated == self.most_tokens:
            yield self.end("length")
        elif self._loops is not None and self._loops.push(token) and self.generated >= self.request.params.min_tokens:
            yield self.end(REPETITION)

    def _text(self, token: int) -> tuple[str, bool]:
        """What ``token`` adds to the answer's text, and whether that ends it."""
        special = self._tokenizer.is_special(token)
        if special and not self._is_text(token):  # but a stop string may spell it
            hidden = "" if self._gate.inside else self._stops.push(self._tokenizer.token_text(token), hidden=True)
            return self._decoder.push(token) + hidden, self._stops.stopped
        thought, said = self._gate.push(self._decoder.push(token, shown=special))
        text = self._stops.push(said)
        enough = self._enough is not None and self._enough.push(text)
        return thought + text, enough or self._stops.stopped

    def _is_text(self, token: int) -> bool:
        """Whether the text has control token ``token``: all are wanted, or somebody looks for it there."""
        marks = () if self._gate.over else self._thought_marks
        return not self.request.params.skip_special_tokens or token in marks or token in self.request.marks

    def _tail(self) -> str:
        """What was held back, when no stop string ended the answer."""
        thought, said = self._gate.push(self._decoder.finish())
        held_thought, held = self._gate.finish()
        return thought + held_thought + self._stops.push(said + held) + self._stops.finish()

    def _usage(self) -> Usage:
        return Usage(len(self.request.prompt), self.generated, self._cached_tokens or 0)

    def _timings(self) -> Timings:
        ended = time.perf_counter()
        first_token_at = ended if self._first_token_at is None else self._first_token_at
        computed = len(self.request.prompt) - (self._cached_tokens or 0)
        return Timings.of(
            load_ms=self._load_ms,
            prompt_seconds=first_token_at - self._started,
            computed_tokens=computed,
            predicted_seconds=ended - first_token_at,
            steps=max(0, self.generated - 1),  # the first token comes with the prompt
            drafted_tokens=self._drafted,
            accepted_tokens=self._accepted,
        )


def _scores(request: Request, tokenizer: Tokenizer, pool: ThreadPool | None) -> PromptScores | None:
    """What collects the log-probabilities of the request's prompt, if they are wanted."""
    if request.params.prompt_logprobs is None:
        return None
    decoder = IncrementalDecoder(tokenizer)
    return PromptScores(request.prompt, request.params.prompt_logprobs, decoder.piece, decoder.push, pool)


def _budget(request: Request, tokenizer: Tokenizer) -> ThoughtBudget | None:
    """What ends the request's thought, if it may have one and is to end it."""
    most = request.params.think_tokens
    return None if most is None or request.thinking is Thinking.RAW else ThoughtBudget(most, tokenizer, request.thinking)
