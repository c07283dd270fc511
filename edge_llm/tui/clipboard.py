"""The clipboard: OSC 52, which also works over SSH, and the desktop's own program for terminals that do not know it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from textual.app import App

from edge_llm.files import printable

_PROGRAMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--clipboard", "--input")),
    ("", ("pbcopy",)),
)
_SECONDS = 2.0


def desktop_program(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """The program that fills this desktop's clipboard; None over SSH and on a console."""
    if environment.get("SSH_CONNECTION"):
        return None  # it would fill the clipboard of the wrong machine
    for variable, command in _PROGRAMS:
        if (not variable or environment.get(variable)) and shutil.which(command[0]):
            return command
    return None


def copy(app: App[Any], text: str) -> None:
    """Put ``text`` on the clipboard of whoever sits at the terminal, who may paste it into a shell."""
    text = printable(text)
    App.copy_to_clipboard(app, text)
    command = desktop_program(os.environ)
    if command is not None and not app.is_headless:
        app.run_worker(lambda: _run(command, text), thread=True, exit_on_error=False)


def _run(command: tuple[str, ...], text: str) -> None:
    nowhere = subprocess.DEVNULL
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            command, input=text.encode("utf-8", "replace"), timeout=_SECONDS, check=False, stdout=nowhere, stderr=nowhere
        )
