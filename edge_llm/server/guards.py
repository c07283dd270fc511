"""What stands before every route: who may talk to this server, from which page, and how much may be sent.

A web page in the user's browser can reach a port on this machine; so can a name that an attacker lets point to it (DNS
rebinding).  Therefore Host and Origin are compared with exact lists before anything else is looked at, a POST must be
JSON (which a page cannot send without asking first), and no answer allows a page that was not listed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import re
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_llm.errors import Unavailable
from edge_llm.server import limits
from edge_llm.server.connection import Patience
from edge_llm.server.faces import error_response, face_of
from edge_llm.server.journal import Entry
from edge_llm.server.lending import MODEL_HEADER, give_back, header_text, lent_name
from edge_llm.server.metrics import Metrics
from edge_llm.server.page import PATHS as PAGE_PATHS
from edge_llm.server.pool import ModelPool
from edge_llm.server.schemas import IGNORED_HEADER
from edge_llm.server.shapes import new_id

LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "[::1]"))
PROBE_PATHS = frozenset(("/health", "/v1/health", "/ping"))
OPEN_PATHS = PAGE_PATHS | PROBE_PATHS | {"/docs", "/openapi.json"}
"""Paths that need no key: the page (which asks for it), the documents, and the probe of a supervisor."""
EVERY_ORIGIN = "*"
_METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
_EXPOSED = f"{IGNORED_HEADER}, {MODEL_HEADER}, x-request-id, request-id, retry-after, www-authenticate"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
THIS_MACHINE = "localhost"
"""Pages of any port of this machine."""
_OF_THIS_MACHINE = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_USUAL_HEADERS = ("authorization", "content-type", "x-api-key", "api-key", "anthropic-version")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
_CHARSET = re.compile(r"application/json\s*(;\s*charset\s*=\s*\"?utf-?8\"?\s*)?", re.IGNORECASE)

_UNTYPED = frozenset(("", "application/x-www-form-urlencoded"))
"""What programs say of a body when nobody tells them."""


@dataclass(frozen=True)
class Access:
    """Who may talk to this server."""

    keys: tuple[str, ...] = ()
    """API keys; none asks for no key."""
    hosts: frozenset[str] = LOOPBACK_NAMES
    """Names in the Host header, without port, in lower case."""
    origins: frozenset[str] = frozenset()
    """Other origins whose pages may read answers, as ``https://name:port``; ``*`` is every origin, ``localhost`` those here."""

    def knows_key(self, given: str | None) -> bool:
        """Whether ``given`` is one of the keys; the time it takes says nothing about them."""
        digest = hashlib.sha256((given or "").encode()).digest()
        same = [hmac.compare_digest(digest, hashlib.sha256(key.encode()).digest()) for key in self.keys]
        return any(same) or not self.keys

    def readers(self, origin: str) -> str | None:
        """The origin that may read answers to a page of ``origin``: `*`, that origin itself, or None."""
        if EVERY_ORIGIN in self.origins:
            return EVERY_ORIGIN
        if THIS_MACHINE in self.origins and _OF_THIS_MACHINE.fullmatch(origin):
            return origin
        return origin if origin in {one.rstrip("/").lower() for one in self.origins} else None


class Guards:
    """Middleware that refuses before work, and hands on a request whose body cannot grow past its limit."""

    def __init__(self, app: ASGIApp, access: Access, pool: ModelPool) -> None:
        self._app = app
        self._access = access
        self._pool = pool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if len(scope["path"]) > 1:  # a trailing slash makes no difference
            scope["path"] = scope["path"].rstrip("/") or "/"
        entry = Entry.of(scope)
        headers = Headers(scope=scope)
        allowed_origin = self._allowed_origin(headers)
        cors = [] if allowed_origin is None else _cors(allowed_origin, headers)
        reply = _Reply(send, scope, self._pool.metrics, [*_request_ids(headers), *cors])
        try:
            self._check(scope, headers, allowed_origin)
            if scope["method"] == "OPTIONS":
                await Response(headers={"Allow": _METHODS})(scope, receive, reply.send)
            else:
                most = limits.body_bytes(self._pool.context)
                typed = not face_of(scope).takes_untyped or _may_be_page(headers)
                await self._app(scope, _checked(headers, _bounded(receive, most), most, typed=typed), reply.send)
        except ClientDisconnect:
            pass  # it left before its body was there
        except asyncio.CancelledError:  # the server ends, and its drain is over
            if not reply.started:
                cut = error_response(scope, Unavailable("the server is shutting down"))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(limits.END_SECONDS):
                        await cut(scope, receive, reply.send)
        except Exception as error:
            response = error_response(scope, error)
            if not reply.started:
                await response(scope, receive, reply.send)
        finally:
            give_back(scope)
            self._pool.workshop.let_go(scope)
            if not entry.is_probe:
                self._pool.journal(entry.line())

    def _check(self, scope: Scope, headers: Headers, allowed_origin: str | None) -> None:
        _check_size(headers)
        if not _is_old_probe(scope, headers):
            self._check_host(headers)
        self._check_origin(headers, allowed_origin)
        if scope["method"] == "OPTIONS":
            return
        if scope["path"] not in OPEN_PATHS:
            self._check_key(headers)

    def _check_host(self, headers: Headers) -> None:
        named = headers.getlist("host")
        match = _HOST.fullmatch(named[0].lower()) if len(named) == 1 else None
        if match is None or match[1] not in self._access.hosts:
            raise HTTPException(403, "this Host is not served here; add it with --allow-host if it is yours")

    def _check_origin(self, headers: Headers, allowed_origin: str | None) -> None:
        if allowed_origin is not None:
            return
        origins = headers.getlist("origin")
        host = headers.get("host", "").lower()
        same = (f"http://{host}", f"https://{host}")
        if len(origins) > 1 or (origins and origins[0].lower() not in same):
            raise HTTPException(403, "pages of this Origin may not use this server; add it with --allow-origin if it is yours")
        if headers.get("sec-fetch-site", "none") == "cross-site":
            raise HTTPException(403, "requests from other sites are refused")

    def _allowed_origin(self, headers: Headers) -> str | None:
        origins = headers.getlist("origin")
        return self._access.readers(origins[0]) if len(origins) == 1 else None

    def _check_key(self, headers: Headers) -> None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else None
        if not self._access.knows_key(bearer or headers.get("x-api-key") or headers.get("api-key")):
            raise HTTPException(401, "the API key is missing or wrong", {"WWW-Authenticate": "Bearer"})


def _is_old_probe(scope: Scope, headers: Headers) -> bool:
    """Whether a supervisor asks in HTTP/1.0, which has no Host, if the server is up; every browser names a Host."""
    asks = scope["path"] in PROBE_PATHS and scope["method"] in ("GET", "HEAD")
    return scope["http_version"] == "1.0" and not {"host", "origin"} & set(headers) and (asks or scope["method"] == "OPTIONS")


def _check_size(headers: Headers) -> None:
    raw = headers.raw
    if len(raw) > limits.HEADER_COUNT or sum(len(name) + len(value) for name, value in raw) > limits.HEADER_BYTES:
        raise HTTPException(431, f"a request may have {limits.HEADER_COUNT} headers and {limits.HEADER_BYTES} bytes of them")


def _may_be_page(headers: Headers) -> bool:
    """Whether a page may have sent the request: every browser names its origin in a POST, or where it comes from."""
    return not {"origin", "referer", "sec-fetch-site", "sec-fetch-mode"}.isdisjoint(headers)


def _check_content(headers: Headers, most: int, *, typed: bool) -> None:
    named = headers.get("content-type", "").strip()
    if not _CHARSET.fullmatch(named) and (typed or named.lower() not in _UNTYPED):
        raise HTTPException(415, "the Content-Type must be application/json, in UTF-8")
    if headers.get("content-encoding", "identity") != "identity":
        raise HTTPException(415, "compressed bodies are not read")
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most:
        raise _too_large(most)


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"the body is too large; at most `{most}` bytes are read")


def _checked(headers: Headers, receive: Receive, most: int, *, typed: bool) -> Receive:
    """``receive`` that refuses, when a route asks for the body, what the headers say is too long or of another type.

    Where it need not be ``typed``, the body may have no type, or that of `curl -d`.
    """

    async def receive_checked() -> Message:
        _check_content(headers, most, typed=typed)
        return await receive()

    return receive_checked


def _bounded(receive: Receive, most: int) -> Receive:
    """``receive``, with an end to the body's size and to the patience for it."""
    clock = asyncio.get_running_loop().time
    patience = Patience(clock(), limits.BODY_SECONDS, limits.BODY_BYTES_PER_SECOND)
    complete = False

    async def receive_bounded() -> Message:
        nonlocal complete
        if complete:
            return await receive()  # waits for the client to go away
        try:
            async with asyncio.timeout(min(patience.left(clock()), limits.BODY_SECONDS)):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "the body did not come, or too slowly", {"Connection": "close"}) from None
        patience.moved += len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if patience.moved > most:
            raise _too_large(most)
        return message

    return receive_bounded


class _Reply:
    """The way back: what is refused is counted, and every answer gets ``headers``."""

    def __init__(self, send: Send, scope: Scope, metrics: Metrics, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._scope = scope
        self._metrics = metrics
        self._headers = headers
        self.started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            Entry.of(self._scope).status = message["status"]
            if message["status"] >= 400:
                self._metrics.count("requests_refused_total", labels=f'status="{message["status"]}"')
            message["headers"] = [*message.get("headers", []), *self._answerer(), *self._headers]
        await self._send(message)

    def _answerer(self) -> list[tuple[bytes, bytes]]:
        """The header that names the model, where one was lent."""
        name = lent_name(self._scope)
        return [] if name is None else [(MODEL_HEADER.encode(), header_text(name).encode())]


def _request_ids(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The id of a request under OpenAI's and Anthropic's name: the client's own, where it is one, else one that nobody has."""
    given = headers.get("x-request-id", "")
    name = (given if _REQUEST_ID.fullmatch(given) else new_id("req_")).encode()
    return [(b"x-request-id", name), (b"request-id", name)]


def _cors(readers: str, headers: Headers) -> list[tuple[bytes, bytes]]:
    """What tells a browser that pages of ``readers`` may read the answer: the SDKs' own headers are many, so all may come."""
    wanted = [name.strip() for name in headers.get("access-control-request-headers", "").split(",")]
    named = [name for name in wanted if _HEADER_NAME.fullmatch(name)]
    return [
        (b"Access-Control-Allow-Origin", readers.encode()),
        (b"Access-Control-Allow-Methods", _METHODS.encode()),
        (b"Access-Control-Allow-Headers", ", ".join(named or _USUAL_HEADERS).encode()),
        (b"Access-Control-Expose-Headers", _EXPOSED.encode()),
        (b"Access-Control-Max-Age", b"600"),
        (b"Vary", b"origin, access-control-request-headers"),
    ]
