"""`edge-llm doctor`: what this machine has, and what is missing."""

from __future__ import annotations

import click

from edge_llm.cli.terminal import say, say_json
from edge_llm.engine.machine import examine


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def doctor_command(as_json: bool) -> None:
    """Say what this machine has for running models, what is missing for an Ascend card, and how to get it."""
    findings = examine()
    if as_json:
        say_json({finding.name: finding.as_dict() for finding in findings})
        return
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        say(f"{_MARKS[finding.good]} {finding.name.ljust(width)}  {finding.value}")
        if finding.advice:
            say(f"  {' ' * width}  -> {finding.advice}")


_MARKS: dict[bool | None, str] = {True: "+", False: "!", None: "-"}


