"""Tokens and text, on top of the `tokenizers` package and a model's ``tokenizer.json``.

Encoding is the package's.  Decoding is ours, from the bytes that each token stands for, because a stream must give
exactly the text that decoding everything at once gives, a few bytes at a time and without ever showing half of a
character.  The two agree with the package's own decoding except for invalid byte runs: where it turns a whole run of
byte tokens into U+FFFD, only the bytes that are wrong become U+FFFD here.

    tokenizer = Tokenizer.from_folder(Path("qwen2.5-0.5b"), vocab_size=151936)
    ids = tokenizer.encode("Hello", add_bos=tokenizer.add_bos)
"""

from __future__ import annotations

import codecs
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from edge_llm.errors import InvalidTokenizer, ModelNotFound, UnsupportedModel, UsageError
from edge_llm.files import read_file, shown
from edge_llm.strict_json import read_object

MAX_FILE_BYTES = 64 << 20
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
        self._backend = backend
        self._lock = threading.Lock()  # the backend's parse-special switch is state
        self._pieces = _Pieces(backend)
        self._bytes: dict[int, bytes] = {}
        backend.no_truncation()
        backend.no_padding()
        if getattr(backend.model, "dropout", None):
            backend.model.dropout = None  # a training aid that makes encoding random
        added = backend.get_added_tokens_decoder()
        _check_ids(backend, vocab_size, added)
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        self.special_texts = tuple(token.content for token in added.values() if token.special)
        """Texts that become control tokens where special tokens are parsed."""
        unknown = getattr(backend.model, "unk_token", None)
        self._control_ids = self._special_ids - {backend.token_to_id(unknown) if unknown else None}
        special = special or SpecialTokens()
        self.eos_ids = special.eos_ids
        self.bos_id = special.bos_id
        frame = self._run("", add_special_tokens=True)  # what the post-processor puts around a text
        if self.bos_id is None and frame and frame[0] not in self.eos_ids:
            self.bos_id = frame[0]
        by_processor = bool(frame) and frame[0] == self.bos_id
        self.add_bos = self.bos_id is not None and (by_processor if special.add_bos is None else special.add_bos)
        _check_special(self.bos_id, self.eos_ids, vocab_size)
        if not self._run(_UNLIKELY):
            raise InvalidTokenizer("the tokenizer drops characters that it does not know; it needs bytes or an unk token")

    @classmethod
    def from_file(cls, path: Path, vocab_size: int, special: SpecialTokens | None = None) -> Tokenizer:
        """Load ``tokenizer.json`` for a model of ``vocab_size`` rows; raises `InvalidTokenizer`."""
        return cls(_load(path), vocab_size, special)

    @classmethod
    def from_folder(cls, folder: Path, vocab_size: int) -> Tokenizer:
        """Load ``tokenizer.json`` and what the configs beside it say about bos and eos tokens."""
        path = folder / "tokenizer.json"
        if not path.exists():
            raise ModelNotFound(
                f"no tokenizer.json in `{shown(folder)}`; save the model's fast tokenizer there (`tokenizer.save_pretrained`)"
            )
        configs = [read_object(folder / name, error=InvalidTokenizer) for name in _CONFIGS if (folder / name).exists()]
        backend = _load(path)
        return cls(backend, vocab_size, special_tokens(configs, backend.token_to_id))

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

    @cached_property
    def longest_token(self) -> int:
        """Characters that one token stands for at most; a token that is a byte counts as one."""
        vocab = self._backend.get_vocab(True)
        return max((len(text) for text, token in vocab.items() if token not in self._special_ids), default=1)

    def encode(self, text: str, *, add_bos: bool = False, parse_special: bool = False) -> list[int]:
        """Token ids of ``text``.

        Text that spells a control token stays text unless ``parse_special``.  Raises `UsageError` for text that is
        not Unicode (half of a surrogate pair), `InvalidTokenizer` when the tokenizer itself breaks.
        """
        ids = self._encode(text, parse_special)
        if not parse_special and not self._control_ids.isdisjoint(ids):
            ids = [part for token in ids for part in self._spelled(token)]
        return [self.bos_id, *ids] if add_bos and self.bos_id is not None else ids

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        with self._lock:
            self._backend.encode_special_tokens = not parse_special
            return self._run(text)

    def _run(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
            return ids
        except BaseException as failure:  # a Rust panic is not an Exception
            _pass_on(failure)
            if any("\ud800" <= c <= "\udfff" for c in text):
                raise UsageError("the text holds half of a surrogate pair; send valid Unicode") from None
            raise InvalidTokenizer(f"the tokenizer cannot encode this text: {shown(failure)}") from None

    def _spelled(self, token: int) -> list[int]:
        """A control token that the vocabulary found in plain text, spelled out character by character."""
        if token not in self._control_ids:
            return [token]
        return [i for c in self.token_text(token) for i in self._encode(c, False) if i not in self._control_ids]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of ``ids``; bytes that are not UTF-8 become U+FFFD.

        An id outside the vocabulary raises `UsageError`.
        """
        decoder = IncrementalDecoder(self, skip_special=skip_special)
        return "".join([decoder.push(token) for token in ids]) + decoder.finish()

    def token_bytes(self, token: int) -> bytes:
        """The bytes that ``token`` adds to a text, its special spaces resolved; empty for an unused id."""
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._pieces.to_bytes(self.token_text(token))
        return found

    def is_special(self, token: int) -> bool:
        """Whether ``token`` is a control token, which is not part of the text."""
        return token in self._special_ids

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

    def push(self, token: int) -> str:
        """Text that ``token`` completes; may be empty."""
        tokenizer = self._tokenizer
        if self._skip_special and tokenizer.is_special(token):
            return ""
        data = tokenizer.token_bytes(token)
        if self._first:
            self._first = False
            data = tokenizer._pieces.first_bytes(tokenizer.token_text(token), data)
        return self._stripped(self._utf8.decode(data))

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


class _Pieces:
    """How a token's written form becomes bytes, read from the decoder section of a tokenizer.json."""

    def __init__(self, backend: Any) -> None:
        self.strip_start = 0
        self.strip_content = " "
        self._byte_level = False
        self._byte_fallback = False
        self._replace: list[tuple[str, str]] = []
        self._dropped_first: str | None = None
        if backend.decoder is None:
            raise UnsupportedModel("the tokenizer has no decoder; save the model's own tokenizer.json again")
        step = json.loads(backend.decoder.__getstate__())
        for part in step["decoders"] if step["type"] == "Sequence" else [step]:
            self._take(part)

    def _take(self, part: dict[str, Any]) -> None:
        kind = part["type"]
        if kind == "ByteLevel":
            self._byte_level = True
        elif kind == "ByteFallback":
            self._byte_fallback = True
        elif kind == "Metaspace":
            self._replace.append((part["replacement"], " "))
            if part.get("prepend_scheme", "always") != "never":
                self._dropped_first = part["replacement"]
        elif kind == "Replace" and "String" in part["pattern"]:
            self._replace.append((part["pattern"]["String"], part["content"]))
        elif kind == "Strip" and part["stop"] == 0:
            self.strip_start, self.strip_content = part["start"], part["content"]
        elif kind != "Fuse":
            raise UnsupportedModel(
                f"the tokenizer's decoder `{shown(json.dumps(part))}` does not run here; "
                "byte-level and SentencePiece-style ones do"
            )

    def to_bytes(self, text: str) -> bytes:
        if self._byte_level:
            try:
                return bytes([_BYTE_OF[c] for c in text])
            except KeyError:
                return text.encode()
        if self._byte_fallback and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            try:
                return bytes([int(text[3:5], 16)])
            except ValueError:
                pass
        for old, new in self._replace:
            text = text.replace(old, new)
        return text.encode()

    def first_bytes(self, text: str, data: bytes) -> bytes:
        """Bytes of a text's first token: a Metaspace decoder drops its spaces."""
        return data if self._dropped_first is None else self.to_bytes(text.replace(self._dropped_first, ""))


def _byte_alphabet() -> dict[str, int]:
    # GPT-2's printable stand-ins: a byte that is a visible Latin-1 character is itself, the others follow from U+0100
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


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


def _load(path: Path) -> Any:
    data = read_file(path, MAX_FILE_BYTES, error=InvalidTokenizer)
    try:
        return tokenizers.Tokenizer.from_buffer(data)
    except BaseException as failure:  # a Rust panic is not an Exception
        _pass_on(failure)
        raise InvalidTokenizer(
            f"`{shown(path.name)}` cannot be used: {shown(failure)}; save the model's tokenizer again"
        ) from None


def _check_ids(backend: Any, vocab_size: int, added: dict[int, Any]) -> None:
    vocab = backend.get_vocab(True)
    ids = set(vocab.values())
    if not ids:
        raise InvalidTokenizer("the tokenizer's vocabulary is empty")
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
    for token, entry in added.items():
        if not 0 < len(entry.content) <= MAX_ADDED_TOKEN:
            raise InvalidTokenizer(
                f"the added token `{token}` has {len(entry.content)} characters; 1 to {MAX_ADDED_TOKEN} are possible"
            )


def _check_special(bos_id: int | None, eos_ids: frozenset[int], vocab_size: int) -> None:
    for token in (*eos_ids, *([] if bos_id is None else [bos_id])):
        if not 0 <= token < vocab_size:
            raise InvalidTokenizer(f"the bos or eos token id `{shown(token)}` is outside the {vocab_size} tokens")


def _pass_on(failure: BaseException) -> None:
    if isinstance(failure, (KeyboardInterrupt, SystemExit, GeneratorExit)):
        raise failure
