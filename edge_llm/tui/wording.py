"""Errors as the chat tells them: what they advise on the command line is said as what one does here."""

from __future__ import annotations

import re
from collections.abc import Callable

from edge_llm.errors import EdgeLLMError

_DEVICES = r"auto|host|ascend|emulated\S*|onnx|om:\S+"
_HERE = {"ctx": "context", "memory": "memory", "device": "device"}
_RULES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"`edge-llm import ([^\s`]+)(?: --name NAME)?`"), r"`/pull \1`"),
    (re.compile(r"`edge-llm list`"), "F4"),
    (re.compile(rf"--device ({_DEVICES})\b"), r"device \1 (F5)"),
    (
        re.compile(r"--(ctx|memory|device)(?![\w-])( `[^`]*`| \d[\w.%]*)?"),
        lambda found: f"{_HERE[found[1]]}{found[2] or ''} (F5)",
    ),
    (re.compile(r"--system\b"), "/system"),
)
_IN_A_SHELL = re.compile(r"`[^`]*`")
_FLAG = re.compile(r"(?<![\w-])--[a-z]")
AT_THE_START = "Options that begin with -- are given when the chat starts: quit, and open it with them."


def in_chat(text: str) -> str:
    """``text`` of an error, with what is set in a chat where it speaks of flags that do the same."""
    for pattern, here in _RULES:
        text = pattern.sub(here, text)
    return f"{text}\n{AT_THE_START}" if _FLAG.search(_IN_A_SHELL.sub("", text)) else text


def reason(error: Exception) -> str:
    """What went wrong, for the person."""
    if isinstance(error, EdgeLLMError):
        return in_chat(str(error))
    if isinstance(error, MemoryError):
        return "There is not enough memory; free some, or choose a smaller model, context or memory budget (F5)."
    return f"internal error, {type(error).__name__}: {error}"
