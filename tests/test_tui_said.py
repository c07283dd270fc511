"""What the model said is on the screen, whole and while it comes: signs, lines, numbers, blocks of code."""

import asyncio

import pytest
from chat_driver import taken
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from test_talk_markdown import ANY_TEXT, DOCUMENTS, shown
from textual.app import App
from textual.containers import VerticalScroll

from edge_llm.tui import growing
from edge_llm.tui.blocks import CodeBlock
from edge_llm.tui.growing import GrowingText


class Page(App):
    CSS = "GrowingText { height: auto; }"

    def compose(self):
        yield VerticalScroll()


@pytest.fixture(scope="module")
def run():
    """Runs a function that is given a page, which all tests share."""
    page = Page()
    with asyncio.Runner() as runner:
        context = page.run_test(size=(160, 200))
        pilot = runner.run(context.__aenter__())
        yield lambda main: runner.run(main(page, pilot))
        runner.run(context.__aexit__(None, None, None))


async def put(page, text):
    """The page shows ``text`` alone."""
    box = page.query_one(VerticalScroll)
    await box.remove_children()
    grows = GrowingText(text)
    await box.mount(grows)
    return grows


async def write(grows, text, cuts):
    """Write ``text`` in pieces that end at ``cuts``."""
    begin = 0
    for end in sorted({*cuts, len(text)}):
        await grows.write(text[begin:end])
        begin = end


async def seen(page, pilot):
    """Every sign on the screen, with those of code that goes on beyond its edge."""
    await taken(pilot)
    code = "".join(block.code for block in page.query(CodeBlock))
    page.query("#code-content").set(display=False)
    await taken(pilot)
    return shown(code + "\n".join(strip.text for strip in page.screen._compositor.render_strips()))


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(DOCUMENTS | ANY_TEXT, st.just(0) | st.integers(0, 100), st.lists(st.integers(1, 200), max_size=8), st.booleans())
@example("one\ntwo\nthree", 8, [], False)
@example("```\none\ntwo\n```", 8, [9], False)
def test_whatever_a_model_says_is_on_the_screen_in_any_pieces_as_well_as_whole(run, text, begin, cuts, sealed):
    """``begin`` characters are there, as of an answer that is continued; others come up to each of ``cuts``."""
    text = text.replace("](<", "](")  # brackets around a target are marks

    async def main(page, pilot):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(growing, "SEALED_CHARACTERS", 40 if sealed else 3000)
            grows = await put(page, text[:begin])
            await write(grows, text[begin:], [cut for cut in cuts if cut < len(text) - begin])
            await grows.on_unmount()  # what was written is drawn
            assert not shown(text) - await seen(page, pilot)
            await grows.finish(text)
            assert not shown(text) - await seen(page, pilot)

    run(main)
