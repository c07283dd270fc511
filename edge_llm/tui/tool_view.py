"""Calls of tools below an answer: a line each with what was asked and what came; Enter or a click unfolds it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from textual.binding import Binding
from textual.content import Content
from textual.widgets import Static

from edge_llm.chats.calls import ToolCall
from edge_llm.files import one_line, printable

_MARKS: Mapping[str, str] = {"asked": "…", "done": "✓", "failed": "✗", "refused": "–"}
_SAID: Mapping[str, str] = {"asked": "not called yet", "refused": "not allowed"}
MOST_LINES = 500
"""Lines of a result that are drawn."""
MOST_TITLE = 200
"""Characters of the line that stands for a call."""


class CallView(Static, can_focus=True):
    """Shows a call; no character of a tool's text is markup, or talks to the terminal."""

    BINDINGS = [Binding("enter,space", "fold", "Fold", show=False)]
    DEFAULT_CSS = """
    CallView {
        height: auto;
        color: $text-muted;
        padding-left: 1;
        border-left: outer $primary 40%;
        &:focus { border-left: outer $accent; }
    }
    """

    def __init__(self, call: ToolCall) -> None:
        super().__init__(markup=False)
        self.call = call
        self.folded = True

    def on_mount(self) -> None:
        self.show(self.call)

    def show(self, call: ToolCall) -> None:
        """``call`` as it is now."""
        self.call = call
        self.update(Content(line_of(call) if self.folded else whole_of(call)))

    def action_fold(self) -> None:
        self.folded = not self.folded
        self.show(self.call)

    def on_click(self) -> None:
        self.action_fold()


def line_of(call: ToolCall) -> str:
    """The call in a line."""
    result = one_line(printable(call.result)) if call.state in ("done", "failed") else _SAID[call.state]
    asked = f"{_name(call)} {one_line(printable(call.arguments))}"
    return f"{_MARKS[call.state]} {_cut(asked, MOST_TITLE // 2)}  → {_cut(result, MOST_TITLE // 2)}"


def whole_of(call: ToolCall) -> str:
    """All of the call: its arguments and its result."""
    try:
        arguments = json.dumps(json.loads(call.arguments or "{}"), ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        arguments = call.arguments
    lines = printable(f"{arguments}\n{call.result or _SAID.get(call.state, '')}").splitlines()
    more = [f"… {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
    return "\n".join([f"{_MARKS[call.state]} {_name(call)}", *lines[:MOST_LINES], *more])


def call_views(calls: Sequence[ToolCall]) -> list[CallView]:
    return [CallView(call) for call in calls]


def _name(call: ToolCall) -> str:
    name = one_line(printable(call.name))
    return f"{call.server}: {name}" if call.server else name


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
