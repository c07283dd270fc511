"""`edge-llm pull`: download from the hub, without importing."""

from __future__ import annotations

import click

from edge_llm.cli.terminal import progress_as, progress_option, write
from edge_llm.sources.hub import pull


@click.command("pull")
@click.argument("repository")
@click.option("--revision", help="Branch, tag or commit; default: main.")
@progress_option
def pull_command(repository: str, revision: str | None, progress_form: str) -> None:
    """Download the files of REPOSITORY (such as Qwen/Qwen2.5-0.5B-Instruct) that an import needs, and print the folder.

    Interrupted downloads go on where they stopped.  HF_ENDPOINT chooses a mirror, HF_HUB_OFFLINE=1 forbids the network.
    """
    with progress_as(progress_form) as draw:
        folder = pull(repository, revision, progress=draw)
    write(f"{folder}\n")
