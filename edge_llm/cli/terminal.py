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
from edge_llm.progress import IN_BYTES, Pace, StageProgress

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
def progress_bar() -> Iterator[StageProgress]:
    """A callback (stage, done, total): a bar on a terminal, else a line for each stage and how far a long one is, on stderr."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield _say_stages()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description:<12}"), BarColumn(), TextColumn("{task.fields[so_far]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, int] = {}
        pace = Pace()

        def draw(stage: str, done: int, total: int) -> None:
            so_far = _so_far(stage, done, total, pace.seconds_left(stage, done, total, time.monotonic()))
            if stage not in tasks:
                tasks[stage] = int(bar.add_task(stage, total=total, so_far=so_far))
            bar.update(tasks[stage], completed=done, total=total, so_far=so_far)  # type: ignore[arg-type]

        yield draw


def _say_stages(clock: Callable[[], float] = time.monotonic) -> StageProgress:
    said: dict[str, float] = {}
    pace = Pace()

    def say(stage: str, done: int, total: int) -> None:
        now = clock()
        left = pace.seconds_left(stage, done, total, now)
        if stage not in said:
            note(f"{stage} ..." if not done or stage in IN_BYTES else f"{stage} {_so_far(stage, done, total, left)} ...")
        elif done < total and now - said[stage] >= SAY_PROGRESS_SECONDS:
            note(f"{stage} {_so_far(stage, done, total, left)} ...")
        else:
            return
        said[stage] = now

    return say


def _so_far(stage: str, done: int, total: int, seconds_left: float | None) -> str:
    """How far a stage is, and how long it takes, if that is known."""
    share = f"{done / total if total else 1:.0%}" if stage in IN_BYTES else f"{done} of {total}"
    if seconds_left is None or done >= total:
        return share
    minutes, seconds = divmod(round(seconds_left), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{share}, {f'{hours}:{minutes:02}' if hours else minutes}:{seconds:02} left"


progress_option = click.option(
    "--progress",
    "progress_form",
    type=click.Choice(["auto", "json"]),
    default="auto",
    show_default=True,
    help='auto: for a person.  json: lines {"stage", "done", "total"} on stderr, with "seconds_left" once that is known, for '
    "a program; its other lines are notes.",
)


@contextmanager
def progress_as(form: str) -> Iterator[StageProgress]:
    """A callback (stage, done, total) that shows progress as `progress_option` says."""
    if form == "json":
        yield _progress_lines()
        return
    with progress_bar() as draw:
        yield draw


def _progress_lines(clock: Callable[[], float] = time.monotonic) -> StageProgress:
    said: dict[str, float] = {}
    pace = Pace()

    def say(stage: str, done: int, total: int) -> None:
        now = clock()
        left = pace.seconds_left(stage, done, total, now)
        if stage in said and done < total and now - said[stage] < 1 / LINES_PER_SECOND:
            return
        said[stage] = now
        known = {} if left is None else {"seconds_left": round(left, 1)}
        note(json.dumps({"stage": stage, "done": done, "total": total, **known}))  # which flushes

    return say


@contextmanager
def quiet_progress() -> Iterator[StageProgress]:
    """A bar on a terminal, silence elsewhere (loading is short)."""
    if sys.stderr is not None and sys.stderr.isatty():
        with progress_bar() as draw:
            yield draw
    else:
        yield lambda stage, done, total: None
