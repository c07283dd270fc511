"""The person's config file: options of commands in TOML tables, and what the chat looks like.

    [defaults]          # options that several commands share
    threads = 2
    [chat]              # options of one command, and here also: theme, sidebar
    theme = "nord"
    [keys]              # actions of the chat
    stop = "escape"
    [mcp.files]         # a server of tools for the chat (`edge_llm.tool_servers.settings` knows what stands here)
    command = "mcp-files"

Only the form is checked here.  Who knows the commands checks options (`edge_llm.cli.settings`), who knows the chat checks the
theme and the actions.  Imports nothing heavy.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edge_llm.errors import UsageError
from edge_llm.files import write_whole
from edge_llm.paths import config_file, named_config_file

Scalar = str | int | float | bool
Value = Scalar | tuple[Scalar, ...]
Table = Mapping[str, Value]

MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class UserConfig:
    """What the file says; empty where it says nothing, or is not there."""

    path: Path
    exists: bool = False
    tables: Mapping[str, Table] = field(default_factory=lambda: MappingProxyType({}))
    """Options by the long names of their flags (`max-tokens`), by command (`run`, `bench lanes`) or `defaults`."""
    keys: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Keys of the chat by its actions."""
    theme: str | None = None
    sidebar: bool | None = None
    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    """What stands below [mcp.NAME], by name."""


def read_user_config(path: Path | None = None) -> UserConfig:
    """The file at ``path``, by default the person's own; raises `UsageError` in a line with the file and the way out."""
    named = path or named_config_file()
    path = named or config_file()
    data = _read(path, must_exist=named is not None)
    if data is None:
        return UserConfig(path)
    parsed = _parsed(path, data)
    servers = _servers(path, parsed.pop("mcp", {}))
    found = _tables(path, parsed)
    keys, chat = _keys(path, found.pop("keys", {})), found.get("chat", {})
    theme, sidebar = chat.pop("theme", None), chat.pop("sidebar", None)
    if theme is not None and not isinstance(theme, str):
        raise wrong(path, "chat", "theme", theme, 'give the name of a theme, such as "nord"')
    if sidebar is not None and not isinstance(sidebar, bool):
        raise wrong(path, "chat", "sidebar", sidebar, "give true or false")
    tables = MappingProxyType({name: MappingProxyType(table) for name, table in found.items()})
    return UserConfig(path, True, tables, MappingProxyType(keys), theme, sidebar, MappingProxyType(servers))


def _servers(path: Path, tables: Any) -> dict[str, Mapping[str, Any]]:
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise UsageError(f"`{path}`: [mcp] has a table for every server; write [mcp.NAME] above `command` or `url`")
    return tables


def set_in_file(path: Path, table: str, key: str, value: str) -> None:
    """Write a value into the file at ``path``, which may not be there; all else in it stays as it is.

    Raises `UsageError`, and changes nothing, when the file cannot be read, understood or written.
    """
    path = path.resolve()
    way_out = f"write `{key} = {toml(value)}` into [{table}] yourself"
    before = (_read(path, must_exist=False) or b"").decode("utf-8", "surrogateescape")
    found = _parsed(path, before.encode("utf-8", "surrogateescape"))
    inner = found.get(table, {})
    if not isinstance(inner, dict):
        raise UsageError(f"`{path}`: `{table}` is no table there; remove it, and {way_out}")
    wanted = {**found, table: {**inner, key: value}}
    after = next((text for text in _with_value(before, table, key, toml(value)) if _says(text, path, wanted)), None)
    if after is None:
        raise UsageError(f"`{path}` is written in a way that is not changed here; {way_out}")
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"`{path}` keeps nothing; {way_out}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, after.encode(), mode=stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644)
    except OSError as error:
        raise UsageError(f"cannot write the config file `{path}`: {error.strerror}; {way_out}") from None


_VALUE = r"""\"{3}[\s\S]*?\"{3}|'{3}[\s\S]*?'{3}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^\s,}#"']+"""


def _with_value(text: str, table: str, key: str, value: str) -> Iterator[str]:
    """``text`` with the ``value`` of ``key`` in each place where it may belong; a parser decides which one is right.

    It takes the place of a value, or stands below the head of ``table``, among its dotted keys, in its braces, or below a new
    head at the end.
    """
    line, end = f"{key} = {value}", "\r\n" if "\r\n" in text else "\n"
    for old in re.finditer(rf"""["']?\b{key}["']?[ \t]*=[ \t]*({_VALUE})""", text):
        yield text[: old.start(1)] + value + text[old.end(1) :]
    for head in re.finditer(rf"^[ \t]*\[[ \t]*{table}[ \t]*\].*\n?", text, re.MULTILINE):
        before = text[: head.end()]
        yield before + end * (not before.endswith("\n")) + line + end + text[head.end() :]
    for dotted in re.finditer(rf"^[ \t]*{table}[ \t]*\.", text, re.MULTILINE):
        yield f"{text[: dotted.start()]}{table}.{line}{end}{text[dotted.start() :]}"
    for brace in re.finditer(rf"^[ \t]*{table}[ \t]*=[ \t]*\{{[ \t]*", text, re.MULTILINE):
        more = " " if text[brace.end() :].startswith("}") else ", "
        yield text[: brace.end()] + line + more + text[brace.end() :]
    yield text + end * (bool(text) and not text.endswith("\n")) + end * bool(text) + f"[{table}]{end}{line}{end}"


def _says(text: str, path: Path, wanted: Mapping[str, Any]) -> bool:
    try:
        return _parsed(path, text.encode()) == wanted
    except UsageError:
        return False


def _keys(path: Path, table: Table) -> dict[str, str]:
    keys: dict[str, str] = {}
    for action, key in table.items():
        if not isinstance(key, str) or not key:
            raise wrong(path, "keys", action, key, 'give the name of a key, such as "escape" or "ctrl+r"')
        keys[action] = key
    return keys


def wrong(path: Path, table: str, key: str, value: object, way_out: str) -> UsageError:
    """The refusal of a value in the file at ``path``."""
    return UsageError(f"{place(path, table, key, value)} cannot be used; {way_out}")


def place(path: Path, table: str, key: str, value: object) -> str:
    """A value and where it stands, as messages name it."""
    text = toml(value)
    return f"`{key} = {text if len(text) <= 80 else text[:60] + '...'}` in [{table.replace(' ', '.')}] of `{path}`"


def toml(value: object) -> str:
    """``value`` as TOML spells it, near enough to be recognized."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def _read(path: Path, *, must_exist: bool) -> bytes | None:
    """The bytes of the file; None if there is none.  What is no file or too large is refused before it is read."""
    if str(path) == os.devnull:
        return None
    way_out = "mend it, or name another file with EDGE_LLM_CONFIG (/dev/null for none)"
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        if not must_exist:  # nor concerns a folder that nobody may look into who needs nothing there
            return None
        raise UsageError(f"cannot read the config file `{path}`: {error.strerror}; {way_out}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the config file `{path}`: {error}; {way_out}") from None
    if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
        raise UsageError(f"`{path}` is no file of at most {MAX_BYTES >> 20} MiB, as a config file is; {way_out}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the config file `{path}`: {error.strerror}; {way_out}") from None


def _parsed(path: Path, data: bytes) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and TOMLDecodeError are ValueErrors
        raise UsageError(f"`{path}` is not TOML: {error}; mend it, `edge-llm config --example` shows how it looks") from None


def _tables(path: Path, data: Mapping[str, Any]) -> dict[str, dict[str, Value]]:
    """The tables by name, `[bench.lanes]` as `bench lanes`."""
    found: dict[str, dict[str, Value]] = {}
    for name, table in data.items():
        if not isinstance(table, dict):
            raise UsageError(f"`{path}`: `{name[:80]}` stands in no table; write it below [defaults] or [COMMAND]")
        inner = {key: value for key, value in table.items() if isinstance(value, dict)}
        found[name] = _options(path, name, {key: value for key, value in table.items() if key not in inner})
        for word, below in inner.items():
            found[f"{name} {word}"] = _options(path, f"{name} {word}", below)
    return found


def _options(path: Path, table: str, given: Mapping[str, Any]) -> dict[str, Value]:
    options: dict[str, Value] = {}
    for key, value in given.items():
        name = key.replace("_", "-") if table != "keys" else key
        if name in options:
            raise UsageError(f"{place(path, table, key, value)} is there twice; leave one out")
        options[name] = _value(path, table, key, value)
    return options


def _value(path: Path, table: str, key: str, value: Any) -> Value:
    if isinstance(value, Scalar):
        return value
    if isinstance(value, list) and all(isinstance(each, Scalar) for each in value):
        return tuple(value)
    raise wrong(path, table, key, value, "give a text, a number, true, false, or a list of these")
