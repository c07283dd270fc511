"""Markdown as models write it.  What is not plainly markup is text: everything that a model says can be seen.

GitHub's Markdown would hide HTML, references, entities, a backslash before any sign, the stars of `x**2 + y**2`, the
underscores of `__init__`, what follows too many levels, and cells beyond a table's head; and it would join lines.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from markdown_it import MarkdownIt, helpers
from markdown_it.rules_block import StateBlock, blockquote, list_block
from markdown_it.rules_block.table import escapedSplit, getLine, table
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline, escape, image, link
from markdown_it.token import Token

DEEPEST = 12
"""Levels of quotes and of lists (a list has two) that are drawn inside of each other; a deeper mark is text."""

_NESTED = 60
"""Brackets inside of each other that may be links; each takes several calls of Python's stack."""
_TARGET = re.compile(r"(?:[a-z][a-z\d+.-]*://|mailto:|www\.|\.{0,2}/|#)\S|[\w.-]+\.[a-z]{2,10}(?:[/?#:]|$)", re.IGNORECASE)
"""How the target of a link begins; `handlers[name](event)` is none."""
_NOWHERE = re.compile(r"\(\s*\)")
_BETWEEN_SPACES = re.compile(r"(?<=\s)(?=\s)")
_NOTHING = "\u00a0"
_WORD = frozenset(string.ascii_letters + string.digits)


class _Parser(MarkdownIt):
    """Shows a text as it was written that nests deeper than the stack of whoever draws it allows."""

    def parse(self, src: str, env: Any = None) -> list[Token]:
        try:
            return super().parse(src, env)
        except RecursionError:
            lines = [0, src.count("\n") + 1]
            return [Token("fence", "code", 0, map=lines, content=f"{src}\n", markup="```", block=True)]


def markdown_parser() -> MarkdownIt:
    """A parser whose tokens hold all of a text but its marks.  Lines stay lines, and spaces stay spaces."""
    parser = _Parser("gfm-like", {"html": False, "maxNesting": _NESTED})
    parser.disable(["reference", "entity", "autolink"])
    parts = {name: getattr(helpers, name) for name in helpers.__all__}
    parser.helpers = SimpleNamespace(**parts | {"parseLinkDestination": _destination, "parseLinkTitle": _title})  # type: ignore[assignment]
    for name, instead in (("normalizeLink", str), ("normalizeLinkText", str), ("validateLink", _TARGET.match)):
        setattr(parser, name, instead)
    block, inline = parser.block.ruler, parser.inline.ruler
    block.at("table", _table, {"alt": ["paragraph"]})
    block.at("blockquote", _quote, {"alt": ["paragraph", "blockquote", "list"]})
    block.at("list", _list, {"alt": ["paragraph", "blockquote"]})
    for rule, change in (("newline", _line_end), ("escape", _escape), ("link", _link), ("image", _image)):
        inline.at(rule, change)
    inline.before("emphasis", "no_emphasis", _no_emphasis)
    parser.core.ruler.push("finish", _finish)
    return parser


# -- blocks -----------------------------------------------------------------------------------------------------------


def _quote(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    return state.level < DEEPEST and blockquote(state, first, end, silent)


def _list(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    return state.level < DEEPEST and list_block(state, first, end, silent)


def _table(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    """A table; cells beyond its head stand in the last one of their row."""
    begin = len(state.tokens)
    if not table(state, first, end, silent):
        return False
    row: list[Token] = []
    for token in state.tokens[begin:]:
        if token.type == "tr_open":
            row = []
        elif token.type == "inline":
            row.append(token)
        elif token.type == "tr_close" and row and row[0].map is not None:
            cells = [cell.strip() for cell in escapedSplit(getLine(state, row[0].map[0]).strip())]
            cells = cells[not cells[0] :]
            if more := [cell for cell in cells[len(row) :] if cell]:
                row[-1].content = " | ".join([row[-1].content, *more])
    return True


# -- inside of a line -------------------------------------------------------------------------------------------------


def _line_end(state: StateInline, silent: bool) -> bool:
    """A line ends where its author ended it, and begins with the spaces that it began with."""
    if state.src[state.pos] != "\n":
        return False
    begin = end = state.pos + 1
    while end < state.posMax and state.src[end] in " \t":
        end += 1
    if not silent:
        state.pending = state.pending.rstrip(" ")
        state.push("hardbreak", "br", 0)
        state.pending += state.src[begin:end].expandtabs(4)
    state.pos = end
    return True


def _escape(state: StateInline, silent: bool) -> bool:
    """A backslash is hidden before what would be markup; formulas, paths and ends of lines keep theirs."""
    at = state.pos
    sign = state.src[at + 1 : at + 2]
    if state.src[at] != "\\" or not sign or sign not in string.punctuation:
        return False
    line = state.src[state.src.rfind("\n", 0, at) + 1 : at].lstrip()
    if sign in "*_`~<>$" or (sign in "#+-" and not line) or (sign in ".)" and line.isdigit()):
        return escape(state, silent)
    if not silent:
        token = state.push("text_special", "", 0)
        token.content = token.markup = "\\" + sign
        token.info = "escape"
    state.pos += 2
    return True


def _no_emphasis(state: StateInline, silent: bool) -> bool:
    """`__init__`, `2*3*4` and `x**2` are no emphasis."""
    sign = state.src[state.pos]
    if silent or sign not in "*_":
        return False
    end = state.pos
    while end < state.posMax and state.src[end] == sign:
        end += 1
    before, behind = state.src[state.pos - 1 : state.pos], state.src[end : end + 1]
    if sign == "_":
        is_text = end - state.pos > 1
    else:
        inside = before in _WORD and behind in _WORD
        is_text = inside and (end - state.pos == 1 or before.isdigit() or behind.isdigit())
    if is_text:
        state.pending += state.src[state.pos : end]
        state.pos = end
    return is_text


def _link(state: StateInline, silent: bool) -> bool:
    return not _leads_nowhere(state, state.pos) and link(state, silent)


def _image(state: StateInline, silent: bool) -> bool:
    return not _leads_nowhere(state, state.pos + 1) and image(state, silent)


def _leads_nowhere(state: StateInline, at: int) -> bool:
    """Whether a label at ``at`` has empty brackets behind it, as `handlers[name]()` has."""
    if state.src[at : at + 1] != "[":
        return False
    end = helpers.parseLinkLabel(state, at)
    return end >= 0 and _NOWHERE.match(state.src, end + 1) is not None


def _destination(text: str, at: int, end: int) -> Any:
    """The target of a link as it is written."""
    found = helpers.parseLinkDestination(text, at, end)
    if found.ok:
        found.str = text[at : found.pos].removeprefix("<").removesuffix(">")
    return found


def _title(text: str, at: int, end: int, *before: Any) -> Any:
    """The title of a link as it is written, with its quotes."""
    found = helpers.parseLinkTitle(text, at, end, *before)
    if found.ok:
        found.str = text[at : found.pos]
    return found


# -- the tokens of a text ---------------------------------------------------------------------------------------------


def _finish(state: StateCore) -> None:
    """Targets of links are text, spaces stay, and a rule inside of something has its place there."""
    state.tokens = [*_with_items(state.tokens)]
    for block in state.tokens:
        if block.type == "inline" and block.children:
            block.children = [*_spaced(_with_targets(block.children))]
        elif block.type == "hr" and block.level:
            block.type = "rule"


def _with_items(tokens: Sequence[Token]) -> Iterator[Token]:
    """An item that says nothing, such as `42.`, has a line all the same, on which its number stands."""
    for at, token in enumerate(tokens):
        yield token
        if token.type == "list_item_open" and tokens[at + 1].type == "list_item_close":
            text = Token("inline", "", 0, map=token.map, level=token.level + 2, content=_NOTHING, children=[_text(_NOTHING)])
            yield Token("paragraph_open", "p", 1, map=token.map, level=token.level + 1, block=True)
            yield text
            yield Token("paragraph_close", "p", -1, level=token.level + 1, block=True)


def _with_targets(tokens: Iterable[Token]) -> Iterator[Token]:
    """Behind the text of a link stands where it goes: nobody sees it in a terminal.  A picture is such a link."""
    opened: list[Token] = []
    text = ""
    for token in tokens:
        if token.type == "image":
            href, title = token.attrs.pop("src", ""), token.attrs.pop("title", "")
            attributes: dict[str, Any] = {"href": href, "title": title}
            picture = (
                Token("link_open", "a", 1, attrs=attributes),
                _text("🖼 "),
                *(token.children or ()),
                Token("link_close", "a", -1),
            )
            yield from _with_targets(picture)
            continue
        if token.type == "link_open":
            opened.append(token)
            text = ""
        elif token.type == "link_close" and opened:
            link_ = opened.pop()
            target = " ".join(str(link_.attrs[name]) for name in ("href", "title") if link_.attrs.get(name))
            if link_.info != "auto" and target not in text:
                yield _text(f" ({target})")
        text += token.content
        yield token


def _spaced(tokens: Iterable[Token]) -> Iterator[Token]:
    """Several spaces are tokens of their own, for whoever draws a token makes one of them."""
    for token in tokens:
        if token.type == "text":
            yield from map(_text, _BETWEEN_SPACES.split(token.content))
        else:
            yield token


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)
