"""Warnings of the program as notices: on a full screen nobody reads standard error."""

from __future__ import annotations

import logging
from collections.abc import Callable

from edge_llm.tui.wording import in_chat


class Notices(logging.Handler):
    """Hands on what is logged as a warning or worse; ``tell`` (text, severity) is called in any thread."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(in_chat(record.getMessage()), "error" if record.levelno >= logging.ERROR else "warning")
