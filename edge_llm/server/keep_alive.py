"""How long a model stays loaded after its last request, as people and clients write it: `5m`, `1h30m`, seconds, 0, -1."""

from __future__ import annotations

import math
import re

from edge_llm.errors import UsageError
from edge_llm.files import shown

MOST_SECONDS = 1e9
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_PART = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(h|ms|m|s)")
_WHOLE = re.compile(rf"(-?)((?:{_PART.pattern})+)")
_NUMBER = re.compile(r"-?[0-9]{1,12}(?:\.[0-9]{1,12})?")


def keep_alive_seconds(given: str | float, param: str = "keep_alive") -> float:
    """Seconds that ``given`` means; infinity for what is negative or more than 30 years.  Raises `UsageError`."""
    text = str(given).strip() if isinstance(given, str) else ""
    found = _WHOLE.fullmatch(text) if len(text) <= 64 else None
    if found is not None:
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(found[2])) * (-1 if found[1] else 1)
    elif isinstance(given, str) and not _NUMBER.fullmatch(text):
        forms = "seconds, a time such as 5m or 1h30m, 0, or -1 for ever"
        raise UsageError(f"{param} takes {forms}, got `{shown(given, 40)}`", param=param)
    else:
        seconds = float(text or given)
    return math.inf if not 0 <= seconds <= MOST_SECONDS else seconds
