"""`edge-llm pull`: download from the hub, without importing."""

from __future__ import annotations

import click

from edge_llm.cli.terminal import note, progress_as, progress_option, write
from edge_llm.cli.values import SOURCE
from edge_llm.sources.hub_files import check_names
from edge_llm.sources.hubs import pull
from edge_llm.sources.place import named_place, no_source


@click.command("pull")
@click.argument("repository", type=SOURCE)
@click.option("--revision", help="Branch, tag or commit; default: main.")
@progress_option
def pull_command(repository: str, revision: str | None, progress_form: str) -> None:
    """Download the files of REPOSITORY that an import needs, and print the folder, or of `org/repo:Q4_K_M` the GGUF file.

    It is a hub id such as Qwen/Qwen2.5-0.5B-Instruct, the address of its page, a short name such as qwen3, or of ModelScope
    modelscope:Qwen/Qwen3-0.6B.  Interrupted downloads go on where they stopped.  HF_ENDPOINT chooses a mirror, HF_HUB_OFFLINE=1
    forbids the network.
    """
    place = named_place(repository)
    if place is None and "/" not in repository:
        raise no_source(repository)
    if place is None:
        check_names(repository, revision)  # which tells what a hub id is
        raise no_source(repository)
    with progress_as(progress_form) as draw:
        folder = pull(place, revision, draw, note)
    write(f"{folder}\n")
