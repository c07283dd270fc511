"""Amounts of memory as people write them."""

from __future__ import annotations

import math
import re

from edge_llm.errors import UsageError

_FACTORS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*|%)", re.ASCII)
MAX_BYTES = 2**60
_OFF = ("", "0", "off")


def parse_memory(text: str | int, whole: int | None, param: str = "memory", *, of: str = "the weights") -> int:
    """Bytes that ``text`` means: ``300MiB``, ``1.5GB``, ``2G`` (of 1024^3), ``50%`` of ``whole``, or plain bytes.

    Without a ``whole`` there are no shares.  An error names ``param``, the option, and ``of``, what the whole is.

    Raises `UsageError` for any other text, for 0 and for more than 2^60 bytes.
    """
    found = _SIZE.fullmatch(str(text).strip().lower()) if len(str(text)) <= 40 else None
    factors = _FACTORS if whole is None else {**_FACTORS, "%": whole / 100}
    if found is None or found[2] not in factors:
        forms = "300MiB, 1.5GB or a number of bytes" if whole is None else f"300MiB, 1.5GB, a number of bytes, or 50% of {of}"
        raise UsageError(f"{_option(param)} `{str(text)[:40]}` is an invalid amount of memory; write {forms}", param=param)
    factor = factors[found[2]]
    nbytes = math.floor(float(found[1]) * factor) if "." in found[1] or found[2] == "%" else int(found[1]) * int(factor)
    if not 1 <= nbytes <= MAX_BYTES:
        raise UsageError(f"{_option(param)} must be between 1 byte and 2^60 bytes, got `{text}`", param=param)
    return nbytes


def _option(param: str) -> str:
    """As a person writes it."""
    return f"--{param.replace('_', '-')}"


def parse_disk(text: str) -> int:
    """Bytes that ``text`` means for the prefix cache, such as `1GiB`; `0` and `off` mean 0.

    Raises `UsageError` for anything else.
    """
    if text.strip().lower() in _OFF:
        return 0
    try:
        return parse_memory(text, None)
    except UsageError:
        raise UsageError(
            f"`{text[:40]}` is an invalid size for the prefix cache; write 1GiB, 300MiB, a number of bytes, or 0 for none",
            param="prefix_cache",
        ) from None
