"""Chat templates are rendered in a process of their own, `edge_llm.text.sandbox`, which can be ended.

    template = TemplateProcess("{{ greeting }}, {{ name }}")
    template.render({"greeting": "Hello", "name": "you"}, max_output=100)
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_llm.errors import InvalidTokenizer, Overloaded, UsageError
from edge_llm.files import shown
from edge_llm.text.replies import EXHAUSTED, FAILED, SAID, TEXT

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
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""No template ends its process by one of these: the system does, for want of memory, or a person."""
_START = "import sys; sys.path[:] = sys.argv[1:]; from edge_llm.text.sandbox import serve; serve({}, {})"
_ROOT = str(Path(__file__).parents[2])


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
        self._worker: _Worker | None = None

    def render(self, values: Mapping[str, Any], max_output: int) -> str:
        """What the template makes of ``values`` (plain data), at most ``max_output`` characters.

        Raises `UsageError` for messages that the template refuses, `InvalidTokenizer` when it is malformed, fails or
        costs too much, `Overloaded` when the system does not let it run.
        """
        request = _frame({"values": values, "max_output": max_output})
        with self._lock:
            try:
                kind, reply = self._ready().ask(request)
            except _EndedFromOutside:
                kind, reply = self._ready().ask(request)
            if kind == EXHAUSTED or len(request) > MAX_KEPT_REQUEST:
                self._end()
        if kind == TEXT:
            return reply
        if kind == SAID:
            reason = shown(reply, MAX_REFUSAL)
            raise UsageError(f"the model's chat template refuses these messages: {reason}", param="messages")
        raise InvalidTokenizer(f"the model's chat template failed: {shown(reply)}; {_WAY_OUT}")

    def _ready(self) -> _Worker:
        """A process that has compiled the template."""
        if self._worker is None or not self._worker.alive:
            self._end()
            self._worker = _Worker(self)
            kind, reason = self._worker.ask(self._source.encode("utf-8", "surrogatepass"))
            if kind != TEXT:
                self._end()
                raise InvalidTokenizer(f"the chat template is not usable: {shown(reason)}; {_WAY_OUT}")
        return self._worker

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None


class _Worker:
    """One process, which does not outlive ``owner``."""

    def __init__(self, owner: object) -> None:
        command = [sys.executable, "-I", "-c", _START.format(MAX_SECONDS, MAX_BYTES), _ROOT, *filter(None, sys.path)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is for this process only
            )
        except OSError as failure:
            way_out = "; allow more with `ulimit -n`" if failure.errno in (errno.EMFILE, errno.ENFILE) else ""
            raise Overloaded(f"cannot start the process that renders chat templates: {failure.strerror}{way_out}") from None
        assert self._process.stdin is not None and self._process.stdout is not None
        self._asks, self._replies = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._asks, False)
        os.set_blocking(self._replies, False)
        self._started_by = os.getpid()
        self.end = weakref.finalize(owner, _end, self._process, self._started_by)

    @property
    def alive(self) -> bool:
        """Whether it can be asked: it runs, and this process is not a copy (fork) of the one that started it."""
        return self._started_by == os.getpid() and self._process.poll() is None

    def ask(self, payload: bytes) -> tuple[bytes, str]:
        """Kind and text of the reply to ``payload``; a process that ends instead has failed."""
        deadline = time.monotonic() + MAX_WAIT_SECONDS
        try:
            self._send(len(payload).to_bytes(8, "little"), deadline)
            self._send(payload, deadline)
            head = self._receive(9, deadline)
            reply = self._receive(int.from_bytes(head[1:], "little"), deadline)
        except (BrokenPipeError, EOFError):
            self.end()
            if self._process.returncode in [-number for number in _FROM_OUTSIDE]:
                raise _EndedFromOutside(
                    "the process that renders chat templates was ended from outside; ask again, with more memory left to it"
                ) from None
            return FAILED, _why_ended(self._process.returncode)
        except BaseException:  # half of an exchange would be read by the next one
            self.end()
            raise
        kind = bytes(head[:1])
        return kind, _TOO_MUCH if kind == EXHAUSTED else reply.decode("utf-8", "surrogatepass")

    def _send(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            _wait(self._asks, select.POLLOUT, deadline)
            rest = rest[os.write(self._asks, rest[:65536]) :]

    def _receive(self, count: int, deadline: float) -> bytearray:
        data = bytearray()
        while len(data) < count:
            _wait(self._replies, select.POLLIN, deadline)
            piece = os.read(self._replies, min(count - len(data), 1 << 20))
            if not piece:
                raise EOFError
            data += piece
        return data


def _frame(request: dict[str, Any]) -> bytes:
    try:
        return json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")
    except RecursionError:
        raise UsageError("the messages are nested too deeply", param="messages") from None
    except (TypeError, ValueError) as failure:
        raise UsageError(f"the messages must be plain data: {shown(failure)}", param="messages") from None


def _wait(descriptor: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, 1e3 * (deadline - time.monotonic()))):
        raise Overloaded(f"the chat template had no answer in {MAX_WAIT_SECONDS:g} seconds; the machine is too busy")


def _why_ended(code: int | None) -> str:
    if code == -signal.SIGPROF:
        return f"it takes more than {MAX_SECONDS:g} s of processor time"
    return f"its process ended ({code})"


def _end(process: subprocess.Popen[bytes], started_by: int) -> None:
    if started_by != os.getpid():
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
