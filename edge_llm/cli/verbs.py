"""Groups of commands that are imported one by one, so that `--help` stays instant."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click


class Verbs(click.Group):
    """A group of (verb, module in edge_llm.cli, one line of help); the module is imported when the verb is called.

    The command of a verb is called `VERB_command` in its module.
    """

    def __init__(self, *names: Any, verbs: Sequence[tuple[str, str, str]], **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb for verb, _, _ in self.verbs]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return self.command_of(name)

    def command_of(self, word: str) -> click.Command | None:
        """The command of the verb ``word``, None if there is no such verb."""
        for verb, module, _ in self.verbs:
            if verb == word:
                return getattr(import_module(f"edge_llm.cli.{module}"), f"{verb}_command")
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, _, text in self.verbs])
