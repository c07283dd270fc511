"""What goes on inside an engine at a moment, as plain data for faces that show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Inside:
    """An engine at one moment."""
