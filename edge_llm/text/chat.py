"""Messages become a prompt: a model's chat template (Jinja), rendered in a sandbox with a budget.

A template is untrusted code.  It runs in Jinja's immutable sandbox, without a loader, and everything that could take
time or memory is counted: loop iterations, calls, the characters and containers that it makes, and a deadline.  Only
methods and filters that are known to be bounded exist.

    template = ChatTemplate.from_folder(folder, tokenizer)
    ids = encode_chat(template, tokenizer, [{"role": "user", "content": "Hi"}])
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from edge_llm.errors import InvalidTokenizer, UsageError
from edge_llm.files import read_file, shown
from edge_llm.strict_json import read_object
from edge_llm.text.tokenizer import Tokenizer

MAX_TEMPLATE_BYTES = 1 << 20
MAX_TAGS = 20_000
"""Opening `{{`, `{%` and `{#` in a template; real ones have some hundred."""
MAX_STEPS = 1_000_000
"""Loop iterations, calls and filters of one rendering."""
MAX_SECONDS = 0.5
"""Processor time of one rendering; real templates take some milliseconds for a thousand messages."""
MAX_CHARACTERS = 32 << 20
"""Characters (and list items) that one rendering may make, beside what its input allows."""
MAX_OUTPUT = 16 << 20
MAX_NODES = 1_000_000
"""Values inside one container, shared ones counted as often as they are reached."""
MAX_NESTING = 72
MAX_INTEGER_BITS = 1024
MAX_REFUSAL = 500
"""Characters kept of what a template says through raise_exception."""

DEFAULT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Plain "role: content" lines, for a model that brings no template."""

_WAY_OUT = "put a working chat_template.jinja into the model's folder"
_GLOBALS = ("dict", "namespace", "joiner", "cycler")
_RESERVED = {"messages", "add_generation_prompt", "range", "raise_exception", "strftime_now", *_GLOBALS}
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int", "items", "last",
    "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr", "sort",
    "string", "title", "trim", "truncate", "unique", "upper", "wordcount",
)  # fmt: skip
_STRING_METHODS = frozenset(
    (
        "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal",
        "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition",
        "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split",
        "splitlines", "startswith", "strip", "swapcase", "title", "upper",
    )
)  # fmt: skip
_CONTAINER_METHODS = frozenset(("count", "get", "index", "items", "keys", "values"))


class ChatTemplate:
    """A compiled template.  Raises `InvalidTokenizer` when it is too large, malformed or reaches outside.

    ``specials`` are the variables that templates use for control tokens: bos_token, eos_token and the like.
    """

    def __init__(self, source: str, *, specials: Mapping[str, str] | None = None, is_default: bool = False) -> None:
        self.source = source
        self.is_default = is_default
        """No template came with the model; faces say so once."""
        self._specials = {"bos_token": "", "eos_token": ""} | dict(specials or {})
        self._environment = _Environment()
        self._lock = threading.Lock()  # a rendering's budget is the environment's state
        self._template = self._compile(source)

    @classmethod
    def default(cls, bos: str = "") -> ChatTemplate:
        """The template for a model that brings none: "role: content" lines."""
        return cls(DEFAULT_TEMPLATE, specials={"bos_token": bos}, is_default=True)

    @classmethod
    def from_folder(cls, folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
        """The template of the model in ``folder`` (a Hugging Face folder or a bundle), or the default one."""
        source = find_template(folder)
        if source is None:
            return cls.default(tokenizer.bos_text if tokenizer.add_bos else "")
        specials = {"bos_token": tokenizer.bos_text, "eos_token": tokenizer.eos_text}
        return cls(source, specials=specials | _named_tokens(folder))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        max_output: int = MAX_OUTPUT,
        **variables: Any,
    ) -> str:
        """The prompt for ``messages``, at most ``max_output`` characters.

        ``variables`` (tools, documents, enable_thinking, ...) are plain data for the template.  Raises `UsageError`
        for messages that the template refuses or a reserved variable, `InvalidTokenizer` when the template fails.
        """
        for name in variables:
            if name in _RESERVED or name in self._specials:
                raise UsageError(f"the template variable `{shown(name)}` cannot be set", param="chat_template_kwargs")
        values = self._specials | variables
        values |= {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        with self._lock:
            self._environment.budget = _Budget(_characters(values), max_output)
            try:
                text = self._template.render(values)
            except _Said as failure:
                raise UsageError(
                    f"the model's chat template refuses these messages: {shown(failure, MAX_REFUSAL)}",
                    param="messages",
                ) from None
            except Exception as failure:
                raise InvalidTokenizer(f"the model's chat template failed: {_reason(failure)}; {_WAY_OUT}") from None
        if not text:
            raise InvalidTokenizer("the model's chat template made an empty prompt of these messages")
        return text

    def check(self) -> None:
        """Try the template on one message; raises `InvalidTokenizer` when the message does not reach the prompt."""
        probe = "Does this sentence arrive?"
        try:
            text = self.render([{"role": "user", "content": probe}])
        except UsageError:  # a template that wants other messages is not wrong
            return
        if probe not in text:
            raise InvalidTokenizer("the model's chat template leaves out what the user says")

    def _compile(self, source: str) -> jinja2.Template:
        if len(source.encode("utf-8", "replace")) > MAX_TEMPLATE_BYTES:
            raise InvalidTokenizer(f"the chat template has {len(source)} characters; at most {MAX_TEMPLATE_BYTES}")
        if source.count("{{") + source.count("{%") + source.count("{#") > MAX_TAGS:
            raise InvalidTokenizer(f"the chat template has more than {MAX_TAGS} tags")
        try:
            return self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as failure:
            raise InvalidTokenizer(
                f"the chat template is not usable: {shown(failure.message)} (line {failure.lineno}); {_WAY_OUT}"
            ) from None
        except Exception as failure:
            raise InvalidTokenizer(f"the chat template is not usable: {_reason(failure)}; {_WAY_OUT}") from None


def find_template(folder: Path) -> str | None:
    """The chat template in ``folder``: ``chat_template.jinja``, or the one inside ``tokenizer_config.json``."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return read_file(path, MAX_TEMPLATE_BYTES, error=InvalidTokenizer).decode("utf-8")
        except UnicodeDecodeError as failure:
            raise InvalidTokenizer(f"`{path.name}`: byte {failure.start} is not UTF-8") from None
    template = _tokenizer_config(folder).get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise InvalidTokenizer("tokenizer_config.json: chat_template must be a string")
    return template


def encode_chat(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = True,
    **variables: Any,
) -> list[int]:
    """Token ids of the rendered prompt, where only the template's own control tokens become control tokens.

    Text inside ``messages`` or ``variables`` that spells one stays text: each such spelling travels through the
    template as a random word, and is put back when the template's control tokens have been told apart.
    """
    spelled = re.compile("|".join(map(re.escape, sorted(tokenizer.special_texts, key=len, reverse=True))) or r"(?!)")
    word = secrets.token_hex(12)
    found: list[str] = []

    def hide(match: re.Match[str]) -> str:
        found.append(match[0])
        return f"{word}x{len(found) - 1}x"

    hidden = _replaced({"messages": list(messages), **variables}, lambda text: spelled.sub(hide, text))
    text = template.render(hidden.pop("messages"), add_generation_prompt, **hidden)
    if not found:
        return tokenizer.encode(text, parse_special=True)
    ids: list[int] = []
    end = 0
    for control in [*spelled.finditer(text), None]:
        piece = text[end : control.start()] if control else text[end:]
        piece = re.sub(rf"{word}x(\d+)x", lambda match: found[int(match[1])], piece)
        ids += tokenizer.encode(piece) if piece else []
        if control:
            token = tokenizer.token_id(control[0])
            ids += [] if token is None else [token]
            end = control.end()
    return ids


def _replaced(value: Any, change: Callable[[str], str]) -> Any:
    """``value`` (plain JSON data) with ``change`` applied to every string in it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_replaced(key, change): _replaced(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replaced(item, change) for item in value]
    return value


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_object(path, error=InvalidTokenizer) if path.exists() else {}


def _named_tokens(folder: Path) -> dict[str, str]:
    tokens = {}
    for name, value in _tokenizer_config(folder).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


# ---- the sandbox


class _Said(Exception):
    """What a template says through raise_exception."""


class _TooMuch(SecurityError):
    """The budget of a rendering is spent."""


class _Budget:
    """What one rendering may still do."""

    def __init__(self, input_characters: int, max_output: int) -> None:
        self.steps = MAX_STEPS
        self.characters = MAX_CHARACTERS + 32 * input_characters
        self.max_output = max_output
        self.deadline = time.thread_time() + MAX_SECONDS

    def step(self) -> None:
        """Count a loop iteration, a call or a filter."""
        self.steps -= 1
        if self.steps < 0:
            raise _TooMuch(f"it takes more than {MAX_STEPS} steps")
        if not self.steps & 31 and time.thread_time() > self.deadline:
            raise _TooMuch(f"it takes more than {MAX_SECONDS:g} seconds")

    def take(self, characters: int) -> None:
        """Count characters or items before they are made."""
        self.characters -= characters
        if self.characters < 0:
            raise _TooMuch("it makes too much text")
        if characters > 4096 and time.thread_time() > self.deadline:
            raise _TooMuch(f"it takes more than {MAX_SECONDS:g} seconds")

    def keep(self, value: Any) -> Any:
        """Count a value that was just made; containers must stay small enough to be walked."""
        if isinstance(value, str):
            self.take(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.take(_weigh(value)[0])
        return value


def _weigh(value: Any) -> tuple[int, int]:
    """Values and characters inside ``value``, walked like `str` would; refuses what could not be walked in time."""
    values, characters = 0, 0
    level = [value]
    for _ in range(MAX_NESTING):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.keys())
                inner.extend(item.values())
            elif isinstance(item, (list, tuple)):
                inner.extend(item)
            elif isinstance(item, Namespace):
                inner.extend(vars(item).values())
            elif isinstance(item, str):
                characters += len(item)
            if len(inner) > MAX_NODES:
                raise _TooMuch(f"it makes a container of more than {MAX_NODES} values")
        values += len(level)
        if not inner:
            return values, characters
        if values + len(inner) > MAX_NODES:
            raise _TooMuch(f"it makes a container of more than {MAX_NODES} values")
        level = inner
    raise _TooMuch(f"it makes containers nested deeper than {MAX_NESTING}")


def _characters(value: Any) -> int:
    try:
        return _weigh(value)[1]
    except _TooMuch:
        raise UsageError("the messages are too large or nested too deeply", param="messages") from None


class _Each:
    """An iterable whose items count as steps; keeps its length, which `loop.last` and others ask for."""

    def __init__(self, items: Iterable[Any], budget: _Budget) -> None:
        self._items = items
        self._budget = budget

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._budget.step()
            yield item


class _SizedEach(_Each):
    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]


class _Guard(NodeTransformer):
    """Puts the budget into a parsed template, where Jinja's own hooks do not reach."""

    _refused = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if isinstance(node, self._refused):
            raise jinja2.TemplateSyntaxError("a chat template cannot load other templates", node.lineno)
        return super().visit(node, *args, **kwargs)

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_each")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno, environment=node.environment)
        return _filtered(parts, "_concat")

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._kept(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._kept(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._kept(node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        return self._kept(node) if isinstance(node.arg, nodes.Slice) else self.generic_visit(node)

    def _kept(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "_keep")


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


class _Generation(Extension):
    """``{% generation %}...{% endgeneration %}`` marks text for training; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with a budget."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _Generation],
            finalize=self._printed,
        )
        self.budget = _Budget(0, MAX_OUTPUT)  # for constants that are folded while compiling
        self.concat = self._joined_output  # type: ignore[method-assign]
        self.globals = {name: self.globals[name] for name in _GLOBALS} | {
            "range": self._range,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        own: dict[str, Callable[..., Any]] = {
            "join": self._join, "replace": self._replace, "indent": self._indent, "tojson": self._tojson,
            "safe": self._text, "sum": _sum, "round": _round, "_concat": self._concat,
        }  # fmt: skip
        built_in: Mapping[str, Any] = FILTERS
        self.filters = {name: self._metered(built_in[name]) for name in _FILTERS}
        self.filters |= {name: self._metered(function) for name, function in own.items()}
        self.filters |= {"_each": self._each, "_keep": lambda value: self.budget.keep(value)}

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Guard().visit(source), *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Known methods of plain values only: others could allocate without bound (``center``, ``to_bytes``)."""
        if isinstance(obj, str):
            return attr in _STRING_METHODS
        if isinstance(obj, (list, tuple, dict)):
            return attr in _CONTAINER_METHODS
        if isinstance(obj, (int, float, complex, bytes, bytearray, type)):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Every call in a template comes through here."""
        self.budget.step()
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str) and obj.__name__ in ("join", "replace"):  # the only methods that can multiply text
            if obj.__name__ == "join":
                return self._join(args[0], owner)
            return self._replace(owner, *args, **kwargs)
        if isinstance(obj, LoopContext):  # the next level of a recursive loop
            args = tuple(self._each(items) for items in args)
        elif isinstance(obj, Macro):
            self.budget.keep([*args, *kwargs.values()])
        return self.budget.keep(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic whose result can be larger than its operands."""
        self.budget.step()
        if operator == "%" and isinstance(left, str):
            raise SecurityError("formatting with % is not available in chat templates")
        if operator == "**" or (operator == "*" and isinstance(left, int) and isinstance(right, int)):
            _check_integers(operator, left, right)
        elif operator == "*":
            for items, times in ((left, right), (right, left)):
                if isinstance(items, (str, list, tuple)) and isinstance(times, int):
                    self.budget.take(len(items) * max(times, 0))
        elif operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
            self.budget.take(len(left) + len(right))
        result = super().call_binop(context, operator, left, right)
        return self.budget.keep(result) if isinstance(result, (list, tuple)) else result

    def _metered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.budget.step()
            for value in args:
                if isinstance(value, (list, tuple, dict)):
                    self.budget.take(sum(_weigh(value)))
            return self.budget.keep(function(*args, **kwargs))

        return run

    def _printed(self, value: Any) -> Any:
        """What ``{{ value }}`` prints."""
        if isinstance(value, (list, tuple, dict)):
            self.budget.take(sum(_weigh(value)))
        elif not isinstance(value, (str, int, float, Undefined)) and value is not None:
            raise SecurityError(f"a {type(value).__name__} cannot be printed")
        return value

    def _joined_output(self, pieces: Iterable[str]) -> str:
        kept: list[str] = []
        room = self.budget.max_output
        for piece in pieces:
            room -= len(piece)
            if room < 0:
                raise _TooMuch(f"its output has more than {self.budget.max_output} characters")
            kept.append(piece)
        return str(self.budget.keep("".join(kept)))

    def _each(self, items: Any) -> Any:
        if isinstance(items, Undefined) or not isinstance(items, Iterable):
            return items  # Jinja's own answer: nothing, or an error
        return (_SizedEach if hasattr(items, "__len__") else _Each)(items, self.budget)

    def _range(self, *bounds: int) -> range:
        made = range(*bounds)
        if len(made) > MAX_STEPS:
            raise _TooMuch(f"a range of more than {MAX_STEPS} numbers")
        return made

    def _concat(self, parts: list[Any]) -> str:
        texts = [self._text(part) for part in parts]
        self.budget.take(sum(map(len, texts)))
        return "".join(texts)

    def _join(self, values: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        items = list(self._each(values))
        if attribute is not None:
            items = [self.getattr(item, attribute) for item in items]
        texts = [self._text(item) for item in items]
        self.budget.take(sum(map(len, texts)) + len(d) * len(texts))
        return str(d).join(texts)

    def _replace(self, text: Any, old: str, new: str, count: int | None = None) -> str:
        text, times = self._text(text), -1 if count is None else count
        found = text.count(old)
        self.budget.take(len(text) + len(new) * (found if times < 0 else min(found, times)))
        return text.replace(old, new, times)

    def _indent(self, text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        text = self._text(text)
        lead = width if isinstance(width, str) else " " * min(width, 256)
        self.budget.take(len(text) + len(lead) * (text.count("\n") + 1))
        lines = text.splitlines() or [""]
        indented = [lead + line if (blank or line) else line for line in lines]
        return "\n".join(indented if first else [lines[0], *indented[1:]])

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        values, characters = _weigh(value)
        self.budget.take(characters * (6 if ensure_ascii else 2) + values * (8 + MAX_NESTING * min(indent or 0, 8)))
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=None if indent is None else min(indent, 8),
            separators=separators,
            sort_keys=sort_keys,
        )

    def _text(self, value: Any) -> str:
        return str(self._printed(value))


def _check_integers(operator: str, left: Any, right: Any) -> None:
    bits = [abs(value).bit_length() if isinstance(value, int) else 64 for value in (left, right)]
    size = bits[0] + bits[1] if operator == "*" else bits[0] * max(int(right), 1)
    if size > MAX_INTEGER_BITS:
        raise _TooMuch(f"it makes a number of more than {MAX_INTEGER_BITS} bits")


def _sum(values: Iterable[Any], attribute: str | None = None, start: float = 0) -> float:
    """Numbers only; lists could be added up to any size."""
    total = start
    for value in values:
        total += value[attribute] if attribute is not None else value
        if not isinstance(total, (int, float)):
            raise SecurityError("the filter `sum` takes numbers only")
    return total


def _round(value: float, precision: int = 0) -> float:
    return round(float(value), max(-16, min(precision, 16)))


def _raise_exception(message: Any = "") -> NoReturn:
    raise _Said(str(message)[: 2 * MAX_REFUSAL])


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(str(pattern)[:256])


def _reason(failure: BaseException) -> str:
    if isinstance(failure, RecursionError):
        return "it is nested too deeply"
    return f"{type(failure).__name__}: {shown(failure)}" if not isinstance(failure, SecurityError) else shown(failure)
