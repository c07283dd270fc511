"""Markdown on the screen: blocks of code that are seen as such and copied by a click, lists with the numbers that were said."""

from __future__ import annotations

from typing import Any

from markdown_it.token import Token
from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.containers import Horizontal, ScrollableContainer, Vertical
from textual.content import Content
from textual.highlight import HighlightTheme, highlight
from textual.highlight import Token as Kind
from textual.message import Message as Event
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Label, Markdown, Static
from textual.widgets._markdown import (
    MarkdownBlock,
    MarkdownBlockQuote,
    MarkdownBullet,
    MarkdownFence,
    MarkdownHorizontalRule,
    MarkdownOrderedList,
    MarkdownOrderedListItem,
)

from edge_llm.talk.markdown import markdown_parser


class CodeColours(HighlightTheme):
    """Kinds of words in code, in colours that are legible on a block."""

    STYLES = {
        Kind.Comment: "$foreground-muted italic",
        Kind.Keyword: "$text-accent",
        Kind.Keyword.Constant: "$text-warning",
        Kind.Operator.Word: "$text-accent",
        Kind.Number: "$text-warning",
        Kind.String: "$text-success",
        Kind.Name.Builtin: "$text-accent",
        Kind.Name.Function: "$text-primary",
        Kind.Name.Class: "$text-primary bold",
        Kind.Name.Decorator: "$text-secondary",
        Kind.Name.Tag: "$text-primary",
        Kind.Name.Attribute: "$text-warning",
        Kind.Generic.Deleted: "$text-error",
        Kind.Generic.Inserted: "$text-success",
        Kind.Generic.Heading: "bold",
        Kind.Generic.Strong: "bold",
        Kind.Generic.Emph: "italic",
    }


CUT = "…"
"""Stands where a line of code goes on beyond an edge."""


class CodeBlock(MarkdownFence):
    """A line with the language and what a click on it does, and the code."""

    DEFAULT_CSS = """
    CodeBlock {
        height: auto; layout: vertical; overflow: hidden hidden; margin: 0;
        & > ._head { height: auto; padding: 0 1; }
        & > ._sideways { height: auto; width: 1fr; margin: 0 1; overflow: scroll hidden; scrollbar-size: 0 0; }
        & Label { padding: 0; height: auto; width: auto; min-width: 100%; }
    }
    """

    class Copied(Event):
        """The person wants the block on the clipboard."""

        def __init__(self, code: str) -> None:
            super().__init__()
            self.code = code

    def compose(self) -> ComposeResult:
        yield _Head(_head(self.lexer), classes="_head")
        with _Sideways(classes="_sideways"):
            yield _Lines(self._highlighted_code, id="code-content", expand=True)

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """Colours of a language that was named; guessing one takes longer than drawing, and is often wrong."""
        return highlight(code, language=(language.split() or ["text"])[0], theme=CodeColours)

    def _copy_context(self, block: MarkdownBlock) -> None:
        super()._copy_context(block)
        for head in self.query(_Head):
            head.update(_head(self.lexer))


def _head(language: str) -> Content:
    return Content.assemble(language.strip() or "code", "  ", ("copy", "underline"))


class _Head(Static):
    ALLOW_SELECT = False

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if isinstance(self.parent, CodeBlock):
            self.post_message(CodeBlock.Copied(self.parent.code))


class _Sideways(ScrollableContainer, can_focus=False):
    """Lines of code are not broken: Shift and the wheel move them."""

    @property
    def allow_horizontal_scroll(self) -> bool:
        return self.max_scroll_x > 0

    def watch_scroll_x(self, old: float, new: float) -> None:
        super().watch_scroll_x(old, new)
        for lines in self.query(_Lines):
            lines.refresh()


class _Lines(Label):
    """Lines of code, with a mark at an edge of what is seen where they go on beyond it."""

    def render_line(self, y: int) -> Strip:
        strip = super().render_line(y)
        if not isinstance(self.parent, _Sideways):
            return strip
        left, width = round(self.parent.scroll_x), self.parent.size.width
        right = left + width
        said = strip.text.rstrip()
        if strip.crop(right).text.strip() and width:
            strip = _put(strip, right - 1)
        if left and said and strip.crop(0, left).text.strip():
            strip = _put(strip, left)
        return strip


def _put(strip: Strip, at: int) -> Strip:
    """``strip`` with the mark in the cell ``at``."""
    mark = Strip([segment._replace(text=CUT) for segment in [*strip.crop(at, at + 1)][:1]], 1)
    return Strip.join([strip.crop(0, at), mark, strip.crop(at + 1)])


def _end(block: Widget) -> None:
    """Nothing follows ``block``."""
    block.styles.margin = 0


class _NumberedItem(MarkdownOrderedListItem):
    def __init__(self, markdown: Markdown, token: Token, bullet: str) -> None:
        super().__init__(markdown, token, f"{bullet}{token.markup} ")


class _NumberedList(MarkdownOrderedList):
    """Every item has the number that was said."""

    def compose(self) -> ComposeResult:
        items = [block for block in self._blocks if isinstance(block, _NumberedItem)]
        width = max((len(item.bullet) for item in items), default=0)
        for item in items:
            number = MarkdownBullet()
            number.symbol = item.bullet.rjust(width + 1)
            yield Horizontal(number, Vertical(*item._blocks))
        self._blocks.clear()


class _Quote(MarkdownBlockQuote):
    def compose(self) -> ComposeResult:
        if self._blocks:
            _end(self._blocks[-1])
        yield from super().compose()


class SaidMarkdown(Markdown):
    """What a model said; links are not opened.  An empty line stands between blocks only."""

    BLOCKS = Markdown.BLOCKS | {
        "blockquote_open": _Quote,
        "fence": CodeBlock,
        "code_block": CodeBlock,
        "ordered_list_open": _NumberedList,
        "list_item_ordered_open": _NumberedItem,
    }

    def __init__(self, markdown: str | None = None, **more: Any) -> None:
        super().__init__(markdown, parser_factory=markdown_parser, open_links=False, **more)
        self._ending: Widget | None = None

    def update(self, markdown: str) -> AwaitComplete:
        return AwaitComplete(self._drawn(super().update(markdown)))

    def append(self, markdown: str) -> AwaitComplete:
        return AwaitComplete(self._drawn(super().append(markdown)))

    async def _drawn(self, blocks: AwaitComplete) -> None:
        """Wait for ``blocks``; the last one has no empty line below.

        A rule for `:last-child` would style every block of the text anew whenever one is added.
        """
        with self.app.batch_update():
            await blocks
            ending = self.children[-1] if self.children else None
            if ending is not self._ending:
                if self._ending is not None:
                    self._ending.styles.clear_rule("margin")
                if ending is not None:
                    _end(ending)
                self._ending = ending

    def unhandled_token(self, token: Token) -> MarkdownBlock | None:
        return MarkdownHorizontalRule(self, token) if token.type == "rule" else None
