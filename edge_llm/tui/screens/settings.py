"""F5: the settings of one chat as a form; an empty line says what holds without a value of the chat's own."""

from __future__ import annotations

from collections.abc import Mapping

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import DescendantFocus
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from edge_llm.chats.settings import BY_NAME, SETTINGS, ChatSettings, shown_value
from edge_llm.errors import UsageError
from edge_llm.files import printable
from edge_llm.tui.field import Field

KEYS = "Enter saves, Esc closes, Ctrl+R resets a line, F8 all"


class SettingsForm(ModalScreen[ChatSettings | None]):
    """Gives the changed settings; None leaves them.  ``defaults`` says in words what holds where nothing is set."""

    AUTO_FOCUS = "Input"
    BINDINGS = [
        Binding("escape", "dismiss(None)", "Close"),
        Binding("ctrl+s", "save", "Save", priority=True),
        Binding("ctrl+r", "reset", "Reset", priority=True),
        Binding("f8", "reset_all", "Reset all", priority=True),
    ]

    def __init__(self, settings: ChatSettings, defaults: Mapping[str, str]) -> None:
        super().__init__()
        self._settings = settings
        self._defaults = defaults

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static("Settings of this chat", classes="heading", markup=False)
            with VerticalScroll(id="settings", can_focus=False):
                for setting in SETTINGS:
                    with Horizontal(classes="setting"):
                        yield Label(setting.name, markup=False)
                        yield Field(
                            self._shown(setting.name),
                            placeholder=printable(self._defaults.get(setting.name, "")),
                            id=f"setting-{setting.name}",
                            compact=True,
                        )
            yield Static(KEYS, id="settings-hint", markup=False)

    @on(DescendantFocus)
    def _explain(self, event: DescendantFocus) -> None:
        """Say what the line in focus is."""
        name = (event.widget.id or "").removeprefix("setting-")
        self._hint(f"{BY_NAME[name].help}\n{KEYS}" if name in BY_NAME else KEYS)

    def action_reset(self) -> None:
        """The line in focus is not set."""
        if isinstance(field := self.focused, Input):
            field.clear()

    def action_reset_all(self) -> None:
        """Nothing is set."""
        for field in self.query(Input):
            field.clear()

    @on(Input.Submitted)
    def action_save(self) -> None:
        """Leave with the settings, or say what is wrong with them."""
        changed = self._settings
        for setting in SETTINGS:
            field = self.query_one(f"#setting-{setting.name}", Input)
            if field.value == self._shown(setting.name):
                continue
            try:
                changed = changed.changed(setting.name, _several_lines(field.value))
            except UsageError as error:
                field.focus()
                self.call_after_refresh(self._hint, str(error))
                return
        self.dismiss(changed)

    def _shown(self, name: str) -> str:
        return _one_line(shown_value(self._settings.value(name)))

    def _hint(self, text: str) -> None:
        self.query_one("#settings-hint", Static).update(Content(printable(text)))


def _one_line(text: str) -> str:
    return printable(text).replace("\n", "⏎").replace("\t", "⇥")


def _several_lines(text: str) -> str:
    return text.replace("⏎", "\n").replace("⇥", "\t")
