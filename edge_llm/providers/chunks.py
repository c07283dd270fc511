"""What the JSON of OpenAI's chat completions says: pieces of an answer, its figures, errors, and models.

Servers differ and may send anything: what is not understood is passed over, and only what is needed must be there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from edge_llm.config import REPETITION, GenerationParams
from edge_llm.decoding.defaults import SAMPLING
from edge_llm.errors import EdgeLLMError
from edge_llm.files import shown
from edge_llm.providers.base import Figures, ModelRow, Piece
from edge_llm.providers.batches import joined
from edge_llm.talk.pieces import CallArguments, CallBegun
from edge_llm.text.reasoning import ReasoningSplitter

_CONTEXT = ("max_model_len", "context_length", "context_window", "n_ctx", "n_ctx_train")
"""What servers call the context of a model."""
MOST_CALLS = 64
"""Of one answer; what more a server sends is left out."""
_CUT_OFF = ("length", "max_tokens")


class ChunkReader:
    """Reads the chunks of one answer."""

    def __init__(self) -> None:
        self._splitter = ReasoningSplitter()
        self._calls = _Calls()
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}
        self.reason: str | None = None
        """How the answer ended, once the server has said so."""
        self.count = 0
        """Chunks with text so far: tokens, of most servers."""

    def read(self, event: str) -> list[Piece]:
        """The pieces in ``event``.  Raises `EdgeLLMError` for the server's error, and for what is not JSON."""
        chunk = json_object(event)
        if (error := error_text(chunk)) is not None:
            raise EdgeLLMError(f"the server ended the answer with an error: {error}")
        self._usage = _object(chunk.get("usage")) or self._usage
        self._timings = _object(chunk.get("timings")) or self._timings
        choice = _object(next(iter(_list(chunk.get("choices"))), None))
        message = _object(choice.get("delta")) or _object(choice.get("message"))
        thought = _text(message.get("reasoning_content")) or _text(message.get("reasoning"))
        content = _text(message.get("content"))
        self.count += bool(thought or content)
        more_thought, said = self._splitter.push(content) if content else ("", "")
        if isinstance(reason := choice.get("finish_reason"), str):
            looped = REPETITION in (reason, choice.get("stopped_by"))
            self.reason = REPETITION if looped else "length" if reason in _CUT_OFF else "stop"
        return [*joined(thought + more_thought, said), *self._calls.read(message.get("tool_calls"))]

    def finish(self) -> list[Piece]:
        """What was held back, when the stream ends."""
        return joined(*self._splitter.finish())

    def figures(self, first_token_seconds: float | None, seconds: float) -> Figures:
        """``seconds`` passed between the first piece and the last one; for what the server does not say."""
        usage, timings = self._usage, self._timings
        completion = _count(usage.get("completion_tokens"))
        steps = (self.count if completion is None else completion) - 1  # the first token comes with the prompt
        measured = steps / seconds if seconds > 0 and steps > 0 else None
        return Figures(
            prompt_tokens=_count(usage.get("prompt_tokens")),
            cached_tokens=_count(_object(usage.get("prompt_tokens_details")).get("cached_tokens")),
            completion_tokens=self.count if completion is None else completion,
            first_token_seconds=first_token_seconds,
            prompt_per_second=_number(timings.get("prompt_per_second")),
            tokens_per_second=_number(timings.get("predicted_per_second")) or measured,
            drafted_tokens=_count(timings.get("draft_n")),
            accepted_tokens=_count(timings.get("draft_n_accepted")),
        )


class _Calls:
    """Calls of tools as they come: the name at once, the arguments in pieces; a call is known by its index, or by its id."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}

    def read(self, said: Any) -> Iterator[Piece]:
        for at, call in enumerate(map(_object, _list(said))):
            function, index, call_id = _object(call.get("function")), call.get("index"), _text(call.get("id"))
            key = index if type(index) is int else call_id or at
            if key not in self._places and (name := _text(function.get("name"))) and len(self._places) < MOST_CALLS:
                place = self._places[key] = len(self._places)
                yield CallBegun(place, call_id or f"call_{place}", name)
            arguments = function.get("arguments")
            text = arguments if isinstance(arguments, str) else json.dumps(arguments) if isinstance(arguments, dict) else ""
            if text and key in self._places:
                yield CallArguments(self._places[key], text)


def json_object(text: str) -> dict[str, Any]:
    """The JSON object that ``text`` is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise EdgeLLMError(f"the server sent `{shown(text, 80)}`, which is no JSON object; is it an OpenAI-compatible API?")
    return value


def error_text(reply: dict[str, Any]) -> str | None:
    """What the error in ``reply`` says; None if there is none."""
    error = reply.get("error")
    if error is None:
        return None
    found = _object(error).get("message") if isinstance(error, dict) else error
    return shown(found if isinstance(found, str) else json.dumps(error), 400)


def model_rows(reply: dict[str, Any]) -> Iterator[ModelRow]:
    """The models in a reply to GET /v1/models."""
    for entry in map(_object, _list(reply.get("data"))):
        if isinstance(name := entry.get("id"), str) and name:
            meta = _object(entry.get("meta"))
            contexts = (_count(source.get(key)) for source in (entry, meta) for key in _CONTEXT)
            context = next((found for found in contexts if found), None)
            yield ModelRow(name, _count(meta.get("size")), context=context, sampling=_sampling(entry), **_state(entry))


def _state(entry: dict[str, Any]) -> dict[str, Any]:
    """Whether a model is loaded, as servers of many models say: ours and llama.cpp's."""
    status = _object(entry.get("status"))
    progress = _object(status.get("progress"))
    done, total = (_count(progress.get(key)) or 0 for key in ("done", "total"))
    value = status.get("value")
    return {"is_loading": value == "loading", "is_unloaded": value == "unloaded", "done": done, "total": total}


def _sampling(entry: dict[str, Any]) -> dict[str, Any]:
    """What a person's request says of sampling so that it is as a server of ours recommends; nothing to any other server.

    Ours tells how it samples for `people` and, where a request says nothing, for `clients`.
    """
    told = _object(entry.get("sampling")) if entry.get("owned_by") == "edge-llm" else {}
    people, clients = _object(told.get("people")), _object(told.get("clients"))
    found = {name: people[name] for name in SAMPLING if name in people and people[name] != clients.get(name)}
    try:
        GenerationParams(**found)
    except (EdgeLLMError, TypeError, ValueError, AttributeError):
        return {}
    return found


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 62 else None


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 < value < 1e12 else None
