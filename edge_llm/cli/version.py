"""`edge-llm version`, as `--version`."""

from __future__ import annotations

import click

import edge_llm
from edge_llm.cli.terminal import say


@click.command("version")
def version_command() -> None:
    """Print the version."""
    say(f"edge-llm, version {edge_llm.__version__}")
