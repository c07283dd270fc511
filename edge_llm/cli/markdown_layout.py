"""Markdown as lines of a terminal: what is laid out, and how much of it nothing that follows can change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from typing import Any, NamedTuple

from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from rich.box import SIMPLE_HEAD
from rich.cells import get_character_cell_size
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from edge_llm.talk.markdown import markdown_parser

Line = list[Segment]

PLAIN = Style.null()
MARK = Style(dim=True)
"""What stands before what was said: bullets and bars.  Alone it says nothing yet."""
_QUIET = Style(dim=True)
"""Fences and rules, which were said."""
_STYLES = {
    "strong_open": Style(bold=True),
    "em_open": Style(italic=True),
    "s_open": Style(strike=True),
    "link_open": Style(underline=True),
}
_CODE = Style(color="cyan")
_HEADINGS = {"h1": Style(bold=True, underline=True), "h2": Style(bold=True), "h3": Style(bold=True)}
_HEADING = Style(bold=True, italic=True)
_LISTS = ("bullet_list", "ordered_list")
_OPEN = "\0"
"""Stands where what follows may still change; no text has it."""
_DELIMITERS = re.compile(r"[-:|\s]*")
MOST_HIGHLIGHTED = 12_000
"""Characters of a block of code that are coloured."""


class Laid(NamedTuple):
    """A text as lines."""

    lines: list[Line]
    settled: tuple[int, int]
    """Row, and characters of it: what stands before cannot change."""
    last: tuple[int, int]
    """Where the last block, or the last item of a list, begins: line of the source, and row; what is before is complete."""
    in_code: bool
    """It ends inside of a fence."""


class Layout:
    """Lays texts out for a terminal that is ``width`` cells wide."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._parser = markdown_parser().disable("lheading")  # a line of dashes behind text: models mean a rule
        self._source: list[str] = []
        self._growing: SyntaxTreeNode | None = None

    def lay(self, text: str, *, whole: bool) -> Laid:
        """``text`` as lines; unless it is the ``whole`` one, more may come behind it."""
        root = SyntaxTreeNode(self._parser.parse(text))
        self._source = text.split("\n")
        leaf = _last_leaf(root)
        self._growing = None if whole else leaf
        lines: list[Line] = []
        last = (0, 0)
        for gap, node in self._spaced(root.children):
            lines += [[]] * gap
            last = (_first(node), len(lines))
            for line, item in self._rows(node):
                if item is not None:
                    last = (_first(item), len(lines))
                lines.append(line)
        in_code = leaf.type == "fence" and not self._is_closed(leaf)
        return Laid(*_settled(lines), last, in_code)

    # -- blocks -------------------------------------------------------------------------------------------------------

    def _spaced(self, nodes: Iterable[SyntaxTreeNode]) -> Iterator[tuple[int, SyntaxTreeNode]]:
        """Each node, and 1 if an empty line stands before it."""
        end: int | None = None
        for node in nodes:
            yield int(end is not None and _first(node) > end), node
            end = max(_first(node), node.map[1] if node.map else 0)
            while end > _first(node) and not self._source[end - 1].strip(" \t>"):  # lists take them in
                end -= 1

    def _blocks(self, nodes: Iterable[SyntaxTreeNode], width: int) -> Iterator[Line]:
        for gap, node in self._spaced(nodes):
            if gap:
                yield []
            yield from self._block(node, width)

    def _block(self, node: SyntaxTreeNode, width: int) -> Iterator[Line]:
        width = max(width, 8)
        if node.type in ("paragraph", "heading"):
            style = _HEADINGS.get(node.tag, _HEADING) if node.type == "heading" else PLAIN
            yield from wrapped(self._inline(node, style), width)
        elif node.type in _LISTS:
            yield from (line for line, _ in self._list(node, width))
        elif node.type == "blockquote":
            for line in self._blocks(node.children, width - 2):
                yield [Segment("│ ", MARK), *line]
        elif node.type == "fence":
            yield [Segment(node.markup + node.info, _QUIET)]
            yield from _code(node.content, node.info)
            if self._is_closed(node):
                yield [Segment(node.markup, _QUIET)]
        elif node.type == "code_block":
            yield from ([Segment(f"    {line}", _CODE)] for line in node.content.rstrip("\n").split("\n"))
        elif node.type == "table":
            yield from self._table(node)
        elif node.type in ("hr", "rule"):
            yield [Segment("─" * width, _QUIET)]
        else:
            yield from wrapped([Segment(node.content, PLAIN)], width)

    def _rows(self, node: SyntaxTreeNode) -> Iterator[tuple[Line, SyntaxTreeNode | None]]:
        """The lines of a block that lies in no other; with its first line comes each item of a list."""
        if node.type in _LISTS:
            return self._list(node, self.width)
        return ((line, None) for line in self._block(node, self.width))

    def _list(self, node: SyntaxTreeNode, width: int) -> Iterator[tuple[Line, SyntaxTreeNode | None]]:
        for gap, item in self._spaced(node.children):
            mark = f"{item.info}{item.markup} " if node.type == "ordered_list" else "• "
            if gap:
                yield [], None
            body = list(self._blocks(item.children, width - len(mark))) or [[]]
            yield [Segment(mark, MARK), *body[0]], item
            for line in body[1:]:
                yield [Segment(" " * len(mark), MARK), *line] if line else [], None

    def _table(self, node: SyntaxTreeNode) -> Iterator[Line]:
        rows = [row for part in node.children for row in part.children]
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, border_style=_QUIET, header_style=_HEADINGS["h2"])
        for cell in rows[0].children:
            table.add_column(self._cell(cell), overflow="fold", justify=_justify(cell))
        for row in rows[1:]:
            table.add_row(*map(self._cell, row.children))
        console = Console(file=StringIO(), width=self.width, force_terminal=True, color_system=None)
        for index, line in enumerate(console.render_lines(table, pad=False)):
            yield [*([Segment(_OPEN)] if index == 0 and node is self._growing else []), *line]

    def _cell(self, node: SyntaxTreeNode) -> Text:
        return Text.assemble(*((segment.text, segment.style or PLAIN) for segment in self._inline(node, PLAIN)))

    def _is_closed(self, node: SyntaxTreeNode) -> bool:
        first, end = node.map or (0, 0)
        last = self._source[end - 1].strip(" \t>")
        return end - 1 > first and last.startswith(node.markup) and not last.strip(node.markup[0])

    # -- inside of a block --------------------------------------------------------------------------------------------

    def _inline(self, node: SyntaxTreeNode, style: Style) -> Iterator[Segment]:
        """What is said in ``node``; `_OPEN` stands where it may still change."""
        tokens = [token for child in node.children for token in (child.token.children if child.token else None) or ()]
        rest = _unsettled(tokens) if node is self._growing else None
        for segment in _styled(tokens, style):
            if rest is not None:
                if rest < len(segment.text):
                    yield Segment(segment.text[:rest], segment.style)
                    yield Segment(_OPEN)
                    segment, rest = Segment(segment.text[rest:], segment.style), None
                else:
                    rest -= len(segment.text)
            yield segment


def _first(node: SyntaxTreeNode) -> int:
    return node.map[0] if node.map else 0


def _last_leaf(node: SyntaxTreeNode) -> SyntaxTreeNode:
    while node.type not in ("paragraph", "heading", "table") and node.children:
        node = node.children[-1]
    return node


def _justify(cell: SyntaxTreeNode) -> Any:
    return str(cell.attrs.get("style", "text-align:left")).removeprefix("text-align:")


def _code(content: str, info: str) -> Iterator[Line]:
    """Lines of code, which are as long as they are: what is copied from a terminal has no ends of lines that nobody wrote."""
    text = content.removesuffix("\n").expandtabs(4)  # as Rich does, which would make it longer
    language = info.split()[0] if info.split() else ""
    if not language or len(text) > MOST_HIGHLIGHTED:
        yield from ([Segment(line, PLAIN)] for line in text.split("\n") if content)
        return
    from rich.syntax import Syntax

    coloured = Syntax(text, language, theme="ansi_dark").highlight(text)
    console = Console(file=StringIO(), width=1 << 16, color_system=None)
    for line in coloured[: len(text)].split("\n", allow_blank=True) if content else ():
        yield [segment for segment in line.render(console, end="")]


def _styled(tokens: Sequence[Token], style: Style) -> Iterator[Segment]:
    styles = [style]
    for token in tokens:
        if token.type in _STYLES:
            styles.append(styles[-1] + _STYLES[token.type])
        elif token.type.endswith("_close") and len(styles) > 1:
            styles.pop()
        elif token.type in ("hardbreak", "softbreak"):
            yield Segment("\n", styles[-1])
        elif token.content:
            yield Segment(token.content, styles[-1] + _CODE if token.type == "code_inline" else styles[-1])


def wrapped(segments: Iterable[Segment], width: int) -> Iterator[Line]:
    """``segments`` in lines of at most ``width`` cells, broken between words; a word that is longer is broken anywhere."""
    line: list[tuple[str, Style | None]] = []
    word: list[tuple[str, Style | None]] = []
    used = size = 0

    def end_word() -> Iterator[Line]:
        """The word goes behind the line if it has room there, else into the next one."""
        nonlocal line, word, used, size
        if used + size > width and used:
            yield _line(line)
            line, used = [], 0
        while size > width:
            piece, word, taken = _folded(word, width)
            yield _line(piece)
            size -= taken
        line, used, word, size = line + word, used + size, [], 0

    for text, style, _ in segments:
        for char in text.replace("\t", " "):
            cells = 0 if char == _OPEN else get_character_cell_size(char)
            if char not in "\n " and cells < 2:
                word.append((char, style))
                size += cells
                continue
            yield from end_word()
            if char == "\n":
                yield _line(line)
                line, used = [], 0
            elif char == " " and used < width:
                line.append((char, style))
                used += 1
            elif cells == 2:
                word, size = [(char, style)], 2
    yield from end_word()
    if line:
        yield _line(line)


def _folded(
    word: list[tuple[str, Style | None]], width: int
) -> tuple[list[tuple[str, Style | None]], list[tuple[str, Style | None]], int]:
    """The beginning of ``word`` that ``width`` cells hold, the rest, and the cells taken."""
    taken = at = 0
    for char, _ in word:
        cells = 0 if char == _OPEN else get_character_cell_size(char)
        if taken + cells > width:
            break
        taken, at = taken + cells, at + 1
    return word[:at], word[at:], taken


def _line(chars: Sequence[tuple[str, Style | None]]) -> Line:
    """Characters of a style as one segment; spaces at the end are nothing."""
    end = len(chars)
    while end and chars[end - 1][0] == " ":
        end -= 1
    line: Line = []
    begin = 0
    for at in range(1, end + 1):
        if at == end or chars[at][1] is not chars[begin][1]:
            line.append(Segment("".join(char for char, _ in chars[begin:at]), chars[begin][1]))
            begin = at
    return line


# -- what may still change --------------------------------------------------------------------------------------------


def _unsettled(tokens: Sequence[Token]) -> int | None:
    """Characters of what ``tokens`` say before the first sign that may turn out to be markup; None if there is no such sign."""
    said, code = [], []
    for token in tokens:
        text = "\n" if token.type in ("hardbreak", "softbreak") else token.content
        said.append(text)
        code.append(text if token.type != "code_inline" else "x" * len(text))
    text = "".join(code)
    lines = text.rstrip("\n").split("\n")
    row = len(lines) - (1 if len(lines) < 2 or not _DELIMITERS.fullmatch(lines[-1]) else 2)
    if any("|" in line for line in lines[row:]):  # the head of a table?
        return sum(len(line) + 1 for line in lines[:row])
    found = [run.start() for run in re.finditer(r"`+|\*+|_+|~+|\[", text) if _may_open(text, run[0], run.start(), run.end())]
    return min(found, default=None)


def _may_open(text: str, run: str, begin: int, end: int) -> bool:
    """Whether signs that stand in ``text`` as such may begin emphasis, code or a link with what follows."""
    before, behind = text[begin - 1 : begin], text[end : end + 1]
    if run[0] == "`" or not behind:
        return True
    if run[0] == "[":
        return _is_open_label(text, end)
    if behind.isspace() or (run[0] == "_" and len(run) > 1) or (run == "~"):
        return False
    inside = before.isalnum() and behind.isalnum()
    if run[0] == "*":
        return not (inside and (len(run) == 1 or before.isdigit() or behind.isdigit()))
    return not inside


def _is_open_label(text: str, at: int) -> bool:
    """Whether a label that begins at ``at`` may become a link's."""
    end = text.find("]", at)
    if end < 0 or end + 1 == len(text):
        return True
    return text[end + 1] == "(" and text.find(")", end) < 0


def _settled(lines: list[Line]) -> tuple[list[Line], tuple[int, int]]:
    """``lines`` without `_OPEN`, and where they may change: there, or at their end, without marks that say nothing yet."""
    for row, line in enumerate(lines):
        text = "".join(segment.text for segment in line)
        if (at := text.find(_OPEN)) >= 0:
            lines[row] = [Segment(segment.text.replace(_OPEN, ""), segment.style) for segment in line if segment.text != _OPEN]
            return lines, _without_marks(lines, row, text.rfind(" ", 0, at) + 1)
    return lines, _without_marks(lines, len(lines) - 1, None)


def _without_marks(lines: list[Line], row: int, end: int | None) -> tuple[int, int]:
    while row >= 0:
        text, marked = "", ""
        for segment in lines[row]:
            text += segment.text
            marked += " " * len(segment.text) if segment.style is MARK else segment.text
        if size := len(marked[:end].rstrip()):
            return row, size
        row, end = row - 1, None
    return 0, 0
