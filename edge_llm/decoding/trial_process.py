"""The process in which grammars are tried; `edge_llm.decoding.trial` starts it and asks it.

The first frame is the vocabulary; each later one is a grammar, or a GBNF text or a JSON schema to turn into Lark, and is
answered by what is wrong with it and how many bytes it takes, or by what killed it.  All of it is JSON.  Every grammar is
tried in a fork of its own, so one that kills its process or never ends takes nothing along.  The process ends with its
input, or when nothing has come for a while.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import llguidance
from llguidance.gbnf_to_lark import gbnf_to_lark

from edge_llm.child.inside import Limits, answer, questions
from edge_llm.decoding.schemas.writer import lark_of
from edge_llm.decoding.token_table import ByteTable
from edge_llm.errors import UsageError

IDLE_SECONDS = 60
MAX_ERROR = 4000
"""Characters of what the library says is wrong."""
_NO_TEXT = ("NoExtension", "Unsatisfiable")
"""Words in the library's reason for a grammar that allows no text."""
_LEAST = json.dumps({"grammars": [{"lark_grammar": 'start: "a"'}]})
_LEAST_BYTES = 64 << 10
"""What the least grammar takes; by how much its process grows is what a trial itself takes."""


def serve(stack_bytes: int, most_bytes: int, seconds: float) -> None:
    """Answer questions until they end; the arguments are the limits of one trial."""
    asked = questions()
    library = _Library(json.loads(next(asked)))

    def tried(question: dict[str, str]) -> dict[str, Any]:
        return _apart(lambda: _measured(lambda: library.answer(question), stack_bytes, most_bytes, seconds))

    itself = tried({"source": _LEAST}).get("bytes", 0) - _LEAST_BYTES
    signal.alarm(IDLE_SECONDS)  # it ends the process
    for question in asked:
        signal.alarm(0)
        said = tried(json.loads(question))
        if "bytes" in said:
            said["bytes"] = max(said["bytes"] - itself, _LEAST_BYTES)
        answer(json.dumps(said).encode())
        signal.alarm(IDLE_SECONDS)


class _Library:
    """The grammar library with one vocabulary."""

    def __init__(self, vocabulary: dict[str, Any]) -> None:
        self._size = vocabulary["size"]
        control = {int(token): text.encode() for token, text in vocabulary["control"].items()}
        table = ByteTable(self._size, control, vocabulary["ends"])
        self._tokens = llguidance.LLTokenizer(table, n_vocab=self._size, eos_token=vocabulary["ends"])  # type: ignore[arg-type]  # duck-typed
        self._limits = llguidance.LLParserLimits(**vocabulary["limits"])

    def answer(self, question: dict[str, str]) -> dict[str, Any]:
        if "source" in question:
            return self._attempt(question["source"])
        return self._converted(question["gbnf"]) if "gbnf" in question else self._schema(question["schema"])

    def _attempt(self, source: str) -> dict[str, Any]:
        matcher = llguidance.LLMatcher(self._tokens, source, log_level=0, limits=self._limits)
        if not matcher.is_error() and not matcher.is_stopped():
            bits = (ctypes.c_int32 * ((self._size + 31) // 32))()
            # some grammars fail only here, where the beginning of an answer is worked out
            matcher.unsafe_compute_mask_ptr(ctypes.addressof(bits), ctypes.sizeof(bits))
        return {"error": matcher.get_error()[:MAX_ERROR] if matcher.is_error() else ""}

    def _schema(self, text: str) -> dict[str, Any]:
        try:
            lark, loose = lark_of(json.loads(text), self._is_empty)
        except UsageError as error:
            return {"error": str(error)}
        except RecursionError:
            return {"error": "the JSON schema nests too deeply"}
        return {"error": "", "lark": lark, "loose": loose}

    def _is_empty(self, lark: str) -> bool:
        error = self._attempt(json.dumps({"grammars": [{"lark_grammar": lark}]}))["error"]
        return any(word in error for word in _NO_TEXT)

    def _converted(self, gbnf: str) -> dict[str, Any]:
        try:
            return {"error": "", "lark": str(gbnf_to_lark(gbnf))}
        except Exception as error:  # the converter raises several kinds, none of them public
            return {"error": str(error)[:MAX_ERROR] or "it nests too deeply"}


def _apart(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``work`` returns in a fork, or {"killed": signal}."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        try:
            os.write(theirs, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(said) if said else {"killed": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}


def _measured(work: Callable[[], dict[str, Any]], stack_bytes: int, most_bytes: int, seconds: float) -> dict[str, Any]:
    """What ``work`` returns within the limits, and the {"bytes"} by which the process grew."""
    said: list[dict[str, Any]] = []
    threading.stack_size(stack_bytes)
    with Limits(seconds, stack_bytes + most_bytes).held():
        before = _peak_bytes()
        thread = threading.Thread(target=lambda: said.append(work()))
        thread.start()
        thread.join()
    return said[0] | {"bytes": _peak_bytes() - before} if said else {"killed": signal.SIGABRT}


def _peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
