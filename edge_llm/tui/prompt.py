"""Where the person writes: several lines, earlier prompts with Up and Down, completion of commands and files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.message import Message as Event
from textual.widgets import OptionList, Static, TextArea
from textual.widgets.option_list import Option

from edge_llm.files import printable
from edge_llm.tui.field import run_own_binding

_MOST_LISTED, _MOST_LISTED_SHORT = 8, 4
"""Rows of completions, as the style sheet has them."""
_COMPLETING = ("tab", "up", "down", "escape", "enter")
"""Keys of the list of completions."""


@dataclass(frozen=True)
class Completion:
    """What may stand at the end of the prompt."""

    text: str
    """What replaces the word that is being written."""
    help: str = ""
    goes_on: bool = False
    """More must stand behind it: Enter does not send it."""


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

    def __init__(self, take_key: Callable[[str], bool], room: Callable[[Size], int]) -> None:
        """``take_key`` takes the keys of the list of completions while it is open, and says whether it did.

        ``room`` says how many rows there are on a screen of some size.
        """
        super().__init__(
            compact=True, soft_wrap=True, tab_behavior="focus", highlight_cursor_line=False, id="prompt",
            placeholder="Ask anything.  / lists commands, @ attaches a file, F1 helps",
        )  # fmt: skip
        self._take_key = take_key
        self._room = room
        self.typed_at = 0.0
        """When the person wrote last, by the monotonic clock."""
        self.earlier: list[str] = []
        """Prompts of before, newest last."""
        self.take_back: Callable[[], bool] = lambda: False
        """Up in an empty prompt: takes back what waits to be sent, and says whether there was anything."""
        self._at: int | None = None
        self._draft = ""
        self._changed: dict[int, str] = {}  # earlier prompts as they were changed since something was sent
        self._given_back = ""  # what the text begins with that was given back since something was sent

    @property
    def before_cursor(self) -> str:
        """The text up to the cursor."""
        return self.get_text_range((0, 0), self.cursor_location)

    @property
    def draft(self) -> str:
        """What the person has written and not sent; an earlier prompt that is only looked at is none."""
        return self._draft if self._at is not None and self.text == self.earlier[self._at] else self.text

    @property
    def others(self) -> list[str]:
        """Other texts of the person that are not sent: earlier prompts as they were changed, and what stood here before."""
        found = [text for at, text in self._changed.items() if text != self.earlier[at]]
        aside = self._at is not None and self.text != self.earlier[self._at]
        return [text for text in (*found, self._draft if aside else "") if text.strip()]

    def take(self, text: str) -> None:
        """Put ``text`` in place of what is written, the cursor behind it; undo brings back what was there."""
        self.history.checkpoint()
        self.replace(writable(text), (0, 0), self.document.end)
        self.history.checkpoint()
        self.move_cursor(self.document.end)

    def open(self, text: str) -> None:
        """Another chat is on the screen, in whose prompt ``text`` is written."""
        self._at, self._draft, self._changed, self._given_back = None, "", {}, ""
        self.text = writable(text)
        self.move_cursor(self.document.end)

    def remember(self, texts: Iterable[str]) -> None:
        """Up reaches ``texts``, the last one first."""
        new = [*dict.fromkeys(text for text in texts if text.strip())]
        if self._at is None:
            self.earlier = [*(each for each in self.earlier if each not in new), *new]
        else:  # the place among them stays
            self.earlier += new

    def put_before(self, text: str) -> None:
        """Put ``text`` into lines of its own before what is written."""
        row, column = self.cursor_location
        lines = text.count("\n") + 1
        written = self.text
        self.take(f"{text}\n{written}" if written.strip() else text)
        if written.strip():
            self.move_cursor((row + lines, column))

    def give_back(self, text: str) -> None:
        """Put ``text``, which was not sent after all, back where it was: before what is written since."""
        behind = len(self.text) - len(self.before_cursor)
        before = self._given_back if self.text.startswith(self._given_back) else ""
        self._given_back = before + text
        self.text = self._given_back + self.text[len(before) :]
        lines = self.text[: len(self.text) - behind].split("\n")
        self.move_cursor((len(lines) - 1, len(lines[-1])))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return min(super().get_content_height(container, viewport, width), self._room(viewport))

    def on_resize(self) -> None:
        """In fewer rows the cursor stays in sight."""
        self.call_after_refresh(self.scroll_cursor_visible)

    def action_newline(self) -> None:
        self.insert("\n")

    def send(self) -> None:
        """Send what is written, if it is anything."""
        if self.text.strip():
            text, others = self.text, self.others
            left = self._draft if self._at is not None else ""
            self._at, self._given_back, self._draft, self._changed = None, "", "", {}
            self.remember([*(each for each in others if each not in (left, text)), text])
            self.typed_at = 0.0  # what is sent is written: the answer may come at full speed
            self.text = left  # what was written before an earlier prompt was taken
            self.move_cursor(self.document.end)
            self.post_message(self.Sent(text).set_sender(self))  # who called is not its sender: it would not bubble up to it

    async def _on_key(self, event: events.Key) -> None:
        if self._is_for_the_text(event):
            self.typed_at = time.monotonic()
        if event.key in _COMPLETING and self._take_key(event.key):
            event.stop()
            event.prevent_default()
        elif event.key == "enter":  # no binding: one with priority would come before the characters typed before it
            event.stop()
            event.prevent_default()
            self.send()
        elif (event.key == "up" and self.cursor_at_first_line and (self._wanted_back() or self._recall(-1))) or (
            event.key == "down" and self.cursor_at_last_line and self._recall(1)
        ):
            event.stop()
            event.prevent_default()
        elif event.is_printable or not await run_own_binding(self, event):
            await super()._on_key(event)

    async def _on_mouse_up(self, event: events.MouseUp) -> None:
        await super()._on_mouse_up(event)
        if self.selected_text.strip():
            self.app.copy_to_clipboard(self.selected_text)

    def _is_for_the_text(self, event: events.Key) -> bool:
        """Whether the person writes with this key; one of a command, or one that scrolls, holds up no answer."""
        if event.is_printable:
            return True
        bound = self.screen.active_bindings.get(event.key)
        return bound is not None and bound.node is self and not bound.binding.action.startswith("app.")

    def _wanted_back(self) -> bool:
        return not self.text and self._at is None and self.take_back()

    def _recall(self, step: int) -> bool:
        """Show the prompt before or after; false when there is none, and the key means what it always does."""
        at = (len(self.earlier) if self._at is None else self._at) + step
        if not 0 <= at <= len(self.earlier) or (self._at is None and step > 0):
            return False
        if self._at is None:
            self._draft = self.text
        else:
            self._changed[self._at] = self.text
        self._at = None if at == len(self.earlier) else at
        self.take(self._draft if self._at is None else self._changed.get(at, self.earlier[at]))
        return True


class Prompt(Vertical):
    """The prompt and, above it, what the word under the cursor may become."""

    def __init__(self, complete: Complete) -> None:
        super().__init__(id="prompt-box")
        self._complete = complete
        self._begin = 0
        self._found: Sequence[Completion] = ()
        self._listed: Sequence[Completion] = ()
        self._left: str | None = None
        """The text whose completions were put away."""
        self._said = ""
        self._line = Static(id="attached", markup=False)
        self.area = PromptArea(self._key_of_choices, self._room)

    def compose(self) -> ComposeResult:
        choices = OptionList(id="completions", markup=False, compact=True)
        choices.can_focus = False
        choices.display = False
        yield choices
        yield self._line
        yield self.area

    def _room(self, screen: Size) -> int:
        """Rows that the box has for the text on a ``screen`` of this size, beside what stands above it."""
        choices = self._choices
        most = _MOST_LISTED_SHORT if self.screen.has_class("-short") else _MOST_LISTED
        listed = min(choices.option_count, most) if choices.display else 0
        return max(1, screen.height * 6 // 10 - listed - self._line.display)

    def say(self, text: str) -> None:
        """Say above the prompt what goes with it; nothing hides the line."""
        if text == self._said:
            return
        self._said = text
        self._line.update(Content(printable(text)))
        self._line.display = bool(text)

    @property
    def _choices(self) -> OptionList:
        return self.query_one("#completions", OptionList)

    @on(TextArea.Changed)
    @on(TextArea.SelectionChanged)
    def look_up(self) -> None:
        """List what the word at the cursor may become."""
        text = self.area.before_cursor
        wanted = self.area.has_focus and text != self._left
        self._begin, self._found = self._complete(text) if wanted else (0, ())
        if [each.text for each in self._found] == [text[self._begin :]]:
            self._found = ()  # it is there already
        self._list()

    def _list(self) -> None:
        """Show what was found, if it is not shown already."""
        choices = self._choices
        choices.display = bool(self._found)
        if self._found and self._found != self._listed:
            choices.clear_options()
            choices.add_options([Option(_line(each)) for each in self._found])
            choices.highlighted = 0 if self.area.before_cursor[self._begin :] else None
        self._listed = self._found

    def _key_of_choices(self, key: str) -> bool:
        """Move among the completions, take one, or put them away; false when there are none.

        Enter sends what it takes, or what is written where no word is begun and none is chosen.  They are looked up first: what
        is listed may be of a text before the keys that came just now.
        """
        self.look_up()
        if not self._found:
            return False
        if key == "up":
            self._choices.action_cursor_up()
        elif key == "down":
            self._choices.action_cursor_down()
        elif key == "escape":
            self._put_away()
        elif (key == "enter" and self._choices.highlighted is None) or (not self._accept().goes_on and key == "enter"):
            self.area.send()
        return True

    @on(OptionList.OptionSelected)
    def clicked(self) -> None:
        """A completion was clicked."""
        if self._found:
            self._accept()
        self.area.focus()

    def _accept(self) -> Completion:
        """Put the highlighted completion in its place."""
        chosen = self._found[self._choices.highlighted or 0]
        area = self.area
        before = area.before_cursor
        area.take(before[: self._begin] + chosen.text + area.text[len(before) :])
        self._found = ()
        self._list()
        return chosen

    def _put_away(self) -> None:
        self._left, self._found = self.area.before_cursor, ()
        self._list()


def writable(text: str) -> str:
    """``text`` as it may stand in a field: no character of it talks to the terminal."""
    return printable(text.replace("\r\n", "\n").replace("\r", "\n"))


def _line(completion: Completion) -> Content:
    text = printable(completion.text.strip())
    return Content.assemble((f"{text:<24}", "bold"), (f" {printable(completion.help)}", "dim"))
