"""The process that renders a chat template: Jinja's sandbox, within limits of memory and time.

A chat template is untrusted code.  Jinja's immutable sandbox keeps it from reaching out, and the limits of the process
bound what it costs.  What templates may use is what transformers gives them.  `edge_llm.text.rendering` starts the
process and asks it; `edge_llm.text.replies` tells how.  Beside that, the module imports only Jinja, so that the process
is small and starts soon.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.debug  # noqa: F401
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from edge_llm.child.inside import Limits, answer, questions
from edge_llm.text.replies import EXHAUSTED, FAILED, REFUSED, TEXT

BYTES_PER_BYTE = 8
"""Memory that each byte of the input allows: it becomes objects, and then text again."""
MAX_MESSAGE = 2000
"""Characters of what a template says, or of why it failed."""


class Refused(Exception):
    """The template calls raise_exception, with these words."""


class Program:
    """A compiled template.  Raises whatever Jinja raises."""

    def __init__(self, source: str) -> None:
        self._template = _Environment().from_string(source)

    def render(self, values: dict[str, Any], max_output: int) -> str:
        """What the template makes of ``values`` (plain data), at most ``max_output`` characters."""
        pieces: list[str] = []
        room = max_output
        for piece in self._template.generate(values):
            room -= len(piece)
            if room < 0:
                raise SecurityError(f"its output has more than {max_output} characters")
            pieces.append(piece)
        return "".join(pieces)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with the names and filters that transformers gives chat templates."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self.filters["tojson"] = _tojson
        self.globals |= {
            "dict": _Dict(),
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed = super()._parse(source, name, filename)
        for node in parsed.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            raise TemplateSyntaxError("a chat template cannot load other templates", node.lineno)
        return parsed


class _Generation(Extension):
    """``{% generation %}...{% endgeneration %}`` marks text for training; here it is a block with its own variables."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Any) -> str:
        return str(caller())


class _Dict:
    """``dict(...)`` without the attributes of a class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """``namespace(...)`` whose names cannot begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # ``self`` may be one of the names, so it is no parameter
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold `{name}`: names with a leading underscore are not for templates")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any = "") -> NoReturn:
    raise Refused(str(message)[:MAX_MESSAGE])


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


# ---- the process


def serve(seconds: float, memory: int) -> None:
    """Answer questions until they end.

    Compiling and each rendering take at most ``seconds`` of processor time, and ``memory`` bytes beside what the input
    needs; the time ends the process.
    """
    limits = Limits(seconds, memory)
    program: Program | None = None
    for question in questions():
        try:
            with limits.held(BYTES_PER_BYTE * len(question)):
                text = question.decode("utf-8", "surrogatepass")
                if program is None:
                    program, reply = Program(text), b""
                else:
                    reply = program.render(**json.loads(text)).encode("utf-8", "surrogatepass")
            kind = TEXT
        except Refused as refused:
            kind, reply = REFUSED, str(refused).encode("utf-8", "replace")
        except MemoryError:
            kind, reply = EXHAUSTED, b""
        except Exception as failure:
            kind, reply = FAILED, _reason(failure)[:MAX_MESSAGE].encode("utf-8", "replace")
        answer(kind + reply)


def _reason(failure: BaseException) -> str:
    if isinstance(failure, RecursionError):
        return "it is nested too deeply"
    if isinstance(failure, TemplateSyntaxError):
        return f"{failure.message} (line {failure.lineno})"
    return str(failure) if isinstance(failure, SecurityError) else f"{type(failure).__name__}: {failure}"
