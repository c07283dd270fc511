"""An answer that grows in pieces: cut where blocks end, and in the end as it would be drawn at once."""

import asyncio
import random
from dataclasses import replace

import pytest
from chat_driver import drive, taken
from textual.app import App
from textual.containers import Vertical
from textual.css.stylesheet import Stylesheet
from textual.widgets import Markdown, Static
from textual.widgets._markdown import MarkdownHeader, MarkdownParagraph
from textual.widgets.markdown import MarkdownFence

from edge_llm.chats.tree import Message
from edge_llm.tui import growing
from edge_llm.tui.blocks import SaidMarkdown
from edge_llm.tui.growing import GrowingText, block_end, blocks, open_fence, parts
from edge_llm.tui.message_view import MessageView

pytestmark = pytest.mark.thorough(file=3)

PART = (
    "# Heading\n\nA *paragraph* of text that\ngoes on.\n\n- one\n- two\n\n"
    "```python\n# no heading\n\nx = 1\n```\n\n~~~\n```\n\n~~~\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quoted\n\n"
)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("", 0), ("one line", 0), ("one\ntwo", 0), ("one\n\ntwo", 5), ("one\n\n", 5), ("```\n\n```", 0), ("a\n\n```\n\n", 3),
        ("```\n\n```\n\nb", 10), ("~~~\n```\n\n~~~\n\nb", 14), ("a\n \nb", 4), ("````\n```\n\nb", 0),
        ("````\n```\n`````\n\nb", 16), ("```\n```python\n\nb", 0), ("- ```sh\n  a\n\n  ```\n\nb", 20), ("```a`b\n\nc", 8),
    ],
)  # fmt: skip
def test_a_text_is_cut_behind_blocks_and_not_in_fences(text, end):
    assert block_end(text) == end


def shape(widget):
    """What is drawn: the kinds of blocks, their texts and the space around them, from top to bottom."""
    return [
        (type(one).__name__, getattr(getattr(one, "content", None), "plain", ""), one.styles.margin)
        for one in widget.query("*")
    ]


class Page(App):
    def compose(self):
        yield Vertical()


WAYS = {"one step": 10**6, "two steps": len(PART) * 2, "steps": 60, "letters": 3}


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("most", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("seed", range(2))
def test_in_pieces_it_shows_all_and_in_the_end_what_a_fresh_parse_shows(seed, most, monkeypatch):
    monkeypatch.setattr(growing, "SEALED_CHARACTERS", 120)
    cut = random.Random(seed)
    text = PART * 4

    async def main():
        async with Page().run_test() as pilot:
            page = pilot.app.query_one(Vertical)
            grows, whole = GrowingText(), SaidMarkdown(text)
            await page.mount(grows, whole)
            at = 0
            while at < len(text):
                step = cut.randint(most // 2 + 1, most)
                await grows.write(text[at : at + step])
                at += step
            await taken(pilot)
            pieces = grows.query_children(Markdown)
            assert len(pieces) > 1
            assert "".join(one.source for one in pieces) == text
            await grows.finish(text)
            await taken(pilot)
            assert len(grows.children) == 1
            assert shape(grows.children[0]) == shape(whole)

    asyncio.run(main())


@pytest.mark.parametrize("letter", ["x", "word ", "漢"])
def test_a_paragraph_without_end_is_cut_and_nothing_is_lost(letter, monkeypatch):
    monkeypatch.setattr(growing, "SEALED_CHARACTERS", 50)
    monkeypatch.setattr(growing, "MOST_CHARACTERS", 200)
    text = letter * 300

    async def main():
        async with Page().run_test() as pilot:
            page = pilot.app.query_one(Vertical)
            grows = GrowingText()
            await page.mount(grows)
            for at in range(0, len(text), 70):
                await grows.write(text[at : at + 70])
            await taken(pilot)
            assert len(grows.query_children(Markdown)) > 1
            assert "".join(one.source for one in grows.query_children(Markdown)) == text

    asyncio.run(main())


CODE = "".join(f"# line {number} is no heading\n{'' if number % 3 else chr(10)}- x = 1\n" for number in range(60))
MARKS = [("```python\n", "```\n"), ("````\n", "````\n"), ("~~~\n", "~~~~\n"), ("```md\n````md\n", "```\n"), ("```\n", "")]


def code_and_words(widget):
    """What is drawn as code, and what as words, line by line."""
    code = [line for fence in widget.query(MarkdownFence) for line in fence.code.splitlines() if line]
    return code, [one.content.plain for one in widget.query(MarkdownParagraph)], len(widget.query(MarkdownHeader))


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize(("begin", "end"), MARKS)
@pytest.mark.parametrize("most", [150, 10**6], ids=["sealed", "whole"])
def test_code_that_is_cut_stays_code_and_ends_where_it_ends(begin, end, most, monkeypatch):
    monkeypatch.setattr(growing, "SEALED_CHARACTERS", 120)
    monkeypatch.setattr(growing, "MOST_CHARACTERS", most)
    text = f"Before.\n\n{begin}{CODE}{end}\n{'Behind.' if end else ''}"

    async def main():
        async with Page().run_test() as pilot:
            page = pilot.app.query_one(Vertical)
            grows, whole = GrowingText(), SaidMarkdown(text)
            await page.mount(grows, whole)
            for at in range(0, len(text), 70):
                await grows.write(text[at : at + 70])
            await taken(pilot)
            assert (len(grows.children) > 5) == (most == 150)
            assert code_and_words(grows) == code_and_words(whole)

    asyncio.run(main())


def test_a_long_text_whose_drawn_part_begins_in_code_draws_it_as_code(monkeypatch):
    monkeypatch.setattr(growing, "MOST_CHARACTERS", 300)
    monkeypatch.setattr(growing, "DRAWN_CHARACTERS", 1500)
    text = f"Before.\n\n```python\n{CODE}```\n\nBehind."

    async def main():
        async with Page().run_test() as pilot:
            page = pilot.app.query_one(Vertical)
            whole, finished = GrowingText(text), GrowingText()
            await page.mount(whole, finished)
            await finished.finish(text)
            await finished.write(" More.")
            await taken(pilot)
            code, words, headings = code_and_words(whole)
            assert (words, headings) == (["Behind."], 0)
            assert code == [line for line in CODE.splitlines() if line][-len(code) :] != []
            assert code_and_words(finished) == (code, ["Behind. More."], 0)

    asyncio.run(main())


LONG = [
    "", PART, PART * 300, "x" * 200_000, "word " * 40_000, "```\n" + "x = 1\n\n" * 20_000, "Items:\n\n" + "- an item\n" * 9000,
    "Code:\n\n```\n" + "x = 1\n\n" * 20_000 + "```\n\nThat is it.", "漢" * 60_000, "\n" * 60_000, "a\n\n" + "word " * 11_000,
]  # fmt: skip


@pytest.mark.parametrize("text", LONG, ids=len)
def test_of_a_long_text_the_end_is_drawn_and_nothing_is_lost(text):
    written, drawn = parts(text)
    assert "".join(written) + drawn == text
    assert len(drawn) <= growing.DRAWN_CHARACTERS
    assert blocks(drawn, open_fence("".join(written))) <= growing.DRAWN_BLOCKS
    assert all(0 < len(piece) <= growing.MOST_CHARACTERS for piece in written)
    assert bool(written) == (len(text) > growing.DRAWN_CHARACTERS or blocks(text) > growing.DRAWN_BLOCKS)
    if max(map(len, text.splitlines()), default=0) < 1000:
        assert all(piece.endswith("\n") for piece in written), "lines stay whole"


DENSE = {
    "items": "- an item\n", "loose items": "1. one\n\n", "nested": "- a\n  - b\n    - c\n", "paragraphs": "A\n\n",
    "headings": "# A\n", "tables": "| a | b | c |\n|---|---|---|\n| 1 | 2 | 3 |\n\n", "quotes": "> a\n\n",
    "code": "```\nx\n```\n\n", "rules": "---\n\n",
}  # fmt: skip


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("most", [10**6, 150], ids=["whole", "in steps"])
@pytest.mark.parametrize("unit", DENSE.values(), ids=DENSE)
def test_few_characters_of_many_blocks_are_a_bounded_number_of_widgets(unit, most, monkeypatch):
    monkeypatch.setattr(growing, "SEALED_CHARACTERS", 120)
    monkeypatch.setattr(growing, "MOST_CHARACTERS", 400)
    monkeypatch.setattr(growing, "DRAWN_BLOCKS", 40)
    text = unit * (1500 // len(unit))

    async def main():
        async with Page().run_test() as pilot:
            page = pilot.app.query_one(Vertical)
            grows = GrowingText()
            await page.mount(grows)
            for at in range(0, len(text), most):
                await grows.write(text[at : at + most])
                assert len(grows.query("Markdown *")) <= 4 * (40 + blocks(text[:400]))
            await grows.finish(text)
            assert 10 < len(grows.query("Markdown *")) <= 4 * 40
            assert "".join("".join(shown) for shown in seen(grows)) == text
            assert "".join("".join(shown) for shown in seen(grows)) == text

    asyncio.run(main())


def seen(grows):
    """What is shown: as it was written, and drawn."""
    written = [str(one.render()) for one in grows.query_children(Static) if not isinstance(one, Markdown)]
    return written, [one.source for one in grows.query_children(Markdown)]


@pytest.mark.thorough
def test_a_long_text_costs_a_bounded_number_of_widgets(monkeypatch):
    for name, most in (("SEALED_CHARACTERS", 120), ("MOST_CHARACTERS", 500), ("DRAWN_CHARACTERS", 2000)):
        monkeypatch.setattr(growing, name, most)
    widgets = []

    async def main():
        async with Page().run_test() as pilot:
            page = pilot.app.query_one(Vertical)
            grows = GrowingText()
            await page.mount(grows)
            text = ""
            for _ in range(80):
                text += PART
                await grows.write(PART)
                written, drawn = seen(grows)
                assert "".join(written) + "".join(drawn) in text
                assert sum(map(len, drawn)) <= 2000 + 500 + len(PART)
                widgets.append(len(grows.query("Markdown *")))
            assert max(widgets[40:]) < max(widgets[:40]) + widgets[0]
            await grows.finish(text)
            again = GrowingText(text)
            await page.mount(again)
            await taken(pilot)
            assert seen(grows) == seen(again) == (parts(text)[0], [parts(text)[1]])

    asyncio.run(main())


def test_a_block_that_comes_styles_none_that_is_there(tmp_path, monkeypatch):
    """Each would cost what all of the answer costs."""
    message = Message(7, 1, None, "assistant", "", model="scripted", state="growing")

    async def talk(chat):
        await chat.ask("One")  # an empty chat shows its welcome
        view = MessageView(message)
        await chat.transcript.mount(view)
        text = PART * 4
        await view.grow(replace(message, text=text))
        await chat.until(lambda: len(view.query(MarkdownParagraph)) >= 4)
        await chat.settle()
        there, styled = {*list(view.query("SaidMarkdown *"))[:-1]}, []
        real = Stylesheet.apply
        monkeypatch.setattr(Stylesheet, "apply", lambda sheet, node, **how: (styled.append(node), real(sheet, node, **how))[1])
        await view.grow(replace(message, text=text + "\n\nA new one.\n\n- and\n- more\n"))
        await chat.until(lambda: "more" in chat.screen)
        await chat.settle()
        assert styled and [one for one in styled if one in there] == []

    drive(talk, tmp_path)
