"""Types of options: numbers in plain digits, UTF-8 text, the name of a new file.

Python's own `int` and `float` also read `1_000`, `٣` and `nan`; nobody who types these means a number.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.types import FloatParamType, IntParamType

from edge_llm.errors import EdgeLLMError
from edge_llm.files import shown
from edge_llm.paths import model_folders

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
_REAL = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?")

_ESCAPED = re.compile("[\ud800-\udfff]")
"""Bytes that Python could not read in the locale's encoding."""


def whole_number(text: str) -> int:
    """The whole number that ``text`` is in plain digits; raises `ValueError`."""
    if _WHOLE.fullmatch(text.strip()) is None:
        raise ValueError(text)
    return int(text)


def short(value: object) -> str:
    """``value`` as a message shows it: quoted, and cut when it is long."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:80]}...{text[-30:]}"


class _InPlainDigits(click.ParamType):
    """Refuses what is not spelled like a number, before click reads it as one."""

    spelling = _WHOLE
    kind = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and (self.spelling.fullmatch(value.strip()) is None or math.isinf(float(value))):
            self.fail(f"{short(value)} is not a valid {self.kind}.", param, ctx)
        return super().convert(value, param, ctx)


class _Real(_InPlainDigits):
    spelling = _REAL
    kind = "float"


class _AnyWhole(_InPlainDigits, IntParamType):
    pass


class _AnyReal(_Real, FloatParamType):
    pass


class Whole(_InPlainDigits, click.IntRange):
    """A whole number from ``min`` to ``max``."""


class Real(_Real, click.FloatRange):
    """A number from ``min`` to ``max``."""


STDOUT = Path("-")
"""What a `NewFile` may give for `-`: this object, and no other path that equals it, as that of `./-` does."""


class NewFile(click.Path):
    """The name of a file to write; `-` is `STDOUT`, or refused."""

    def __init__(self, *, or_stdout: bool = False) -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self._or_stdout = or_stdout

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name of a file cannot be empty.", param, ctx)
        if value == "-":
            if not self._or_stdout:
                self.fail("`-` stands for no file here; a file of this name is ./-", param, ctx)
            return STDOUT
        if not (folder := Path(str(value)).parent).is_dir():
            self.fail(f"there is no folder `{shown(str(folder))}` to write it to.", param, ctx)
        return super().convert(value, param, ctx)


class _Text(click.ParamType):
    """UTF-8 text in any locale; an argument whose bytes are not UTF-8 is refused."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return os.fsencode(str(value)).decode() if _ESCAPED.search(str(value)) else str(value)
        except UnicodeError:
            self.fail(f"{short(value)} is not UTF-8 text.", param, ctx)


class _Model(click.ParamType):
    """The name of a model, or a path to one; who opens it refuses what is neither."""

    name = "text"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if incomplete.startswith(("/", ".", "~")):
            return [CompletionItem(incomplete, type="dir")]
        try:
            names = [name for name in self.names(incomplete) if name.isprintable() and not set(name) & set(" ,")]
        except EdgeLLMError:  # a shell waits for names, not for what is wrong with a folder
            names = []
        if isinstance(ctx.command, click.Group):  # where a word may be a command or a model, as behind `bench`
            names += ctx.command.list_commands(ctx)
        return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]

    def names(self, incomplete: str) -> list[str]:
        """What may be meant.  Raises errors of the tree."""
        return [name for name, _ in model_folders()]


class _Source(_Model):
    """A model as somebody published it: a short name, a hub id, an address or a folder."""

    def names(self, incomplete: str) -> list[str]:
        from edge_llm.models.known import short_names

        return [name.replace(":", "-") for name in short_names()] if incomplete else []  # a shell breaks words at `:`


class _AnyModel(_Source):
    """A model that is here, or that can be brought."""

    def names(self, incomplete: str) -> list[str]:
        return [*_Model.names(self, incomplete), *_Source.names(self, incomplete)]


class _Server(_Model):
    """A running server: the name of its model, its port or its process."""

    def names(self, incomplete: str) -> list[str]:
        from edge_llm.server.running import running

        servers = running()
        ports = [str(server.port) for server in servers] if incomplete[:1].isdecimal() else []
        return [*(name for server in servers for name in server.names), *ports]


WHOLE = _AnyWhole()
REAL = _AnyReal()
TEXT = _Text()
MODEL = _Model()
ANY_MODEL = _AnyModel()
SOURCE = _Source()
SERVER = _Server()
