"""The panel that looks inside: what it says at any size, that it rests while it is not seen, and that nothing odd ends it."""

import asyncio
from dataclasses import replace

import pytest
from chat_driver import taken
from serving import builtin_engine
from textual.app import App
from textual.screen import Screen

from edge_llm.config import GenerationParams
from edge_llm.engine.counters import Counters
from edge_llm.engine.inside import Inside, Lane, LaneSpan, LastPrompt, ModelFacts, PageMap, ProcessMemory, Work, look
from edge_llm.providers.base import Figures
from edge_llm.tui.inside import InsidePanel
from edge_llm.tui.inside.work import kinds as work_kinds
from edge_llm.weights.base import ExpertCounts

pytestmark = pytest.mark.thorough(file=3)

SIZES = [(40, 12), (100, 30), (200, 60)]
CPU = Lane("cpu", (LaneSpan("qkv", 0.0, 0.25), LaneSpan("attention", 0.5, 1.0)), 0.25, {"qkv": 0.25, "attention": 0.5})
NPU = Lane("npu", (LaneSpan("down", 0.25, 0.5),), 0.75, {"down": 0.25})
INSIDE = Inside(
    prompt=LastPrompt((CPU, NPU), 1.0, 0.8, 1234),
    pages=PageMap(bytes([1] * 5 + [2] * 3 + [3] * 4 + [0] * 20), 16, 10880),
    prefix_disk={"read": 7, "written": 9},
    counters=Counters(3, 2000, 500, 777, 40, 10),
    preemptions=2,
    facts=ModelFacts(12, 9, 21, 64 << 20),
    overflow=4242,
    clipped=0,
    weight_bytes=300 << 20,
    streamed_bytes=2 << 20,
    read_bytes=50 << 20,
    memory=ProcessMemory(400 << 20, 8 << 30, 6 << 30),
    running=1,
    waiting=4,
)


class Scripted(App):
    """A panel that shows ``inside``, and how often it looked."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside
        self.looks = 0

    def compose(self):
        yield InsidePanel(self.look)

    def look(self):
        self.looks += 1
        if isinstance(self.inside, Exception):
            raise self.inside
        return self.inside

    @property
    def panel(self):
        return self.query_one(InsidePanel)


def text_of(panel):
    return "\n".join(strip.text.rstrip() for strip in panel._strips)


def seen_in(inside, size, *, feed=lambda panel: None, theme=None):
    """All that the panel says, as one text."""

    async def run():
        app = Scripted(inside)
        async with app.run_test(size=size) as pilot:
            await taken(pilot)
            if theme:
                app.theme = theme
            feed(app.panel)
            app.panel.poll()
            await taken(pilot)
            assert all(strip.cell_length == app.panel.scrollable_content_region.width for strip in app.panel._strips)
            app.export_screenshot()
            return text_of(app.panel)

    return asyncio.run(run())


@pytest.mark.parametrize("size", SIZES)
def test_it_shows_everything_at_any_size(size):
    def feed(panel):
        panel.add_answer(Figures(tokens_per_second=12.5, first_token_seconds=0.25))
        panel.see_rate(20.0)

    said = seen_in(INSIDE, size, feed=feed)
    for fact in (
        "cpu", "25% idle", "npu", "75% idle", "1,234 tokens", "1.00 s", "800 ms", "attention 50%", "down 25%", "12.5 tokens/s",
        "20.0 tokens/s", "250 ms", "free 20", "used 5", "shared 3", "cached 4", "32 pages of 16", "answers 3",
        "running 1, 4 waiting", "2,000 tokens", "cached 25%", "777 tokens", "25% of 40", "preempted 2", "9 of 21 linears",
        "outlier channels 12", "4,242 added back", "2.0 MiB a token", "7 read, 9 written", "weights 300 MiB",
        "6.0 GiB of 8.0 GiB", "budget of weights 64.0 MiB",
    ):  # fmt: skip
        assert fact in said


@pytest.mark.parametrize("size", SIZES)
def test_it_says_in_words_that_there_is_nothing_yet(size):
    nothing = replace(INSIDE, prompt=None, pages=None, overflow=None, weight_bytes=None, counters=Counters())
    said = " ".join(seen_in(nothing, size).split())
    assert "No long prompt yet" in said
    assert "keeps no pages" in said
    assert "No answer yet" in said
    assert "overflow" not in said
    assert "answers on another machine" in " ".join(seen_in(None, size).split())


@pytest.mark.parametrize("theme", ["textual-light", "ansi-dark", "nord"])
def test_every_theme_has_its_colours(theme):
    assert "used 5" in seen_in(INSIDE, (100, 30), theme=theme)


MANY = tuple(LaneSpan(f"k{i % 40}", i, i + 1) for i in range(20_000))
ODD = {
    "no seconds": replace(INSIDE, prompt=LastPrompt((CPU,), 0.0, 0.0, 0)),
    "no lanes": replace(INSIDE, prompt=LastPrompt((), 1.0, 1.0, 5)),
    "a lane that did nothing": replace(INSIDE, prompt=LastPrompt((Lane("flash", (), 1.0),), 1.0, 0.0, 1)),
    "not a number": replace(INSIDE, prompt=LastPrompt((CPU,), float("nan"), float("inf"), 1)),
    "hundred thousand pages": replace(INSIDE, pages=PageMap(bytes(i % 4 for i in range(100_000)), 16, 1)),
    "one page": replace(INSIDE, pages=PageMap(b"\1", 128, 1)),
    "no page": replace(INSIDE, pages=PageMap(b"", 16, 1)),
    "unknown states": replace(INSIDE, pages=PageMap(bytes(range(256)), 16, 1)),
    "no memory": replace(INSIDE, memory=ProcessMemory(0, 0, 0)),
    "more memory than there is": replace(INSIDE, memory=ProcessMemory(1 << 50, 1 << 30, 1 << 40), weight_bytes=1 << 60),
    "many spans": replace(INSIDE, prompt=LastPrompt((Lane("cpu", MANY, 0.0),), 2e4, 1, 1)),
}


@pytest.mark.thorough(keep=9)
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("size", [*SIZES, (3, 2)])
def test_odd_data_ends_nothing(odd, size):
    def feed(panel):
        panel.add_answer(Figures(tokens_per_second=float("nan"), first_token_seconds=0.0))
        for rate in (0.0, -1.0, float("inf"), 3.0):
            panel.see_rate(rate)

    said = seen_in(ODD[odd], size, feed=feed)
    assert "Mem" in said or size[0] < 10


def test_a_look_that_fails_is_told_and_the_next_one_counts():
    async def run():
        app = Scripted(RuntimeError("out\x1b[31m of order"))
        async with app.run_test(size=(100, 30)) as pilot:
            await taken(pilot)
            said = text_of(app.panel)
            assert "cannot be looked into" in said and "\x1b" not in said
            app.inside = INSIDE
            app.panel.poll()
            assert "cpu" in text_of(app.panel)

    asyncio.run(run())


def test_it_rests_while_it_is_not_seen():
    async def run():
        app = Scripted(INSIDE)
        async with app.run_test(size=(100, 30)) as pilot:
            await pilot.pause(0.6)
            assert app.looks >= 2
            app.panel.display = False
            await pilot.pause(0.1)
            looks = app.looks
            app.panel.see_rate(1.0)
            app.panel.poll()
            await pilot.pause(0.7)
            assert app.looks == looks
            app.panel.display = True
            await pilot.pause(0.4)
            assert app.looks > looks
            await app.push_screen(Screen())
            await pilot.pause(0.1)
            looks = app.looks
            await pilot.pause(0.7)
            assert app.looks == looks

    asyncio.run(run())


def test_a_panel_that_begins_hidden_never_looks():
    class Hidden(Scripted):
        def on_mount(self):
            self.panel.display = False

    async def run():
        app = Hidden(INSIDE)
        async with app.run_test(size=(100, 30)) as pilot:
            await pilot.pause(0.2)
            looks = app.looks  # it may have been seen for a moment
            await pilot.pause(0.6)
            assert app.looks == looks

    asyncio.run(run())


def test_only_lines_that_changed_are_drawn_again(monkeypatch):
    refreshed = []

    async def run():
        app = Scripted(INSIDE)
        async with app.run_test(size=(100, 30)) as pilot:
            await taken(pilot)
            app.panel.poll()
            await taken(pilot)
            monkeypatch.setattr(app.panel, "refresh", lambda *regions, **options: refreshed.append(regions))
            app.inside = replace(INSIDE, counters=replace(INSIDE.counters))
            app.panel.poll()
            assert refreshed == []
            app.inside = replace(INSIDE, counters=replace(INSIDE.counters, generated_tokens=778))
            app.panel.poll()
            (regions,) = refreshed
            assert ["778" in app.panel._strips[region.y].text for region in regions] == [True]

    asyncio.run(run())


def test_it_can_be_scrolled_where_it_does_not_fit():
    async def run():
        app = Scripted(INSIDE)
        async with app.run_test(size=(40, 12)) as pilot:
            await taken(pilot)
            app.panel.focus()
            await pilot.press("end")
            await pilot.pause(0.5)
            assert app.panel.max_scroll_y > 0
            assert app.panel.scroll_offset.y == app.panel.max_scroll_y
            last = app.panel.render_line(app.panel.size.height - 2).text
            assert last == app.panel._strips[-2].text
            await pilot.resize_terminal(200, 60)
            await pilot.pause(0.5)
            assert app.panel.scroll_offset.y == 0
            assert app.panel.render_line(0).text.startswith("Last prompt")

    asyncio.run(run())


def test_pages_of_a_running_answer_are_seen():
    engine = builtin_engine(device="emulated:310p", context=512, chunk=64)
    story = "Once upon a time there was a little girl who lived by the sea. " * 6
    stream = engine.stream(engine.text_request(story, GenerationParams(max_tokens=40, ignore_eos=True)))
    next(stream)

    async def run():
        app = Scripted(None)
        app.look = lambda: look(engine)
        async with app.run_test(size=(100, 40)) as pilot:
            await taken(pilot)
            said = text_of(app.panel)
            assert "npu" in said and "running 1, 0 waiting" in said
            pages = look(engine).pages
            assert f"used {pages.count('used')}" in said and f"free {pages.count('free')}" in said
            for _ in stream:
                app.panel.poll()
            assert "running 0" in text_of(app.panel)
            assert "generated 40 tokens" in text_of(app.panel)

    asyncio.run(run())


WORK = Work({"products": 6.0, "output": 2.0, "attention": 1.0, "keys": 0.5, "norms": 0.3, "rest": 0.2}, 10, 2000 << 20)
HOST = replace(
    INSIDE,
    prompt=LastPrompt((replace(CPU, idle=0.0, seconds={"layer": 1.0}),), 1.0, 1.0, 1234, WORK),
    step=WORK,
    streamed_bytes=0,
    memory_rate=200 * 96 * 2**20,
)


@pytest.mark.parametrize("size", SIZES)
def test_the_host_shows_kinds_of_work_and_what_its_memory_allows(size):
    said = " ".join(seen_in(HOST, size, feed=lambda panel: panel.add_answer(Figures(tokens_per_second=62.0))).split())
    for fact in ("products 60%", "output 20%", "attention 10%", "keys and values 5%", "norms 3%", "rest 2%"):
        assert said.count(fact) == 2, fact  # of the prompt, and of the answer
    for fact in ("1,234 tokens in 1.00 s 1,234 tokens/s", "62 of 96 tokens/s that this memory allows", "200 MiB a token"):
        assert fact in said
    assert "layer" not in said and "lower bound" not in said


def test_the_bar_of_kinds_has_a_cell_for_each_and_fills_the_line():
    for width in (7, 40, 131):
        bar, *_ = work_kinds({"products": 1e6, "attention": 1.0, "keys": 1e-6, "rest": 0.0}, width)
        assert [len(text) > 0 for text, _ in bar] == [True] * 3
        assert sum(len(text) for text, _ in bar) == width


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"memory_rate": None}, "measured while no answer is under way"),
        ({"memory_rate": 200 * 50 * 2**20}, "62 tokens/s; main memory alone allows 50"),
        ({"streamed_bytes": 1 << 20}, "products 60%"),
    ],
)
def test_a_roof_that_is_none_is_not_shown_as_one(changes, told):
    inside = replace(HOST, **changes)
    said = " ".join(seen_in(inside, (100, 30), feed=lambda panel: panel.add_answer(Figures(tokens_per_second=62.0))).split())
    assert told in said and "that this memory allows" not in said


@pytest.mark.parametrize("size", SIZES)
def test_experts_from_flash_are_told(size):
    said = seen_in(replace(INSIDE, experts=ExpertCounts(used=200, read=50, named=90, needed=100, recalled=70)), size)
    assert "experts in memory 75% of 200 used" in said and "guessed 70% of them" in said
    assert "experts in memory" not in seen_in(INSIDE, size)


def test_the_rate_of_an_answer_under_way_stands_beside_the_roof():
    def feed(panel):
        panel.add_answer(Figures(tokens_per_second=62.0))
        panel.see_rate(48.0)

    assert "48 of 96 tokens/s" in seen_in(HOST, (100, 30), feed=feed)


@pytest.mark.parametrize("seconds", [{}, {"products": 0.0}, {"odd": 1.0}, {"output": float("nan")}, {"output": float("inf")}])
def test_odd_kinds_of_work_end_nothing(seconds):
    odd = Work(seconds, 0, 0)
    said = seen_in(replace(HOST, step=odd, prompt=replace(HOST.prompt, work=odd), memory_rate=float("nan")), (60, 20))
    assert "Memory" in said
