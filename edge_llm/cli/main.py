"""`edge-llm`: the tuple of verbs, and the one place where an error becomes a line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any, NoReturn

import click

import edge_llm
from edge_llm.cli import process
from edge_llm.cli.misuse import misuse_line
from edge_llm.cli.refusal import give_up, refusal, set_what_cannot_be_encoded
from edge_llm.cli.verbs import Verbs
from edge_llm.errors import EdgeLLMError

VERBS: tuple[tuple[str, str, str], ...] = (
    ("run", "run", "Answer one prompt on stdout; piped text belongs to it."),
    ("chat", "chat", "Chat in the terminal."),
    ("embed", "embed", "Print vectors of texts."),
    ("rerank", "rerank", "Order documents by how they answer a query."),
    ("serve", "serve", "Serve a model to OpenAI and Anthropic clients on this machine."),
    ("ps", "servers", "List the servers that run, and their models."),
    ("stop", "servers", "Stop a server."),
    ("bench", "bench.speed", "Measure prompt and generation speed; `bench -h` lists what else."),
    ("plan", "plan", "Say what a memory budget means for a model."),
    ("import", "import_", "Turn a Hugging Face folder or hub id into a local model."),
    ("export", "export", "Write a model's INT8 products as ONNX graphs."),
    ("pull", "pull", "Download a model from the hub without importing it."),
    ("list", "models", "List the models that are here."),
    ("show", "models", "Show what models are."),
    ("rm", "models", "Remove models."),
    ("cache", "cache", "List, prune or clear the prefix cache on disk."),
    ("perplexity", "perplexity", "Compare the INT8 path with the float path on a text."),
    ("config", "config", "Show what the config file and the environment set."),
    ("completion", "completion", "Print the script that completes commands in a shell."),
    ("doctor", "doctor", "Say what this machine has and what is missing."),
    ("version", "version", "Print the version."),
)
"""As `Verbs` takes them."""


@click.group(cls=Verbs, verbs=VERBS, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(edge_llm.__version__, prog_name="edge-llm")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """A local LLM runtime for one small machine.

    Without a command: chat.  The last chat goes on; the first one has the model that was imported last, else the small built-in
    one.
    """
    if ctx.invoked_subcommand is None:
        chat = cli.get_command(ctx, "chat")
        assert chat is not None
        with chat.make_context("chat", [], parent=ctx) as context:  # as if it had been typed
            chat.invoke(context)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 good, 1 failed, 2 misuse, 130 interrupted."""
    process.prepare()
    set_what_cannot_be_encoded()
    if not sys.warnoptions and not os.environ.get("EDGE_LLM_DEBUG"):
        warnings.simplefilter("ignore")  # they are for developers
    try:
        process.interrupts.running = True
        code = run(arguments)
        process.interrupts.running = False  # a Ctrl-C just before this is caught below
    except KeyboardInterrupt:  # another one, while the first was being answered
        process.interrupts.running = False
        code = process.INTERRUPTED
    except MemoryError:  # none was left to build the message with
        process.interrupts.running = False
        os.write(2, b"error: not enough memory\n")
        code = 1
    process.leave(code)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    try:
        result: Any = cli.main(arguments, prog_name="edge-llm", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as wanted:
        return wanted.exit_code
    except SystemExit as answered:  # a shell that wanted to complete something (`cli/completion.py`)
        return 0 if answered.code in (None, 0) else 1
    except click.ClickException as misuse:
        origin = _origin(misuse)
        _complain_of(misuse_line(misuse) if origin is None else f"{misuse.message.rstrip('.')} ({origin})")
        return misuse.exit_code
    except (KeyboardInterrupt, click.Abort):
        return process.INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away (`| head`): nothing more to say
        give_up(sys.stdout)
        return 1
    except EdgeLLMError as error:
        _complain_of(" ".join([str(error), *(f"({note})" for note in getattr(error, "__notes__", ()))]))
        return error.exit_code
    except Exception as error:
        if os.environ.get("EDGE_LLM_DEBUG"):
            raise
        _complain_of(refusal(error) or f"internal error, {type(error).__name__}: {error} (set EDGE_LLM_DEBUG=1 to see where)")
        return 1


def _origin(misuse: click.ClickException) -> str | None:
    """Where a refused value came from that no flag gave."""
    if not isinstance(misuse, click.BadParameter) or misuse.ctx is None or misuse.param is None:
        return None
    from edge_llm.cli.settings import origin

    return origin(misuse.ctx, misuse.param)


def _complain_of(message: str) -> None:
    """``message`` as one line on stderr, if it can be heard."""
    line = " ".join(message.split())
    printable = "".join(char if char.isprintable() else "?" for char in line)
    try:
        click.echo(f"error: {printable}", err=True)
    except OSError:
        give_up(sys.stderr)
