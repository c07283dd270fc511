"""The shortest way to the end of a grammar, for answers that come to the end of their tokens.

    ways = Ways(Alphabet(library, table, limits), source)      # of one grammar
    place = Place(ways, matcher, tokens)             # of one answer, which `matcher` and `tokens` follow
    place.leaves_room(token, left)                   # whether behind `token` the rest fits into `left` tokens

The library says only what may come next, so the end is looked for byte by byte: what closes comes first, and of what leads
nowhere shorter, such as the letters of a free string, one stands for all.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_llm.decoding.token_table import ByteTable, TokenTable
from edge_llm.decoding.trial import on_deep_stack

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_NODES = 300
"""Places that one search looks at for a way of some length."""
ANSWER_STEPS = 50_000
"""Steps of the grammar that all searches of one answer take, 6 to 10 us each; behind them its end is left to chance.
They are counted and not timed, so that a busy machine gives the same answer."""
MAX_ITEMS = (150, 500)
"""Readings of a text that one step may follow; usual grammars have tens.  The wide limit is for the rest, such as a schema of
300 optional properties, which has 300."""
_WIDE = 20
"""Steps that one by the wide limit counts for: where all readings are joined to all others, it takes so much longer."""
_HARD = 100
"""Steps that a place with more readings counts for."""
_LONGEST = (2, 4, 6, 8, 11, 15, 20, 27, 36, 48, 64, 96, 144, 216, 324, 486, 729)
"""Bytes of a way; short ones are looked for first, so that a grammar that refers to itself is not followed for ever."""
FAR = 512
"""Tokens to the limit beyond which nobody looks for an end."""
_ROOM = 64
"""Tokens to the limit from which on the end is kept in sight, beside those that four such ends would take."""
_SOON = 8
"""Tokens until it is looked whether that is so: few, as every token may open something that takes several to close."""
_AGAIN = 8
"""Tokens, doubled every time, until an end is looked for again that was not found."""
_MANY = 20
"""Bytes that may come next in a text that is rather free."""
_QUOTED = 40
"""In a JSON string; in the name of a property or a choice there are fewer."""
_FEW = 6
"""Signs that may end such a text."""
_MOST_KINDS = 12
_MORE_NODES = 150
"""Places that a search looks at for a shorter end than the first one."""
_FIRST = b'}],:0123456789"[{ntf-aA .'
"""What is tried first, in this order; all else comes behind it."""
_ORDER = np.array([*_FIRST, *(byte for byte in range(256) if byte not in _FIRST)])
_DIGITS = b"0123456789"
_ALIKE = 10
"""Digits of a free number; two of them stand for all."""
_FREE = b'"{}a0 \n<'
"""Where all of these may come, a text is free; it has no end to be led to."""
_SAMPLES = b"0aA"


class Budget:
    """What the searches for the end of one answer may still cost: as much on every machine."""

    def __init__(self, steps: int = ANSWER_STEPS) -> None:
        self._steps = steps
        self._is_wide = self._met_hard = False
        self.kinds: dict[bytes, list[int]] = {}
        """Of the bytes that may come next, by all of these: one of each kind, as they were found once."""

    @property
    def is_spent(self) -> bool:
        return self._steps <= 0

    def look(self, matcher: LLMatcher) -> None:
        """A place was looked at."""
        is_hard = matcher.is_error()
        self._met_hard |= is_hard
        self._steps -= (_HARD if is_hard else 1) * (_WIDE if self._is_wide else 1)

    @property
    def is_wide(self) -> bool:
        """Whether searches are by the wide limit of readings."""
        return self._is_wide

    def widens(self) -> bool:
        """Whether searches go on by the wide limit from here on, as places with more readings were met."""
        if self._is_wide or not self._met_hard or self.is_spent:
            return False
        self._is_wide = True
        return True

    def takes(self, matcher: LLMatcher, token: int) -> bool:
        """Whether ``matcher`` goes on behind ``token``."""
        went = not self.is_spent and bool(matcher.consume_token(token))
        self.look(matcher)
        return went


class Alphabet:
    """A model's vocabulary, of which only bytes and control tokens are used."""

    def __init__(self, library: Any, table: TokenTable, limits: Sequence[Any]) -> None:
        """``limits`` of the library: one for each of `MAX_ITEMS`."""
        self.table = table
        size = len(table.tokens)
        self.bytes = ByteTable(size, {token: table.tokens[token] for token in table.special_token_ids}, table.end_ids)
        self.ids = np.array([self.bytes.of_byte.get(int(byte), 0) for byte in _ORDER])
        self.control = np.array(sorted(set(table.special_token_ids) - set(table.end_ids)), np.int64)
        self._library, self._limits = library, limits
        self._tokens = library.LLTokenizer(self.bytes, n_vocab=size, eos_token=table.end_ids)

    def matcher(self, source: str, is_wide: bool) -> LLMatcher:
        """A grammar of these tokens."""
        limits = self._limits[is_wide]
        made: LLMatcher = on_deep_stack(lambda: self._library.LLMatcher(self._tokens, source, log_level=0, limits=limits))
        return made


class Ways:
    """The ways through one grammar, byte by byte."""

    def __init__(self, alphabet: Alphabet, source: str) -> None:
        self.table, self.bytes = alphabet.table, alphabet.bytes
        self._source, self._alphabet = source, alphabet
        self.start = alphabet.matcher(source, False)
        self._ids, self._control = alphabet.ids, alphabet.control
        self._bits = np.zeros(4 * ((len(self.table.tokens) + 31) // 32), np.uint8)

    @cached_property
    def wide_start(self) -> LLMatcher:
        """The start by the wide limit of readings."""
        return self._alphabet.matcher(self._source, True)

    def follow(self, matcher: LLMatcher, token: int) -> bool:
        """Take ``matcher`` behind a token of the model."""
        ids = [token] if token in self.bytes.control else [self.bytes.of_byte[byte] for byte in self.table.tokens[token]]
        return bool(matcher.consume_tokens(ids))

    def next(self, matcher: LLMatcher, budget: Budget) -> list[int]:
        """What is worth trying next, the most promising first."""
        bytes_, control = self._allowed_bytes(matcher), self._control[self._allowed(self._control)]
        if len(bytes_) >= _MANY:
            bytes_ = self._of_many(matcher, bytes_, budget)
        elif sum(byte in _DIGITS for byte in bytes_) >= _ALIKE:
            bytes_ = [byte for byte in bytes_ if byte not in _DIGITS[2:]]
        return [self.bytes.of_byte[byte] for byte in bytes_] + [int(token) for token in control]

    def _allowed_bytes(self, matcher: LLMatcher) -> list[int]:
        matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        found: list[int] = _ORDER[self._allowed(self._ids)].tolist()
        return found

    def _of_many(self, matcher: LLMatcher, bytes_: list[int], budget: Budget) -> list[int]:
        """Of the bytes of a text that is rather free: what ends it, or one of each kind where nothing does."""
        if ord('"') in bytes_ and len(bytes_) >= _QUOTED:
            return [ord('"')]
        ends = [byte for byte in bytes_ if byte < 128 and not chr(byte).isalnum() and byte != 32]
        if 0 < len(ends) <= _FEW:
            return [*ends, *[byte for byte in bytes_ if byte in _SAMPLES and byte not in ends][:2]]
        if (known := budget.kinds.get(bytes(bytes_))) is None:
            known = budget.kinds[bytes(bytes_)] = self._kinds(matcher, bytes_, budget)
        return known

    def _kinds(self, matcher: LLMatcher, bytes_: list[int], budget: Budget) -> list[int]:
        """One of the ``bytes_`` for each set of bytes that may come behind them."""
        kinds: dict[bytes, int] = {}
        for byte in bytes_:
            if byte < 128 or len(kinds) == 0:
                after = matcher.deep_copy()
                if budget.takes(after, self.bytes.of_byte[byte]):
                    after.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
                    kinds.setdefault(self._bits.tobytes(), byte)
        return [*kinds.values()][:_MOST_KINDS]

    def is_free(self, matcher: LLMatcher) -> bool:
        """Whether any text may come."""
        matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        return bool(self._allowed(np.array([self.bytes.of_byte[byte] for byte in _FREE])).all())

    def _allowed(self, ids: np.ndarray) -> np.ndarray:
        return (self._bits[ids >> 3] >> (ids & 7) & 1).astype(bool)

    def tokens(self, way: list[int]) -> list[list[int]]:
        """A way in tokens of the model: as it writes them, and in the longest ones."""
        usual: list[int] = []
        longest: list[int] = []
        for is_control, run in itertools.groupby(way, key=self.bytes.control.__contains__):
            ids = list(run)
            data = b"".join(self.bytes.tokens[one] for one in ids)
            usual += ids if is_control else self.table(data) if _is_text(data) else self.table.longest(data)
            longest += ids if is_control else self.table.longest(data)
        return [usual, longest]

    def shortest(self, matcher: LLMatcher, budget: Budget) -> list[int] | None:
        """The shortest way from ``matcher`` to an end that is found, in bytes; None where none is, or the ``budget`` is spent.

        What may be left out of a way is left out where that is plain, so not every grammar's shortest way is found.
        """
        for longest in _LONGEST:
            found = self._shortest(matcher, longest, budget)
            if found is not None or budget.is_spent:
                return found
        return None

    def _shortest(self, matcher: LLMatcher, longest: int, budget: Budget) -> list[int] | None:
        """A search in depth, which turns round where a way is as long as the best one, or as ``longest``."""
        best: list[int] | None = None
        stack: list[tuple[LLMatcher, list[int]]] = [(matcher.deep_copy(), [])]
        nodes, most = 0, MAX_NODES
        while stack and nodes < most and not budget.is_spent:
            here, way = stack.pop()
            nodes += 1
            forced = [self.bytes.of_byte[byte] for byte in here.compute_ff_bytes()]
            if forced and here.consume_tokens(forced):
                way = [*way, *forced]
            if len(way) > (longest if best is None else len(best)):
                continue
            if here.is_accepting():
                most = min(most, nodes + _MORE_NODES)
                if best is None or len(way) < len(best):
                    best = way
                continue
            if here.is_error():
                budget.look(here)
                continue
            if here.is_stopped() or len(way) >= (longest if best is None else len(best) - 1):
                continue
            options = self.next(here, budget)
            budget.look(here)
            for option in reversed(options[1:]):
                other = here.deep_copy()
                if budget.takes(other, option):
                    stack.append((other, [*way, option]))
            if options and budget.takes(here, options[0]):
                stack.append((here, [*way, options[0]]))
        return best


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class Place:
    """Where one answer is, and how it could end from there."""

    def __init__(self, ways: Ways, matcher: LLMatcher, tokens: list[int]) -> None:
        self._ways = ways
        self._matcher = matcher
        self._slow: LLMatcher | None = None
        """The same place byte by byte, behind the first `_followed` of the tokens."""
        self._tokens = tokens
        self._followed = 0
        self._plan: list[int] | None = None
        """Tokens to an end, the token that ends an answer among them; None where none is known."""
        self._next_look = 0
        self._missed = 0
        self._budget = Budget()
        self._behind: dict[int, list[int] | None] = {}
        """Plans behind tokens that were asked for."""

    @property
    def plan(self) -> list[int] | None:
        """Tokens that lead to an end from here, if they are known."""
        return self._plan

    def accept(self, token: int) -> None:
        """Go on behind ``token``, which the matcher has taken already, and which stands last in the tokens."""
        planned = self._plan[1:] if self._plan and self._plan[0] == token else None
        self._plan = self._behind.get(token, planned)
        self._behind.clear()

    def looks(self, left: int) -> bool:
        """Whether the end has to be kept in sight where ``left`` tokens are left; finds it for the first time."""
        if left > FAR or len(self._ways.bytes.of_byte) < 256:
            return False
        if self._plan is None:
            if self._budget.is_spent:
                return False
            if len(self._tokens) < self._next_look:
                return False
            self._plan = self._way(self._matcher, None)
        if self._plan is None or len(self._plan) > left:
            self._missed += 1
            self._look_again_behind(_AGAIN << min(self._missed, 4))
            return False
        if left > 4 * len(self._plan) + _ROOM:
            self._look_again_behind(_SOON)
            return False
        return True

    def _look_again_behind(self, tokens: int) -> None:
        """No end is kept in sight for so many tokens."""
        self._plan = None
        self._next_look = len(self._tokens) + tokens

    def leaves_room(self, token: int, left: int) -> bool:
        """Whether an end is found behind ``token`` within ``left`` tokens."""
        plan = self._plan_behind(token)
        self._behind[token] = plan
        return plan is not None and len(plan) <= left

    def _plan_behind(self, token: int) -> list[int] | None:
        if token in self._ways.table.end_ids:
            return []
        assert self._plan is not None, "asked for only where an end is known"
        if self._plan and self._plan[0] == token:
            return self._plan[1:]
        behind = self._matcher.deep_copy()
        if not behind.consume_token(token):
            return None
        for plan in (self._plan, *self._rests(token)):  # within a string the same end is still one
            if self._ends(behind, plan):
                return plan
        return self._way(behind, token)

    def _rests(self, token: int) -> list[list[int]]:
        """The plan without ``token``, if it begins with its text."""
        assert self._plan is not None
        table = self._ways.table
        text = [one for one in self._plan if one not in table.end_ids]
        data, begun = b"".join(table.tokens[one] for one in text), table.tokens[token]
        if not data.startswith(begun) or any(one in self._ways.bytes.control for one in (*text, token)):
            return []
        rest = data[len(begun) :]
        end = self._plan[len(text) :]
        return [[*table.longest(rest), *end], *([[*table(rest), *end]] if _is_text(rest) else [])]

    def _ends(self, matcher: LLMatcher, plan: list[int]) -> bool:
        ends = self._ways.table.end_ids
        text = plan[:-1] if plan and plan[-1] in ends else plan
        if matcher.validate_tokens(text) != len(text):
            return False
        after = matcher.deep_copy()
        return bool(after.consume_tokens(text)) and (after.is_stopped() or (text != plan and after.is_accepting()))

    def _way(self, matcher: LLMatcher, token: int | None) -> list[int] | None:
        """Tokens from ``matcher``, which is here or behind ``token``, to an end."""
        slow = self._place()
        if slow is None or self._budget.is_spent:
            return None
        if token is not None:
            slow = slow.deep_copy()
            if not self._ways.follow(slow, token):
                return None
        if self._ways.is_free(slow):
            return None
        found = self._ways.shortest(slow, self._budget)
        if found is None:
            return self._way(matcher, token) if self._widens() else None
        for text in self._ways.tokens(found):
            for plan in (text, [*text, self._ways.table.end_ids[0]]):
                if self._ends(matcher, plan):
                    return plan
        return None

    def _place(self) -> LLMatcher | None:
        """The place byte by byte, brought up to here."""
        if self._slow is None:
            self._slow = (self._ways.wide_start if self._budget.is_wide else self._ways.start).deep_copy()
        for token in self._tokens[self._followed :]:
            self._followed += 1
            if not self._ways.follow(self._slow, token):
                break
        if not self._slow.is_error():
            return self._slow
        self._budget.look(self._slow)
        return self._place() if self._widens() else None

    def _widens(self) -> bool:
        """Begin anew by the wide limit of readings, if that may help and was not done."""
        if not self._budget.widens():
            return False
        self._slow, self._followed = None, 0
        return True
