"""What the word behind `edge-llm bench` may be; everything else is the measurement of speed."""

from __future__ import annotations

from typing import Any

import click

from edge_llm.cli.verbs import Verbs

COMMANDS = (
    ("lanes", "bench.lanes", "A prompt under scheduling policies, on a device with lanes."),
    ("simulate", "bench.simulate", "The scheduling policies on a machine of a cost table."),
    ("load", "bench.load", "Many answers at once through the service."),
    ("speculation", "bench.speculation", "What prompt lookup is worth."),
    ("sampling", "bench.sampling", "What choosing tokens adds to decoding."),
)
"""As `Verbs` takes them."""
WORDS = tuple(word for word, _, _ in COMMANDS)


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
