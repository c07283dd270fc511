"""GET / and below /web: the chat page, a folder of files that talk to nothing but this server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from edge_llm.server.lending import pool_of

FOLDER = Path(__file__).with_name("web")
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Media types of what is served; other files of the folder (licenses) are not."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Nothing but files of this server may run; a browser asks each time whether its copy is still the right one."""


@dataclass(frozen=True)
class _File:
    data: bytes
    kind: str
    etag: str


def _read(path: Path) -> _File:
    data = path.read_bytes()
    return _File(data, _KINDS[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:32]}"')


def _read_all() -> dict[str, _File]:
    """The page by its path, and every file that it is made of."""
    paths = sorted(path for path in FOLDER.rglob("*") if path.suffix in _KINDS and path.name != "index.html")
    named = {f"/web/{path.relative_to(FOLDER).as_posix()}": path for path in paths}
    return {path: _read(file) for path, file in ({"/": FOLDER / "index.html"} | named).items()}


FILES = _read_all()
PATHS = frozenset(FILES)


async def page(request: Request) -> Response:
    """A file of the chat page.

    304 for whoever has it.  Raises `HTTPException` (404) for others.
    """
    file = FILES.get(request.url.path.rstrip("/") or "/")
    if "page" in pool_of(request).without:
        raise HTTPException(404, "this server was started without its page (--without page)")
    if file is None:
        raise HTTPException(404, "the chat page has no such file")
    headers = HEADERS | {"ETag": file.etag}
    known = request.headers.get("if-none-match", "")
    if file.etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(file.data, media_type=file.kind, headers=headers)
