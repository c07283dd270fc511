"""What goes wrong under the full-screen chat: engine, disk and database fail; the chat stays, and nothing is lost."""

import asyncio
import sqlite3

import pytest
from chat_driver import drive, rows
from scripted_provider import ScriptedProvider, answer
from textual.widgets._toast import Toast

from edge_llm.chats.store import ChatStore
from edge_llm.errors import ContextOverflow, DeviceLost, NumericError, OutOfMemory, StorageError, Unavailable
from edge_llm.providers.base import Facts
from edge_llm.tui.wording import in_chat

pytestmark = pytest.mark.thorough(file=3)

ERRORS = [
    NumericError("layer 3 made a NaN"),
    DeviceLost("npu", "the card is gone"),
    OutOfMemory("no page is free"),
    Unavailable("the server went away"),
    StorageError("weights cannot be read"),
    RuntimeError("something [b]odd[/b]"),
]


@pytest.fixture(autouse=True)
def saves_again_soon(monkeypatch):
    monkeypatch.setattr("edge_llm.tui.app.SAVE_AGAIN_SECONDS", 0.1)


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_in_the_middle_of_an_answer_keeps_what_came(tmp_path, error):
    provider = ScriptedProvider([["Once upon", error], answer(" a time.")])

    async def talk(chat):
        await chat.ask("Tell a story")
        await chat.until(lambda: chat.told(in_chat(str(error))))
        assert "Once upon" in chat.screen
        assert "Failed: " in chat.screen and str(error)[:40] in chat.screen
        assert chat.stored == [("user", "Tell a story", "whole"), ("assistant", "Once upon", "failed")]
        await chat.press("ctrl+t")
        await chat.until(lambda: "Once upon a time." in chat.screen)
        await chat.settle()
        assert chat.stored[-1] == ("assistant", "Once upon a time.", "whole")
        await chat.ask("Another")
        assert "You said: Another" in chat.screen

    drive(talk, tmp_path, provider)


def test_an_answer_without_an_end_is_told(tmp_path):
    async def talk(chat):
        chat.session.provider.ask = lambda ask: Endless()
        await chat.ask("Go")
        await chat.until(lambda: chat.told("ended without its last part"))
        assert chat.stored[-1] == ("assistant", "It", "failed")

    drive(talk, tmp_path)


class Endless:
    """A reply that just ends."""

    tokens = 0
    prompt_progress = None

    def cancel(self):
        pass

    async def __aiter__(self):
        from edge_llm.talk.pieces import Said

        yield [Said("It")]


def test_a_prompt_that_is_too_long_is_told_and_can_be_edited(tmp_path):
    provider = ScriptedProvider([[ContextOverflow(2000, 1024)]])

    async def talk(chat):
        await chat.ask("Too long")
        await chat.until(lambda: chat.told("the prompt has 2000 tokens, the context holds 1024"))
        await chat.press("ctrl+l")
        await chat.until(lambda: chat.typed == "Too long")
        await chat.ask("Shorter")
        assert [one["content"] for one in provider.asked[1].messages] == ["Shorter"]
        assert "You said: Shorter" in chat.screen

    drive(talk, tmp_path, provider)


# ---- the disk and the database


class HeldStore:
    """Opens the store of ``folder``, and holds it, so that a test can take its disk away."""

    def __init__(self, folder, timeout=0.05):
        self.path = folder / "chats.db"
        self.timeout = timeout
        self.store = None

    def __call__(self):
        self.store, notice = ChatStore.open(self.path, self.timeout)
        return self.store, notice

    def fill_disk(self):
        (pages,) = self.store._db.execute("PRAGMA page_count").fetchone()
        self.store._db.execute(f"PRAGMA max_page_count = {pages}")

    def make_room(self):
        self.store._db.execute("PRAGMA max_page_count = 100000")

    def lock(self):
        self._other = sqlite3.connect(self.path, isolation_level=None)
        self._other.execute("BEGIN IMMEDIATE")

    def unlock(self):
        self._other.execute("ROLLBACK")
        self._other.close()


def test_a_full_disk_loses_nothing_and_is_written_when_there_is_room(tmp_path):
    held = HeldStore(tmp_path)
    long = "many words " * 3000
    provider = ScriptedProvider([answer(long)])

    async def talk(chat):
        held.fill_disk()
        await chat.ask("Say much")
        await chat.until(lambda: chat.told("This chat is not saved") and chat.told("the disk is full"))
        chat.forget_notices()
        await chat.until(lambda: "NOT SAVED" in chat.screen)
        await chat.ask("More")
        assert [text for _, text in chat.said] == ["Say much", long, "More", "You said: More"]
        held.make_room()
        await chat.until(lambda: chat.told("The chat is saved now"))
        await chat.until(lambda: "NOT SAVED" not in chat.screen)
        assert chat.stored == [(role, text, "whole") for role, text in chat.said]
        assert not chat.told("This chat is not saved"), "it is told once"

    drive(talk, tmp_path, provider, open_store=held)


@pytest.mark.parametrize(("size", "notices"), [((40, 12), 1), ((100, 40), 4)])
def test_notices_leave_the_prompt_and_the_line_of_status_to_be_seen(tmp_path, size, notices):
    async def talk(chat):
        for number in range(notices):
            chat.app.tell(f"Notice {number}", "error")
        await chat.until(lambda: f"Notice {notices - 1}" in chat.screen)
        toasts = [toast.region for toast in chat.app.screen.query(Toast)]
        seen = [chat.app.query_one(name).region for name in ("#status", "#prompt")]
        assert toasts and not any(toast.overlaps(region) for toast in toasts for region in seen)

    drive(talk, tmp_path, size=size)


def test_a_locked_database_is_waited_for_and_nothing_is_lost(tmp_path):
    held = HeldStore(tmp_path)

    async def talk(chat):
        await chat.ask("Before")
        held.lock()
        await chat.ask("Meanwhile")
        await chat.until(lambda: chat.told("another program holds it"))
        assert "You said: Meanwhile" in chat.screen
        await chat.press("ctrl+n")  # the chat that is not saved can be left
        await chat.until(lambda: chat.said == [])
        held.unlock()
        await chat.until(lambda: chat.told("The chat is saved now"))
        assert [text for _, text, _ in chat.stored] == ["Before", "You said: Before", "Meanwhile", "You said: Meanwhile"]

    drive(talk, tmp_path, open_store=held)


def test_one_goes_on_writing_while_the_database_lets_wait(tmp_path):
    held = HeldStore(tmp_path, timeout=30)

    async def talk(chat):
        await chat.press("f3")
        await chat.until(lambda: chat.app.chat_list.display)
        held.lock()
        await chat.send("Hello")
        await chat.until(lambda: chat.session.busy)
        await chat.write("The next")
        await chat.press("x")
        await chat.resize(120, 30)
        assert chat.typed == "The nextx"
        assert "The nextx" in chat.screen
        held.unlock()
        await chat.until(lambda: len(chat.stored) == 2)

    drive(talk, tmp_path, open_store=held)


def test_saving_again_waits_for_the_try_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr("edge_llm.tui.app.SAVE_AGAIN_SECONDS", 0.01)
    tries, gate = [], asyncio.Event()

    async def save_all():
        tries.append(len(tries))
        await gate.wait()

    async def talk(chat):
        monkeypatch.setattr(chat.session, "save_all", save_all)
        await chat.until(lambda: tries)
        await asyncio.sleep(0.2)
        assert tries == [0]
        gate.set()
        await chat.until(lambda: len(tries) > 1)

    drive(talk, tmp_path)


def test_leaving_with_a_chat_that_cannot_be_saved_is_possible(tmp_path):
    held = HeldStore(tmp_path)

    async def talk(chat):
        held.lock()
        await chat.ask("Hello")
        await chat.press("ctrl+q")
        await chat.until(lambda: chat.app._exit or chat.told("once more"))
        if not chat.app._exit:
            await chat.press("ctrl+q")
            await chat.until(lambda: chat.app._exit)
        held.unlock()

    drive(talk, tmp_path, open_store=held)


def test_a_damaged_file_is_kept_aside_and_told(tmp_path):
    damaged = b"SQLite format 3\0" + b"not at all" * 1000
    (tmp_path / "chats.db").write_bytes(damaged)

    async def talk(chat):
        aside = [path for path in tmp_path.iterdir() if path.read_bytes() == damaged]
        assert len(aside) == 1
        assert aside[0].name != "chats.db"
        assert chat.told(aside[0].name)
        await chat.ask("Hello")
        assert len(chat.stored) == 2

    drive(talk, tmp_path)


def test_a_database_that_is_deleted_while_it_is_open_is_told_and_the_chat_stays(tmp_path):
    async def talk(chat):
        await chat.ask("Before")
        for path in tmp_path.glob("chats.db*"):
            path.rename(tmp_path / f"away-{path.name}")
        await chat.ask("After")
        await chat.until(lambda: chat.told("was moved or deleted"))
        chat.forget_notices()
        await chat.until(lambda: "NOT SAVED" in chat.screen)
        assert [text for _, text in chat.said] == ["Before", "You said: Before", "After", "You said: After"]
        assert not (tmp_path / "chats.db").exists()
        for path in tmp_path.glob("away-*"):
            path.rename(tmp_path / path.name.removeprefix("away-"))
        await chat.until(lambda: chat.told("The chat is saved now"))
        assert [text for _, text, _ in chat.stored] == ["Before", "You said: Before", "After", "You said: After"]

    drive(talk, tmp_path)


@pytest.mark.parametrize("error", [StorageError("no such disk"), OSError("odd")], ids=type)
def test_chats_that_cannot_be_opened_are_told_and_one_chats_nevertheless(tmp_path, error):
    def refuse():
        raise error

    async def talk(chat):
        assert chat.told(str(error))
        await chat.ask("Hello")
        assert "You said: Hello" in chat.screen
        await chat.press("f3")
        await chat.until(lambda: len(chat.listed) == 1)

    drive(talk, tmp_path, open_store=refuse)


def test_settings_that_another_version_wrote_are_passed_over(tmp_path):
    async def talk(chat):
        await chat.ask("Hello")

    drive(talk, tmp_path)
    db = sqlite3.connect(tmp_path / "chats.db", isolation_level=None)
    db.execute("""UPDATE chats SET settings = '{"model": 7, "sampling": [1], "runtime": "x", "thinking": {}, "new": {}}'""")
    db.close()

    async def again(chat):
        await chat.until(lambda: ("user", "Hello") in chat.said)
        await chat.ask("Again")
        assert len(rows(chat.path, "SELECT id FROM messages")) == 4

    drive(again, tmp_path, ScriptedProvider(facts=Facts("scripted")))


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(
    "change",
    [
        "chats SET settings = '{'",
        "chats SET title = x'ff00', changed = 'then', created = 1e300",
        "chats SET leaf = 99",
        "messages SET figures = '{'",
        """messages SET figures = '{"tokens_per_second": "a", "prompt_tokens": "b", "completion_tokens": []}'""",
        "messages SET role = 'a role', state = 'odd', created = 'then'",
        "messages SET text = x'ff', model = x'1b5b', thought = x'00'",
    ],
)
def test_rows_that_another_program_has_spoilt_are_shown_as_far_as_they_can_be_and_the_chat_goes_on(tmp_path, change):
    async def talk(chat):
        await chat.ask("Hello")

    drive(talk, tmp_path)
    db = sqlite3.connect(tmp_path / "chats.db", isolation_level=None)
    db.execute(f"UPDATE {change}")
    db.close()

    async def again(chat):
        assert len(chat.said) == 2
        await chat.press("f3")
        await chat.until(lambda: len(chat.listed) == 1)
        await chat.ask("Again")
        await chat.send("/export md")
        await chat.settle()
        assert ("user", "Again", "whole") in chat.stored
        assert [notice for notice in chat.notices if "Written" not in notice] == []

    drive(again, tmp_path)


def test_when_the_last_chat_cannot_be_read_a_new_one_is_saved(tmp_path):
    async def talk(chat):
        await chat.ask("Hello")

    drive(talk, tmp_path)

    def open_store():
        store, notice = ChatStore.open(tmp_path / "chats.db")
        read, refusals = store.messages, [StorageError("odd sectors")]
        store.messages = lambda chat_id: read(chat_id) if not refusals else refuse(refusals.pop())
        return store, notice

    async def again(chat):
        assert chat.told("odd sectors")
        await chat.ask("Again")
        assert ("user", "Again", "whole") in chat.stored and len(chat.stored) == 4

    drive(again, tmp_path, open_store=open_store)


def refuse(error):
    raise error


@pytest.mark.parametrize("command", ["/export", "/import", "/attach", "/screenshot"])
def test_the_home_of_somebody_who_is_not_there_is_no_mistake_of_ours(tmp_path, command):
    async def talk(chat):
        await chat.ask("Hello")
        await chat.send(f"{command} ~nobody-is-called-so/chat")
        await chat.until(lambda: chat.told("nobody-is-called-so"))
        assert not chat.told("internal error")

    drive(talk, tmp_path)
