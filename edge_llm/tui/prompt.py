"""Where the person writes: several lines, earlier prompts with Up and Down, completion of commands and files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message as Event
from textual.widgets import OptionList, Static, TextArea
from textual.widgets.option_list import Option

from edge_llm.files import printable

MOST_SHOWN = 8


@dataclass(frozen=True)
class Completion:
    """What may stand at the end of the prompt."""

    text: str
    """What replaces the word that is being written."""
    help: str = ""


Complete = Callable[[str], tuple[int, Sequence[Completion]]]
"""Given the text up to the cursor: where the word begins that is being written, and what it may become."""


class PromptArea(TextArea):
    """The text itself.  Enter sends, Ctrl+J and Shift+Enter begin a new line."""

    BINDINGS = [
        Binding("ctrl+j,shift+enter", "newline", "New line", show=False, id="prompt_newline"),
        Binding("ctrl+underscore", "undo", "Undo", show=False, id="prompt_undo"),
        Binding("ctrl+z", "app.command('suspend')", show=False),  # which a text area takes for undo
        Binding("pageup", "app.page(-1)", show=False),  # of what was said: the prompt is short
        Binding("pagedown", "app.page(1)", show=False),
    ]

    class Sent(Event):
        """The person sends ``text``."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Key(Event):
        """A key that belongs to the list of completions while it is open."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self) -> None:
        super().__init__(
            compact=True, soft_wrap=True, tab_behavior="focus", highlight_cursor_line=False, id="prompt",
            placeholder="Ask anything.  / lists commands, @ attaches a file, F1 helps",
        )  # fmt: skip
        self.completing = False
        """Completions are listed: Tab, Up, Down and Escape are theirs, and so is Enter."""
        self.earlier: list[str] = []
        """Prompts of before, newest last."""
        self._at: int | None = None
        self._draft = ""

    @property
    def before_cursor(self) -> str:
        """The text up to the cursor."""
        return self.get_text_range((0, 0), self.cursor_location)

    def take(self, text: str) -> None:
        """Put ``text`` in place of what is written, the cursor behind it."""
        self.text = text
        self.move_cursor(self.document.end)

    def action_newline(self) -> None:
        self.insert("\n")

    def send(self) -> None:
        """Send what is written, if it is anything."""
        if self.text.strip():
            text = self.text
            self.earlier = [*(each for each in self.earlier if each != text), text]
            self._at = None
            self.text = ""
            self.post_message(self.Sent(text).set_sender(self))  # who called is not its sender: it would not bubble up to it

    async def _on_key(self, event: events.Key) -> None:
        if self.completing and event.key in ("tab", "up", "down", "escape", "enter"):
            event.stop()
            event.prevent_default()
            self.post_message(self.Key(event.key))
        elif event.key == "enter":  # no binding: one with priority would come before the characters typed before it
            event.stop()
            event.prevent_default()
            self.send()
        elif (event.key == "up" and self.cursor_at_first_line) or (event.key == "down" and self.cursor_at_last_line):
            if self._recall(-1 if event.key == "up" else 1):
                event.stop()
                event.prevent_default()
        else:
            await super()._on_key(event)

    def _recall(self, step: int) -> bool:
        """Show the prompt before or after; false when there is none, and the key means what it always does."""
        at = (len(self.earlier) if self._at is None else self._at) + step
        if not 0 <= at <= len(self.earlier) or (self._at is None and step > 0):
            return False
        if self._at is None:
            self._draft = self.text
        self._at = None if at == len(self.earlier) else at
        self.take(self._draft if self._at is None else self.earlier[at])
        return True


class Prompt(Vertical):
    """The prompt and, above it, what the word under the cursor may become."""

    def __init__(self, complete: Complete) -> None:
        super().__init__(id="prompt-box")
        self._complete = complete
        self._begin = 0
        self._found: Sequence[Completion] = ()

    def compose(self) -> ComposeResult:
        choices = OptionList(id="completions", markup=False, compact=True)
        choices.can_focus = False
        choices.display = False
        yield choices
        yield Static(id="attached", markup=False)
        yield PromptArea()

    @property
    def area(self) -> PromptArea:
        return self.query_one(PromptArea)

    def say(self, text: str) -> None:
        """Say above the prompt what goes with it; nothing hides the line."""
        line = self.query_one("#attached", Static)
        line.update(Content(text))
        line.display = bool(text)

    @property
    def _choices(self) -> OptionList:
        return self.query_one("#completions", OptionList)

    @on(TextArea.Changed)
    @on(TextArea.SelectionChanged)
    def look_up(self) -> None:
        """List what the word at the cursor may become."""
        text = self.area.before_cursor
        self._begin, self._found = self._complete(text) if self.area.has_focus else (0, ())
        if [each.text for each in self._found] == [text[self._begin :]]:
            self._found = ()  # it is there already
        self.area.completing = bool(self._found)
        self._choices.display = bool(self._found)
        if self._found:
            self._choices.clear_options()
            self._choices.add_options([Option(_line(each)) for each in self._found])
            self._choices.highlighted = 0

    @on(PromptArea.Key)
    def key_of_choices(self, event: PromptArea.Key) -> None:
        """Move among the completions, take one, or put them away; what was typed meanwhile may have ended them."""
        if not self._found:
            if event.key == "enter":
                self.area.send()
        elif event.key == "up":
            self._choices.action_cursor_up()
        elif event.key == "down":
            self._choices.action_cursor_down()
        elif event.key == "escape":
            self._put_away()
        else:
            whole = self._accept()
            if event.key == "enter" and whole:
                self.area.send()

    @on(OptionList.OptionSelected)
    def clicked(self) -> None:
        """A completion was clicked."""
        self._accept()
        self.area.focus()

    def _accept(self) -> bool:
        """Put the highlighted completion in its place; true when that completes a command without arguments."""
        chosen = self._found[self._choices.highlighted or 0].text
        area = self.area
        before = area.before_cursor
        area.take(before[: self._begin] + chosen + area.text[len(before) :])
        self._put_away()
        return not chosen.endswith(" ")

    def _put_away(self) -> None:
        self._found = ()
        self.area.completing = False
        self._choices.display = False


def _line(completion: Completion) -> Content:
    text = printable(completion.text.strip())
    return Content.assemble((f"{text:<24}", "bold"), (f" {printable(completion.help)}", "dim"))
