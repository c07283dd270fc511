"""The servers of tools that a config file names.

    [mcp.files]
    command = "npx"
    args = ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/notes"]
    env = { LOG = "off" }
    [mcp.search]
    url = "http://127.0.0.1:8931/mcp"
    headers = { Authorization = "Bearer ..." }
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edge_llm.errors import UsageError
from edge_llm.files import shown

CALL_SECONDS = 60.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_KEYS = ("command", "args", "env", "cwd", "url", "headers", "timeout", "enabled")


@dataclass(frozen=True)
class ToolServer:
    """A server: a ``command`` that speaks MCP on its standard input and output, or a ``url``."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Beside a few harmless variables of this process: it gets no others."""
    cwd: str = ""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = CALL_SECONDS
    """Most that a call may take."""


def tool_servers(tables: Mapping[str, Mapping[str, Any]], path: Path) -> tuple[list[ToolServer], list[str]]:
    """The servers of the ``tables`` below [mcp] of the file at ``path``, and what is wrong with others, a line each."""
    servers, problems = [], []
    for name, table in tables.items():
        if not table:  # all of it is commented out
            continue
        try:
            server = _server(name, table)
        except UsageError as error:
            problems.append(f"[mcp.{shown(name, 40)}] of `{path}`: {error}")
        else:
            servers += [server] if table.get("enabled", True) else []
    return servers, problems


def _server(name: str, table: Mapping[str, Any]) -> ToolServer:
    if not _NAME.fullmatch(name):
        raise UsageError(f"`{shown(name, 60)}` is no name for a server; use letters, digits, - and _")
    for key in table:
        if key not in _KEYS:
            raise UsageError(f"there is no `{shown(key, 40)}` here; there are: {', '.join(_KEYS)}")
    command, url = _text(table, "command"), _text(table, "url")
    if bool(command) == bool(url):
        raise UsageError("give either `command` (a program that speaks MCP) or `url`")
    if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise UsageError(f"the url `{shown(url, 80)}` is none; give one like http://127.0.0.1:8931/mcp")
    args = table.get("args", [])
    if not isinstance(args, list) or not all(isinstance(each, str) for each in args):
        raise UsageError(f"`args` must be a list of texts, got `{shown(args, 60)}`")
    enabled, seconds = table.get("enabled", True), table.get("timeout", CALL_SECONDS)
    if not isinstance(enabled, bool):
        raise UsageError(f"`enabled` must be true or false, got `{shown(enabled, 40)}`")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 3600:
        raise UsageError(f"`timeout` must be seconds from 1 to 3600, got `{shown(seconds, 40)}`")
    texts = _texts(table, "env"), _text(table, "cwd"), url, _texts(table, "headers")
    return ToolServer(name, command, tuple(args), *texts, float(seconds))


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str) or "\0" in value:
        raise UsageError(f"`{key}` must be a text, got `{shown(value, 60)}`")
    return value


def _texts(table: Mapping[str, Any], key: str) -> dict[str, str]:
    value = table.get(key, {})
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise UsageError(f'`{key}` must be a table of texts, such as {{ NAME = "value" }}')
    return value
