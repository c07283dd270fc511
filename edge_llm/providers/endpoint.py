"""The address of an OpenAI-compatible server, its key, and what went wrong on the way there, in words."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from edge_llm.errors import EdgeLLMError, ModelNotFound, Overloaded, Unavailable, UsageError
from edge_llm.files import shown
from edge_llm.providers.chunks import error_text, json_object

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 10.0
MOST_BODY = 8 << 20
"""Bytes of a reply that is no stream."""
_VERSION = re.compile(r"/v\d\w*(/openai)?")
_ENDINGS = ("/chat/completions", "/models")


class Endpoint:
    """A server at ``url``, given as people do: with or without scheme, `/v1` and a slash at the end.

    The key goes nowhere but into the header: no error and no representation has it.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.base, self.host = _base(url)
        """Address below which the API lies, and the name of the machine."""
        self._key = None if api_key is None else api_key.strip()
        if self._key and not (self._key.isascii() and self._key.isprintable()):
            raise UsageError("the API key has characters that no key has; check what was copied", param="api_key")

    @property
    def is_here(self) -> bool:
        """Whether the server is on this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost" or self.host.endswith(".localhost")

    @property
    def tells_the_key(self) -> bool:
        """Whether anybody on the way can read the key."""
        return bool(self._key) and self.base.startswith("http:") and not self.is_here

    @property
    def headers(self) -> dict[str, str]:
        plain = {"Accept-Encoding": "identity", "User-Agent": "edge-llm"}  # what is packed small may be without end
        return plain | ({"Authorization": f"Bearer {self._key}"} if self._key else {})

    def options(self, read_seconds: float | None) -> dict[str, Any]:
        """For a client of httpx.  No proxy has to do with a server on this machine."""
        import httpx

        timeout = httpx.Timeout(CONNECT_SECONDS, read=read_seconds, write=60.0)
        return {"headers": self.headers, "timeout": timeout, "trust_env": not self.is_here}

    def refusal(self, response: httpx.Response, body: bytes) -> EdgeLLMError:
        """What a ``response`` that is no success means."""
        said = self._said(body)
        status = response.status_code
        where = f"the server at {self.base}"
        if status in (401, 403):
            need = "refuses the API key" if self._key else "asks for an API key"
            return UsageError(f"{where} {need} ({status}){said}; check the key", param="api_key")
        if status == 404:
            return ModelNotFound(f"{where} does not know the model or the address (404){said}; check the URL and the model")
        if status == 429:
            return Overloaded(f"{where} takes no more requests now (429){said}; ask again later")
        if status == 503:
            return Unavailable(f"{where} is not ready (503){said}; ask again later")
        if 300 <= status < 400:
            target = shown(response.headers.get("location", "nowhere"), 200)
            return UsageError(f"{where} sends everybody to `{target}` ({status}); give that address", param="url")
        if 400 <= status < 500:
            return UsageError(f"{where} refuses the request ({status}){said}")
        return EdgeLLMError(f"{where} failed ({status}){said}; ask again, its log may say more")

    def failure(self, error: Exception) -> EdgeLLMError:
        """What ``error``, which httpx raised, means."""
        import httpx

        where = f"the server at {self.base}"
        causes = list(_causes(error))
        reason = self.without_key(shown(str(causes[-1]) or type(error).__name__, 200))
        if isinstance(error, EdgeLLMError):
            return error
        if isinstance(error, httpx.ConnectTimeout):
            return Unavailable(f"{where} does not answer within {CONNECT_SECONDS:.0f} s; check the address")
        if any(isinstance(cause, (socket.gaierror, UnicodeError)) for cause in causes):
            return Unavailable(f"there is no machine `{shown(self.host)}` ({reason}); check the address")
        if any(isinstance(cause, ssl.SSLError) for cause in causes):
            return Unavailable(f"no safe connection to {where}: {reason}; check the certificate, or whether it speaks http")
        if isinstance(error, httpx.ProxyError):
            return Unavailable(f"the proxy refuses the way to {where}: {reason}; check the proxy variables")
        if isinstance(error, httpx.ConnectError):
            return Unavailable(f"{where} cannot be reached: {reason}; is it running?")
        if isinstance(error, httpx.TimeoutException):
            return Unavailable(f"{where} does not answer; ask again")
        return Unavailable(f"the connection to {where} was lost: {reason}; ask again")

    def without_key(self, text: str) -> str:
        return text.replace(self._key, "[the key]") if self._key else text

    def _said(self, body: bytes) -> str:
        """The server's own words, if it has any."""
        try:
            found = error_text(json_object(body.decode("utf-8", "replace")))
        except EdgeLLMError:
            return ""
        return f": {self.without_key(found)}" if found else ""


def _base(url: str) -> tuple[str, str]:
    """The address below which the API lies, and the host."""
    text = url.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _not_an_address(text) from None
    if parts.scheme not in ("http", "https") or not host or not text.isprintable() or " " in text:
        raise _not_an_address(text)
    if "@" in parts.netloc:
        raise UsageError("the URL has a name or password in it; give the key as --api-key", param="url")
    path = parts.path.rstrip("/")
    for ending in _ENDINGS:
        path = path.removesuffix(ending)
    if not _VERSION.fullmatch(path[path.rfind("/v") :] if "/v" in path else ""):
        path += "/v1"
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}{f':{port}' if port is not None else ''}{path}", host


def _not_an_address(text: str) -> UsageError:
    return UsageError(f"`{shown(text, 100)}` is no address of a server; give one like http://127.0.0.1:8080", param="url")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """``error`` and what led to it."""
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or seen.__context__
