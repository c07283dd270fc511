"""Log-probabilities of an answer's tokens, and of a prompt's, as OpenAI's and vLLM's APIs write them."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from typing import Any

from edge_llm.decoding.logprobs import TokenLogprobs


def chat_logprobs(found: Sequence[TokenLogprobs], *, as_ids: bool = False) -> dict[str, Any]:
    """The logprobs object of a chat choice; ``as_ids`` names tokens by their ids, as vLLM does."""

    def item(token: int, piece: bytes, logprob: float) -> dict[str, Any]:
        name = _by_id(token) if as_ids else piece.decode("utf-8", "replace")
        return {"token": name, "logprob": logprob, "bytes": list(piece)}

    content = [
        item(one.token, one.piece, one.logprob)
        | {"top_logprobs": [item(token, piece, value) for piece, (token, value) in zip(one.top_pieces, one.top, strict=True)]}
        for one in found
    ]
    return {"content": content, "refusal": None}


class TextOffsets:
    """Where the tokens of a text begin in it, in characters, one after the other; those before it have taken ``length``.

    A token that ends within a character leaves it to the next ones, which begin where it does.
    """

    def __init__(self, length: int = 0) -> None:
        self._length = length
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def next(self, piece: bytes, *, shown: bool = True) -> int:
        """The place of the token that writes ``piece``, or nothing where it is not ``shown``."""
        place = self._length
        self._length += len(self._decoder.decode(piece)) if shown else 0
        return place


def completion_logprobs(
    found: Sequence[TokenLogprobs], places: Iterable[int], *, as_ids: bool = False
) -> dict[str, Any]:
    """The logprobs object of the next tokens of a legacy completion, which begin at ``places``.

    The likeliest tokens are told behind the token itself, which is always among them; a text's first token has neither.
    """

    def name(token: int, piece: bytes) -> str:
        return _by_id(token) if as_ids else _named(piece)

    def top(one: TokenLogprobs) -> dict[str, float] | None:
        if one.is_first:
            return None
        likely = {name(one.token, one.piece): one.logprob}
        for piece, (token, value) in zip(one.top_pieces, one.top, strict=True):
            likely.setdefault(name(token, piece), value)
        return likely

    return {
        "tokens": [name(one.token, one.piece) for one in found],
        "token_logprobs": [None if one.is_first else one.logprob for one in found],
        "top_logprobs": [top(one) for one in found],
        "text_offset": [*places],
    }


def joined(first: dict[str, Any], second: dict[str, Any] | None) -> dict[str, Any]:
    """Two logprobs objects of legacy completions as one."""
    return first if second is None else {key: first[key] + second[key] for key in first}


def prompt_logprobs(found: Sequence[TokenLogprobs]) -> list[dict[str, Any] | None]:
    """vLLM's object: for each token of a prompt but the first, itself and the likeliest tokens by their ids."""

    def entry(piece: bytes, logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": logprob, "rank": rank, "decoded_token": piece.decode("utf-8", "replace")}

    def entries(one: TokenLogprobs) -> dict[str, Any]:
        likely = {str(one.token): entry(one.piece, one.logprob, one.rank)}
        for rank, (piece, (token, value)) in enumerate(zip(one.top_pieces, one.top, strict=True), start=1):
            likely.setdefault(str(token), entry(piece, value, rank))
        return likely

    return [None if one.is_first else entries(one) for one in found]


def _by_id(token: int) -> str:
    return f"token_id:{token}"


def _named(piece: bytes) -> str:
    r"""The text of ``piece``, or as OpenAI writes a part of a character: `bytes:\xf0\x9f`."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
