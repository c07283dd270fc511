"""`edge-llm completion`: the script that lets a shell complete commands, options and names of models."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from edge_llm.cli.terminal import say

VARIABLE = "_EDGE_LLM_COMPLETE"
"""With this in its environment, edge-llm answers the shell: see `main.run`."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  edge-llm completion bash > ~/.local/share/bash-completion/completions/edge-llm
    zsh:   edge-llm completion zsh > ~/.zfunc/_edge-llm    (a folder of $fpath, before compinit)
    fish:  edge-llm completion fish > ~/.config/fish/completions/edge-llm.fish
    """
    script = get_completion_class(shell)
    assert script is not None, "click knows the shells of the choice"
    say(script(ctx.find_root().command, {}, "edge-llm", VARIABLE).source())
