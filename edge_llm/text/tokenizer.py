"""Tokens and text, on top of the `tokenizers` package and a model's ``tokenizer.json``.

Encoding is the package's.  Decoding is ours, from the bytes that each token stands for, because a stream must give
exactly the text that decoding everything at once gives, a few bytes at a time and without ever showing half of a
character.  The two agree with the package's own decoding except for invalid byte runs: where it turns a whole run of
byte tokens into U+FFFD, only the bytes that are wrong become U+FFFD here.
"""

from __future__ import annotations

import codecs
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import tokenizers

from edge_llm.errors import ContextOverflow, InvalidTokenizer, ModelNotFound, UsageError
from edge_llm.files import shown
from edge_llm.interrupts import HeldInterrupt
from edge_llm.strict_json import is_unicode, read_object
from edge_llm.text.added import beyond_embedding, is_mark, without_added
from edge_llm.text.frames import PairFrame, frame_of, pair_frame_of
from edge_llm.text.growth import text_growth, window_for
from edge_llm.text.loading import load, load_bytes, pass_on
from edge_llm.text.pieces import Pieces
from edge_llm.text.windows import WINDOW, window_ids

MAX_CONFIG_BYTES = 8 << 20
MAX_CONFIG_VALUES = 400_000
"""Of a tokenizer_config.json, which may list every added token."""
MAX_EOS_TOKENS = 64
MAX_ADDED_TOKEN = 1024
"""Characters of one added token."""

_UNLIKELY = "\u2603\U0001f9ff"
_CONFIGS = ("generation_config.json", "config.json", "tokenizer_config.json")


@dataclass(frozen=True)
class SpecialTokens:
    """Which tokens begin and end a text."""

    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    add_bos: bool | None = None
    """Whether a plain text begins with the bos token; None asks the tokenizer's post-processor."""


class Tokenizer:
    """One model's tokenizer.  Safe to share between threads."""

    def __init__(self, backend: Any, vocab_size: int, special: SpecialTokens | None = None) -> None:
        self.vocab_size = vocab_size
        beyond = beyond_embedding(backend, vocab_size)
        self.left_out = tuple(beyond.values())
        """Texts of added tokens that have no embedding: they are no tokens here."""
        self._backend = backend = without_added(backend, beyond)
        self._lock = threading.Lock()  # the backend's parse-special switch is state
        self._window = window_for(text_growth(backend), WINDOW)
        self._pieces = Pieces(backend)
        self._bytes: dict[int, bytes] = {}
        backend.no_truncation()
        backend.no_padding()
        if getattr(backend.model, "dropout", None):
            backend.model.dropout = None  # a training aid that makes encoding random
        added = backend.get_added_tokens_decoder()
        _check_ids(backend, vocab_size, added)
        self._special = {token.content: token for token in added.values() if token.special}
        self._marks: dict[str, str] = {}
        self._marked: dict[int, int] = {}
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        self.special_texts = tuple(self._special)
        """Texts that become control tokens where special tokens are parsed."""
        self.marks = tuple(token.content for token in added.values() if token.special or is_mark(token.content))
        """Texts of added tokens that no word of an answer is: control tokens, and what stands in brackets."""
        unknown = getattr(backend.model, "unk_token", None)
        self._control_ids = self._special_ids - {backend.token_to_id(unknown) if unknown else None}
        special = special or SpecialTokens()
        self.eos_ids = special.eos_ids - beyond.keys()
        self.bos_id = None if special.bos_id in beyond else special.bos_id
        frame = self._run("", add_special_tokens=True).ids  # what the post-processor puts around a text
        if self.bos_id is None and frame and frame[0] not in self.eos_ids:
            self.bos_id = frame[0]
        by_processor = bool(frame) and frame[0] == self.bos_id
        self.add_bos = self.bos_id is not None and (by_processor if special.add_bos is None else special.add_bos)
        _check_special(self.bos_id, self.eos_ids, vocab_size)
        if not self._run(_UNLIKELY).ids:
            raise InvalidTokenizer("the tokenizer drops characters that it does not know; it needs bytes or an unk token")

    @classmethod
    def from_folder(cls, folder: Path, vocab_size: int) -> Tokenizer:
        """Load ``tokenizer.json`` and the bos and eos tokens of the configs beside it; raises `InvalidTokenizer`."""
        path = folder / "tokenizer.json"
        if not path.exists():
            raise ModelNotFound(
                f"no tokenizer.json in `{shown(folder)}`; save the model's fast tokenizer there (`tokenizer.save_pretrained`)"
            )
        configs = [read_config(folder / name) for name in _CONFIGS if (folder / name).exists()]
        backend = load(path)
        return cls(backend, vocab_size, special_tokens(configs, backend.token_to_id))

    @classmethod
    def from_bytes(cls, data: bytes, configs: Sequence[dict[str, Any]], vocab_size: int, name: str) -> Tokenizer:
        """The same from a tokenizer.json and configs that stand in no file of their own; ``name`` is said in errors."""
        backend = load_bytes(data, name)
        return cls(backend, vocab_size, special_tokens(configs, backend.token_to_id))

    @cached_property
    def spelled(self) -> re.Pattern[str]:
        """Finds `special_texts`, of which there may be thousands."""
        longest_first = sorted(self.special_texts, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def token_id(self, text: str) -> int | None:
        """Id of the token that is written ``text`` in the vocabulary, or None."""
        found: int | None = self._backend.token_to_id(text)
        return found

    def token_text(self, token: int) -> str:
        """How token ``token`` is written in the vocabulary (a control token's text); empty for an unused id."""
        return self._backend.id_to_token(self._checked(token)) or ""

    @property
    def bos_text(self) -> str:
        """Text of the bos token, empty when there is none."""
        return "" if self.bos_id is None else self.token_text(self.bos_id)

    @property
    def eos_text(self) -> str:
        """Text of the eos token with the lowest id, empty when there is none."""
        return self.token_text(min(self.eos_ids)) if self.eos_ids else ""

    def encode(
        self, text: str, *, add_bos: bool = False, parse_special: bool = False, most: int | None = None
    ) -> list[int]:
        """Token ids of ``text``.

        Text that spells a control token stays text unless ``parse_special``; the marks of `marked` are control tokens.
        A long text costs the memory of its ids.  Raises `ContextOverflow` as soon as they are more than ``most``,
        `UsageError` for text that is not Unicode (half of a surrogate pair), `InvalidTokenizer` when the tokenizer
        itself breaks.
        """
        ids = [self.bos_id] if add_bos and self.bos_id is not None else []
        for found in window_ids(partial(self._encoding, parse_special=parse_special), text, self._window):
            if not parse_special and not self._control_ids.isdisjoint(found):
                found = [part for token in found for part in self._spelled(token)]
            ids += [self._marked.get(token, token) for token in found] if self._marked else found
            if most is not None and len(ids) > most:
                raise ContextOverflow(len(ids), most, at_least=True)
        return ids

    def encode_raw(
        self, text: str, *, parse_special: bool = True, add_bos: bool | None = None, most: int | None = None
    ) -> list[int]:
        """Token ids of a prompt that a program has written as a whole: what spells a control token is one.

        It begins with one bos token, its own or ours; ``add_bos`` says otherwise than the model's author.  Raises what
        `encode` raises.
        """
        ids = self.encode(text, parse_special=parse_special, most=most)
        wanted = self.add_bos if add_bos is None else add_bos
        if not wanted or self.bos_id is None or ids[:1] == [self.bos_id]:
            return ids
        return [self.bos_id, *ids]

    @cached_property
    def frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The control tokens that the post-processor puts before and behind a text, such as [CLS] and [SEP]."""
        return frame_of(self._run("a", add_special_tokens=True))

    @cached_property
    def pair_frame(self) -> PairFrame:
        """The same around a pair of texts, such as [CLS] one [SEP] other [SEP]."""
        return pair_frame_of(self._run(("a", "a"), add_special_tokens=True))

    @property
    def begun(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The same where a text is to be continued: the bos token, if it begins with one, and nothing."""
        return ((self.bos_id,) if self.add_bos and self.bos_id is not None else (), ())

    def marked(self, text: str) -> str:
        """``text`` with each control token that it spells replaced by a mark, a word that nobody else can know.

        `encode` makes the control token of a mark, and treats the text around both alike.
        """
        if not self._special:
            return text
        with self._lock:
            if not self._marks:
                self._add_marks()
        return self.spelled.sub(lambda match: self._marks[match[0]], text)

    def _add_marks(self) -> None:
        secret = secrets.token_hex(12)
        marks = {content: f"{secret}x{number}x" for number, content in enumerate(self._special)}
        # a mark takes the spaces that its token takes; it is found wherever it stands, or its letters would be a text
        self._backend.add_tokens([
            tokenizers.AddedToken(marks[content], lstrip=token.lstrip, rstrip=token.rstrip, normalized=False)
            for content, token in self._special.items()
        ])
        self._marked = {self._backend.token_to_id(mark): self._backend.token_to_id(content) for content, mark in marks.items()}
        self._marks = marks

    def count(self, text: str, most: int) -> int:
        """How many tokens ``text`` has; some number above ``most``, as soon as there are more than that."""
        found = 0
        for ids in window_ids(partial(self._encoding, parse_special=False), text, self._window):
            found += len(ids)
            if found > most:
                break
        return found

    def _encoding(self, text: str, *, parse_special: bool) -> Any:
        with self._lock:
            self._backend.encode_special_tokens = not parse_special
            return self._run(text)

    def _run(self, text: str | tuple[str, str], *, add_special_tokens: bool = False) -> Any:
        with HeldInterrupt():  # what a signal's handler raises says nothing of the text
            try:
                # as a batch, which lets other threads run meanwhile
                return self._backend.encode_batch([text], add_special_tokens=add_special_tokens)[0]
            except BaseException as failure:  # a Rust panic is not an Exception
                pass_on(failure)
                if not is_unicode(text):
                    raise UsageError("the text holds half of a surrogate pair; send valid Unicode") from None
                raise InvalidTokenizer(f"the tokenizer cannot encode this text: {shown(failure)}") from None

    def _spelled(self, token: int) -> list[int]:
        """A control token that the vocabulary found in plain text, spelled out character by character."""
        if token not in self._control_ids:
            return [token]
        letters = [self._encoding(letter, parse_special=False).ids for letter in self.token_text(token)]
        return [i for ids in letters for i in ids if i not in self._control_ids]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of ``ids``; bytes that are not UTF-8 become U+FFFD.

        An id outside the vocabulary raises `UsageError`.
        """
        decoder = IncrementalDecoder(self, skip_special=skip_special)
        return "".join([decoder.push(token) for token in ids]) + decoder.finish()

    def token_bytes(self, token: int) -> bytes:
        """The bytes that ``token`` adds to a text, its special spaces made plain ones; empty for an unused id."""
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._pieces.to_bytes(self.token_text(token))
        return found

    def is_special(self, token: int) -> bool:
        """Whether ``token`` is a control token, which is not part of the text."""
        return token in self._special_ids

    def token_string(self, token: int) -> str:
        """``token`` as text: its bytes, or its name if it is a control token."""
        return self.token_text(token) if self.is_special(token) else self.token_bytes(token).decode("utf-8", "replace")

    def _checked(self, token: int) -> int:
        if not 0 <= token < self.vocab_size:
            raise UsageError(f"token id `{token}` is outside the vocabulary of {self.vocab_size} tokens")
        return token


class IncrementalDecoder:
    """Turns tokens into text as they come; the concatenation is exactly `Tokenizer.decode` of all of them.

    A character whose bytes are spread over tokens is held until its last byte is there.  With ``continues`` the text
    goes on after something else, so the space that a tokenizer drops at the beginning of a text is kept.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._first = not continues
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = 0 if continues else tokenizer._pieces.strip_start

    def push(self, token: int, *, shown: bool = False) -> str:
        """Text that ``token`` completes; may be empty.  One that is ``shown`` is text, control token or not."""
        if self._skip_special and not shown and self._tokenizer.is_special(token):
            return ""
        data = self._data(token)
        self._first = False
        return self._stripped(self._utf8.decode(data))

    def piece(self, token: int) -> bytes:
        """The bytes that `push` would add to the text for ``token`` now; for a control token its name."""
        if self._tokenizer.is_special(token):
            return self._tokenizer.token_text(token).encode()
        data = self._data(token)
        if not self._utf8.getstate()[0]:  # within a character there is no space to drop
            dropped = self._tokenizer._pieces.strip_content.encode()
            for _ in range(self._strip):
                data = data.removeprefix(dropped)
        return data

    def _data(self, token: int) -> bytes:
        data = self._tokenizer.token_bytes(token)
        return self._tokenizer._pieces.first_bytes(self._tokenizer.token_text(token), data) if self._first else data

    def finish(self) -> str:
        """What is left: U+FFFD for a character that never came to its end, else nothing."""
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if not text.startswith(self._tokenizer._pieces.strip_content):
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object in one of the small files beside a tokenizer."""
    return read_object(path, error=InvalidTokenizer, max_bytes=MAX_CONFIG_BYTES, max_values=MAX_CONFIG_VALUES)


def special_tokens(configs: Sequence[dict[str, Any]], token_id: Callable[[str], int | None]) -> SpecialTokens:
    """What Hugging Face configs say about bos and eos tokens, by id or by text.

    Every eos token that any of them names ends a text: chat models often name one in ``generation_config.json`` and
    another in ``tokenizer_config.json``.  For the bos token the first config that names it wins.
    """
    bos: list[int] = []
    eos: set[int] = set()
    add_bos: bool | None = None
    for config in configs:
        bos += _ids(config.get("bos_token_id"), "bos_token_id")
        bos += _named(config.get("bos_token"), token_id) or []
        eos.update(_ids(config.get("eos_token_id"), "eos_token_id"))
        named = _named(config.get("eos_token"), token_id)
        if named is None:
            raise InvalidTokenizer(f"the eos_token `{shown(config['eos_token'])}` is not in the vocabulary")
        eos.update(named)
        if isinstance(config.get("add_bos_token"), bool):
            add_bos = config["add_bos_token"]
    return SpecialTokens(bos[0] if bos else None, frozenset(eos), add_bos)


def _ids(value: Any, key: str) -> list[int]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if len(ids) > MAX_EOS_TOKENS or not all(type(i) is int for i in ids):
        raise InvalidTokenizer(f"{key} must be a token id or up to {MAX_EOS_TOKENS} of them, not `{shown(value)}`")
    return ids


def _named(value: Any, token_id: Callable[[str], int | None]) -> list[int] | None:
    """Ids of a token given by its text or as {"content": text}; None when the vocabulary lacks it."""
    text = value.get("content") if isinstance(value, dict) else value
    if text is None or text == "":
        return []
    token = token_id(text) if isinstance(text, str) else None
    return None if token is None else [token]


def _check_ids(backend: Any, vocab_size: int, added: dict[int, Any]) -> None:
    count = backend.get_vocab_size(True)
    if not count:
        raise InvalidTokenizer("the tokenizer's vocabulary is empty")
    if count > vocab_size or None in map(backend.id_to_token, range(count)):  # else every id has its own token
        _check_vocabulary(backend.get_vocab(True), vocab_size)
    for token, entry in added.items():
        if not 0 < len(entry.content) <= MAX_ADDED_TOKEN:
            raise InvalidTokenizer(
                f"the added token `{token}` has {len(entry.content)} characters; 1 to {MAX_ADDED_TOKEN} are possible"
            )


def _check_vocabulary(vocab: dict[str, int], vocab_size: int) -> None:
    """Refuse a ``vocab`` with an id that the model lacks, or one id for two tokens; it may have holes."""
    ids = set(vocab.values())
    if max(ids) >= vocab_size:
        text, token = max(vocab.items(), key=lambda item: item[1])
        raise InvalidTokenizer(
            f"the token `{shown(text, 40)}` has the id `{token}`, but the model has only {vocab_size} tokens; "
            "take the tokenizer.json that belongs to this model"
        )
    if len(ids) != len(vocab):
        seen: dict[int, str] = {}
        for text, token in vocab.items():
            if token in seen:
                both = f"`{shown(seen[token], 40)}` and `{shown(text, 40)}`"
                raise InvalidTokenizer(f"the tokens {both} have the same id `{token}`")
            seen[token] = text


def _check_special(bos_id: int | None, eos_ids: frozenset[int], vocab_size: int) -> None:
    for token in (*eos_ids, *([] if bos_id is None else [bos_id])):
        if not 0 <= token < vocab_size:
            raise InvalidTokenizer(f"the bos or eos token id `{shown(token)}` is outside the {vocab_size} tokens")
