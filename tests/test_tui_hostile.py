"""Texts that talk to the terminal, or are written like markup: wherever they come from, they are seen and do nothing."""

import json
import re
import unicodedata

import pytest
from chat_driver import drive
from scripted_provider import FIGURES, ScriptedCatalogue, ScriptedProvider
from textual.events import Paste
from textual.widgets import Input
from writing_store import WritingStore

from edge_llm.chats.tree import Attachment
from edge_llm.errors import EdgeLLMError
from edge_llm.providers.base import Ended, Facts, ModelRow
from edge_llm.talk.pieces import Said, Thought
from edge_llm.tui.screens.models import ModelPicker

pytestmark = pytest.mark.thorough(file=3)

CONTROL = (
    "\x1b[2J\x1b]52;c;aGk=\x07\x1b]8;;http://evil\x1b\\\x1b]8;;\x1b\\\x9b31m\x9d0;t\x9c\x85"
    "\x0b\x0c\x1c\x1f\x00\x7f\r\b\u202e\u2066\u200f\u200b\u2028\ud800"
)
MARKUP = "[red]x[/] [@click=app.quit]y[/] [/nothing] [bold"
HOSTILE = f"Begin{CONTROL}{MARKUP}"
SEEN = "Begin"
STYLING = re.compile(r"\x1b\[[0-9;:]*m")


def assert_clean(chat):
    """What is sent to the terminal for the screen is its text, and styling of the app's own."""
    for strip in chat.strips:
        text = "".join(segment.text for segment in strip)
        assert [char for char in text if not (char.isprintable() or unicodedata.category(char) == "Zs")] == [], text
    assert STYLING.sub("", chat.written) == "\n".join("".join(segment.text for segment in strip) for strip in chat.strips)


def drive_hostile(talk, folder, provider=None, **options):
    """Like `drive`; the screen is clean after every wait."""

    async def watched(chat):
        wait = chat.until

        async def until(condition):
            await wait(condition)
            assert_clean(chat)

        chat.until = until
        await talk(chat)
        await chat.settle()
        assert chat.app.is_running, "no text is an action"

    drive(watched, folder, provider, **options)


@pytest.mark.thorough
def test_of_an_answer_and_a_thought(tmp_path):
    provider = ScriptedProvider([[]])

    async def talk(chat):
        await chat.send(HOSTILE)
        await chat.until(lambda: provider.replies)
        reply = provider.replies[0]
        for char in HOSTILE:
            reply.give(Thought(char))
        await chat.until(lambda: MARKUP in chat.screen.partition("thinking")[2])
        for char in HOSTILE:
            reply.give(Said(char))
        await chat.until(lambda: MARKUP in chat.screen.partition("thought")[2])
        reply.give(Said(f"\n\n```{HOSTILE}\n{HOSTILE}\n```\n"), Said(f"\n| {HOSTILE} |\n|---|\n| {HOSTILE} |\n"))
        reply.give(Said(f"\n# {HOSTILE}\n\n- {HOSTILE}\n"))
        reply.give(Said(f"\n[{MARKUP}](http://a/{CONTROL} '{HOSTILE}') ![{HOSTILE}](x) <b onclick='x'>{HOSTILE}</b>\n"))
        reply.give(Ended("stop", FIGURES))
        await chat.until(lambda: not chat.session.busy)
        await chat.settle()
        await chat.focus_message(1)
        await chat.press("t", "y")
        await chat.settle()
        assert_clean(chat)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", chat.app.clipboard)
        assert chat.session.chat.path[-1].text.startswith("Begin\x1b[2J"), "what is kept is what was said"

    drive_hostile(talk, tmp_path, provider, size=(120, 90))


@pytest.mark.thorough
def test_of_chats_that_are_stored(tmp_path):
    store, _ = WritingStore.open(tmp_path / "chats.db")
    for _ in range(2):
        made = store.begin({"system": HOSTILE, "model": None, "sampling": {"stop": [HOSTILE]}})
        prompt = store.add(made.id, None, "user", HOSTILE, attachments=[Attachment(HOSTILE, HOSTILE)])
        store.add(made.id, prompt.id, "assistant", HOSTILE, thought=HOSTILE, model=HOSTILE)
        store.rename(made.id, f"{HOSTILE}\nsecond line")
    store.close()

    async def talk(chat):
        await chat.until(lambda: SEEN in chat.screen.splitlines()[0])
        await chat.press("f3")
        await chat.until(lambda: len(chat.listed) == 2 and SEEN in chat.listed[0])
        chat.app.chat_list.look_for("Begin")
        await chat.until(lambda: chat.listed and "\n" in chat.listed[0])
        await chat.press("down", "delete")
        await chat.until(lambda: "Delete the chat" in chat.screen)
        await chat.press("n", "f6")
        await chat.until(lambda: "Title of the chat" in chat.screen)
        await chat.press("escape", "escape", "f5")
        await chat.until(lambda: "Settings of this chat" in chat.screen)
        await chat.press("escape")
        await chat.settle()
        await chat.press("up")
        await chat.until(lambda: chat.typed.startswith("Begin") and MARKUP in chat.typed)
        await chat.press("ctrl+l")
        await chat.until(lambda: "Editing your last prompt" in chat.screen)
        await chat.press("f1")
        await chat.settle()
        assert_clean(chat)

    drive_hostile(talk, tmp_path, size=(120, 60))


def test_of_models_notes_and_errors(tmp_path):
    def refuse():
        raise EdgeLLMError(HOSTILE)

    provider = ScriptedProvider([[EdgeLLMError(HOSTILE)]], facts=Facts(HOSTILE, 64, HOSTILE, notes=(HOSTILE,)))
    other = f"b{HOSTILE}"
    catalogue = ScriptedCatalogue(
        {HOSTILE: provider, other: ScriptedProvider()},
        loads={other: [(HOSTILE, 1, 2), refuse]},
        fetches={"org/x": [(HOSTILE, 1, 2), EdgeLLMError(HOSTILE)]},
        rows=[ModelRow(HOSTILE, 1, HOSTILE, 1, True), ModelRow(other, 1, HOSTILE, 1, None, HOSTILE)],
    )

    async def talk(chat):
        await chat.until(lambda: chat.told(MARKUP))
        await chat.send("Hello")
        await chat.until(lambda: len(chat.said) == 2 and not chat.session.busy)
        chat.forget_notices()
        await chat.send("/pull org/x")
        await chat.until(lambda: chat.told(MARKUP))
        await chat.press("f4")
        await chat.until(lambda: isinstance(chat.app.screen, ModelPicker) and "[red]x" in chat.screen)
        await chat.press("down", "enter")
        await chat.taken()
        await chat.press("escape")
        await chat.write("/model ")
        await chat.until(lambda: chat.completions)
        await chat.press("tab")
        await chat.settle()
        chat.forget_notices()
        chat.app.do(chat.app.actions.models.do_model(other))
        await chat.until(lambda: chat.told(MARKUP) and chat.session.loading is None)

    drive_hostile(talk, tmp_path, catalogue=catalogue, size=(140, 50))


def test_of_files(tmp_path):
    for name in ("Begin\x1b[2J[red]x", "Begin\u202e.txt", "Begin\x9b.txt", "Begin[@click=app.quit]y"):
        (tmp_path / name).write_text(HOSTILE.encode("utf-8", "replace").decode().replace("\0", ""))

    async def talk(chat):
        await chat.write("@Beg")
        await chat.until(lambda: chat.completions == ["@Begin[@click=app.quit]y"])
        await chat.press("tab", "enter")
        await chat.until(lambda: len(chat.said) == 2)
        for name in ("Begin\x1b[2J[red]x", "Begin\u202e.txt", "none\x1b[2J", "Begin\x9b.txt"):
            chat.app.do(chat.app.actions.run("attach", name))
            await chat.settle()
            assert_clean(chat)
        chat.app.do(chat.app.actions.run("export", "md out\x1b[2J[red].md"))
        await chat.until(lambda: chat.told("Written: "))

    drive_hostile(talk, tmp_path)


def test_of_what_is_pasted(tmp_path):
    provider = ScriptedProvider()

    async def talk(chat):
        chat.app.post_message(Paste(f"one\r\ntwo\rthree\n{HOSTILE}"))
        await chat.until(lambda: chat.typed.startswith("one\ntwo\nthree\nBegin"))
        await chat.press("enter")
        await chat.until(lambda: provider.asked)
        await chat.settle()
        await chat.press("f3")
        await chat.until(lambda: chat.app.chat_list.query_one(Input).has_focus)
        chat.app.post_message(Paste(HOSTILE))
        await chat.until(lambda: "Begin" in chat.app.chat_list.search_text)
        await chat.press("escape", "f5", "f5")
        await chat.until(lambda: "Settings of this chat" in chat.screen)
        chat.app.post_message(Paste(HOSTILE))
        await chat.until(lambda: SEEN in chat.app.screen.query(Input).first().value)
        await chat.press("escape")

    drive_hostile(talk, tmp_path, provider)


def test_of_commands_and_settings_that_are_refused(tmp_path):
    async def talk(chat):
        for start in ("/frob", "/set", "/set temperature", "/theme", "/new"):
            chat.forget_notices()
            await chat.send(f"{start} {MARKUP}")
            await chat.until(lambda: chat.notices)
            await chat.settle()
        chat.forget_notices()
        chat.app.do(chat.app.actions.run("set", f"temperature {CONTROL}"))
        await chat.until(lambda: chat.notices)
        chat.app.do(chat.app.actions.run("title", HOSTILE))
        await chat.settle()
        assert_clean(chat)

    drive_hostile(talk, tmp_path)


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize(
    "figures",
    [
        {"completion_tokens": "\x1b[31mred", "prompt_tokens": "\x9bred"},
        {"completion_tokens": 3, "tokens_per_second": "fast", "first_token_seconds": []},
        {"completion_tokens": True, "prompt_tokens": 1e400},
        {"tokens_per_second": 10**400, "prompt_tokens": -1, "completion_tokens": {}},
    ],
    ids=["escapes", "types", "endless", "huge"],
)
def test_of_figures_of_an_answer_that_is_taken_in(tmp_path, figures):
    message = {"thought": "", "attachments": [], "model": "", "state": "whole", "created": 1}
    prompt = {**message, "id": 1, "parent": None, "role": "user", "text": "Hello", "figures": {}}
    answer = {**message, "id": 2, "parent": 1, "role": "assistant", "text": "Hi", "figures": figures}
    chat = {"format": "edge-llm chat", "version": 1, "title": "odd", "created": 1, "changed": 1, "settings": {}, "leaf": 2}
    (tmp_path / "odd.json").write_text(json.dumps({**chat, "messages": [prompt, answer]}))

    async def talk(chat):
        await chat.send("/import odd.json")
        await chat.settle()
        assert "\x1b[31mred" not in chat.written and "\x9b" not in chat.written
        if ("assistant", "Hi") in chat.said:  # else it was refused, and that was told
            await chat.ask("Again")
        else:
            assert chat.told("odd.json")

    drive(talk, tmp_path)
    drive(talk, tmp_path)
