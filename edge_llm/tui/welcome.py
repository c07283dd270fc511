"""What an empty chat shows: what this is, which model answers, and prompts to begin with."""

from __future__ import annotations

from textual import events, on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message as Event
from textual.widgets import Static

from edge_llm.files import printable
from edge_llm.providers.base import Facts
from edge_llm.tui.units import byte_size, context_size

PROMPTS = (
    "Explain how a hash table works, with a small example in Python",
    "Write a haiku about the sea at night",
    "I have an hour and five eggs: what can I cook?",
)
TOY_PROMPTS = ("Who are you?", "What is the capital of France?", "Count to ten")
"""What the built-in model was taught."""


class Welcome(VerticalScroll, can_focus=False):
    """Stands in the place of what was said until anything is."""

    class Tried(Event):
        """The person wants to begin with ``text``."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, model_key: str, server: str = "") -> None:
        """``model_key`` is the key that chooses another model, ``server`` the one whose models answer."""
        super().__init__(id="welcome")
        self._model_key = model_key
        self._what = f"Chat with a server: {server}" if server else "Chat with a model that runs on this machine."
        self._shown: object = None
        self._toy = Static("", markup=False, id="welcome-toy")
        self._model = Static("", markup=False, id="welcome-model")
        self._tries = [Try(at) for at in range(len(PROMPTS))]
        self.prompts: tuple[str, ...] = PROMPTS

    def compose(self) -> ComposeResult:
        yield Static(Content.styled("edge-llm", "bold"), id="welcome-name")
        yield Static(printable(self._what), markup=False, id="welcome-what")
        yield self._toy
        yield self._model
        yield Static("Try one of these (click it, or press Alt+1 to Alt+3):", markup=False, id="welcome-try")
        yield from self._tries

    def show(self, facts: Facts | None, loading: str) -> None:
        """Say what is known of the model that answers; ``loading`` is the name of one that is on its way.

        The app's clock calls this before the parts are mounted, and while they leave: they are not looked up.
        """
        if (facts, loading) == self._shown:
            return
        self._shown = (facts, loading)
        self.prompts = TOY_PROMPTS if facts is not None and facts.is_toy else PROMPTS
        model = model_line(facts) if facts is not None else f"{loading} is loading." if loading else "No model is loaded."
        if facts is None and not loading:
            model += f" {self._model_key} chooses one."
        self._model.update(Content(printable(model)))
        self._toy.display = facts is not None and facts.is_toy
        if self._toy.display:
            parameters = facts.parameters if facts is not None else None
            self._toy.update(Content(f"This is a {count(parameters or 0)} toy. {self._model_key} gets a real model."))
        for each in self._tries:
            each.update(Content(f"{each.at + 1}  {self.prompts[each.at]}"))

    @on(events.Click, "#welcome-toy")
    def _choose_model(self) -> None:
        self.app.call_later(self.app.run_action, "command('model')")


class Try(Static):
    """A prompt to try."""

    def __init__(self, at: int) -> None:
        super().__init__("", classes="try", markup=False)
        self.at = at

    def on_click(self) -> None:
        if isinstance(welcome := self.parent, Welcome):
            self.post_message(Welcome.Tried(welcome.prompts[self.at]))


def model_line(facts: Facts) -> str:
    """The model in a line: only what is known."""
    parts = [f"{count(facts.parameters)} parameters" if facts.parameters else "", facts.precision]
    parts += [f"context {context_size(facts.context)}" if facts.context else ""]
    parts += [f"{byte_size(facts.weights)} of weights" if facts.weights else ""]
    known = " · ".join(part for part in parts if part)
    return f"{facts.name}: {known}" if known else facts.name


def count(parameters: int) -> str:
    """`2M`, `135M`, `1.5B`."""
    if parameters >= 999_500_000:
        return f"{parameters / 1e9:.1f}B"
    return f"{max(1, round(parameters / 1e6))}M"
