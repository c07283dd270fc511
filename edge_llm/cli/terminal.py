"""What goes to a terminal: progress bars on stderr, and generated text made harmless."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Progress = Callable[[str, int, int], None]


def printable(text: str) -> str:
    """Generated text without control characters (a model must not move the cursor or talk to the terminal)."""
    return "".join(char for char in text if char in "\n\t" or ((char.isprintable() or char.isspace()) and char != "\r"))


def write(text: str) -> None:
    """Write generated text to stdout at once; made harmless if a person reads it on a terminal."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def note(text: str) -> None:
    """One line for the person, on stderr."""
    click.echo(text, err=True)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A callback (stage, done, total) that draws a bar on stderr when it is a terminal, and else says each stage once."""
    if not sys.stderr.isatty():
        yield _say_stages()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description:<12}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, int] = {}

        def draw(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = int(bar.add_task(stage, total=total))
            bar.update(tasks[stage], completed=done, total=total)  # type: ignore[arg-type]

        yield draw


def _say_stages() -> Progress:
    said: set[str] = set()

    def say(stage: str, done: int, total: int) -> None:
        if stage not in said:
            said.add(stage)
            note(f"{stage} ...")

    return say


@contextmanager
def quiet_progress() -> Iterator[Progress]:
    """A bar on a terminal, silence elsewhere (loading is short)."""
    if sys.stderr.isatty():
        with progress_bar() as draw:
            yield draw
    else:
        yield lambda stage, done, total: None
