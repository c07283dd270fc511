"""What goes to a terminal: answers and reports on stdout, notes and progress on stderr, all made harmless."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from edge_llm.files import printable
from edge_llm.progress import IN_BYTES, Journey, StageProgress

SAY_PROGRESS_SECONDS = 30.0
"""How often a log is told how far a long stage is."""
LINES_PER_SECOND = 20
"""At most so many lines of a stage go to a program, beside its first and its last."""


def write(text: str) -> None:
    """Write generated text to stdout at once; made harmless if a person reads it on a terminal."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def think(text: str) -> None:
    """Write what a model thinks, dimmed, to stderr at once if a person reads there; nobody else is told."""
    if sys.stderr is not None and sys.stderr.isatty():
        with contextlib.suppress(OSError):
            click.secho(printable(text), err=True, nl=False, dim=True)


def say(text: str = "") -> None:
    """A line, or several, of a report on stdout, made harmless: names and paths in it may come from others."""
    click.echo(printable(text))


def say_json(value: Any, indent: int | None = 2) -> None:
    """A value for a script, on stdout; JSON escapes what is not ASCII."""
    click.echo(json.dumps(value, indent=indent))


def note(text: str) -> None:
    """A line for the person, on stderr; lost if nobody can hear it.

    A bar stands in the place of `sys.stderr` while it is shown, and moves aside; `click.echo` would write past it.
    """
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(printable(text) + "\n")
            sys.stderr.flush()


def has_person() -> bool:
    """Whether somebody can answer a question on stdin."""
    return sys.stdin is not None and sys.stdin.isatty()


@contextmanager
def progress_bar(journey: Journey | None = None) -> Iterator[StageProgress]:
    """A callback (stage, done, total): a bar on a terminal, else a line for each stage and how far a long one is, on stderr.

    journey: what estimates how long it takes; default: each stage for itself.
    """
    journey = journey or Journey()
    if sys.stderr is None or not sys.stderr.isatty():
        yield _say_stages(journey)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Task, TextColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class SoFar(TextColumn):
        """How far it is; the clock runs on between two steps."""

        def render(self, task: Task) -> Text:
            return Text(task.fields["step"].after(time.monotonic() - task.fields["told"]).so_far)

    columns = (TextColumn("{task.description:<12}"), BarColumn(bar_width=24), SoFar(""))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, int] = {}

        def draw(stage: str, done: int, total: int) -> None:
            now = time.monotonic()
            fields: Any = {"step": journey.told(stage, done, total, now), "told": now}
            for other, task in tasks.items():
                if other != stage:
                    bar.update(task, step=bar.tasks[task].fields["step"].over())  # type: ignore[arg-type]
            if stage not in tasks:
                tasks[stage] = int(bar.add_task(stage, total=total, **fields))
            bar.update(tasks[stage], completed=done, total=total, **fields)  # type: ignore[arg-type]

        yield draw


def _say_stages(journey: Journey, clock: Callable[[], float] = time.monotonic) -> StageProgress:
    said: dict[str, float] = {}

    def say(stage: str, done: int, total: int) -> None:
        now = clock()
        step = journey.told(stage, done, total, now)
        if stage not in said:
            note(f"{step.begun} ..." if not done or stage in IN_BYTES else f"{step} ...")
        elif done < total and now - said[stage] >= SAY_PROGRESS_SECONDS:
            note(f"{step} ...")
        else:
            return
        said[stage] = now

    return say


progress_option = click.option(
    "--progress",
    "progress_form",
    type=click.Choice(["auto", "json"]),
    default="auto",
    show_default=True,
    help='auto: for a person.  json: lines {"stage", "done", "total"} on stderr, with "seconds_left", "seconds_left_in_all" '
    'and "bytes_per_second" once they are known, for a program; its other lines are notes.',
)


@contextmanager
def progress_as(form: str, journey: Journey | None = None) -> Iterator[StageProgress]:
    """A callback (stage, done, total) that shows progress as `progress_option` says; ``journey`` as for `progress_bar`."""
    if form == "json":
        yield _progress_lines(journey or Journey())
        return
    with progress_bar(journey) as draw:
        yield draw


def _progress_lines(journey: Journey, clock: Callable[[], float] = time.monotonic) -> StageProgress:
    said: dict[str, float] = {}

    def say(stage: str, done: int, total: int) -> None:
        now = clock()
        step = journey.told(stage, done, total, now)
        if stage in said and done < total and now - said[stage] < 1 / LINES_PER_SECOND:
            return
        said[stage] = now
        note(step.to_json())  # which flushes

    return say


@contextmanager
def quiet_progress() -> Iterator[StageProgress]:
    """A bar on a terminal, silence elsewhere (loading is short)."""
    if sys.stderr is not None and sys.stderr.isatty():
        with progress_bar() as draw:
            yield draw
    else:
        yield lambda stage, done, total: None
