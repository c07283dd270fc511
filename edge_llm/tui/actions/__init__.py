"""What commands do: a method ``do_NAME`` for every command of the table, grouped by what it is done to."""

from __future__ import annotations

from edge_llm.errors import UsageError
from edge_llm.tui.actions.chats import ChatActions
from edge_llm.tui.actions.compare import CompareActions
from edge_llm.tui.actions.context import ContextActions
from edge_llm.tui.actions.library import LibraryActions
from edge_llm.tui.actions.messages import MessageActions
from edge_llm.tui.actions.models import ModelActions
from edge_llm.tui.actions.prompts import PromptActions
from edge_llm.tui.actions.screen import ScreenActions
from edge_llm.tui.actions.settings import SettingsActions
from edge_llm.tui.actions.tools import ToolActions
from edge_llm.tui.commands import BY_NAME
from edge_llm.tui.stage import Stage


class Actions:
    """Does what a person asks of ``app``."""

    def __init__(self, app: Stage) -> None:
        self.prompts = PromptActions(app)
        self.messages = MessageActions(app, self.prompts)
        self.chats = ChatActions(app)
        self.settings = SettingsActions(app, self.prompts)
        self.models = ModelActions(app, self.prompts, self.settings)
        self.context = ContextActions(app, self.prompts, self.settings.change)
        self.screen = ScreenActions(app)
        self.tools = ToolActions(app)
        self.library = LibraryActions(app, self.prompts)
        self.compare = CompareActions(app, self.prompts)

    async def run(self, name: str, argument: str = "") -> None:
        """Do the command ``name``.  Raises the `EdgeLLMError` that keeps it from being done."""
        command = BY_NAME[name]
        if not argument and not command.may_take_nothing:
            raise UsageError(f"/{command.name} needs {command.argument}", param=name)
        if argument and command.takes_nothing:
            raise UsageError(f"/{command.name} takes nothing behind it, got `{argument[:40]}`", param=name)
        of_chat = (self.prompts, self.messages, self.chats, self.context, self.tools, self.compare, self.library)
        groups = (*of_chat, self.models, self.settings, self.screen)
        do = next(found for group in groups if (found := getattr(group, f"do_{command.name}", None)) is not None)
        await do(argument)
