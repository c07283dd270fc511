"""Nothing typed is lost: drafts by chat, what is edited and recalled, what waits for an answer, what a kill leaves."""

import asyncio

import pytest
from chat_driver import drive, rows, running
from scripted_provider import ScriptedCatalogue, ScriptedProvider

from edge_llm.chats.drafts import Draft, Drafts
from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.store import ChatStore
from edge_llm.chats.tree import Attachment
from edge_llm.errors import ContextOverflow, StorageError
from edge_llm.providers.base import Ended

pytestmark = pytest.mark.thorough(file=3)

TEXT = "a long half-written [b]prompt[/b]\nof two lines: 漢字"


def test_a_draft_is_there_after_a_restart_and_belongs_to_its_chat(tmp_path):
    (tmp_path / "notes.txt").write_text("inside")

    async def talk(chat):
        await chat.ask("First chat")
        await chat.send("/attach notes.txt")
        await chat.settle()
        await chat.write(TEXT)
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.typed == "")
        await chat.settle()
        assert "notes.txt" not in chat.screen
        await chat.press("up")
        assert chat.typed == TEXT, "Up reaches it from every chat"
        await chat.press("down")
        await chat.write("of the second chat")
        await chat.app.action_command("quit")
        await chat.settle()

    drive(talk, tmp_path)
    provider = ScriptedProvider()

    async def again(chat):
        assert chat.typed == "of the second chat"
        assert chat.said == []
        await chat.press("f3")
        await chat.until(lambda: len(chat.listed) == 2)
        assert "of the second chat" in chat.listed[0]
        await chat.press("down", "down", "enter")
        await chat.until(lambda: chat.typed == TEXT and "notes.txt" in chat.screen)
        await chat.press("enter")
        await chat.until(lambda: len(chat.said) == 4 and not chat.session.busy)
        assert provider.asked[0].messages[-1]["content"].endswith(TEXT)
        assert "inside" in provider.asked[0].messages[-1]["content"]
        await chat.settle()

    drive(again, tmp_path, provider)

    async def at_last(chat):
        assert chat.typed == ""
        assert len(rows(chat.path, "SELECT * FROM drafts")) == 1, "that of the other chat"

    drive(at_last, tmp_path)


def test_a_killed_program_keeps_what_was_typed_before_the_last_second(tmp_path):
    async def talk(chat):
        await chat.write(TEXT)
        await chat.until(lambda: rows(chat.path, "SELECT body FROM drafts"))
        store, _ = ChatStore.open(chat.path)
        (found,) = store.chats()
        assert OpenChat.read(store, found.chat.id).drafts.draft.text == TEXT
        store.close()
        await chat.write("")
        await chat.until(lambda: chat.titles == [])

    drive(talk, tmp_path)


def test_editing_the_last_prompt_moves_the_draft_aside_and_escape_brings_it_back(tmp_path):
    async def talk(chat):
        await chat.ask("First")
        await chat.write(TEXT)
        await chat.press("ctrl+l")
        await chat.until(lambda: "Editing your last prompt. Enter resends, Esc cancels" in chat.screen)
        assert chat.typed == "First"
        await chat.press("!", "ctrl+l")
        await chat.settle()
        assert chat.typed == "First!", "the same key does not undo what was changed"
        await chat.press("escape")
        await chat.until(lambda: chat.typed == TEXT)
        await chat.press("ctrl+r")
        await chat.until(lambda: len(chat.session.chat.messages) == 3 and not chat.session.busy)
        assert chat.typed == TEXT
        await chat.press("ctrl+l")
        await chat.until(lambda: chat.typed == "First")
        await chat.press("2", "enter")
        await chat.until(lambda: ("user", "First2", "whole") in chat.stored and not chat.session.busy)
        assert chat.typed == TEXT, "it is back when the other one is sent"
        await chat.write("")
        await chat.press("up", "up")
        assert chat.typed == "First!", "what was written instead is reached too"

    drive(talk, tmp_path)


def test_a_restart_in_the_middle_of_an_edit_keeps_both_texts(tmp_path):
    async def talk(chat):
        await chat.ask("First")
        await chat.write(TEXT)
        await chat.press("ctrl+l")
        await chat.until(lambda: chat.typed == "First")
        await chat.press("!")
        await chat.app.action_command("quit")
        await chat.settle()

    drive(talk, tmp_path)

    async def again(chat):
        assert chat.typed == "First!"
        assert "Editing your last prompt" in chat.screen
        await chat.press("escape")
        await chat.until(lambda: chat.typed == TEXT)

    drive(again, tmp_path)


def test_what_is_recalled_and_changed_is_reached_again_and_undo_undoes(tmp_path):
    async def talk(chat):
        await chat.ask("one")
        await chat.ask("two")
        await chat.write("draft")
        await chat.press("up", "!")
        await chat.press("up")
        assert chat.typed == "one"
        await chat.press("down")
        assert chat.typed == "two!"
        await chat.press("down")
        assert chat.typed == "draft"
        await chat.press("up", "up", "enter")
        await chat.until(lambda: len(chat.said) == 6 and not chat.session.busy)
        assert chat.typed == "draft", "it comes back behind what was sent"
        await chat.press("up")
        assert chat.typed == "one"
        await chat.press("up")
        assert chat.typed == "two!"
        await chat.press("ctrl+underscore")
        assert chat.typed == "one"
        await chat.press("ctrl+underscore")
        assert chat.typed == "draft"

    drive(talk, tmp_path)


def test_what_is_typed_before_the_chats_are_open_stays_and_so_does_the_draft_of_before(tmp_path):
    async def talk(chat):
        await chat.write("of yesterday")
        await chat.app.action_command("quit")
        await chat.settle()

    drive(talk, tmp_path)

    async def early(chat):
        await chat.write("typed at once")
        await chat.until(lambda: chat.app.begun.is_set())
        await chat.settle()
        assert chat.typed == "typed at once"
        await chat.press("up")
        assert chat.typed == "of yesterday"

    drive(early, tmp_path, ready=False)


def test_a_draft_is_kept_where_the_disk_refuses_it_until_it_does_not(tmp_path, monkeypatch):
    async def talk(chat):
        await chat.ask("First")
        refuse = [True]
        keep = chat.session.store.keep_draft

        def keep_draft(*args):
            if refuse:
                raise StorageError("the disk is full")
            return keep(*args)

        monkeypatch.setattr(chat.session.store, "keep_draft", keep_draft)
        await chat.write(TEXT)
        await chat.until(lambda: chat.told("the disk is full"))
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.typed == "")
        refuse.clear()
        await chat.session.save_all()
        assert len(rows(chat.path, "SELECT * FROM drafts")) == 1

    drive(talk, tmp_path)


# ---- commands that are being typed


@pytest.mark.parametrize("command", ["/search birne", "/", "/title", "/no such command", "/system first\nsecond"])
def test_a_command_that_is_being_typed_neither_makes_nor_names_a_chat_and_is_there_after_a_restart(tmp_path, command):
    """Whatever the pause in typing it: `settle` lets the clock of drafts go on."""

    async def talk(chat):
        await chat.ask("Die Birne fiel")
        await chat.send("/new")
        await chat.send("/chats")
        await chat.settle()
        for typed in ("half a prompt about a birne", command):
            await chat.write(typed)
            await chat.settle()
        assert chat.titles[1:] in ([], [""]), "the draft of before named it"
        chat.app.chat_list.look_for("birne")
        await chat.settle()
        await chat.until(lambda: len(chat.listed) == 1)
        await chat.write("")
        await chat.settle()
        assert chat.titles == ["Die Birne fiel"]
        await chat.write(command)
        await chat.settle()
        assert chat.titles == ["Die Birne fiel"]
        await chat.app.action_command("quit")
        await chat.settle()

    async def again(chat):
        assert (chat.typed, chat.said) == (command, [])
        await chat.send("/chats")
        await chat.settle()
        assert len(chat.listed) == 1
        await chat.until(lambda: chat.titles == ["Die Birne fiel"])

    drive(talk, tmp_path)
    drive(again, tmp_path)


def test_up_reaches_a_command_that_stood_in_the_prompt_of_an_empty_chat(tmp_path):
    async def talk(chat):
        await chat.write("/search birne")
        await chat.press("ctrl+n")
        await chat.settle()
        assert (chat.typed, chat.titles) == ("", [])
        await chat.press("up")
        assert chat.typed == "/search birne"

    drive(talk, tmp_path)


def test_a_command_in_the_prompt_of_a_chat_is_kept_with_it(tmp_path):
    async def talk(chat):
        await chat.ask("Hello")
        await chat.write("/export md")
        await chat.until(lambda: rows(chat.path, "SELECT body FROM drafts"))
        await chat.press("ctrl+n")
        await chat.settle()
        assert chat.titles == ["Hello"]
        await chat.session.open(rows(chat.path, "SELECT id FROM chats")[0][0])
        assert chat.typed == "/export md"

    drive(talk, tmp_path)


# ---- prompts that wait


def test_the_next_prompt_waits_for_the_answer_and_is_edited_and_taken_back_meanwhile(tmp_path):
    provider = ScriptedProvider([["Once"]])

    async def talk(chat):
        await chat.send("Tell a story")
        await chat.until(lambda: "Once" in chat.screen)
        await chat.send("And then?")
        await chat.until(lambda: "Queued: And then?" in chat.screen and "Up edits it, Esc takes it back" in chat.screen)
        assert chat.typed == ""
        await chat.press("up")
        await chat.until(lambda: chat.typed == "And then?" and "Queued" not in chat.screen)
        await chat.press("!", "enter")
        await chat.until(lambda: "Queued: And then?!" in chat.screen)
        await chat.write("more")
        await chat.press("escape")
        await chat.until(lambda: chat.typed == "And then?!\nmore")
        assert chat.session.busy, "the answer goes on"
        await chat.press("enter")
        provider.replies[0].give(Ended("stop"))
        await chat.until(lambda: chat.said[-1] == ("assistant", "You said: And then?!\nmore"))
        await chat.settle()
        assert [state for _, _, state in chat.stored] == ["whole"] * 4

    drive(talk, tmp_path, provider)


@pytest.mark.parametrize("how", ["stopped", "failed", "full"])
def test_what_waits_is_a_draft_again_when_the_answer_does_not_end(tmp_path, how):
    provider = ScriptedProvider([["Once"]])

    async def talk(chat):
        await chat.send("Tell a story")
        await chat.until(lambda: "Once" in chat.screen)
        await chat.send("And then?")
        await chat.send("And after that?")
        await chat.until(lambda: "Queued: And after that?" in chat.screen)
        await chat.write("more")
        if how == "stopped":
            await chat.press("ctrl+c")
        else:
            provider.replies[0].give(StorageError("no") if how == "failed" else ContextOverflow(2000, 1024))
        await chat.until(lambda: chat.typed == "And then?\nAnd after that?\nmore")
        assert len(provider.asked) == 1

    drive(talk, tmp_path, provider)


def test_what_waits_is_sent_in_its_chat_while_another_one_is_on_the_screen(tmp_path):
    provider = ScriptedProvider([["Once"]])

    async def talk(chat):
        await chat.send("Tell a story")
        await chat.until(lambda: "Once" in chat.screen)
        await chat.send("And then?")
        await chat.until(lambda: "Queued: And then?" in chat.screen)
        await chat.press("ctrl+n")
        await chat.until(lambda: "Once" not in chat.screen)
        await chat.write("something else")
        provider.replies[0].give(Ended("stop"))
        await chat.until(lambda: ("assistant", "You said: And then?", "whole") in chat.stored)
        await chat.settle()
        assert (chat.said, chat.typed) == ([], "something else")

    drive(talk, tmp_path, provider)


def test_what_waits_when_the_app_is_left_is_the_draft_of_the_next_time(tmp_path):
    async def talk(chat):
        await chat.send("Tell a story")
        await chat.until(lambda: "Once" in chat.screen)
        await chat.send("And then?")
        await chat.until(lambda: "Queued: And then?" in chat.screen)
        await chat.write("more")
        await chat.app.action_command("quit")
        await chat.until(lambda: not chat.session.busy)

    drive(talk, tmp_path, ScriptedProvider([["Once"]]))
    provider = ScriptedProvider()

    async def again(chat):
        assert chat.typed == "And then?\nmore"
        assert provider.asked == [], "nothing is sent by itself"

    drive(again, tmp_path, provider)


# ---- counting


def test_tokens_are_counted_while_one_types_with_the_files_and_only_where_somebody_counts(tmp_path):
    (tmp_path / "words.txt").write_text("one two three")
    provider = ScriptedProvider()
    other = ScriptedProvider()
    other.counts = False

    async def talk(chat):
        await chat.write("four words are here")
        await chat.until(lambda: "+4 tokens" in chat.screen)
        await chat.write("with @words.txt")
        with_file = 2 + len(["File", "`words.txt`:", "```", "one", "two", "three", "```"])
        await chat.until(lambda: f"+{with_file} tokens" in chat.screen)
        await chat.write("/system a command is no prompt")
        await chat.until(lambda: "tokens" not in chat.screen)
        await chat.send("/model other")
        await chat.settle()
        await chat.write("four words are here")
        await chat.until(lambda: chat.app.typed_tokens._counted[1] == "four words are here")
        await chat.settle()
        assert "tokens" not in chat.screen

    drive(talk, tmp_path, catalogue=ScriptedCatalogue({"scripted": provider, "other": other}))


def test_counting_never_holds_up_the_keys(tmp_path):
    """The count waits for a gate that opens only when the keys behind it are on the screen."""
    import threading

    gate = threading.Event()
    provider = ScriptedProvider()
    provider.count_text = lambda text: gate.wait(60) and len(text)

    async def talk(chat):
        await chat.write("slow to count")
        await chat.until(lambda: chat.app.typed_tokens._counted is not None and chat.app.typed_tokens._counted[1])
        await chat.press(*"!?")
        assert chat.typed == "slow to count!?"
        gate.set()
        await chat.until(lambda: "+15 tokens" in chat.screen)

    drive(talk, tmp_path, provider)


def test_the_count_is_that_of_what_is_written_in_whatever_order_counts_come(tmp_path):
    import threading

    gates = {"first text": threading.Event(), "second": threading.Event()}
    provider = ScriptedProvider()
    provider.count_text = lambda text: gates[text].wait(60) and len(text)

    async def talk(chat):
        for text in gates:
            await chat.write(text)
            await chat.until(lambda text=text: (chat.app.typed_tokens._counted or "  ")[1] == text)
        for text in reversed(gates):
            gates[text].set()
            await chat.until(lambda: "+6 tokens" in chat.screen)
        await chat.settle()
        assert "+6 tokens" in chat.screen

    drive(talk, tmp_path, provider)


# ---- the value


def test_drafts_come_back_from_the_file_as_they_were_whatever_is_in_them():
    files = (Attachment("a\n.txt", "\x00\ud800"),)
    drafts = Drafts(Draft("\ud800 x", files, 7), Draft("aside"), (Draft("q"), Draft("r", files)), ("o", "p"))
    assert Drafts.from_json(drafts.as_json()) == drafts
    odd_parts = '{"draft": 7, "queued": {"a": 1}, "others": [1, "x"]}'
    assert Drafts.from_json(odd_parts) == Drafts(others=("x",))
    for odd in ("", "[]", "7", "{}", "nonsense", '{"draft": {"text": 1}}'):
        assert isinstance(Drafts.from_json(odd), Drafts)


def test_two_terminals_keep_each_others_drafts(tmp_path):
    stores = [ChatStore.open(tmp_path / "chats.db")[0] for _ in range(2)]
    first = OpenChat.new(stores[0], {})
    first.add("user", "Hi", parent=None)
    first.set_drafts(Drafts(Draft("common")))
    first.save()
    second = OpenChat.read(stores[1], first.chat.id)
    for chat, text in ((first, "of the first"), (second, "of the second"), (first, "of the first, longer")):
        chat.set_drafts(Drafts(Draft(text)))
        chat.save()
    again = OpenChat.read(stores[0], first.chat.id).drafts
    assert {again.draft.text, *again.others} == {"of the first, longer", "of the second"}
    for store in stores:
        store.close()


def test_drafts_are_kept_while_two_chats_run_on_one_file(tmp_path):
    async def talk():
        catalogue = ScriptedCatalogue()
        async with running(tmp_path, catalogue) as one:
            await one.ask("Common")
            async with running(tmp_path, catalogue) as two:
                assert two.said == one.said
                await one.write("of one")
                await two.write("of two")
                await one.until(lambda: len(rows(one.path, "SELECT * FROM drafts")) == 2)
                await two.settle()
            await one.settle()

    asyncio.run(talk())

    async def again(chat):
        texts = {chat.typed}
        await chat.press("up")
        assert texts | {chat.typed} == {"of one", "of two"}

    drive(again, tmp_path)


