"""Keys of servers: those that clients must send, and the one that is sent."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from edge_llm.cli.options import Command, add_options
from edge_llm.cli.terminal import note
from edge_llm.errors import UsageError

MAX_KEY_FILE_BYTES = 1 << 16


def api_key_options(what: str) -> Callable[[Command], Command]:
    """Add --api-key --api-key-file; ``what`` says what the key is."""
    key = click.option("--api-key", envvar="EDGE_LLM_API_KEY", help=f"{what}; a file keeps it out of `ps`.")
    file = click.option("--api-key-file", type=click.Path(path_type=Path), help="File with one key per line.")
    return lambda command: add_options(command, key, file)


def api_keys(options: dict[str, Any]) -> tuple[str, ...]:
    """The keys that the parsed ``options`` give, which are taken out of them.  Raises `UsageError`."""
    key, file = options.pop("api_key"), options.pop("api_key_file")
    return (*([key] if key else []), *(read_keys(file) if file else []))


def read_keys(path: Path) -> list[str]:
    """The keys in the file at ``path``, one per line; raises `UsageError`."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_KEY_FILE_BYTES:
            raise UsageError(f"--api-key-file `{path}` is not a file with keys", param="api_key_file")
        keys = [line.strip() for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--api-key-file `{path}` cannot be read: {error}", param="api_key_file") from None
    if not keys:
        raise UsageError(f"--api-key-file `{path}` holds no key", param="api_key_file")
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        note(f"others on this machine can read `{path}`; run `chmod 600 {path}`")
    return keys
