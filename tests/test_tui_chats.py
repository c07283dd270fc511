"""Chats that are kept: restored, listed, found, named, deleted, exported, and shared by two terminals."""

import asyncio
import json
import threading

import pytest
from chat_driver import drive, rows, running
from scripted_provider import FIGURES, ScriptedCatalogue, ScriptedProvider, answer
from writing_store import WritingStore

from edge_llm.chats.store import ChatStore
from edge_llm.providers.base import Ended

pytestmark = pytest.mark.thorough(file=3)


def test_the_last_chat_is_there_again_with_its_settings(tmp_path):
    async def talk(chat):
        await chat.ask("An older one")
        await chat.press("ctrl+n")
        await chat.settle()
        await chat.ask("The last one")
        await chat.send("/set temperature 0.5")
        await chat.settle()

    drive(talk, tmp_path)
    provider = ScriptedProvider()

    async def again(chat):
        assert chat.said == [("user", "The last one"), ("assistant", "You said: The last one")]
        await chat.ask("Go on")
        assert provider.asked[0].sampling == {"temperature": 0.5}
        assert [one["content"] for one in provider.asked[0].messages] == ["The last one", "You said: The last one", "Go on"]

    drive(again, tmp_path, provider)

    async def anew(chat):
        assert chat.said == []
        await chat.ask("A new one")
        assert chat.titles == ["An older one", "The last one", "A new one"]

    drive(anew, tmp_path, resume=False)


def test_a_prompt_that_is_shown_is_on_the_disk(tmp_path):
    provider = ScriptedProvider([[]])

    async def talk(chat):
        await chat.send("Keep this")
        await chat.until(lambda: ("user", "Keep this") in chat.said)
        assert chat.stored[0] == ("user", "Keep this", "whole")

    drive(talk, tmp_path, provider)


def test_chats_are_listed_opened_renamed_and_deleted(tmp_path):
    async def talk(chat):
        for text in ("About apples", "About pears"):
            await chat.ask(text)
            await chat.press("ctrl+n")
            await chat.settle()
        await chat.press("f3")
        await chat.until(lambda: len(chat.listed) == 2)
        assert "About pears" in chat.listed[0]
        await chat.press("down", "down", "enter")
        await chat.until(lambda: ("user", "About apples") in chat.said)
        await chat.settle()
        assert "› About apples" in chat.screen
        chat.app.chat_list.look_for("")
        await chat.press("down", "f6")
        await chat.until(lambda: "Title of the chat" in chat.screen)
        await chat.press(*(["backspace"] * 20), *"Fruit", "enter")
        await chat.until(lambda: any("Fruit" in line for line in chat.listed))
        assert "Fruit" in chat.titles
        before = chat.titles
        await chat.press("delete")
        await chat.until(lambda: "Delete the chat" in chat.screen)
        await chat.press("escape")
        await chat.settle()
        assert chat.titles == before
        await chat.press("delete")
        await chat.until(lambda: "Delete the chat" in chat.screen)
        await chat.press("y")
        await chat.until(lambda: len(chat.titles) == 1)
        await chat.settle()
        assert len(chat.listed) == 1
        await chat.press("escape")
        await chat.until(lambda: chat.app.prompt.area.has_focus)

    drive(talk, tmp_path)


def test_chats_are_found_by_what_was_said(tmp_path):
    async def talk(chat):
        for text in ("Der Apfel fiel", "Die Birne nicht", "漢字の話"):
            await chat.ask(text)
            await chat.press("ctrl+n")
            await chat.settle()
        await chat.send("/search birne")
        await chat.until(lambda: len(chat.listed) == 1)
        assert "Die Birne nicht" in chat.listed[0]
        for words, many in (("fiel apfel", 1), ("漢字", 1), ("nothing like it", 0), ('"*', 0), ("", 3)):
            chat.app.chat_list.look_for(words)
            await chat.until(lambda many=many: len(chat.listed) == many)

    drive(talk, tmp_path)


def test_a_burst_that_searches_opens_what_it_searches(tmp_path):
    """Enter means the list of the words before it, not the one that is shown until that has come."""

    async def talk(chat):
        for word in ("needle", "hay", "straw"):
            await chat.ask(word)
            await chat.send("/new")
            await chat.settle()
        await chat.press("f3")
        await chat.settle()
        chat.burst(*"needle", "enter")
        await chat.until(lambda: ("user", "needle") in chat.said)
        await chat.press("f3", "f3")
        await chat.settle()
        chat.burst(*"nowhere", "enter", *["backspace"] * 7)
        await chat.until(lambda: len(chat.listed) >= 3)
        await chat.settle()
        assert ("user", "needle") in chat.said, "nothing was found, and nothing is opened later"

    drive(talk, tmp_path)


def test_a_title_stays_as_a_person_gave_it(tmp_path):
    async def talk(chat):
        await chat.ask("Hello there")
        assert "Hello there" in chat.screen.splitlines()[0]
        await chat.send("/title My [b]own[/b] title")
        await chat.until(lambda: "My [b]own[/b] title" in chat.screen.splitlines()[0])
        await chat.ask("Something else")
        await chat.settle()
        assert chat.titles == ["My [b]own[/b] title"]

    drive(talk, tmp_path)


def test_deleting_the_chat_on_the_screen_begins_a_new_one(tmp_path):
    async def talk(chat):
        await chat.ask("Away with it")
        await chat.send("/delete")
        await chat.until(lambda: "Delete the chat" in chat.screen)
        await chat.press("y")
        await chat.until(lambda: chat.said == [])
        await chat.settle()
        assert chat.stored == []
        await chat.ask("Anew")
        assert chat.titles == ["Anew"]

    drive(talk, tmp_path)


def test_a_chat_that_is_deleted_while_it_is_answered_stays_deleted(tmp_path):
    provider = ScriptedProvider([["It grows"]])

    async def talk(chat):
        await chat.send("Away with it")
        await chat.until(lambda: "It grows" in chat.screen)
        await chat.send("/delete")
        await chat.until(lambda: "Delete the chat" in chat.screen)
        await chat.press("y")
        await chat.until(lambda: chat.said == [] and provider.replies[0].over)
        await chat.settle()
        assert (chat.stored, chat.titles) == ([], [])

    drive(talk, tmp_path, provider)


def test_deleting_another_chat_does_not_stop_the_answer_of_this_one(tmp_path):
    provider = ScriptedProvider([[Ended("stop", FIGURES)], ["It grows"]])

    async def talk(chat):
        await chat.ask("The old one")
        await chat.press("ctrl+n")
        await chat.settle()
        await chat.send("The new one")
        await chat.until(lambda: "It grows" in chat.screen)
        (old,) = [found.chat for found in chat.session.store.chats() if found.chat.title == "The old one"]
        chat.app.do(chat.app.actions.chats.act_on_chat(old.id, "delete"))
        await chat.until(lambda: "Delete the chat “The old one”?" in chat.screen)
        await chat.press("y")
        await chat.until(lambda: chat.titles == ["The new one"])
        provider.replies[1].give(" on", Ended("stop", FIGURES))
        await chat.settle()
        assert chat.stored[-1] == ("assistant", "It grows on", "whole")

    drive(talk, tmp_path, provider)


def test_an_answer_goes_on_while_another_chat_is_on_the_screen(tmp_path):
    provider = ScriptedProvider([["It"]])

    async def talk(chat):
        await chat.send("First chat")
        await chat.until(lambda: "It" in chat.screen)
        first = chat.session.chat.chat.id
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.said == [])
        provider.replies[0].give(" grows")
        await chat.send("Second chat")
        await chat.until(lambda: "You said: Second chat" in chat.screen and not chat.session.busy)
        assert [text for _, text in chat.said] == ["Second chat", "You said: Second chat"]
        await chat.session.open(first)
        await chat.until(lambda: "It grows" in chat.screen)
        assert chat.session.busy
        provider.replies[0].give(" on")
        await chat.until(lambda: "It grows on" in chat.screen)
        await chat.press("escape")
        await chat.settle()
        assert ("assistant", "It grows on", "stopped") in chat.stored
        assert chat.titles == ["First chat", "Second chat"]

    drive(talk, tmp_path, provider)


def test_who_comes_back_at_once_misses_nothing_of_an_answer(tmp_path):
    """Pieces come while the messages of the chat are drawn anew."""
    provider = ScriptedProvider([[]])

    async def talk(chat):
        await chat.send("Count")
        await chat.until(lambda: provider.replies)
        text = ""
        for number in range(30):
            provider.replies[0].give(f"{number} ")
            text += f"{number} "
            if number % 7 == 3:
                await chat.session.show(chat.session.chat)
        await chat.until(lambda: text.strip() in chat.screen)
        provider.replies[0].give(Ended("stop", FIGURES))
        await chat.settle()
        assert text.strip() in chat.screen

    drive(talk, tmp_path, provider, size=(140, 24))


def test_an_answer_that_ends_while_its_chat_comes_back_is_shown_whole(tmp_path, monkeypatch):
    end = asyncio.Event()
    provider = ScriptedProvider([answer("old"), ["Some", end, " words", Ended("stop")]])

    async def talk(chat):
        await chat.ask("One")
        first = chat.session.chat.chat.id
        await chat.send("/new")
        await chat.settle()
        await chat.send("Two")
        second = chat.session.chat
        await chat.until(lambda: chat.said[-1:] == [("assistant", "Some")])
        await chat.session.open(first)
        mount_all = chat.transcript.mount_all

        async def mount_slowly(views, **where):
            end.set()
            await chat.until(lambda: not chat.session.busy)
            await mount_all(views, **where)

        monkeypatch.setattr(chat.transcript, "mount_all", mount_slowly)
        await chat.session.open(second.chat.id)
        await chat.settle()
        assert chat.said == [("user", "Two"), ("assistant", "Some words")]
        assert "Some words" in chat.screen and "unfinished" not in chat.screen

    drive(talk, tmp_path, provider)


def test_a_chat_that_waits_for_its_model_can_be_left_and_opened_again(tmp_path):
    gate = threading.Event()
    catalogue = ScriptedCatalogue(loads={"scripted": [gate]})

    async def talk(chat):
        await chat.send("First chat")
        await chat.until(lambda: ("user", "First chat") in chat.said)
        first = chat.session.chat.chat.id
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.said == [])
        await chat.session.open(first)
        gate.set()
        await chat.until(lambda: "You said: First chat" in chat.screen)
        await chat.settle()
        assert len(chat.stored) == 2

    drive(talk, tmp_path, catalogue=catalogue, ready=False)


def test_a_prompt_is_answered_in_its_chat_also_if_one_leaves_it_at_once(tmp_path):
    async def talk(chat):
        first = chat.session.chat
        chat.app.prompt.area.take("For the first")
        chat.app.prompt.area.send()
        await chat.until(lambda: first.messages)
        await chat.app.actions.chats.do_new("")
        await chat.settle()
        await chat.until(lambda: len(first.messages) == 2)
        await chat.settle()
        assert rows(chat.path, "SELECT count(DISTINCT chat), count(*) FROM messages") == [(1, 2)]

    drive(talk, tmp_path)


def test_chats_are_exported_and_no_file_is_overwritten(tmp_path):
    async def talk(chat):
        await chat.ask("Export me")
        for command, name in (("", "export-me.md"), (" json", "export-me.json"), (" md out.txt", "out.txt")):
            await chat.send(f"/export{command}")
            await chat.until(lambda name=name: (tmp_path / name).exists())
            await chat.settle()
        assert "You said: Export me" in (tmp_path / "export-me.md").read_text()
        assert [one["text"] for one in json.loads((tmp_path / "export-me.json").read_text())["messages"]] == [
            "Export me",
            "You said: Export me",
        ]
        (tmp_path / "out.txt").write_text("mine")
        await chat.send("/export md out.txt")
        await chat.until(lambda: chat.told("is there already"))
        assert (tmp_path / "out.txt").read_text() == "mine"
        await chat.send("/export json none/at/all.json")
        await chat.until(lambda: chat.told("cannot write"))
        await chat.send("/screenshot seen.svg")
        await chat.until(lambda: (tmp_path / "seen.svg").exists())

    drive(talk, tmp_path)


def test_an_empty_chat_leaves_nothing_behind(tmp_path):
    async def talk(chat):
        for key in ("ctrl+n", "ctrl+n", "ctrl+r", "ctrl+t", "ctrl+l", "ctrl+o"):
            await chat.press(key)
        for command in ("/branch", "/delete"):
            await chat.send(command)
            await chat.taken()
        await chat.press("n")
        await chat.settle()
        assert chat.titles == []

    drive(talk, tmp_path)


def test_two_terminals_lose_nothing_of_each_other(tmp_path):
    async def both():
        one_model, other_model = ScriptedProvider(), ScriptedProvider()
        async with running(tmp_path, ScriptedCatalogue({"a": one_model})) as one:
            await one.ask("From one")
            async with running(tmp_path, ScriptedCatalogue({"b": other_model})) as other:
                assert ("user", "From one") in other.said
                for number in range(3):  # both go on in the same chat
                    await asyncio.gather(one.ask(f"one {number}"), other.ask(f"other {number}"))
                await one.press("ctrl+n")
                await one.settle()
                await one.ask("A second chat")
                await other.press("f3")
                await other.until(lambda: len(other.listed) == 2)
        texts = {text for _, text, _ in one.stored}
        asked = {"From one", "A second chat", *(f"{who} {number}" for who in ("one", "other") for number in range(3))}
        assert texts == asked | {f"You said: {text}" for text in asked}
        assert {state for _, _, state in one.stored} == {"whole"}

    asyncio.run(both())


def test_a_chat_that_another_terminal_deleted_is_kept_by_who_goes_on_with_it(tmp_path):
    async def talk(chat):
        await chat.ask("First")
        other, _ = ChatStore.open(chat.path)
        other.delete(chat.session.chat.chat.id)
        other.close()
        await chat.ask("Second")
        assert [text for _, text, _ in chat.stored] == ["First", "You said: First", "Second", "You said: Second"]
        assert not chat.session.unsaved

    drive(talk, tmp_path)


def test_a_long_chat_shows_its_end_and_brings_earlier_messages(tmp_path):
    store, _ = WritingStore.open(tmp_path / "chats.db")
    chat = store.begin({})
    parent = None
    for number in range(90):
        role = "assistant" if number % 2 else "user"
        parent = store.add(chat.id, parent, role, f"message {number}.").id
    store.close()

    async def talk(chat):
        await chat.until(lambda: "message 89." in chat.screen)
        assert len(chat.said) < 60
        earliest = chat.said[0][1]
        chat.transcript.query_one("#earlier").press()
        await chat.until(lambda: chat.said[0][1] != earliest)
        await chat.settle()
        while chat.said[0][1] != "message 0.":
            before = len(chat.said)
            chat.transcript.query_one("#earlier").press()
            await chat.until(lambda before=before: len(chat.said) > before)
        assert [text for _, text in chat.said] == [f"message {number}." for number in range(90)]
        await chat.ask("message 90.")
        await chat.until(lambda: "You said: message 90." in chat.screen)

    drive(talk, tmp_path, size=(80, 24))


def test_a_chat_may_be_shown_while_earlier_messages_come(tmp_path):
    store, _ = WritingStore.open(tmp_path / "chats.db")
    chat = store.begin({})
    parent = None
    for number in range(90):
        parent = store.add(chat.id, parent, "assistant" if number % 2 else "user", f"message {number}.").id
    store.close()

    async def talk(chat):
        await chat.until(lambda: "message 89." in chat.screen)
        shown, transcript = chat.session.chat, chat.transcript
        for _ in range(4):
            changes = (transcript.show_earlier(), transcript.show(shown.path, shown.messages), transcript.show_earlier())
            await asyncio.gather(*changes)
            seen = [text for _, text in chat.said]
            assert seen == [f"message {number}." for number in range(90 - len(seen), 90)]
            assert len(transcript.query("#earlier")) == (len(seen) < 90)

    drive(talk, tmp_path, size=(80, 24))


def test_prompts_of_all_chats_are_the_history(tmp_path):
    async def talk(chat):
        await chat.ask("Older")
        await chat.press("ctrl+n")
        await chat.settle()
        await chat.press("up")
        assert chat.typed == "Older"

    drive(talk, tmp_path)


def test_a_prompt_that_is_edited_stays_in_its_chat(tmp_path):
    async def talk(chat):
        await chat.ask("One")
        await chat.ask("Two")
        await chat.press("ctrl+l")
        await chat.until(lambda: "Editing your last prompt" in chat.screen)
        await chat.press("ctrl+n")
        await chat.until(lambda: "Editing your last prompt" not in chat.screen)
        await chat.ask("Three")
        assert not chat.session.unsaved and chat.notices == []
        said = [text for _, text, _ in chat.stored]
        assert said == ["One", "You said: One", "Two", "You said: Two", "Three", "You said: Three"]

    drive(talk, tmp_path)
