"""Fields to write in, where keys act in the order in which they were pressed."""

from __future__ import annotations

from textual import events
from textual.binding import Binding
from textual.message import Message as Event
from textual.widget import Widget
from textual.widgets import Input


async def run_own_binding(widget: Widget, event: events.Key) -> bool:
    """Run what ``widget`` itself binds to the key, now; false when it binds nothing to it, or has no use for it now.

    Textual runs a binding when its key has travelled up to the app, behind the letters that came meanwhile: after a burst,
    Backspace would delete the letter typed after it.
    """
    bound = widget.screen.active_bindings.get(event.key)
    if bound is None or bound.node is not widget or not await widget.app.run_action(bound.binding.action, widget):
        return False
    event.stop()
    event.prevent_default()
    return True


class Field(Input):
    """One line to write in."""

    async def _on_key(self, event: events.Key) -> None:
        if event.is_printable or not await run_own_binding(self, event):
            await super()._on_key(event)


class SearchField(Field):
    """One line to search in a list, in which Up and Down move."""

    BINDINGS = [Binding("down", "move(1)", show=False), Binding("up", "move(-1)", show=False)]

    class Moved(Event):
        """The person goes ``step`` lines down in the list."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    def action_move(self, step: int) -> None:
        self.post_message(self.Moved(step))
