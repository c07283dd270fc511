"""`edge-llm bench`: a word behind it may be a command; everything else is the measurement of speed."""

from __future__ import annotations

from typing import Any

import click

from edge_llm.cli.bench.words import COMMANDS
from edge_llm.cli.verbs import Verbs


class Bench(Verbs):
    """Its own command, speed, has arguments that may look like a verb; so only the first word can be one of `COMMANDS`."""

    allow_extra_args = False
    allow_interspersed_args = True

    def __init__(self, *names: Any, **settings: Any) -> None:
        super().__init__(*names, verbs=COMMANDS, invoke_without_command=True, **settings)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **settings: Any
    ) -> click.Context:
        command = self.command_of(args[0]) if args else None
        if command is None:
            return super().make_context(info_name, args, parent, **settings)
        return command.make_context(f"{info_name} {args[0]}", args[1:], parent, **settings)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return click.Command.collect_usage_pieces(self, ctx)
