"""A stub of ModelScope's HTTP interface on loopback: what it holds, how it misbehaves, and what it was asked."""

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
from urllib.parse import parse_qs, urlsplit

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Stub:
    files: dict[str, bytes]
    repository: str = "org/tiny"
    revisions: tuple[str, ...] = ("master",)
    token: str = ""
    """What is wanted of who asks."""
    status: int = 200
    refuses: dict[str, Any] | None = None
    """What is answered with status 200 in place of the list."""
    listed: dict[str, Any] = field(default_factory=dict)
    """What every file of the list says in place of the truth."""
    extra: list[Any] = field(default_factory=list)
    """Beside the files, in the list."""
    nonsense: bytes = b""
    silent: float = 0.0
    """Seconds before anything is answered."""
    cut: int = 0
    """Bytes after which a file's connection is closed; used once."""
    stall: int = 0
    """Bytes after which a file's transfer stands still."""
    damaged: bool = False
    endless: bool = False
    """Whether files go on behind their end, without a length."""
    ignores_range: bool = False
    json_for_file: bool = False
    redirect: str = ""
    """Base address that files are redirected to."""
    endpoint: str = ""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def asked(self, part: str) -> list[dict[str, str]]:
        """Headers of the requests whose path contains ``part``."""
        return [headers for path, headers in self.requests if part in path]


def entry(name: str, data: bytes) -> dict[str, Any]:
    return {
        "CommitMessage": "x", "CommittedDate": 1700000000, "CommitterName": "x", "InCheck": False, "IsLFS": len(data) > 9000,
        "Mode": "33188", "Name": name.rpartition("/")[2], "Path": name, "Revision": "r" * 40,
        "Sha256": hashlib.sha256(data).hexdigest(), "Size": len(data), "Type": "blob",
    }  # fmt: skip


def handler(stub: Stub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            time.sleep(stub.silent)
            address = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(address.query).items()}
            stub.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
            base = f"/api/v1/models/{stub.repository}/repo"
            if stub.status != 200:
                self.reply(stub.status, {"Code": stub.status, "Message": "no"})
            elif stub.nonsense:
                self.answer(200, stub.nonsense, {})
            elif address.path.startswith("/cdn/"):
                self.file(address.path.removeprefix("/cdn/"))
            elif not address.path.startswith(base) or not self.is_known():
                self.reply(404, {"Code": 10010205001, "Message": "Record not found", "Success": False})
            elif query.get("Revision") not in stub.revisions:
                self.reply(200, {"Code": 10010205010, "Message": "revision not found", "Success": False})
            elif address.path == f"{base}/files":
                self.list_files()
            elif query.get("FilePath") in stub.files:
                self.file(query["FilePath"])
            else:
                self.reply(200, {"Code": 10010205009, "Message": "file not found", "Success": False})

        def is_known(self) -> bool:
            return not stub.token or self.headers.get("Authorization") == f"Bearer {stub.token}"

        def list_files(self) -> None:
            folders = [{"Path": "sub", "Name": "sub", "Type": "tree", "Size": 0}]
            files = [entry(name, data) | stub.listed for name, data in stub.files.items()]
            self.reply(200, stub.refuses or {"Code": 200, "Data": {"Files": folders + files + stub.extra}, "Success": True})

        def file(self, name: str) -> None:
            data = stub.files[name]
            if stub.redirect:
                self.answer(302, b"", {"Location": f"{stub.redirect}/cdn/{name}"})
                return
            if stub.json_for_file:
                self.reply(200, {"Code": 500, "Message": "storage"})
                return
            if stub.damaged:
                data = bytes(len(data))
            if stub.endless:
                self.send_response(200)
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                try:
                    for _ in range(400):
                        self.wfile.write(data + bytes(1 << 20))
                except OSError:
                    pass
                return
            start = 0 if stub.ignores_range else int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
            more = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
            self.answer(206 if start else 200, data[start:], more, large=len(data) > 9000)

        def reply(self, status: int, body: dict[str, Any]) -> None:
            self.answer(status, json.dumps(body).encode(), {"Content-Type": "application/json"})

        def answer(self, status: int, body: bytes, headers: dict[str, str], large: bool = False) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if large and stub.cut:
                body, stub.cut = body[: stub.cut], 0
                self.close_connection = True
            if large and stub.stall:
                self.wfile.write(body[: stub.stall])
                self.wfile.flush()
                time.sleep(4.0)
                return
            self.wfile.write(body)

    return Handler


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    """``stub`` while it answers at its endpoint."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(stub))
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # who asked has gone
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    stub.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()


def environment(cache: Path, endpoint: str, **more: str) -> dict[str, str]:
    """Of a process that asks the stub; Hugging Face's hub cannot be reached from it."""
    strangers = ("HF_", "HUGGING_FACE", "MODELSCOPE_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(strangers)}
    proxies = {k: "" for k in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy")}
    own = {"MODELSCOPE_ENDPOINT": endpoint, "MODELSCOPE_CACHE": str(cache), "HF_ENDPOINT": "http://127.0.0.1:9"}
    return kept | proxies | own | {"HF_HOME": str(cache / "hf"), "PYTHONPATH": str(ROOT), "NO_PROXY": "*"} | more
