"""Our end of a server of tools: what it offers, and calls of it.  It is connected when it is first asked for.

    files = ServerProcess(ToolServer("files", command="npx", args=(...)))
    files.tools()                                  # in a thread: takes as long as the server takes to start
    files.call("read_file", {"path": "notes.md"})
    files.close()
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edge_llm.child.owner import Child, ChildEnded
from edge_llm.errors import EdgeLLMError, Unavailable
from edge_llm.extras import install_extra
from edge_llm.files import one_line, shown
from edge_llm.strict_json import MAX_DEPTH, is_deeper
from edge_llm.tool_servers.settings import ToolServer

CONNECT_SECONDS = 30.0
"""Most that a server may take to say what it offers."""
MOST_SCHEMA, MOST_DESCRIPTION = 16 << 10, 2000
"""Characters of a tool's schema, which is else left out, and of its description, which is else cut."""
_GRACE = 5.0
"""Seconds beyond what its process waits for a server, until that process is ended."""


@dataclass(frozen=True)
class ToolOffer:
    """A tool of a server, as it may be offered to a model."""

    server: str
    name: str
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Stands for what is offered: an approval holds for a tool as it was."""
        told = json.dumps([self.server, self.name, self.description, dict(self.schema)], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()


@dataclass(frozen=True)
class ToolResult:
    """What a call gave.  ``failed``: the tool says that it did not do it."""

    text: str
    failed: bool = False
    length: int = 0
    """Characters that there were; more than ``text`` has where it was cut."""


class ServerProcess:
    """``server`` behind a process.  Every method may be called from any thread; calls of one server take turns."""

    def __init__(self, server: ToolServer) -> None:
        self.server = server
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._tools: Sequence[ToolOffer] = ()

    def tools(self) -> Sequence[ToolOffer]:
        """What the server offers; it is started or reached where it is not.  Raises `Unavailable`."""
        with self._lock:
            self._connected()
            return self._tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """The result of a call.  Raises `Unavailable` when there is none: the next call starts or reaches the server anew."""
        with self._lock:
            question = {"name": name, "arguments": dict(arguments)}
            reply = self._ask(self._connected(), question, self.server.seconds, f"to `{shown(name, 60)}`")
        text = _text(reply.get("text"))
        length = reply.get("length")
        return ToolResult(text, bool(reply.get("error")), length if isinstance(length, int) else len(text))

    def stop(self) -> None:
        """End the server's process at once, also in the middle of a call, which then raises `Unavailable`."""
        child = self._child
        if child is not None and child.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process_id, signal.SIGKILL)

    def close(self) -> None:
        """End the server's process; more than once is fine."""
        self.stop()
        with self._lock:
            self._end()

    def _connected(self) -> Child:
        if self._child is None or not self._child.alive:
            self._end()
            self._check()
            settings = asdict(self.server) | {"connect_seconds": CONNECT_SECONDS / 3, "call_seconds": self.server.seconds}
            try:
                self._child = Child(self, "edge_llm.tool_servers.inside", json.dumps(settings))
            except OSError as failure:
                raise self._failure(f"its process cannot be started: {failure.strerror}") from None
            reply = self._ask(self._child, {}, CONNECT_SECONDS, "when it was asked what it offers")
            self._tools = [*_offers(self.server.name, reply.get("tools"))]
        return self._child

    def _check(self) -> None:
        """Refuse early what cannot work."""
        if importlib.util.find_spec("mcp") is None:
            raise self._failure(f"it needs the package `mcp`: {install_extra('mcp')}")
        server = self.server
        if server.command and shutil.which(server.command, path=server.env.get("PATH")) is None:
            raise self._failure(f"there is no program `{shown(server.command, 80)}`; install it, or write its path")
        if server.cwd and not Path(server.cwd).is_dir():
            raise self._failure(f"there is no folder `{shown(server.cwd, 80)}`")

    def _ask(self, child: Child, question: Mapping[str, Any], seconds: float, about: str) -> dict[str, Any]:
        """The answer of the process; one that is late or over ends it."""
        try:
            reply = json.loads(child.ask(json.dumps(question).encode(), seconds + _GRACE))
        except ChildEnded:
            raise self._failure("its process ended") from None
        except TimeoutError:
            raise self._failure(f"it had no answer in {seconds:g} seconds {about}") from None
        if "failed" in reply:
            self._end()
            raise self._failure(one_line(_text(reply["failed"]))[:400])
        return dict(reply)

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child, self._tools = None, ()

    def _failure(self, text: str) -> EdgeLLMError:
        return Unavailable(f"the tool server `{self.server.name}` is not there: {text}")


def _offers(server: str, said: Any) -> Sequence[ToolOffer]:
    """The tools among what a server ``said``, each name once."""
    found: dict[str, ToolOffer] = {}
    for each in said if isinstance(said, list) else []:
        name, schema = each.get("name"), each.get("schema")
        if not isinstance(name, str) or not name or len(name) > 200 or name in found:
            continue
        known = isinstance(schema, dict) and not is_deeper(schema, MAX_DEPTH) and len(json.dumps(schema)) <= MOST_SCHEMA
        found[name] = ToolOffer(server, name, _text(each.get("description"))[:MOST_DESCRIPTION], schema if known else {})
    return list(found.values())


def _text(value: Any) -> str:
    """``value`` as text that every encoder takes."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""
