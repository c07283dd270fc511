"""JSON as the standard has it, bounded: the one parser for files and messages that we did not write.

The standard library's parser accepts ``NaN``, lets the last of two equal keys win, overflows ``1e999`` to infinity
and passes lone surrogates; all of these are refused here, and so is too much size, depth or number of values.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from pathlib import Path
from typing import Any, NoReturn

from edge_llm.errors import EdgeLLMError, InvalidModel
from edge_llm.files import read_file, shown

MAX_BYTES = 64 << 20
MAX_DEPTH = 64
MAX_VALUES = 8_000_000
"""Commas, brackets and braces in the text; a cheap bound on the memory that parsing can take."""

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


class _RefusedError(ValueError):
    """Why a document is refused; turned into the caller's error type."""


def parse_json(
    data: bytes,
    name: str,
    *,
    error: type[EdgeLLMError] = InvalidModel,
    max_bytes: int = MAX_BYTES,
    max_depth: int = MAX_DEPTH,
    max_values: int = MAX_VALUES,
) -> Any:
    """Parse UTF-8 ``data``; ``name`` is what messages call it.  Raises ``error`` and nothing else."""
    try:
        if len(data) > max_bytes:
            raise _RefusedError(f"{len(data)} bytes; at most {max_bytes} are read")
        if data.count(b",") + data.count(b"[") + data.count(b"{") > max_values:
            raise _RefusedError(f"more than {max_values} values")
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
        if is_deeper(value, max_depth):
            raise _RefusedError(f"nested deeper than {max_depth}")
        if _SURROGATE_ESCAPE.search(data) and not is_unicode(value):
            raise _RefusedError("a string holds half of a surrogate pair")
        return value
    except _RefusedError as failure:
        reason = str(failure)
    except RecursionError:
        reason = f"nested deeper than {max_depth}"
    except json.JSONDecodeError as failure:
        reason = f"{failure.msg} at line {failure.lineno}, column {failure.colno}"
    except UnicodeDecodeError as failure:
        reason = f"byte {failure.start} is not UTF-8"
    except ValueError:  # int() refuses more than sys.get_int_max_str_digits() digits
        reason = "an integer with too many digits"
    raise error(f"`{shown(name)}` is not usable JSON: {reason}")


def parse_object(data: bytes, name: str, *, error: type[EdgeLLMError] = InvalidModel, **limits: int) -> dict[str, Any]:
    """`parse_json`, and the document must be an object."""
    value = parse_json(data, name, error=error, **limits)
    if not isinstance(value, dict):
        raise error(f"`{shown(name)}` must hold a JSON object, not {_kind(value)}")
    return value


def read_object(
    path: Path, *, error: type[EdgeLLMError] = InvalidModel, max_bytes: int = MAX_BYTES, max_values: int = MAX_VALUES
) -> dict[str, Any]:
    """The JSON object in the file ``path``, behind a byte order mark or not."""
    data = read_file(path, max_bytes, error=error).removeprefix(codecs.BOM_UTF8)
    return parse_object(data, str(path), error=error, max_bytes=max_bytes, max_values=max_values)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RefusedError(f"the key `{shown(key)}` comes twice")
            seen.add(key)
    return found


def _no_constant(text: str) -> NoReturn:
    raise _RefusedError(f"`{text}` is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _RefusedError(f"the number `{shown(text, 40)}` is too large")
    return value


def is_deeper(value: Any, max_depth: int) -> bool:
    """Whether the lists and objects of ``value`` lie in one another more than ``max_depth`` deep."""
    level = [value]
    for _ in range(max_depth):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(v for v in item.values() if isinstance(v, (dict, list)))
            elif isinstance(item, list):
                inner.extend(v for v in item if isinstance(v, (dict, list)))
        if not inner:
            return False
        level = inner
    return True


def is_unicode(value: Any) -> bool:
    """Whether every string of ``value`` is Unicode: none holds half of a surrogate pair."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            if _SURROGATE.search(item):
                return False
        elif isinstance(item, dict):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return True


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "a truth value", int: "a number", float: "a number"}
    return names.get(type(value), "null")
