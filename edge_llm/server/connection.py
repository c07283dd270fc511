"""One HTTP/1.1 connection, and how long it waits for its client: for headers, the rest of a body, the reading of answers."""

from __future__ import annotations

import json
import logging
import math
import resource
import time
from dataclasses import dataclass
from typing import Any, cast

import h11
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from edge_llm.server import limits
from edge_llm.server.journal import Entry
from edge_llm.server.problems import problem_of

log = logging.getLogger("edge_llm.server")


class Remark:
    """A warning in the log that is said at most once every `SAY_AGAIN_SECONDS`, however often it is true."""

    def __init__(self) -> None:
        self._said = -math.inf

    def say(self, text: str, *values: object) -> None:
        """Say it, if it was not said just now."""
        if (now := time.monotonic()) >= self._said + limits.SAY_AGAIN_SECONDS:
            self._said = now
            log.warning(text, *values)


_crowded = Remark()


@dataclass
class Patience:
    """How long a connection waits for its client: ``seconds``, and one more for every ``rate`` bytes that went through."""

    since: float
    seconds: float
    rate: float = 0.0
    moved: int = 0
    """Bytes that went through."""

    def left(self, now: float) -> float:
        """Seconds that the client still has."""
        return self.since + self.seconds + (self.moved / self.rate if self.rate else 0.0) - now


class Connection(H11Protocol):
    """HTTP/1.1 whose client cannot keep a connection by being slow.

    The server calls `look` every `LOOK_SECONDS`.  A body that a route reads is bounded by the guards; what nobody reads,
    behind an answer that came early, is bounded here.
    """

    _wait: tuple[str, object, Patience] | None = None
    """(what, in which request, how long): what the connection waits for."""
    _unread: tuple[int, Patience] | None = None
    """Bytes of answers that the client has not read, and how long it may take."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - limits.SPARE_DESCRIPTORS
        if 0 < most < len(self.connections):
            _crowded.say("new connections are refused: `%d` are open; raise `ulimit -n` if this lasts", most)
            self._refuse(503, "too many connections are open; ask again later")

    def look(self, now: float) -> None:
        """End this connection if its client is too slow at ``now``, in the loop's seconds."""
        if self._reader_is_gone(now):
            self.transport.abort()
        elif not self.transport.is_closing() and self._sender_is_late(now):
            if self._wait is not None and self._wait[0] == "headers" and self.conn.trailing_data[0]:
                self._tell_and_refuse(408, "the headers did not come")
            else:
                self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer in JSON to bytes that are not HTTP."""
        self._tell_and_refuse(400, msg)

    def _tell_and_refuse(self, status: int, message: str) -> None:
        """As `_refuse`, and a line of the log says so, as it does of what a route answers."""
        self._refuse(status, message)
        no_route = self.cycle is None or self.cycle.response_complete
        entry = Entry("-", "-") if no_route else Entry.of(cast(Any, self.cycle.scope))
        entry.status = status
        entry.fail(HTTPException(status, message), message)
        if no_route:
            self.config.app.state.pool.journal(entry.line())  # type: ignore[union-attr]

    def _sender_is_late(self, now: float) -> bool:
        waiting_for = self._waiting_for()
        if waiting_for is None:
            self._wait = None
            return False
        what, seconds = waiting_for
        if self._wait is None or (self._wait[0], self._wait[1]) != (what, self.cycle):
            self._wait = (what, self.cycle, Patience(now, seconds))
        return self._wait[2].left(now) < 0

    def _waiting_for(self) -> tuple[str, float] | None:
        """What the client owes, and the seconds that it has for it; None when we owe it an answer or it may be idle."""
        answered = self.cycle is None or self.cycle.response_complete
        if answered and self.conn.their_state is h11.SEND_BODY:
            return "body", limits.BODY_SECONDS
        if answered and (self.cycle is None or self.conn.trailing_data[0]):
            return "headers", limits.HEADER_SECONDS
        return None

    def _reader_is_gone(self, now: float) -> bool:
        size = self.transport.get_write_buffer_size()
        if not size:
            self._unread = None
            return False
        before, patience = self._unread or (0, Patience(now, 0.0))
        if size > before:  # something new was written: its client gets all the time again
            patience = Patience(now, limits.READER_SECONDS, limits.READER_BYTES_PER_SECOND)
        patience.moved += max(0, before - size)
        self._unread = (size, patience)
        return patience.left(now) < 0

    def _refuse(self, status: int, message: str) -> None:
        """Answer in JSON without a route, where no other answer has begun, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(problem_of(HTTPException(status, message)).openai()).encode()
            length = b"%d" % len(body)
            headers = [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")]
            head = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
            bodiless = self.conn.our_state is h11.SEND_RESPONSE and self.scope["method"] == "HEAD"
            for event in (head, h11.Data(data=b"" if bodiless else body), h11.EndOfMessage()):
                self.transport.write(cast(Any, self.conn.send(event)))
        if self.cycle is not None and not self.cycle.response_complete:  # its route is to say nothing more
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

