"""Answers that keep to a grammar: before every choice, the tokens that cannot go on are made impossible.

    check_grammar(grammar, tokenizer)          # early: a `UsageError` says what is wrong with it
    constraint = Constraint(grammar, tokenizer)
    token = sampler(constraint.mask(logits))
    constraint.accept(token)

The grammars are llguidance's (a Lark dialect, JSON schema, regular expressions); JSON is written without free whitespace.
The library is loaded by the first guided request, which also builds its table of the model's tokens.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_llm.config import Grammar
from edge_llm.decoding.closing import FAR, MAX_ITEMS, Alphabet, Place, Ways
from edge_llm.decoding.grammar_source import NAMES, source_of
from edge_llm.decoding.sampler import Choice
from edge_llm.decoding.token_table import TokenTable, Vocabulary
from edge_llm.decoding.trial import Trial, on_deep_stack
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.kernels import sampling

if TYPE_CHECKING:
    from llguidance import LLMatcher

log = logging.getLogger(__name__)

MAX_KEPT_BYTES = 48 << 20
"""Memory of the compiled grammars that are kept per model."""
MAX_KEPT = 256
"""Their number."""
MAX_MASK_SECONDS = 1.0
"""Processor time of one choice's mask; one that takes more ends its request, because all the others wait meanwhile."""
_LIMITS = {"initial_lexer_fuel": 200_000, "max_lexer_states": 50_000, "verbose_errors": False}
"""Steps to build a grammar's expressions (`(a{1000}){1000}` runs out of them in some 80 ms instead of stalling every mask),
and states of its automaton, of 1 to 2 KB each."""
_PARAMS = {"json_schema": "response_format", "json_object": "response_format", "lark": "grammar"}
"""What a request calls a grammar of a kind, where it is not the kind's own name."""
_TRIES = 8
"""Choices of a token behind which no end is near, before the way to the end is taken."""
_said: set[str] = set()  # keywords that the log has already


def check_grammar(grammar: Grammar, tokenizer: Vocabulary, *, param: str | None = None) -> tuple[str, ...]:
    """The keywords of ``grammar``'s JSON schemas that an answer is not held to; the log names each of them once.

    Raises `UsageError` naming the keyword that is not supported or the place of the mistake, if there is one.
    """
    try:
        loose = _guide_of(tokenizer).compiled(grammar).loose
    except UsageError as error:
        raise UsageError(str(error), param=param or _PARAMS.get(grammar.kind, grammar.kind)) from None
    for keyword in loose:
        if keyword not in _said and len(_said) < 100:
            _said.add(keyword)
            log.warning("answers are not held to `%s` of a JSON schema", keyword)
    return loose


class Constraint:
    """Where one answer is in its grammar.  Raises what `check_grammar` raises."""

    def __init__(self, grammar: Grammar, tokenizer: Vocabulary) -> None:
        guide = _guide_of(tokenizer)
        self._compiled = guide.compiled(grammar)
        self._guide = guide
        self._matcher: LLMatcher = self._compiled.matcher.deep_copy()
        self._place: Place | None = None
        self._tokens: list[int] = []
        words = (tokenizer.vocab_size + 1 + 31) // 32  # one token more: see `TokenTable`
        self._bits = np.zeros(4 * words, np.uint8)
        self._masked = np.empty(tokenizer.vocab_size, np.float32)
        self.finished = False
        """The grammar is complete and allows nothing more."""

    def mask(self, logits: np.ndarray, instead: np.ndarray | None = None) -> np.ndarray:
        """``logits`` float32 [V] with -inf for every token that cannot come next; the array is written anew by the next call.

        ``instead`` serves where ``logits`` make all the others impossible: an end that is forbidden for now does not
        outweigh a grammar that allows nothing else.  Raises `UsageError` when the vocabulary cannot write what the grammar
        asks for, or when following it takes too much.
        """
        begun = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        if time.thread_time() - begun > MAX_MASK_SECONDS:
            raise UsageError("the grammar takes too long to follow here; give it fewer ways to read a text", param="grammar")
        if not sampling.mask(logits, self._bits, self._masked):
            raise UsageError("no token of this model can go on with the grammar", param="grammar")
        if instead is not None and np.isneginf(self._masked.max()):
            sampling.mask(instead, self._bits, self._masked)
        return self._masked

    def choose(self, sampler: Callable[[np.ndarray], Choice], masked: np.ndarray, left: int) -> Choice:
        """What ``sampler`` draws from ``masked``, such that the rest of the grammar fits into ``left`` tokens, where it can.

        ``masked`` is what `mask` gave, and changes.
        """
        chosen = sampler(masked)
        if left > FAR or not self._looks(left):
            return chosen
        assert self._place is not None and self._place.plan is not None
        for _ in range(_TRIES):
            if self._place.leaves_room(chosen.token, left - 1):
                return chosen
            masked[chosen.token] = -np.inf
            if np.isneginf(masked.max()):
                break
            chosen = sampler(masked)
        return Choice(self._place.plan[0], chosen.best) if self._place.plan else chosen

    def _looks(self, left: int) -> bool:
        """Whether this answer has to keep its end in sight from now on."""
        if self._place is None:
            self._place = Place(self._guide.ways(self._compiled), self._matcher, self._tokens)
        return self._place.looks(left)

    def accept(self, token: int) -> None:
        """Go on behind ``token``, which the mask allowed."""
        self._matcher.consume_token(token)
        self._tokens.append(token)
        if self._place is not None:
            self._place.accept(token)
        self._check()
        self.finished = self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError(f"the grammar cannot be followed here: {_reason(self._matcher.get_error())}", param="grammar")


@dataclass
class _Compiled:
    matcher: LLMatcher
    """At the beginning; every answer has a copy of its own."""
    bytes: int
    loose: tuple[str, ...]
    source: str
    ways: Ways | None = None
    """To its end, for answers that come near the end of their tokens."""


class _Guide:
    """The grammars of one model: compiled once, copied for every answer."""

    def __init__(self, tokenizer: Vocabulary) -> None:
        import llguidance

        table = self._table = TokenTable(tokenizer)
        size = tokenizer.vocab_size + 1
        control = {token: table.tokens[token].decode("utf-8", "replace") for token in table.special_token_ids}
        self._trial = Trial({"size": size, "control": control, "ends": table.end_ids, "limits": _LIMITS})
        self._library: Any = llguidance
        self._tokens = llguidance.LLTokenizer(table, n_vocab=size, eos_token=table.end_ids)  # type: ignore[arg-type]  # duck-typed
        self._limits = llguidance.LLParserLimits(**_LIMITS)  # type: ignore[arg-type]
        self._compiled: OrderedDict[Grammar, _Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def compiled(self, grammar: Grammar) -> _Compiled:
        """``grammar``, kept or made now; raises `UsageError`."""
        with self._lock:
            if (found := self._compiled.get(grammar)) is not None:
                self._compiled.move_to_end(grammar)
                return found
        made = self._compile(grammar)
        with self._lock:
            self._compiled[grammar] = made
            while len(self._compiled) > MAX_KEPT or self.kept_bytes > MAX_KEPT_BYTES:
                self._compiled.popitem(last=False)
        return made

    def ways(self, compiled: _Compiled) -> Ways:
        """The ways through a grammar of this model."""
        if compiled.ways is None:
            compiled.ways = Ways(self._alphabet, compiled.source)
            compiled.bytes *= 3  # as it may be made by both limits
        return compiled.ways

    @cached_property
    def _alphabet(self) -> Alphabet:
        limits = [self._library.LLParserLimits(**_LIMITS, step_max_items=most) for most in MAX_ITEMS]
        return Alphabet(self._library, self._table, limits)

    @property
    def kept_bytes(self) -> int:
        """Memory of the grammars that are kept."""
        return sum(one.bytes for one in self._compiled.values())

    def _compile(self, grammar: Grammar) -> _Compiled:
        name = NAMES[grammar.kind]
        source, loose = source_of(grammar, self._trial)
        error, size = self._trial(source, name)
        if error:
            raise UsageError(f"{name} cannot be followed: {_reason(error)}")
        matcher = on_deep_stack(lambda: self._library.LLMatcher(self._tokens, source, log_level=0, limits=self._limits))
        if matcher.is_error():
            raise UsageError(f"{name} cannot be followed: {_reason(matcher.get_error())}")
        if matcher.is_stopped():
            raise UsageError(f"{name} allows no text at all")
        return _Compiled(matcher, size + len(source), loose, source)


_guides: weakref.WeakKeyDictionary[Vocabulary, _Guide] = weakref.WeakKeyDictionary()
_guides_lock = threading.Lock()


def _guide_of(tokenizer: Vocabulary) -> _Guide:
    with _guides_lock:
        if tokenizer not in _guides:
            _guides[tokenizer] = _Guide(tokenizer)
        return _guides[tokenizer]


def _reason(error: str) -> str:
    """What llguidance says, in a line and without the state of its parser."""
    lines = error.split("\n<state>")[0].strip().splitlines() or ["it gives no reason"]
    details = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return shown((details or lines)[0], 400)
