"""One fact about a machine, as `doctor` says it: what it is, whether it is good, and what to do if it is not."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One fact: true is good, false wants something done, None is neither."""

    name: str
    value: str
    good: bool | None = None
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "name"}
