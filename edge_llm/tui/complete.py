"""What the word at the cursor may become: a command, what stands behind one, or the name of a file behind `@`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from edge_llm.chats.attachments import completions
from edge_llm.chats.prompt_library import prompt_names
from edge_llm.chats.settings import BY_NAME as SETTINGS_BY_NAME
from edge_llm.paths import prompts_folder
from edge_llm.tui.commands import BY_NAME, COMMANDS
from edge_llm.tui.prompt import Completion

MOST = 8
_COMMAND = re.compile(r"/([a-z?]*)")
_ARGUMENT = re.compile(r"/([a-z]+) +(\S*)")
_FILE = re.compile(r"(?:^|\s)(@(?:\"[^\"]*|[^\s\"]*))$")


class Completer:
    """Completes commands, what stands behind them, and files of ``folder``; ``models`` and ``themes`` give their names."""

    def __init__(self, folder: Path, models: Callable[[], Sequence[str]], themes: Callable[[], Sequence[str]]) -> None:
        self._folder = folder
        self._models = models
        self._themes = themes

    def complete(self, text: str) -> tuple[int, Sequence[Completion]]:
        """Where the word begins that ``text`` ends with, and what it may become."""
        if match := _COMMAND.fullmatch(text):
            found = [_of_command(command.name) for command in COMMANDS if command.name.startswith(match[1])]
            return 0, _beginning(found, match[0])[:MOST] if match[1] not in BY_NAME or len(found) > 1 else []
        if (match := _ARGUMENT.fullmatch(text)) and match[1] in BY_NAME:
            words = self._words(BY_NAME[match[1]].name)
            return match.start(2), _beginning(words, match[2])[:MOST]
        if match := _FILE.search(text):
            words = (Completion(word, goes_on=word.endswith("/")) for word in completions(match[1], self._folder, MOST))
            return match.start(1), [*words]
        return 0, []

    def _words(self, command: str) -> Iterator[Completion]:
        """What may stand behind a command."""
        if command in ("model", "compare"):
            yield from (Completion(name) for name in self._models())
        elif command == "prompt":
            yield from (Completion(name) for name in prompt_names(prompts_folder()))
            yield Completion("save ", goes_on=True)
        elif command == "theme":
            yield from (Completion(name) for name in self._themes())
        elif command == "set":
            yield from (Completion(f"{name} ", setting.help) for name, setting in SETTINGS_BY_NAME.items())
        elif "|" in BY_NAME[command].argument:
            yield from (Completion(word) for word in BY_NAME[command].argument.split()[0].strip("[]").split("|"))


def _of_command(name: str) -> Completion:
    command, more = BY_NAME[name], not BY_NAME[name].may_take_nothing
    return Completion(f"/{name}{' ' * more}", f"{command.argument}  {command.help}".strip(), goes_on=more)


def _beginning(found: Iterable[Completion], word: str) -> list[Completion]:
    """Those of ``found`` that begin with ``word``, first the one that it is."""
    return sorted((one for one in found if one.text.startswith(word)), key=lambda one: one.text.strip() != word)

