"""F1: keys and commands, from the tables that make them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Markdown

from edge_llm.tui.commands import COMMANDS
from edge_llm.tui.message_view import MessageView

_PROMPT = (
    ("Enter", "send"),
    ("Ctrl+J, Shift+Enter", "new line"),
    ("Up, Down", "earlier prompts, at the first and last line; what is queued, in an empty prompt"),
    ("Ctrl+_, Ctrl+Y", "undo, redo"),
    ("Alt+1, Alt+2, Alt+3", "the prompts of the welcome"),
    ("/", "a command; Tab completes it"),
    ("@FILE", "attach a text file; Tab completes its name"),
    ("Tab, Shift+Tab", "to the last message and on; a message in focus has keys of its own"),
    ("Ctrl+P", "all commands, to be searched"),
    ("Ctrl+C", "copy what is selected, or stop the answer; without either, twice quits"),
)
_MOUSE = (
    ("Drag", "select text, which is copied when you let go"),
    ("Click `copy`", "copy the block of code"),
    ("Shift+wheel", "move long lines of code, which end in `…`"),
)


class Help(ModalScreen[None]):
    """``keys``: the keys of commands that the config file has otherwise."""

    BINDINGS = [Binding("escape,f1,q", "dismiss(None)", "Leave")]

    def __init__(self, keys: Mapping[str, str]) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="box"):
            yield Markdown("\n".join(self._lines()), open_links=False)

    def _lines(self) -> Iterator[str]:
        yield "# Writing\n\n| key | |\n|---|---|"
        yield from (f"| {key} | {help_} |" for key, help_ in _PROMPT)
        yield "\n# Mouse\n\n| mouse | |\n|---|---|"
        yield from (f"| {what} | {help_} |" for what, help_ in _MOUSE)
        yield "\n# Commands\n\n| command | key | |\n|---|---|---|"
        for command in COMMANDS:
            name = f"/{command.name} {command.argument}".strip().replace("|", "\\|")
            yield f"| {name} | {_spelt(self._keys.get(command.name, command.key))} | {command.help} |"
        yield "\n# A message in focus\n\n| key | |\n|---|---|"
        for binding in MessageView.BINDINGS:
            assert isinstance(binding, Binding)
            yield f"| {_spelt(self._keys.get(binding.id or '', binding.key))} | {binding.description} |"


def _spelt(keys: str) -> str:
    """`Ctrl+N, F7` for `ctrl+n,f7`; a letter alone is the key that writes it."""
    return ", ".join(key if len(key) == 1 else key.title() for key in keys.split(","))
