"""How a token's written form becomes bytes."""

from __future__ import annotations

import json
from typing import Any

from edge_llm.errors import UnsupportedModel
from edge_llm.files import shown


class Pieces:
    """How a token's written form becomes bytes, read from the decoder section of a tokenizer.json."""

    def __init__(self, backend: Any) -> None:
        self.strip_start = 0
        self.strip_content = " "
        self._byte_level = False
        self._byte_fallback = False
        self._replace: list[tuple[str, str]] = []
        self._dropped_first: str | None = None
        self._inside: str | None = None  # what WordPiece puts before pieces that do not begin a word
        self._closed_up: tuple[str, ...] = ()  # pieces that stand without a space before them
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
        elif kind == "WordPiece":
            self._inside, self._closed_up = part["prefix"], (".", "?", "!", ",") if part["cleanup"] else ()
            self.strip_start = 1
        elif kind != "Fuse":
            raise UnsupportedModel(
                f"the tokenizer's decoder `{shown(json.dumps(part))}` does not run here; "
                "byte-level, SentencePiece-style and WordPiece ones do"
            )

    def to_bytes(self, text: str) -> bytes:
        if self._inside is not None:
            inside = text.removeprefix(self._inside)
            return inside.encode() if inside != text or text in self._closed_up else f" {text}".encode()
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
