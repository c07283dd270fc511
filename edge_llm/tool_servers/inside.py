"""What runs in the process beside the chat: it speaks MCP with one server, by the `mcp` package.

That package takes a second to load, and a server may send anything: here it holds up no screen, and there is a limit of memory.
Every question and answer is a JSON object (`edge_llm.tool_servers.process`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from edge_llm.child.inside import answer, end_with_owner, limit_memory, questions

MOST_BYTES = 1 << 30
"""Memory that what a server sends may take, beside what this process has at its start."""
MOST_TOOLS = 128
MOST_ANSWER = 1 << 20
"""Characters of a result that go on to the chat, which shows less."""
_LAUNCH = str(Path(__file__).with_name("launch.py"))


def serve(settings: str) -> None:
    """Answer questions about the server that ``settings`` (JSON) name, until there are no more."""
    limit_memory(MOST_BYTES)
    end_with_owner()
    asked = questions()
    first = _next(asked)
    if first is None:
        return
    try:
        asyncio.run(_converse(json.loads(settings), asked))
    except BaseException as failure:
        _reply({"failed": _reason(failure), "over": True})


async def _converse(server: dict[str, Any], asked: Iterator[bytes]) -> None:
    """Connect, say which tools there are, and call them as asked."""
    from mcp import Client

    stderr = _LastLine()
    try:
        async with _transport(server, stderr) as to, Client(to, read_timeout_seconds=server["connect_seconds"]) as client:
            _reply({"tools": [tool async for tool in _tools(client)]})
            while (question := await asyncio.to_thread(_next, asked)) is not None:
                _reply(await _call(client, question, server["call_seconds"]))
    except BaseException as failure:
        await asyncio.sleep(0.05)  # for the last words of a server that dies
        said = f"; it said: {stderr.text}" if stderr.text else ""
        _reply({"failed": _reason(failure) + said, "over": True})


@contextlib.asynccontextmanager
async def _transport(server: dict[str, Any], stderr: _LastLine) -> AsyncIterator[Any]:
    if server["url"]:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        timeout = httpx2.Timeout(server["connect_seconds"], read=server["call_seconds"])
        async with httpx2.AsyncClient(headers=server["headers"], timeout=timeout) as http:
            yield streamable_http_client(server["url"], http_client=http)
    else:
        from mcp.client.stdio import StdioServerParameters, stdio_client

        args = ["-I", _LAUNCH, str(os.getpid()), server["command"], *server["args"]]
        started = StdioServerParameters(command=sys.executable, args=args, env=server["env"], cwd=server["cwd"] or None)
        started.encoding_error_handler = "replace"
        yield stdio_client(started, errlog=stderr.file)


async def _tools(client: Any) -> AsyncIterator[dict[str, Any]]:
    cursor, count = None, 0
    while True:
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            count += 1
            if count > MOST_TOOLS:
                return
            plain = tool.model_dump(mode="json", by_alias=True)
            yield {"name": plain["name"], "description": plain.get("description") or "", "schema": plain.get("inputSchema")}
        cursor = page.next_cursor
        if not cursor:
            return


async def _call(client: Any, question: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The result of the call that ``question`` asks for; a connection that has ended is raised."""
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT

    try:
        result = await client.call_tool(question["name"], question["arguments"], read_timeout_seconds=seconds)
    except MCPError as error:
        if error.code == CONNECTION_CLOSED:  # nothing more comes
            raise
        late = error.code == REQUEST_TIMEOUT
        return {"text": f"no answer in {seconds:g} seconds" if late else str(error), "error": True}
    text = "\n".join(_part(part.model_dump(mode="json", by_alias=True)) for part in result.content)
    if not text and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    return {"text": text[:MOST_ANSWER], "length": len(text), "error": bool(result.is_error)}


def _part(part: dict[str, Any]) -> str:
    kind = part.get("type")
    if kind == "text":
        return str(part.get("text", ""))
    if kind == "resource":
        return str((part.get("resource") or {}).get("text") or f"[{(part.get('resource') or {}).get('uri', 'a resource')}]")
    if kind == "resource_link":
        return f"[{part.get('uri')}]"
    return f"[{kind}, {part.get('mimeType', 'unknown')}: not text]"


def _next(asked: Iterator[bytes]) -> dict[str, Any] | None:
    frame = next(asked, None)
    return None if frame is None else json.loads(frame)


def _reply(said: dict[str, Any]) -> None:
    answer(json.dumps(said).encode())


def _reason(failure: BaseException) -> str:
    """What went wrong, of a group the first."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    if _is_late(failure):
        return "it does not answer"
    if isinstance(failure, MemoryError):
        return f"it sent more than {MOST_BYTES >> 20} MiB"
    return str(failure) or type(failure).__name__


def _is_late(failure: BaseException) -> bool:
    """Whether nothing came in time, as the protocol, the connection or the system tells; what a server says of times is not."""
    if isinstance(failure, ImportError):  # of what knows such errors
        return False
    import httpx2
    from mcp import MCPError
    from mcp.types import REQUEST_TIMEOUT

    if isinstance(failure, MCPError):
        return bool(failure.code == REQUEST_TIMEOUT)
    return isinstance(failure, TimeoutError | httpx2.TimeoutException)


class _LastLine:
    """A file for what a server writes to its standard error, of which the end is kept."""

    def __init__(self) -> None:
        source, target = os.pipe()
        self.file = os.fdopen(target, "w")
        self._kept = b""
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    @property
    def text(self) -> str:
        """The last line that says something."""
        lines = [line.strip() for line in self._kept.decode("utf-8", "replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")[:300]

    def _read(self, source: int) -> None:
        while data := os.read(source, 1 << 16):
            self._kept = (self._kept + data)[-2000:]
