"""Replies that are not streamed: made and written as JSON in a thread, piece by piece, so that others are served meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from edge_llm.engine.request import Answer
from edge_llm.server.answers import Answers
from edge_llm.server.stream import until_disconnect

PIECE = 1024
"""Items of a list that are written in one go: the encoder lets no other thread run meanwhile."""
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


async def answers_reply(
    request: Request, answers: Answers, make: Callable[[list[Answer]], dict[str, Any]], headers: Mapping[str, str]
) -> Response:
    """What ``make`` makes of all ``answers``, which are cancelled when the client goes away."""
    found = await until_disconnect(request.receive, answers.whole())
    return Response(status_code=499) if found is None else await json_reply(lambda: make(found), headers)


async def json_reply(make: Callable[[], Any], headers: Mapping[str, str]) -> Response:
    """The value that ``make`` makes, as JSON."""

    def work() -> bytes:
        return b"".join(piece.encode() for piece in json_pieces(make()))

    return Response(await run_in_threadpool(work), media_type="application/json", headers=headers)


def json_pieces(value: Any) -> Iterator[str]:
    """The JSON text of ``value`` in pieces that each take little time; an array is a list of numbers."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        yield from _members(value)
    elif isinstance(value, list) and not all(map(_is_small, value)):
        yield from _items(value)
    elif isinstance(value, list) and len(value) > PIECE:
        for start in range(0, len(value), PIECE):
            yield ("," if start else "[") + _encode(value[start : start + PIECE])[1:-1]
        yield "]"
    else:
        yield _encode(value)


def _members(value: dict[str, Any]) -> Iterator[str]:
    if _is_small(value):
        yield _encode(value)
        return
    for at, (key, inner) in enumerate(value.items()):
        yield ("," if at else "{") + _encode(key) + ":"
        yield from json_pieces(inner)
    yield "}"


def _items(value: Sequence[Any]) -> Iterator[str]:
    for at, inner in enumerate(value):
        yield "," if at else "["
        yield from json_pieces(inner)
    yield "]"


def _is_small(value: Any) -> bool:
    """Whether ``value`` holds at most a few others, and those nothing."""
    if isinstance(value, dict):
        return len(value) < 16 and not any(isinstance(inner, dict | list | np.ndarray) for inner in value.values())
    return not isinstance(value, list | np.ndarray)
