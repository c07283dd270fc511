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
    dispensable: bool = False
    """Whether the machine does its work in spite of a false: slower, or only in some ways."""

    def as_dict(self) -> dict[str, Any]:
        """What `doctor --json` says of it, under its name."""
        return {key: value for key, value in asdict(self).items() if key not in ("name", "dispensable")}
