"""Answers through the REST endpoint, over loopback: a server in a process of its own, and a client that costs next to nothing.

The server is a module of a higher floor, which this one only starts.

The client reads sockets and looks for the ends only, because it takes its time from the same cores.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge_llm import kernels
from edge_llm.bench.loads import Load, Outcome
from edge_llm.bench.worker import Worker
from edge_llm.config import RuntimeConfig
from edge_llm.errors import DeviceError

TIMEOUT = 600.0
"""Seconds without a byte from any stream after which a measurement is given up."""
_USAGE = re.compile(rb'"completion_tokens":(\d+)')


class RestFace:
    """Loads of the process of ``module``; use as a context manager.  It answers with the engine that `load_for` makes."""

    def __init__(
        self,
        module: str,
        folder: Path,
        runtime: RuntimeConfig,
        loads: Sequence[Load],
        window_seconds: float,
        *,
        synthetic: bool,
    ) -> None:
        setting: dict[str, Any] = {
            "folder": str(folder),
            "runtime": vars(runtime),
            "loads": [vars(load) for load in loads],
            "window_seconds": window_seconds,
            "synthetic": synthetic,
            "isa": kernels.isa(),
        }
        self._worker = Worker(module, setting, "the server")
        try:
            self._worker.receive()
            facts = self._worker.ask("describe")
        except BaseException:
            self._worker.close()
            raise
        self._port = int(facts["port"])
        self.vocab_size = int(facts["vocab_size"])

    def __enter__(self) -> RestFace:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()

    def bare(self, load: Load) -> float:
        """Tokens per second of the runner alone, after a prompt of ``load``."""
        self._worker.ask("begin", depth=load.prompt)
        return load.generate / float(self._worker.ask("run", prompt=0, generate=load.generate, depth=load.prompt))

    def run(self, prompts: Sequence[Sequence[int]], generate: int) -> list[Outcome]:
        """What became of the answers to ``prompts``, which are asked for at once."""
        return ask(self._port, [_request(prompt, generate) for prompt in prompts])


def _request(prompt: Sequence[int], generate: int) -> bytes:
    body = json.dumps(
        {
            "prompt": list(prompt), "max_tokens": generate, "ignore_eos": True, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()  # fmt: skip
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class _Stream:
    """One answer as it comes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.begun = self.first = self.last = 0.0
        self._tail = b""

    def send(self, request: bytes) -> None:
        self.begun = time.perf_counter()
        self.socket.sendall(request)

    def read(self) -> bool:
        """Take what is there; false at the end."""
        part = self.socket.recv(1 << 16)
        self.last = time.perf_counter()
        self._tail = (self._tail + part)[-4096:]
        if not self.first and b"data: " in self._tail:
            self.first = self.last
        return bool(part)

    def outcome(self) -> Outcome:
        tokens = _USAGE.findall(self._tail)
        if b"data: [DONE]" not in self._tail or not tokens:
            raise DeviceError(f"the server ended a stream early: {self._tail[-200:].decode('utf-8', 'replace')}")
        return Outcome(int(tokens[-1]), self.first - self.begun, self.last - self.first)


def ask(port: int, requests: Sequence[bytes]) -> list[Outcome]:
    """Send all ``requests`` at once, and follow their answers to the end."""
    streams = [_Stream(port) for _ in requests]
    with selectors.DefaultSelector() as selector:
        try:
            for stream, request in zip(streams, requests, strict=True):
                stream.send(request)
                selector.register(stream.socket, selectors.EVENT_READ, stream)
            while selector.get_map():
                ready = selector.select(TIMEOUT)
                if not ready:
                    raise DeviceError(f"the server said nothing for {TIMEOUT:.0f} s")
                for key, _ in ready:
                    if not key.data.read():
                        selector.unregister(key.fileobj)
        finally:
            for stream in streams:
                stream.socket.close()
    return [stream.outcome() for stream in streams]
