"""Stored prompts: put where the next prompt is written, and stored."""

from __future__ import annotations

from edge_llm.chats.prompt_library import PLACE, prompt_names, store_prompt, stored_prompt
from edge_llm.paths import prompts_folder
from edge_llm.tui.actions.prompts import PromptActions
from edge_llm.tui.stage import Stage
from edge_llm.tui.threads import in_thread


class LibraryActions:
    """What is done with stored prompts."""

    def __init__(self, app: Stage, prompts: PromptActions) -> None:
        self._app = app
        self._prompts = prompts

    async def do_prompt(self, argument: str) -> None:
        """Put a stored prompt where the next one is written; `save` stores one; nothing lists them."""
        folder = prompts_folder()
        name, _, rest = argument.partition(" ")
        if not name:
            names = ", ".join(await in_thread(prompt_names, folder))
            self._app.tell(f"{names or 'No prompts yet.'}\n/prompt save NAME stores the last one, in {folder}")
        elif name == "save":
            name, _, text = rest.strip().partition(" ")
            path = await in_thread(store_prompt, folder, name, text.strip() or self._prompts.last("user").text)
            self._app.tell(f"Stored: {path}")
        else:
            self._write(await in_thread(stored_prompt, folder, name, rest.strip()))

    def _write(self, text: str) -> None:
        """``text`` is the next prompt, its first place chosen: what is typed goes there."""
        area = self._app.prompt.area
        area.take(text)
        area.focus()
        if (place := PLACE.search(area.text)) is not None:
            ends = [area.text[:at].split("\n") for at in place.span()]
            start, end = ((len(lines) - 1, len(lines[-1])) for lines in ends)
            area.move_cursor(start)
            area.move_cursor(end, select=True)
