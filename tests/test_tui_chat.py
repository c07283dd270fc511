"""The full-screen chat with a scripted engine: answers that stream, stop and grow, and what is done to messages."""

import asyncio
import random
import re
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from chat_driver import drive
from scripted_provider import FIGURES, ScriptedCatalogue, ScriptedProvider, answer
from textual.events import Key, MouseScrollDown, MouseScrollUp, Resize
from textual.geometry import Size
from textual.widgets import Collapsible, Markdown

from edge_llm.chats.settings import ChatSettings
from edge_llm.chats.tree import Message
from edge_llm.errors import Unavailable
from edge_llm.providers.base import Ended, Facts, Figures
from edge_llm.talk.pieces import Said, Thought
from edge_llm.tui.message_view import MessageView
from edge_llm.tui.screens.questions import Confirm
from edge_llm.tui.stage import NOTICE_SECONDS

pytestmark = pytest.mark.thorough(file=3)

DOCUMENT = """# A heading

Some *words* and a [link][1], `code` and **more**.

| a | b |
|---|---|
| 1 | two words |
| 3 | 4 |

1. first
2. second
   - inside

```python
def f(x):
    return x  # a comment
```

> quoted

[1]: https://example.org
"""
SHAPES = [(40, 12), (80, 24), (200, 60)]


def cut(text, seed):
    """``text`` in pieces of one to twelve characters."""
    draw = random.Random(seed)
    pieces = []
    while text:
        at = draw.randint(1, 12)
        pieces.append(text[:at])
        text = text[at:]
    return pieces


def tree(widget):
    """What is drawn in ``widget``: every widget inside, its place and its text."""
    return [
        (type(each).__name__, tuple(each.region), "\n".join(strip.text for strip in each.render_lines(each.size.region)))
        for each in widget.walk_children()
    ]


def lines(count, begin=0):
    return "".join(f"line {number}\n\n" for number in range(begin, begin + count))


def seen_lines(chat):
    """The numbers of `lines` on the screen."""
    return [int(number) for number in re.findall(r"\bline (\d+)\b", chat.screen)]


# ---- streams


@pytest.mark.thorough
def test_a_streamed_answer_is_drawn_as_one_that_came_whole(tmp_path):
    provider = ScriptedProvider([answer(*cut(DOCUMENT, seed)) for seed in range(3)])

    async def talk(chat):
        for seed in range(3):
            await chat.ask(f"Cutting {seed}")
            streamed = chat.transcript.views()[-1].query_one(Markdown)
            drawn = tree(streamed)
            assert streamed.source == DOCUMENT
            await chat.session.show(chat.session.chat)
            await chat.settle()
            assert tree(chat.transcript.views()[-1].query_one(Markdown)) == drawn
            assert chat.stored[-1] == ("assistant", DOCUMENT, "whole")

    drive(talk, tmp_path, provider, size=(60, 120))


def test_an_answer_is_seen_while_it_grows_and_sticks_to_the_bottom(tmp_path):
    provider = ScriptedProvider([[]])

    async def talk(chat):
        await chat.send("Count")
        for begin in range(0, 60, 10):
            await chat.until(lambda: provider.replies)
            provider.replies[0].give(lines(10, begin))
            await chat.until(lambda last=begin + 9: last in seen_lines(chat))
        provider.replies[0].give(Ended("stop", FIGURES))
        await chat.settle()
        assert 59 in seen_lines(chat)
        assert 0 not in seen_lines(chat)
        assert chat.stored[-1] == ("assistant", lines(60), "whole")

    drive(talk, tmp_path, provider, size=(60, 20))


def test_who_scrolls_away_from_a_stream_stays_there_and_who_comes_back_sticks_again(tmp_path):
    provider = ScriptedProvider([[]])

    async def talk(chat):
        await chat.send("Count")
        await chat.until(lambda: provider.replies)
        reply = provider.replies[0]
        reply.give(lines(40))
        await chat.until(lambda: 39 in seen_lines(chat))
        await chat.wheel(MouseScrollUp, 5)
        await chat.until(lambda: 39 not in seen_lines(chat))
        seen = seen_lines(chat)
        for begin in range(40, 60, 10):
            reply.give(lines(10, begin))
            end = f"line {begin + 9}\n"
            await chat.until(lambda end=end: end in chat.transcript.views()[-1].query_one(Markdown).source)
            await chat.taken()
            assert seen_lines(chat) == seen
        while 59 not in seen_lines(chat):
            await chat.wheel(MouseScrollDown, 5)
        reply.give(lines(10, 60))
        await chat.until(lambda: 69 in seen_lines(chat))
        await chat.wheel(MouseScrollUp, 5)
        reply.give(Ended("stop", FIGURES))
        await chat.settle()
        assert 69 not in seen_lines(chat), "the end of an answer moves nobody"

    drive(talk, tmp_path, provider, size=(60, 20))


def test_escape_stops_an_answer_and_keeps_what_came(tmp_path):
    provider = ScriptedProvider([["Once upon", " a time"]])

    async def talk(chat):
        await chat.send("Tell a story")
        await chat.until(lambda: "Once upon a time" in chat.screen)
        await chat.press("escape")
        await chat.until(lambda: not chat.session.busy)
        await chat.settle()
        assert "Once upon a time" in chat.screen
        assert "stopped" in chat.screen
        assert chat.stored == [("user", "Tell a story", "whole"), ("assistant", "Once upon a time", "stopped")]
        assert provider.replies[0].over
        await chat.ask("Another")
        assert "You said: Another" in chat.screen
        assert [one["content"] for one in provider.asked[1].messages] == ["Tell a story", "Once upon a time", "Another"]

    drive(talk, tmp_path, provider)


def test_an_answer_may_be_stopped_at_any_moment(tmp_path):
    async def talk(chat):
        prompts, answered, turns = [], 0, 0
        while answered < 5:  # stopped later and later, until answers had begun
            prompts.append(f"Prompt {turns}")
            sending = asyncio.ensure_future(chat.session.send(prompts[-1]))
            await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            answered += chat.session.answering is not None
            chat.session.stop()
            await asyncio.wait([sending])
            assert not chat.session.busy
            turns += 1 + turns // 5
        states = {message.state for message in chat.session.chat.messages if message.role == "assistant"}
        assert states == {"stopped"}, "nothing grows any more"
        await chat.until(lambda: chat.stored == [(each.role, each.text, each.state) for each in chat.session.chat.messages])
        assert [text for role, text, _ in chat.stored if role == "user"] == prompts

    drive(talk, tmp_path, ScriptedProvider(lambda ask: ["some"]))


def test_an_answer_that_is_stopped_before_it_is_drawn_is_stopped(tmp_path, monkeypatch):
    async def talk(chat):
        gate = asyncio.Event()
        add = chat.transcript.add

        async def add_slowly(message):
            if message.role == "assistant":
                await gate.wait()
            await add(message)

        monkeypatch.setattr(chat.transcript, "add", add_slowly)
        await chat.send("Go")
        await chat.until(lambda: len(chat.session.chat.messages) == 2)
        await chat.press("escape")
        await chat.until(lambda: not chat.session.busy)
        gate.set()
        assert chat.stored == [("user", "Go", "whole"), ("assistant", "", "stopped")]

    drive(talk, tmp_path)


def test_an_answer_is_stopped_once(tmp_path):
    async def talk(chat):
        await chat.send("Go")
        await chat.until(lambda: "It grows" in chat.screen)
        assert chat.session.stop()
        assert chat.session.busy
        assert not chat.session.stop(), "the second key means something else: it warns, and the third leaves"
        await chat.until(lambda: not chat.session.busy)

    drive(talk, tmp_path, ScriptedProvider([["It grows"]]))


def test_nothing_streams_into_a_message_that_left_the_screen(tmp_path):
    def streams():
        return [task for task in asyncio.all_tasks() if "MarkdownStream" in task.get_coro().__qualname__]

    async def talk(chat):
        for number in range(3):
            await chat.send(f"Go {number}")
            await chat.until(lambda: "It grows" in chat.screen)
            assert len(streams()) == 1
            await chat.press("ctrl+n")
            await chat.until(lambda: "It grows" not in chat.screen)
            await chat.until(lambda: streams() == [])

    drive(talk, tmp_path, ScriptedProvider(lambda ask: ["It grows"]))


def test_ctrl_c_stops_an_answer_and_twice_leaves(tmp_path):
    provider = ScriptedProvider([["Once"]])

    async def talk(chat):
        await chat.send("Tell a story")
        await chat.until(lambda: "Once" in chat.screen)
        await chat.press("ctrl+c")
        await chat.until(lambda: not chat.session.busy)
        assert chat.app.is_running
        chat.burst("ctrl+c", "ctrl+c")
        await chat.until(lambda: not chat.app._running or chat.app._exit)
        assert chat.stored[-1] == ("assistant", "Once", "stopped")

    drive(talk, tmp_path, provider)


@pytest.mark.parametrize(("seconds", "leaves"), [(NOTICE_SECONDS - 0.1, True), (NOTICE_SECONDS + 0.1, False)])
def test_ctrl_c_leaves_as_long_as_the_notice_stands_that_says_so(seconds, leaves, tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("edge_llm.tui.app.time", SimpleNamespace(monotonic=lambda: now))

    async def talk(chat):
        nonlocal now
        await chat.press("ctrl+c")
        await chat.until(lambda: "Press Ctrl+C again" in chat.screen)
        now += seconds
        await chat.press("ctrl+c")
        if leaves:
            await chat.until(lambda: chat.app._exit)
        else:
            await chat.settle()
            assert not chat.app._exit

    drive(talk, tmp_path, ScriptedProvider([]))


def test_ctrl_c_leaves_not_when_the_notice_was_put_away_or_an_answer_came_between(tmp_path):
    async def talk(chat):
        await chat.press("ctrl+c", "escape", "ctrl+c")
        await chat.send("Tell a story")
        await chat.until(lambda: "Once" in chat.screen)
        await chat.press("ctrl+c")
        await chat.until(lambda: not chat.session.busy)
        await chat.press("ctrl+c")
        await chat.settle()
        assert not chat.app._exit
        chat.burst("ctrl+c")
        await chat.until(lambda: not chat.app._running or chat.app._exit)

    drive(talk, tmp_path, ScriptedProvider([["Once"]]))


def test_leaving_while_an_answer_grows_keeps_what_came(tmp_path):
    provider = ScriptedProvider([["Once upon"]])

    async def talk(chat):
        await chat.send("Tell a story")
        await chat.until(lambda: "Once upon" in chat.screen)
        await chat.press("ctrl+q")
        await chat.until(lambda: chat.app._exit)

    drive(talk, tmp_path, provider)

    async def again(chat):
        assert chat.said == [("user", "Tell a story"), ("assistant", "Once upon")]
        assert chat.stored[-1] == ("assistant", "Once upon", "stopped")

    drive(again, tmp_path)


def test_thoughts_are_open_until_the_answer_begins(tmp_path):
    provider = ScriptedProvider([[Thought("Let me *see*. "), Thought("Yes.")]])

    async def talk(chat):
        await chat.send("Think")
        await chat.until(lambda: "Let me see. Yes." in chat.screen)
        thought = chat.app.query_one(Collapsible)
        assert not thought.collapsed
        provider.replies[0].give("The answer")
        await chat.until(lambda: "The answer" in chat.screen)
        await chat.until(lambda: thought.collapsed and "Let me see" not in chat.screen)
        provider.replies[0].give(Ended("stop", FIGURES))
        await chat.settle()
        assert thought.collapsed
        await chat.focus_message(-1)
        await chat.press("t")
        await chat.until(lambda: "Let me see. Yes." in chat.screen)
        await chat.ask("And now?")
        assert "Let me see" not in str(provider.asked[1].messages), "a model is not told what it thought"

    drive(talk, tmp_path, provider)


def test_a_thought_without_an_answer_is_kept(tmp_path):
    provider = ScriptedProvider([[Thought("Hm"), Ended("length", FIGURES)]])

    async def talk(chat):
        await chat.ask("Think")
        await chat.ask("And now?")
        assert [one["content"] for one in provider.asked[1].messages] == ["Think\n\nAnd now?"]
        await chat.session.show(chat.session.chat)
        assert len(chat.app.query(Collapsible)) == 1

    drive(talk, tmp_path, provider)


def test_how_far_a_prompt_is_read_is_seen(tmp_path):
    provider = ScriptedProvider([[(0, 400), (100, 400)]])

    async def talk(chat):
        await chat.send("A long one")
        await chat.until(lambda: "reading  25%" in chat.screen and "100/400 tokens" in chat.screen)
        provider.replies[0].give((200, 400))
        await chat.until(lambda: "reading  50%" in chat.screen and " left" in chat.screen)
        provider.replies[0].give("Well")
        await chat.until(lambda: "writing" in chat.screen and "reading" not in chat.screen)
        await chat.press("escape")
        await chat.until(lambda: "writing" not in chat.screen)

    drive(talk, tmp_path, provider)


def test_the_speed_is_that_of_what_has_come_however_long_it_waits_to_be_shown(tmp_path):
    provider = ScriptedProvider([["one "]])

    async def talk(chat):
        await chat.send("Count")
        await chat.until(lambda: chat.session.answering is not None and chat.session.answering.begun is not None)
        answering = chat.session.answering
        answering.begun -= 2.0  # the first piece came two seconds ago
        provider.replies[0].tokens = 80
        provider.replies[0].give("two")
        await chat.until(lambda: answering.message.text == "one two")
        assert 0 < answering.rate <= 40
        seen = answering.rate
        await chat.taken()
        assert answering.rate == seen

    drive(talk, tmp_path, provider)


def test_a_prompt_can_be_stopped_while_it_is_read(tmp_path):
    provider = ScriptedProvider([[(0, 400)]])

    async def talk(chat):
        await chat.send("A long one")
        await chat.until(lambda: "reading" in chat.screen)
        await chat.press("escape")
        await chat.until(lambda: not chat.session.busy)
        assert chat.stored[-1] == ("assistant", "", "stopped")
        await chat.ask("Shorter")
        assert "You said:" in chat.screen

    drive(talk, tmp_path, provider)


def test_the_context_meter_follows_the_last_answer(tmp_path):
    provider = ScriptedProvider(
        [answer("a", figures=Figures(100, 0, 28)), answer("b", figures=Figures(512, 0, 88))], facts=Facts("scripted", 1000)
    )

    async def talk(chat):
        await chat.until(lambda: "context 1000" in chat.screen)
        await chat.ask("one")
        await chat.until(lambda: "128/1000" in chat.screen)
        await chat.ask("two")
        await chat.until(lambda: "600/1000" in chat.screen and "▉" not in chat.screen.splitlines()[-3][-20:])

    drive(talk, tmp_path, provider)


@pytest.mark.parametrize("size", SHAPES)
def test_any_size_of_terminal_shows_answer_and_prompt(tmp_path, size):
    async def talk(chat):
        await chat.ask("Hello")
        await chat.write("the next one")
        assert "You said: Hello" in chat.screen
        assert "the next one" in chat.screen
        assert all(strip.cell_length == size[0] for strip in chat.strips)

    drive(talk, tmp_path, size=size)


def test_a_terminal_that_changes_its_size_during_a_stream_loses_nothing(tmp_path):
    provider = ScriptedProvider([[]])
    sizes = [*SHAPES, (40, 12), (200, 60), (1, 1), (20, 3), (80, 24)]

    async def talk(chat):
        await chat.send("Count")
        await chat.until(lambda: provider.replies)
        for step, size in enumerate(sizes):
            provider.replies[0].give(lines(10, 10 * step))
            await chat.resize(*size)
        await chat.until(lambda: 10 * len(sizes) - 1 in seen_lines(chat))
        provider.replies[0].give(Ended("stop", FIGURES))
        await chat.settle()
        assert chat.stored[-1] == ("assistant", lines(10 * len(sizes)), "whole")
        assert 79 in seen_lines(chat)

    drive(talk, tmp_path, provider)


def test_a_screen_that_was_told_a_size_of_before_fills_the_terminal_again(tmp_path):
    async def mislead(chat):
        screen, seen = chat.app.screen, []
        screen.post_message(Resize(Size(10, 3), Size(10, 3)))
        screen.call_later(lambda: seen.append(screen.outer_size))  # right behind it, before the chat looks at the size
        await chat.until(lambda: seen)
        assert seen == [Size(10, 3)]

    async def talk(chat):
        await mislead(chat)
        await chat.until(lambda: chat.app.screen.outer_size == chat.app.size)
        await chat.press("f1")
        await mislead(chat)
        await chat.until(lambda: {screen.outer_size for screen in chat.app.screen_stack} == {chat.app.size})

    drive(talk, tmp_path)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(
    "text",
    ["漢字とかな" * 40, "👩‍👩‍👧‍👦 🇩🇪 👍🏽 e\u0301 " * 30, "x" * 10_000, "word " * 2000, "`" + "c" * 10_000 + "`", "| " * 3000],
    ids=["cjk", "emoji", "one-word", "words", "code", "bars"],
)
def test_wide_and_long_lines_fit_the_screen(tmp_path, text):
    provider = ScriptedProvider([answer(text), answer(*cut(text, 1)[:200])])

    async def talk(chat):
        await chat.ask(text)
        await chat.resize(40, 12)
        await chat.ask("Again")
        assert chat.stored[:2] == [("user", text, "whole"), ("assistant", text, "whole")]
        assert provider.asked[0].messages[-1]["content"] == text
        assert all(strip.cell_length == 40 for strip in chat.strips)
        await chat.resize(200, 60)
        assert all(strip.cell_length == 200 for strip in chat.strips)

    drive(talk, tmp_path, provider)


# ---- prompts that come one after the other


def test_prompts_that_come_at_once_are_answered_one_after_the_other(tmp_path):
    async def talk(chat):
        area = chat.app.prompt.area
        for text in ("one", "two", "three"):
            area.take(text)
            area.send()
        await chat.until(lambda: len(chat.stored) == 6 and not chat.session.busy)
        await chat.settle()
        told = [text for one in ("one", "two", "three") for text in (one, f"You said: {one}")]
        assert [text for _, text in chat.said] == told
        assert chat.stored == [(role, text, "whole") for role, text in chat.said]

    drive(talk, tmp_path)


# ---- what is done to messages


def test_messages_and_blocks_of_code_are_copied(tmp_path):
    provider = ScriptedProvider([answer("Look:\n\n```py\na = 1\n```\n\nand\n\n```\nb\n  c\n```\n")])

    async def talk(chat):
        await chat.ask("Code")
        await chat.focus_message(0)
        await chat.press("c")
        await chat.until(lambda: chat.app.clipboard == "Code")
        await chat.focus_message(1)
        for block in ("a = 1", "b\n  c", "a = 1"):
            await chat.press("y")
            await chat.until(lambda block=block: chat.app.clipboard == block)
        await chat.send("/copy code")
        await chat.until(lambda: chat.app.clipboard == "b\n  c")
        await chat.press("ctrl+o")
        await chat.until(lambda: chat.app.clipboard.startswith("Look:"))
        await chat.send("/copy all")
        await chat.until(lambda: "# Code" in chat.app.clipboard and "Look:" in chat.app.clipboard)
        await chat.focus_message(0)
        await chat.press("y")
        await chat.until(lambda: chat.told("no block of code"))

    drive(talk, tmp_path, provider)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("ends", [True, False], ids=["ended", "growing"])
@pytest.mark.parametrize("before", [0, 60], ids=["drawn", "written"])
def test_blocks_of_code_are_copied_as_they_were_said_however_an_answer_is_drawn(tmp_path, before, ends):
    code = "".join(f"def f{at}(x):\n\tpass\n\n" for at in range(700)).rstrip()
    paragraph = "word " * 200 + "\n\n"
    inside = "1. Then\n\n   ```py\n   y\n   ```\n\n"
    text = f"First\n\n````\n```\nx\n````\n\n{paragraph * before}{inside}```\n{code}\n```\n\nThat is it"
    pieces = [text[at : at + 7000] for at in range(0, len(text), 7000)]
    provider = ScriptedProvider([answer(*pieces) if ends else [Said(piece) for piece in pieces]])

    async def talk(chat):
        await chat.send("Code")
        await chat.until(lambda: len(chat.said) == 2 and chat.session.chat.path[-1].text == text)
        await chat.until(lambda: chat.session.busy is not ends)
        for block in ("```\nx", "y", code, "```\nx"):
            await chat.send("/copy code")
            await chat.until(lambda block=block: chat.app.clipboard == block)

    drive(talk, tmp_path, provider)


def test_an_edited_prompt_stands_beside_the_old_one(tmp_path):
    async def talk(chat):
        await chat.ask("First")
        await chat.ask("Secund")
        await chat.focus_message(2)
        await chat.press("e")
        await chat.until(lambda: chat.typed == "Secund" and "Editing your last prompt" in chat.screen)
        await chat.ask("Second")
        assert [text for _, text in chat.said] == ["First", "You said: First", "Second", "You said: Second"]
        assert "‹2/2›" in chat.screen
        assert "Editing your" not in chat.screen
        assert ("user", "Secund", "whole") in chat.stored, "the old one stays"
        await chat.focus_message(2)
        await chat.press("left")
        await chat.until(lambda: [text for _, text in chat.said][2:] == ["Secund", "You said: Secund"])
        await chat.until(lambda: "‹1/2›" in chat.screen)
        await chat.press("left")  # there is none before
        await chat.settle()
        await chat.press("right")
        await chat.until(lambda: [text for _, text in chat.said][2:] == ["Second", "You said: Second"])

    drive(talk, tmp_path)

    async def again(chat):
        assert [text for _, text in chat.said][2:] == ["Second", "You said: Second"]

    drive(again, tmp_path)


def test_escape_leaves_an_edit(tmp_path):
    async def talk(chat):
        await chat.ask("First")
        await chat.press("ctrl+l")
        await chat.until(lambda: "Editing your last prompt" in chat.screen)
        await chat.press("escape")
        await chat.until(lambda: "Editing your" not in chat.screen)
        await chat.ask("Second")
        assert [text for _, text in chat.said] == ["First", "You said: First", "Second", "You said: Second"]

    drive(talk, tmp_path)


def test_an_answer_is_made_again_beside_the_old_one(tmp_path):
    provider = ScriptedProvider([answer("one"), answer("two"), answer("three")])

    async def talk(chat):
        await chat.ask("Roll")
        await chat.press("ctrl+r")
        await chat.until(lambda: "two" in chat.screen and not chat.session.busy)
        await chat.focus_message(1)
        await chat.press("r")
        await chat.until(lambda: "three" in chat.screen and not chat.session.busy)
        await chat.settle()
        assert "‹3/3›" in chat.screen
        assert [ask.messages for ask in provider.asked] == [({"role": "user", "content": "Roll"},)] * 3
        await chat.focus_message(1)
        await chat.press("left")
        await chat.until(lambda: chat.said[1] == ("assistant", "two"))
        await chat.settle()
        await chat.press("left")
        await chat.until(lambda: chat.said[1] == ("assistant", "one"))
        assert [text for role, text, _ in chat.stored if role == "assistant"] == ["one", "two", "three"]

    drive(talk, tmp_path, provider)


def test_an_answer_that_was_stopped_goes_on_in_the_same_message(tmp_path):
    provider = ScriptedProvider([["Once upon"], answer(" a time.")])

    async def talk(chat):
        await chat.send("Tell a story")
        await chat.until(lambda: "Once upon" in chat.screen)
        await chat.press("escape")
        await chat.settle()
        await chat.press("ctrl+t")
        await chat.until(lambda: "Once upon a time." in chat.screen)
        await chat.settle()
        assert chat.stored == [("user", "Tell a story", "whole"), ("assistant", "Once upon a time.", "whole")]
        assert provider.asked[1].continues
        assert [one["content"] for one in provider.asked[1].messages] == ["Tell a story", "Once upon"]
        assert "stopped" not in chat.screen

    drive(talk, tmp_path, provider)


def test_figures_of_an_answer_that_was_continued_are_of_all_of_it(tmp_path):
    parts = [Figures(12, 4, 30, 0.25, 100.0, 60.0, 8, 4), Figures(42, 12, 10, 0.5, 80.0, 20.0, 4, 1)]
    provider = ScriptedProvider([answer("Once upon", figures=parts[0]), answer(" a time.", figures=parts[1])])

    async def talk(chat):
        await chat.ask("Tell a story")
        await chat.press("ctrl+t")
        await chat.until(lambda: "Once upon a time." in chat.screen and not chat.session.busy)
        await chat.settle()
        assert "40 tokens · 40/s · first after 250 ms · prompt 12 tokens, 4 cached" in chat.screen
        figures = chat.session.chat.messages[-1].figures
        assert (figures["drafted_tokens"], figures["accepted_tokens"]) == (12, 5)
        await chat.send("/stats")
        await chat.until(lambda: chat.told("40 tokens · 40/s"))

    drive(talk, tmp_path, provider)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (answer(figures=Figures(42, 42, 0)), "The model adds nothing"),
        ([Unavailable("the server is gone")], "the server is gone"),
        ([], ""),
    ],
)
def test_an_answer_to_which_nothing_comes_stays_as_it_was(tmp_path, more, told):
    """What it said, how it ended and what it took; and the person is told why nothing came, unless it was stopped."""
    provider = ScriptedProvider([answer("Once upon"), more])

    async def talk(chat):
        await chat.ask("Tell a story")
        before, shown = chat.session.chat.messages[-1], chat.session.last
        await chat.press("ctrl+t")
        await chat.until(lambda: len(provider.replies) == 2 and provider.replies[1].begun)
        if not told:
            await chat.press("escape")
        await chat.until(lambda: not chat.session.busy and chat.told(told) == bool(told))
        await chat.settle()
        assert chat.session.chat.messages[-1] == before
        assert chat.session.last == shown
        assert "3 tokens · 50/s" in chat.screen
        assert chat.stored[-1] == ("assistant", "Once upon", "whole")

    drive(talk, tmp_path, provider)


@pytest.mark.thorough
def test_a_message_is_deleted_with_what_follows_it_after_a_question(tmp_path):
    async def talk(chat):
        await chat.ask("First")
        await chat.ask("Second")
        await chat.focus_message(2)
        await chat.press("d")
        await chat.until(lambda: "Delete this message" in chat.screen)
        await chat.press("n")
        await chat.settle()
        assert len(chat.stored) == 4
        await chat.press("d")
        await chat.until(lambda: "Delete this message" in chat.screen)
        await chat.press("y")
        await chat.until(lambda: len(chat.said) == 2)
        await chat.settle()
        assert [text for _, text, _ in chat.stored] == ["First", "You said: First"]

    drive(talk, tmp_path)


def test_a_branch_is_a_chat_of_its_own(tmp_path):
    async def talk(chat):
        await chat.ask("First")
        await chat.ask("Second")
        await chat.focus_message(1)
        await chat.press("b")
        await chat.until(lambda: len(chat.said) == 2)
        await chat.settle()
        await chat.ask("Third")
        assert [text for _, text in chat.said] == ["First", "You said: First", "Third", "You said: Third"]
        assert len(chat.titles) == 2
        assert [text for role, text, _ in chat.stored if role == "user"] == ["First", "Second", "First", "Third"]

    drive(talk, tmp_path)


def test_what_a_branch_has_of_an_answer_that_grows_is_no_more_growing(tmp_path):
    provider = ScriptedProvider([["Once upon"]])

    async def talk(chat):
        await chat.send("Tell a story")
        await chat.until(lambda: "Once upon" in chat.screen)
        await chat.send("/branch")
        await chat.until(lambda: len(chat.titles) == 2)
        provider.replies[0].give(" a time", Ended("stop", FIGURES))
        await chat.settle()
        assert sorted(chat.stored)[:2] == [("assistant", "Once upon", "stopped"), ("assistant", "Once upon a time", "whole")]

    drive(talk, tmp_path, provider)


def test_a_link_of_an_answer_is_copied_and_not_followed(tmp_path):
    provider = ScriptedProvider([answer("See [here](https://example.org/x)")])

    async def talk(chat):
        opened = []
        chat.app.open_url = lambda *url, **more: opened.append(url)
        await chat.ask("Where?")
        chat.app.query(Markdown).last().post_message(
            Markdown.LinkClicked(chat.app.query(Markdown).last(), "https://a.b/\x1b[2J")
        )
        await chat.until(lambda: chat.told("Copied: https://a.b/[2J"))
        assert opened == []
        assert "\x1b" not in chat.app.clipboard

    drive(talk, tmp_path, provider)


# ---- a model that comes


def test_a_prompt_that_is_sent_before_the_model_is_there_waits_for_it(tmp_path):
    gate = threading.Event()
    catalogue = ScriptedCatalogue(loads={"scripted": [("loading", 1, 4), gate]})

    async def talk(chat):
        await chat.until(lambda: "loading  25%" in chat.screen)
        await chat.send("Hello")
        await chat.until(lambda: chat.said == [("user", "Hello")])
        assert chat.stored == [("user", "Hello", "whole")]
        gate.set()
        await chat.until(lambda: "You said: Hello" in chat.screen)

    drive(talk, tmp_path, catalogue=catalogue, ready=False)


def test_figures_of_the_last_answer_are_told(tmp_path):
    async def talk(chat):
        await chat.send("/stats")
        await chat.until(lambda: chat.told("No answer yet"))
        await chat.ask("Hello")
        await chat.send("/stats")
        await chat.until(lambda: chat.told("3 tokens · 50/s · first after 250 ms · prompt 12 tokens, 4 cached"))

    drive(talk, tmp_path)


def test_a_pasted_prompt_goes_to_the_model_as_it_is(tmp_path):
    provider = ScriptedProvider()

    async def talk(chat):
        await chat.ask("  [red]x[/]\n\n\tindented [@click=app.quit]y[/]\n")
        assert provider.asked[0].messages[-1]["content"] == "  [red]x[/]\n\n\tindented [@click=app.quit]y[/]\n"
        assert "[red]x[/]" in chat.screen
        assert "[@click=app.quit]y[/]" in chat.screen

    drive(talk, tmp_path, provider)


def test_a_system_message_and_sampling_reach_the_model(tmp_path):
    provider = ScriptedProvider()
    settings = ChatSettings(system="Be brief", thinking="low", sampling={"temperature": 0.5})

    async def talk(chat):
        await chat.ask("Hello")
        ask = provider.asked[0]
        assert ask.messages[0] == {"role": "system", "content": "Be brief"}
        assert (ask.sampling, ask.thinking, ask.continues) == ({"temperature": 0.5}, "low", False)

    drive(talk, tmp_path, provider, settings=settings)


def test_pieces_of_one_batch_stay_in_order(tmp_path):
    provider = ScriptedProvider([[[Thought("a"), Thought("b"), Said("c"), Said("d"), Ended("stop", FIGURES)]]])

    async def talk(chat):
        await chat.ask("Go")
        message = chat.session.chat.path[-1]
        assert (message.thought, message.text, message.state) == ("ab", "cd", "whole")
        assert "cd" in chat.screen

    drive(talk, tmp_path, provider)


def test_an_answer_may_grow_before_its_message_is_drawn(tmp_path):
    async def talk(chat):
        await chat.ask("One")  # an empty chat shows its welcome
        empty = Message(7, 1, None, "assistant", "", model="scripted", state="growing")
        view = MessageView(empty)
        mounting = chat.transcript.mount(view)
        view.redraw(empty)
        await view.grow(replace(empty, text="The first words. "))
        await mounting
        await view.grow(replace(empty, text="The first words. And the others."))
        await chat.until(lambda: "The first words. And the others." in chat.screen)
        await view.finish(replace(empty, text="The first words. And the others.", state="whole"))
        await chat.until(lambda: "The first words. And the others." in chat.screen)

    drive(talk, tmp_path)


def test_what_was_done_before_a_question_came_up_is_not_undone_by_its_answer(tmp_path):
    async def talk(chat):
        await chat.ask("One")
        view = await chat.focus_message(0)
        chat.app.do(chat.app.actions.messages.act_on(view, "delete"))
        chat.app.do(chat.app.actions.messages.act_on(view, "delete"))
        chat.app.do(chat.app.actions.prompts.regenerate(view.message))
        await chat.until(lambda: len(chat.session.chat.messages) == 3 and isinstance(chat.app.screen, Confirm))
        await chat.press("y")
        await chat.until(lambda: chat.told("Still answering. Esc to stop"))
        provider.replies[-1].give(Ended("stop", FIGURES))
        await chat.until(lambda: not chat.session.busy)
        await chat.press("y")
        await chat.settle()
        assert not chat.session.unsaved and not chat.told("internal error")
        assert chat.stored == [] and chat.said == []

    provider = ScriptedProvider([answer("First"), ["Second"]])
    drive(talk, tmp_path, provider)


def test_keys_that_come_while_it_is_left_do_no_harm(tmp_path):
    async def talk(chat):
        screen = chat.app.screen
        for key in [*"hello", "ctrl+n", "f1"] * 3:
            screen.post_message(Key(key, key if len(key) == 1 else None))  # the app is left before all are seen

    drive(talk, tmp_path)
