"""An answer that grows in pieces: cut where blocks end, and in the end as it would be drawn at once."""

import asyncio
import random

import pytest
from textual.app import App
from textual.containers import Vertical
from textual.widgets import Markdown

from edge_llm.tui import growing
from edge_llm.tui.growing import GrowingText, block_end

PART = (
    "# Heading\n\nA *paragraph* of text that\ngoes on.\n\n- one\n- two\n\n"
    "```python\n# no heading\n\nx = 1\n```\n\n~~~\n```\n\n~~~\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quoted\n\n"
)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("", 0), ("one line", 0), ("one\ntwo", 0), ("one\n\ntwo", 5), ("one\n\n", 5), ("```\n\n```", 0), ("a\n\n```\n\n", 3),
        ("```\n\n```\n\nb", 10), ("~~~\n```\n\n~~~\n\nb", 14), ("a\n \nb", 4),
    ],
)  # fmt: skip
def test_a_text_is_cut_behind_blocks_and_not_in_fences(text, end):
    assert block_end(text) == end


def shape(widget):
    """What is drawn: the kinds of blocks and their texts, from top to bottom."""
    return [(type(one).__name__, getattr(getattr(one, "content", None), "plain", "")) for one in widget.query("*")]


class Page(App):
    def compose(self):
        yield Vertical()


WAYS = {"one step": 10**6, "two steps": len(PART) * 2, "steps": 60, "letters": 3}


@pytest.mark.parametrize("most", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("seed", range(2))
def test_in_pieces_it_shows_all_and_in_the_end_what_a_fresh_parse_shows(seed, most, monkeypatch):
    monkeypatch.setattr(growing, "SEALED_CHARACTERS", 120)
    cut = random.Random(seed)
    text = PART * 4

    async def main():
        async with Page().run_test() as pilot:
            page = pilot.app.query_one(Vertical)
            first, whole = Markdown(), Markdown(text)
            await page.mount(first, whole)
            text_that_grows = GrowingText(first, lambda piece, above: page.mount(piece, after=above))
            at = 0
            while at < len(text):
                step = cut.randint(most // 2 + 1, most)
                await text_that_grows.write(text[at : at + step])
                at += step
            await pilot.pause()
            pieces = [one for one in page.query_children(Markdown) if one is not whole]
            assert len(pieces) > 1
            assert "".join(one.source for one in pieces) == text
            await text_that_grows.finish(text)
            await pilot.pause()
            assert [*page.query_children(Markdown)] == [first, whole]
            assert shape(first) == shape(whole)

    asyncio.run(main())


@pytest.mark.parametrize("letter", ["x", "word ", "漢"])
def test_a_paragraph_without_end_is_cut_and_nothing_is_lost(letter, monkeypatch):
    monkeypatch.setattr(growing, "SEALED_CHARACTERS", 50)
    monkeypatch.setattr(growing, "MOST_CHARACTERS", 200)
    text = letter * 300

    async def main():
        async with Page().run_test() as pilot:
            page = pilot.app.query_one(Vertical)
            first = Markdown()
            await page.mount(first)
            grows = GrowingText(first, lambda piece, above: page.mount(piece, after=above))
            for at in range(0, len(text), 70):
                await grows.write(text[at : at + 70])
            await pilot.pause()
            assert len(page.query_children(Markdown)) > 1
            assert "".join(one.source for one in page.query_children(Markdown)) == text

    asyncio.run(main())
