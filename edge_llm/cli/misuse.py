"""What click refuses, in the words of all our errors: one line, with the way out."""

from __future__ import annotations

import re

import click

_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)\.?", re.DOTALL)


def misuse_line(misuse: click.ClickException) -> str:
    """One line that says what ``misuse`` refuses and what to do."""
    context = getattr(misuse, "ctx", None)
    command = "edge-llm" if context is None else context.command_path
    way_out = f"`{command} --help` says what it takes"
    if isinstance(misuse, click.NoSuchOption):
        near = misuse.possibilities or ()
        way_out = f"did you mean {' or '.join(f'`{name}`' for name in near)}?" if near else way_out
        return f"`{command}` has no option `{misuse.option_name}`; {way_out}"
    if isinstance(misuse, click.MissingParameter) and isinstance(misuse.param, click.Argument):
        return f"{misuse.param.make_metavar(context).strip('[].')} is missing; {way_out}"  # type: ignore[arg-type]
    message = misuse.format_message()
    if extra := _EXTRA.fullmatch(message):
        return f"`{command}` takes no `{extra[1]}`; {way_out}"
    return f"{message[:1].lower()}{message[1:].rstrip('.')}; {way_out}"
