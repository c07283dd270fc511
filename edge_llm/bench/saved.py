"""Measured rows in a file: `--save` writes it, `--compare` reads it."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edge_llm.errors import StorageError, UsageError
from edge_llm.files import read_file
from edge_llm.strict_json import parse_json

MAX_BYTES = 64 << 20
_SAME = ("backends", "model_type", "n_threads", "n_ubatch", "n_prompt", "n_gen", "n_depth")
"""Two rows are of the same test when these fields are equal."""

Row = dict[str, Any]


def save(path: Path, rows: Sequence[Row]) -> None:
    """Write ``rows`` as a JSON list (each row carries its environment), all or nothing; into a device or a pipe, directly."""
    text = json.dumps(list(rows), indent=1) + "\n"
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write `{path}`: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def load(path: Path) -> list[Row]:
    """The rows of a file that ``--save``, ``-o json`` or ``-o jsonl`` wrote; raises `UsageError` for any other file."""
    data = read_file(path, MAX_BYTES, error=UsageError)
    rows = _parse(data, str(path))
    for row in rows:
        speed = row.get("median_ts") if isinstance(row, dict) else None
        if isinstance(speed, bool) or not isinstance(speed, int | float) or not math.isfinite(speed) or speed <= 0:
            raise UsageError(f"`{path}` holds no rows of `edge-llm bench`; write one with --save", param="compare")
    return rows


def _parse(data: bytes, name: str) -> list[Any]:
    text = data.strip()
    lines = [text] if text.startswith(b"[") else [line for line in text.splitlines() if line.strip()]
    values = [parse_json(line, name, error=UsageError) for line in lines]
    rows = values[0] if len(values) == 1 and isinstance(values[0], list) else values
    if not rows:
        raise UsageError(f"`{name}` holds no rows of `edge-llm bench`; write one with --save", param="compare")
    return list(rows)


def compared(row: Row, saved: Sequence[Mapping[str, Any]]) -> Row:
    """``row`` with ``saved_ts`` and ``saved_ratio`` (now over then) of the last saved row of the same test, else None."""
    then = [old["median_ts"] for old in saved if all(old.get(key) == row[key] for key in _SAME)]
    if not then:
        return row | {"saved_ts": None, "saved_ratio": None}
    return row | {"saved_ts": then[-1], "saved_ratio": row["median_ts"] / then[-1]}
