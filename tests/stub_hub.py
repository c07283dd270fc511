"""A stub of the hub's HTTP interface on loopback: what it holds, how it misbehaves, and what it was asked."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PIECE = 1 << 14
"""Bytes of a large file that are sent at once by a stub with a pace."""


@dataclass
class Stub:
    """What the stub hub holds, how it misbehaves, and what it was asked."""

    files: dict[str, bytes]
    repository: str = "org/tiny"
    large: tuple[str, ...] = ("model.safetensors",)
    status: int = 200
    error_code: str = ""
    sha: str = COMMIT
    sha256: str = ""
    cut: int = 0
    """Bytes after which a large file's connection is closed; used once."""
    silent: float = 0.0
    """Seconds before anything is answered."""
    nonsense: bytes = b""
    """What is answered whatever is asked."""
    info: dict[str, object] = field(default_factory=dict)
    """What else is said of the repository."""
    pace: float = 0.0
    """Seconds between two pieces of a large file."""
    stall: int = 0
    """Bytes after which a large file's transfer stands still."""
    redirect: str = ""
    """Base address that large files are redirected to."""
    endpoint: str = ""
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    def asked(self, method: str, part: str) -> list[dict[str, str]]:
        """Headers of the requests of ``method`` whose path contains ``part``."""
        return [headers for m, path, headers in self.requests if m == method and part in path]


def handler(stub: Stub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = urlsplit(self.path).path
            if stub.silent:
                time.sleep(stub.silent)
            stub.requests.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
            if stub.status != 200:
                self.reply(stub.status, b'{"error": "no"}', {"X-Error-Code": stub.error_code} if stub.error_code else {})
            elif "/tree/" in path:
                self.reply(200, json.dumps([self.entry(name, "path") for name in stub.files]).encode())
            elif stub.nonsense:
                self.reply(200, stub.nonsense)
            elif path.startswith(f"/api/models/{stub.repository}"):
                siblings = [self.entry(name, "rfilename") for name in stub.files]
                info = {"id": stub.repository, "modelId": stub.repository, "sha": stub.sha, "siblings": siblings}
                self.reply(200, json.dumps(info | stub.info).encode())
            elif path.startswith("/api/models/"):
                self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            elif found := [name for name in stub.files if path.endswith(f"/{name}")]:
                self.file(max(found, key=len))
            else:
                self.reply(404, b"{}", {"X-Error-Code": "EntryNotFound"})

        def entry(self, name: str, key: str) -> dict[str, object]:
            data = stub.files[name]
            record: dict[str, object] = {key: name, "type": "file", "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            if name in stub.large:
                sha = stub.sha256 or hashlib.sha256(data).hexdigest()
                record["lfs"] = {"sha256": sha, "oid": sha, "size": len(data), "pointerSize": 130}
            return record

        def file(self, name: str) -> None:
            data = stub.files[name]
            digest = hashlib.sha256(data) if name in stub.large else hashlib.sha1(data)
            headers = {"ETag": f'"{digest.hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            if stub.redirect and name in stub.large:
                target = f"{stub.redirect}/{name}"
                self.reply(302, b"", headers | {"Location": target, "X-Linked-Size": str(len(data)), "X-Linked-ETag": '"a"'})
                return
            start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.reply(206 if start else 200, data[start:], headers, large=name in stub.large)

        def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None, large: bool = False) -> None:
            self.send_response(status)
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if large and stub.cut:
                body, stub.cut = body[: stub.cut], 0
                self.close_connection = True
            if large and stub.stall:
                self.wfile.write(body[: stub.stall])
                self.wfile.flush()
                time.sleep(4.0)
                return
            for start in range(0, len(body), PIECE if large and stub.pace else max(1, len(body))):
                time.sleep(stub.pace if large else 0.0)
                self.wfile.write(body[start : start + PIECE] if large and stub.pace else body)

    return Handler


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    """``stub`` while it answers at its endpoint."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(stub))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    stub.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()


def hub_of(folder: Path, repository: str = "org/tiny", **more: Any) -> Stub:
    """A stub that holds the model in ``folder``."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return Stub(files, repository, tuple(name for name in files if name.endswith(".safetensors")), **more)


def environment(home: Path, endpoint: str, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING_FACE", "TRANSFORMERS_"))}
    proxies = {k: "" for k in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy")}
    return kept | proxies | {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "PYTHONPATH": str(ROOT), "NO_PROXY": "*"} | more
