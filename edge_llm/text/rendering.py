"""Chat templates are rendered in a process of their own, `edge_llm.text.sandbox`, which can be ended.

    template = TemplateProcess("{{ greeting }}, {{ name }}")
    template.render({"greeting": "Hello", "name": "you"}, max_output=100)
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Mapping
from typing import Any

from edge_llm.child.owner import Child, ChildEnded
from edge_llm.errors import TOO_MANY_FILES, InvalidTokenizer, Overloaded, UsageError, is_too_many_files
from edge_llm.files import shown
from edge_llm.text.replies import EXHAUSTED, FAILED, REFUSED, TEXT

MAX_SECONDS = 1.0
"""Processor time of compiling a template, and of each rendering; real ones take milliseconds."""
MAX_BYTES = 40 << 20
"""Memory of a rendering, beside what its input needs."""
MAX_WAIT_SECONDS = 10.0
"""A process that does not even use its processor time is not waited for."""
MAX_KEPT_REQUEST = 4 << 20
"""Bytes; a process that had a larger one ends after it, so that what it kept in memory does not limit the next."""
MAX_REFUSAL = 500
"""Characters shown of what a template says through raise_exception."""

_WAY_OUT = "put a working chat_template.jinja into the model's folder"
_TOO_MUCH = f"it needs more than {MAX_BYTES >> 20} MiB of memory"
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
"""No template ends its process by one of these: the system does, for want of memory, or a person."""


class _EndedFromOutside(Overloaded):
    """The process was ended, and not by what it rendered; another one may fare better."""


class TemplateProcess:
    """A template in a process of its own, which starts when it is first rendered.  Safe to share between threads.

    The process ends with this object, with this process, or with a rendering that costs too much; the next rendering
    starts another.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._compiled = False
        """Whether the child has the template."""

    def begin(self) -> None:
        """Start the process, so that the first rendering need not wait for it; where it cannot start, that says so."""
        with self._lock, contextlib.suppress(Overloaded):
            if self._child is None:
                self._child = self._started()

    def render(self, values: Mapping[str, Any], max_output: int) -> str:
        """What the template makes of ``values`` (plain data), at most ``max_output`` characters.

        Raises `UsageError` for messages that the template refuses, `InvalidTokenizer` when it is malformed, fails or
        costs too much, `Overloaded` when the system does not let it run.
        """
        request = _frame({"values": values, "max_output": max_output})
        with self._lock:
            try:
                kind, reply = self._ask(self._ready(), request)
            except _EndedFromOutside:
                kind, reply = self._ask(self._ready(), request)
            if kind == EXHAUSTED or len(request) > MAX_KEPT_REQUEST:
                self._end()
        if kind == TEXT:
            return reply
        if kind == REFUSED:
            reason = shown(reply, MAX_REFUSAL)
            raise UsageError(f"the model's chat template refuses these messages: {reason}", param="messages")
        raise InvalidTokenizer(f"the model's chat template failed: {shown(reply)}; {_WAY_OUT}")

    def _ready(self) -> Child:
        """A process that has compiled the template."""
        if self._child is None or not self._child.alive:
            self._end()
            self._child = self._started()
        if not self._compiled:
            kind, reason = self._ask(self._child, self._source.encode("utf-8", "surrogatepass"))
            if kind != TEXT:
                self._end()
                raise InvalidTokenizer(f"the chat template is not usable: {shown(reason)}; {_WAY_OUT}")
            self._compiled = True
        return self._child

    def _started(self) -> Child:
        try:
            return Child(self, "edge_llm.text.sandbox", MAX_SECONDS, MAX_BYTES)
        except OSError as failure:
            reason = TOO_MANY_FILES if is_too_many_files(failure) else failure.strerror
            raise Overloaded(f"cannot start the process that renders chat templates: {reason}") from None

    def _ask(self, child: Child, question: bytes) -> tuple[bytes, str]:
        """Kind and text of the reply to ``question``; a process that ends instead has failed."""
        try:
            reply = child.ask(question, MAX_WAIT_SECONDS)
        except ChildEnded as ended:
            if ended.code in _FROM_OUTSIDE:
                raise _EndedFromOutside(
                    "the process that renders chat templates was ended from outside; ask again, with more memory left to it"
                ) from None
            return FAILED, _reason(ended)
        except TimeoutError:
            raise Overloaded(
                f"the chat template had no answer in {MAX_WAIT_SECONDS:g} seconds; the machine is too busy"
            ) from None
        kind = reply[:1]
        return kind, _TOO_MUCH if kind == EXHAUSTED else reply[1:].decode("utf-8", "surrogatepass")

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child, self._compiled = None, False


def _frame(request: dict[str, Any]) -> bytes:
    try:
        return json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")
    except RecursionError:
        raise UsageError("the messages are nested too deeply", param="messages") from None
    except (TypeError, ValueError) as failure:
        raise UsageError(f"the messages must be plain data: {shown(failure)}", param="messages") from None


def _reason(ended: ChildEnded) -> str:
    return f"it takes more than {MAX_SECONDS:g} s of processor time" if ended.code == -signal.SIGPROF else str(ended)
