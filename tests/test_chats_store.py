"""The store of chats: what it says it has kept is there, whatever happens to the process, the disk and the file."""

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from writing_store import WritingStore

from edge_llm.chats.database import APPLICATION, MIGRATIONS
from edge_llm.chats.drafts import Draft, Drafts, begins_command
from edge_llm.chats.export import as_json, from_json
from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.store import ChatStore
from edge_llm.chats.tree import Attachment, Chat, Cut, Message, new_id, path_to
from edge_llm.errors import StorageError, UsageError
from edge_llm.paths import chats_file

pytestmark = pytest.mark.thorough(file=14)

ROOT = Path(__file__).resolve().parents[1]
HOSTILE = "\x1b]0;owned\x07[bold red]not markup[/] \u202egnp.exe <b> `" + "'\" -- %_"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chats.sqlite3"


@pytest.fixture
def opened(path):
    """Opens the file of the test; what it opened is closed at the end."""
    stores = []

    def open_it(timeout=60.0):
        store, notice = WritingStore.open(path, timeout)
        stores.append(store)
        open_it.notice = notice
        return store

    yield open_it
    for store in stores:
        store.close()


@pytest.fixture
def store(opened):
    return opened()


def filled(store, count=40, words="a text of some length, so that pages fill up "):
    """A chat of ``count`` messages in a row."""
    chat, parent = store.begin({"model": "m"}), None
    for number in range(count):
        role = "assistant" if number % 2 else "user"
        said = Message(new_id(), chat.id, parent, role, f"{number} {words * 10}", created=time.time())
        store.put(said)
        parent = said.id
    return store.chat(chat.id)


def run_python(code, *arguments):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )


# ---- what is written is there


def test_a_message_comes_back_as_it_was_written(store, opened):
    chat = store.begin({"system": HOSTILE, "temperature": 0.5, "nested": {"list": [1, None, True]}})
    prompt = store.add(chat.id, None, "user", HOSTILE, attachments=[Attachment(HOSTILE, HOSTILE), Attachment("b", "")])
    answer = store.add(chat.id, prompt.id, "assistant", "", model="qwen", state="growing", thought="hm")
    store.grow(answer, HOSTILE, HOSTILE, "stopped", {"completion_tokens": 3})
    store.rename(chat.id, HOSTILE)
    again = opened()
    first, second = again.messages(chat.id)
    assert first == prompt
    assert (first.text, first.attachments[0]) == (HOSTILE, Attachment(HOSTILE, HOSTILE))
    assert (second.text, second.thought, second.state, second.model) == (HOSTILE, HOSTILE, "stopped", "qwen")
    assert second.figures == {"completion_tokens": 3}
    kept = again.chat(chat.id)
    assert (kept.title, kept.leaf) == (HOSTILE, answer.id)
    assert kept.settings == {"system": HOSTILE, "temperature": 0.5, "nested": {"list": [1, None, True]}}


def test_a_new_message_is_shown_by_the_write_that_keeps_it(store):
    """A process that is killed between two writes must not leave a prompt that nobody sees."""
    chat = store.begin({})
    prompt = Message(new_id(), chat.id, None, "user", "hello", created=1.0)
    ChatStore.put(store, prompt)
    assert store.chat(chat.id).leaf == prompt.id
    other = replace(prompt, id=new_id() + 1, text="beside")
    ChatStore.put(store, other)
    ChatStore.put(store, replace(prompt, text="hello again"))
    assert store.chat(chat.id).leaf == other.id, "a message that grows does not change what is shown"


def test_what_is_no_text_does_not_lose_the_message(store):
    chat = store.begin({})
    assert store.add(chat.id, None, "user", "a \ud83d b", attachments=[Attachment("\udcff", "\udcff")]).text == "a ? b"
    assert store.messages(chat.id)[0].attachments == (Attachment("?", "?"),)
    assert store.chats("\ud83d ???") == []
    assert store.add(chat.id, None, "user", "before \0 behind").text == "before \ufffd behind"
    assert len(store.chats("behind")) == len(store.chats("before \0")) == 1


def test_the_first_prompt_names_a_chat_and_a_person_names_it_for_good(store):
    chat = store.begin({})
    assert chat.title == "New chat"
    prompt = store.add(chat.id, None, "user", "## Why is the sky *blue*?\nTell me")
    assert store.chat(chat.id).title == "Why is the sky blue?"
    store.add(chat.id, prompt.id, "user", "And green?")
    assert store.chat(chat.id).title == "Why is the sky blue?"
    store.rename(chat.id, "Sky")
    other = store.begin({})
    store.rename(other.id, "Mine")
    for each in (chat, other):
        store.add(each.id, None, "user", "Something else")
    assert (store.chat(chat.id).title, store.chat(other.id).title) == ("Sky", "Mine")
    with pytest.raises(UsageError):
        store.rename(chat.id, " \n")


def test_the_chat_that_changed_last_comes_first(store):
    first, second, third = (store.begin({}) for _ in range(3))
    answer = store.add(first.id, None, "assistant", "", state="growing")
    store.add(third.id, None, "user", "x")
    store.grow(answer, "y", "", "whole", {})
    assert [found.chat.id for found in store.chats()] == [first.id, third.id, second.id]
    assert [found.chat.id for found in store.chats(limit=1)] == [first.id]


def test_a_deleted_message_takes_all_below_it_and_the_path_goes_on_beside_or_above(store):
    chat = store.begin({})
    prompt = store.add(chat.id, None, "user", "q")
    one = store.add(chat.id, prompt.id, "assistant", "one")
    below_one = store.add(chat.id, one.id, "user", "more")
    two = store.add(chat.id, prompt.id, "assistant", "two")
    deep = store.add(chat.id, two.id, "user", "deep", attachments=[Attachment("a", "b")])
    store.delete_message(two.id)
    assert store.chat(chat.id).leaf == below_one.id
    assert [message.id for message in store.messages(chat.id)] == [prompt.id, one.id, below_one.id]
    store.delete_message(deep.id)  # is gone already
    store.set_leaf(chat.id, prompt.id)
    store.delete_message(one.id)
    assert store.chat(chat.id).leaf == prompt.id
    store.delete_message(prompt.id)
    assert (store.chat(chat.id).leaf, store.messages(chat.id)) == (None, [])


@pytest.mark.thorough
def test_chats_of_thousands_of_turns_are_deleted_whole(store):
    for delete_root in (True, False):
        chat = filled(store, 1300, "w")
        if delete_root:
            store.delete_message(store.messages(chat.id)[0].id)
            assert store.messages(chat.id) == []
        store.delete(chat.id)
        assert store.chat(chat.id) is None
        assert store.chats("w") == []


def test_prompts_are_the_last_distinct_ones_newest_last(store):
    one, two = store.begin({}), store.begin({})
    for chat, text in [(one, "a"), (two, "b"), (one, "c"), (two, "a"), (one, " ")]:
        store.add(chat.id, None, "user", text)
        store.add(chat.id, None, "assistant", "never this")
    assert store.prompts(10) == ["b", "c", "a"]
    assert store.prompts(2) == ["c", "a"]


def test_a_store_in_memory_does_the_same(tmp_path):
    store = WritingStore.in_memory()
    chat = filled(store)
    assert len(path_to(store.messages(chat.id), chat.leaf)) == 40
    assert store.chats("some length")
    assert not store.changed_elsewhere()
    store.close()
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_the_users_own(edge_llm_home):
    store, notice = WritingStore.open(chats_file())
    store.add(store.begin({}).id, None, "user", "secret")
    assert notice == ""
    assert chats_file().parent == edge_llm_home
    assert {file.stat().st_mode & 0o077 for file in edge_llm_home.iterdir()} == {0}
    store.close()


def test_a_copy_of_a_chat_from_elsewhere_has_ids_of_its_own(store):
    chat = filled(store, 5)
    answer = store.add(chat.id, chat.leaf, "assistant", "half", state="growing", attachments=[Attachment("a", "b")])
    copy = store.take_in(store.chat(chat.id), store.messages(chat.id))
    old = path_to(store.messages(chat.id), answer.id)
    new = path_to(store.messages(copy.id), copy.leaf)
    said = [[(each.role, each.text, each.attachments) for each in path] for path in (old, new)]
    assert said[0] == said[1]
    assert {each.id for each in new}.isdisjoint(each.id for each in old)
    assert new[-1].state == "stopped"


@given(st.integers(1, 8), st.dictionaries(st.integers(0, 7), st.integers(0, 16)))
def test_what_was_compacted_in_a_chat_from_elsewhere_is_so_in_its_copy(many, cuts):
    """What was said before a cut was made, and what behind it, is so in the copy: the ids of both moved."""
    old = [
        Message(
            2 * at + 2, 1, 2 * at or None, "assistant" if at % 2 else "user", f"{at}",
            cut=Cut(f"summary {at}", 2 * cuts[at] + 1, 7) if at in cuts else None,
        )
        for at in range(many)
    ]  # fmt: skip
    chat, messages = from_json(as_json(Chat(1, "t", {}, old[-1].id, 1.0, 1.0), old).encode(), "a.json")
    store = ChatStore.in_memory()
    new = store.messages(store.take_in(chat, messages).id)
    store.close()
    for one, other in zip(old, new, strict=True):
        assert (one.cut is None) == (other.cut is None)
        if one.cut is not None and other.cut is not None:
            assert (other.cut.summary, other.cut.tokens) == (one.cut.summary, one.cut.tokens)
            assert [each.id < other.cut.at for each in new] == [each.id < one.cut.at for each in old]


# ---- search


def found(store, text):
    return [each.chat.title for each in store.chats(text)]


@pytest.fixture(params=["index", "no index"])
def library(request, monkeypatch, path):
    """Chats to look through: with FTS5, and as if this SQLite had none."""
    if request.param == "no index":
        monkeypatch.setattr("edge_llm.chats.database._INDEX", "CREATE VIRTUAL TABLE words USING fts_that_is_missing (text)")
    store, _ = WritingStore.open(path)
    for title, text in [
        ("Snakes", "How do I sort a LIST in Python?"),
        ("Kitchen", "今天天气怎么样，晚饭吃什么"),
        ("Discount", '100% off_sale "quoted" it\'s (here) NEAR* -minus'),
        ("Привет", "Ещё один ПРИМЕР"),
    ]:
        chat = store.begin({})
        store.add(chat.id, None, "user", text)
        store.rename(chat.id, title)
    yield store
    store.close()


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        ("python", ["Snakes"]),
        ("ytho", ["Snakes"]),
        ("python list", ["Snakes"]),
        ("python kitchen", []),
        ("a li", ["Snakes"]),
        ("天气", ["Kitchen"]),
        ("天", ["Kitchen"]),
        ("天气怎么", ["Kitchen"]),
        ("пример", ["Привет"]),
        ("ПРИВ", ["Привет"]),
        ("kit", ["Kitchen"]),
        ("%", ["Discount"]),
        ("f_s", ["Discount"]),
        ('"quoted"', ["Discount"]),
        ('"', ["Discount"]),
        ("NEAR*", ["Discount"]),
        ("-minus", ["Discount"]),
        ("(here) it's", ["Discount"]),
        ("text:python", []),
        ("x\0y", []),
        ("", ["Привет", "Discount", "Kitchen", "Snakes"]),
        (" \n", ["Привет", "Discount", "Kitchen", "Snakes"]),
    ],
)
def test_search_finds_parts_of_words_in_texts_and_titles(library, text, titles):
    assert found(library, text) == titles


@given(text=st.text(max_size=30))
@settings(max_examples=60)
def test_any_text_can_be_looked_for(text):
    store = WritingStore.in_memory()
    chat = store.begin({})
    store.add(chat.id, None, "user", f"before {text} after")
    assert [found.chat.id for found in store.chats(f"before {text}")] == [chat.id]
    assert store.chats(text + " is not there at all") == []
    store.close()


def test_search_knows_texts_as_they_are_now(library):
    chat = library.chats("python")[0].chat
    answer = library.add(chat.id, chat.leaf, "assistant", "", state="growing")
    library.grow(answer, "a zebra begins", "", "growing", {})
    assert found(library, "zebra") == ["Snakes"]
    library.grow(answer, "a giraffe it is", "", "whole", {})
    assert (found(library, "zebra"), found(library, "giraffe")) == ([], ["Snakes"])
    library.grow(answer, "a giraffe and a lion", "", "growing", {})
    library.grow(answer, "a lion alone", "", "stopped", {})
    assert (found(library, "giraffe"), found(library, "lion")) == ([], ["Snakes"])
    library.delete_message(answer.id)
    assert found(library, "lion") == []
    library.delete(chat.id)
    assert found(library, "python") == []


def test_the_excerpt_shows_the_place_in_one_line(store):
    chat = store.begin({})
    store.add(chat.id, None, "user", "filler\n" * 1000 + "here is the\nNeedle in it\n" + "hay " * 1000)
    (hit,) = store.chats("needle")
    assert "here is the Needle in it" in hit.excerpt
    assert len(hit.excerpt) < 100
    assert store.chats("filler")[0].chat.title == "filler"


def test_a_file_goes_from_a_sqlite_with_index_to_one_without_and_back(monkeypatch, path, opened):
    def add_one(text):
        store = opened()
        store.add(store.begin({}).id, None, "user", text)
        assert [len(store.chats(word)) for word in ("first", "second", "third")].count(1) == len(store.chats())
        store.close()

    add_one("the first text")
    with monkeypatch.context() as patched:
        patched.setattr("edge_llm.chats.database._INDEX", "CREATE VIRTUAL TABLE IF NOT EXISTS other USING missing (text)")
        patched.setattr("edge_llm.chats.database._PROBE", "SELECT * FROM no_such_module")
        add_one("the second text")
    add_one("the third text")


# ---- processes

ADDER = """
import sys, time
from pathlib import Path
from writing_store import WritingStore
store, _ = WritingStore.open(Path(sys.argv[1]), 60)
chat = int(sys.argv[2]) or store.begin({}).id
parent = None
for number in range(int(sys.argv[3])):
    parent = store.add(chat, parent, "user", f"{sys.argv[4]} {number}").id
    print(chat, parent, flush=True)
if sys.argv[5:]:
    time.sleep(600)
"""


def test_a_message_that_was_added_survives_kill_9(path, opened):
    child = run_python(ADDER, path, 0, 3, "mine", "stay")
    ids = [tuple(map(int, child.stdout.readline().split())) for _ in range(3)]
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=60)
    store = opened()
    assert [(message.chat, message.id) for message in store.messages(ids[0][0])] == ids
    assert store.chat(ids[0][0]).leaf == ids[-1][1]
    assert [message.text for message in store.messages(ids[0][0])] == ["mine 0", "mine 1", "mine 2"]
    assert len(store.chats("mine 2")) == 1


def test_processes_that_add_at_once_lose_nothing(path, opened):
    store = opened()
    shared = store.begin({}).id
    assert not store.changed_elsewhere()
    children = [run_python(ADDER, path, chat, 25, name) for chat, name in [(shared, "a"), (shared, "b"), (0, "c"), (0, "d")]]
    printed = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0] * 4, printed
    assert store.changed_elsewhere()
    assert not store.changed_elsewhere()
    said = [line.split() for out, _ in printed for line in out.decode().splitlines()]
    kept = {(each.chat.id, message.id) for each in store.chats() for message in store.messages(each.chat.id)}
    assert kept == {(int(chat), int(message)) for chat, message in said}
    texts = sorted(message.text for message in store.messages(shared))
    assert texts == sorted(f"{name} {number}" for name in "ab" for number in range(25))


OPENER = """
import sys
from pathlib import Path
from writing_store import WritingStore
store, notice = WritingStore.open(Path(sys.argv[1]), 60)
message = store.add(store.begin({}).id, None, "user", sys.argv[2])
print(bool(notice), flush=True)
"""


@pytest.mark.parametrize("before", [None, b"nothing that SQLite knows " * 400], ids=["fresh", "damaged"])
def test_processes_that_open_at_once_agree_on_one_file(path, opened, before):
    if before is not None:
        path.write_bytes(before)
    children = [run_python(OPENER, path, name) for name in "abcde"]
    printed = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0] * 5, printed
    assert [out.strip() for out, _ in printed].count(b"True") == (before is not None)
    store = opened()
    assert sorted(store.prompts(10)) == list("abcde")
    asides = [file.read_bytes() for file in path.parent.glob("chats.damaged-*.sqlite3")]
    assert asides == ([] if before is None else [before])


def test_threads_may_share_a_store(store):
    chat = store.begin({})
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda number: store.add(chat.id, None, "user", f"text {number}").id, range(80)))
        list(pool.map(lambda number: store.chats(f"text {number}"), range(20)))
    assert sorted(ids) == [message.id for message in store.messages(chat.id)]


OPERATIONS = st.tuples(
    st.sampled_from(["create", "add", "add", "add", "grow", "leaf", "rename", "settings", "delete", "delete_message"]),
    st.integers(0, 1),
    st.integers(0, 999),
    st.sampled_from(["", "one", "two words", "三"]),
)


class Expected:
    """What two stores on one file must say, as plain dictionaries."""

    def __init__(self):
        self.chats = {}
        self.messages = {}

    def below(self, message):
        return {message}.union(*(self.below(other) for other, (_, parent, *_) in self.messages.items() if parent == message))

    def newest(self, start):
        while followers := [other for other, (_, parent, *_) in self.messages.items() if parent == start]:
            start = max(followers)
        return start

    def delete_message(self, message):
        chat, parent, *_ = self.messages[message]
        for gone in self.below(message):
            del self.messages[gone]
        if self.chats[chat]["leaf"] not in (None, *self.messages):
            beside = [other for other, (its, above, *_) in self.messages.items() if (its, above) == (chat, parent)]
            start = max(beside, default=parent)
            self.chats[chat]["leaf"] = None if start is None else self.newest(start)


def apply(store, expected, operation, pick, text):
    chats, messages = list(expected.chats), list(expected.messages)
    chat = chats[pick % len(chats)] if chats else None
    message = messages[pick % len(messages)] if messages else None
    if operation == "create":
        expected.chats[store.begin({"at": pick}).id] = {"title": "New chat", "leaf": None, "settings": {"at": pick}}
    elif operation == "add" and chat:
        inside = [None, *(each for each, (its, *_) in expected.messages.items() if its == chat)]
        parent = inside[pick % len(inside)]
        made = store.add(chat, parent, "assistant", text).id
        expected.messages[made] = (chat, parent, text, "whole")
        expected.chats[chat]["leaf"] = made
    elif operation == "grow" and message:
        chat, parent, *_ = expected.messages[message]
        state = "growing" if pick % 2 else "whole"
        store.grow(store.message(chat, message), text + "!", "", state, {})
        expected.messages[message] = (chat, parent, text + "!", state)
    elif operation == "leaf" and message:
        its = expected.messages[message][0]
        store.set_leaf(its, message)
        expected.chats[its]["leaf"] = message
    elif operation == "rename" and chat and text:
        store.rename(chat, text)
        expected.chats[chat]["title"] = text
    elif operation == "settings" and chat:
        store.set_settings(chat, {"to": text})
        expected.chats[chat]["settings"] = {"to": text}
    elif operation == "delete" and chat:
        store.delete(chat)
        del expected.chats[chat]
        expected.messages = {key: value for key, value in expected.messages.items() if value[0] != chat}
    elif operation == "delete_message" and message:
        store.delete_message(message)
        expected.delete_message(message)


@given(operations=st.lists(OPERATIONS, max_size=25))
@settings(max_examples=40)
def test_two_stores_of_one_file_are_one_dictionary(tmp_path_factory, operations):
    path = tmp_path_factory.mktemp("model") / "chats.sqlite3"
    stores = [WritingStore.open(path)[0] for _ in range(2)]
    expected = Expected()
    for operation, who, pick, text in operations:
        apply(stores[who], expected, operation, pick, text)
    for store in stores:
        chats = {found.chat.id: found.chat for found in store.chats()}
        told = {key: {"title": c.title, "leaf": c.leaf, "settings": c.settings} for key, c in chats.items()}
        assert told == expected.chats
        kept = [message for chat in chats for message in store.messages(chat)]
        assert {m.id: (m.chat, m.parent, m.text, m.state) for m in kept} == expected.messages
        hits = {chat for chat, _, text, _ in expected.messages.values() if "two words" in text}
        named = {chat for chat, its in expected.chats.items() if "two words" in its["title"]}
        assert {found.chat.id for found in store.chats("two words")} == hits | named
        store.close()


# ---- deleted in another terminal


def test_nothing_is_said_to_what_another_terminal_deleted(store, opened):
    other = opened()
    chat = filled(store, 4)
    prompt, answer = store.messages(chat.id)[:2]
    other.delete_message(answer.id)
    with pytest.raises(StorageError, match="message was deleted"):
        store.add(chat.id, answer.id, "user", "lost?")
    with pytest.raises(StorageError, match="message was deleted"):
        store.set_leaf(chat.id, answer.id)
    assert [message.id for message in store.messages(chat.id)] == [prompt.id]
    other.delete(chat.id)
    for refused in (
        lambda: store.add(chat.id, None, "user", "x", attachments=[Attachment("a", "b")]),
        lambda: store.grow(answer, "ghost", "", "whole", {}),
        lambda: store.rename(chat.id, "x"),
        lambda: store.set_settings(chat.id, {}),
        lambda: store.set_leaf(chat.id, None),
    ):
        with pytest.raises(StorageError, match="chat was deleted"):
            refused()
    store.delete(chat.id)
    assert (store.chat(chat.id), store.messages(chat.id), store.chats()) == (None, [], [])


# ---- what the disk refuses


def test_a_locked_file_is_told_and_the_same_call_works_later(path, store, opened):
    chat = filled(store, 2)
    store.close()
    store = opened(timeout=0.1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StorageError, match="another program holds it; try again"):
        store.add(chat.id, chat.leaf, "user", "late")
    with pytest.raises(StorageError, match="another program holds it"):
        opened(timeout=0.1)
    other.execute("ROLLBACK")
    other.close()
    assert store.add(chat.id, chat.leaf, "user", "late") in store.messages(chat.id)


def test_a_lock_that_goes_in_time_is_waited_for(path, store):
    chat = filled(store, 2)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, lambda: other.execute("ROLLBACK"))
    timer.start()
    assert store.add(chat.id, chat.leaf, "user", "waits") in store.messages(chat.id)
    timer.join()
    other.close()


def refuse_by_pages(store, path):
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    return lambda: store._db.execute("PRAGMA max_page_count = 1000000")


def refuse_by_file_size(store, path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name(path.name + "-wal").stat().st_size + 5000, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("refuse", "told"),
    [(refuse_by_pages, "the disk is full; make room"), (refuse_by_file_size, "the disk (is full|refused); ")],
)
def test_a_full_disk_is_told_and_the_same_call_works_when_there_is_room(path, store, opened, refuse, told):
    chat = filled(store, 6)
    before = store.messages(chat.id)
    big = [Attachment("big.txt", "x" * 200_000)]
    allow = refuse(store, path)
    try:
        for _ in range(3):
            with pytest.raises(StorageError, match=told):
                store.add(chat.id, chat.leaf, "user", "please keep this", attachments=big)
        assert store.messages(chat.id) == before
        assert store.chat(chat.id) == chat
    finally:
        allow()
    kept = store.add(chat.id, chat.leaf, "user", "please keep this", attachments=big)
    assert opened().messages(chat.id) == [*before, kept]


def test_a_file_that_was_moved_away_takes_nothing_more_until_it_is_back(path, store, tmp_path):
    chat = filled(store, 4)
    path.rename(tmp_path / "elsewhere")
    for refused in (lambda: store.add(chat.id, chat.leaf, "user", "x"), lambda: store.messages(chat.id)):
        with pytest.raises(StorageError, match="was moved or deleted while the chat was open; put it back"):
            refused()
    (tmp_path / "elsewhere").rename(path)
    assert store.add(chat.id, chat.leaf, "user", "x") in store.messages(chat.id)


@pytest.mark.parametrize("place", ["/proc/nowhere/chats.sqlite3", "/proc/chats.sqlite3", "/dev/null/chats.sqlite3"])
def test_a_place_that_cannot_be_written_is_told(place):
    with pytest.raises(StorageError, match="set EDGE_LLM_HOME"):
        WritingStore.open(Path(place))


def test_a_folder_in_the_place_of_the_file_is_told_and_stays(path):
    path.mkdir()
    (path / "mine").write_text("x")
    with pytest.raises(StorageError, match="cannot use the chats in"):
        WritingStore.open(path)
    assert (path / "mine").read_text() == "x"


def bytes_in(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_chats_of_a_newer_version_and_other_peoples_databases_stay_as_they_are(path, store):
    filled(store)
    store.close()
    for change, told in [
        (f"PRAGMA user_version = {len(MIGRATIONS) + 1}", "newer edge-llm; update"),
        ("PRAGMA application_id = 7", "belongs to another program; move it away"),
    ]:
        db = sqlite3.connect(path)
        db.execute(change)
        db.close()
        before = bytes_in(path.parent)
        with pytest.raises(StorageError, match=told):
            WritingStore.open(path)
        assert bytes_in(path.parent) == before


# ---- damage


def truncated(data, random_bytes):
    return data[: len(data) // 2 + 100]


def overwritten(data, random_bytes):
    return random_bytes.randbytes(len(data))


def zeroed_pages(data, random_bytes):
    middle = len(data) // 8192 * 4096
    return data[:middle] + bytes(8192) + data[middle + 8192 :]


def zeroed(data, random_bytes):
    return bytes(len(data))


def random_middle(data, random_bytes):
    middle = len(data) // 8192 * 4096
    return data[:middle] + random_bytes.randbytes(4096) + data[middle + 4096 :]


def short_text(data, random_bytes):
    return b"not a database at all"


@pytest.mark.thorough(keep=3)
@pytest.mark.parametrize("damage", [truncated, overwritten, zeroed_pages, zeroed, random_middle, short_text])
@pytest.mark.parametrize("times", [1, 2])
def test_a_damaged_file_is_kept_aside_byte_by_byte_and_a_fresh_one_begun(path, opened, damage, times):
    kept = []
    for _ in range(times):
        store = opened()
        chat = filled(store, 60)
        store.close()
        assert list(path.parent.glob("chats.sqlite3-*")) == []
        kept.append(damage(path.read_bytes(), random.Random(7)))
        path.write_bytes(kept[-1])
        store = opened()
        assert store.chats() == []
        (aside,) = [file for file in path.parent.glob("chats.damaged-*.sqlite3") if str(file) in opened.notice]
        assert aside.read_bytes() == kept[-1]
        store.add(store.begin({}).id, None, "user", "goes on")
        store.close()
    assert sorted(file.read_bytes() for file in path.parent.glob("chats.damaged-*.sqlite3")) == sorted(kept)
    assert [found.chat.title for found in opened().chats()] == ["goes on"]
    assert (opened.notice, chat.title != "goes on") == ("", True)


def killed_after(path, count):
    """What SQLite's journal holds when a process was killed after it added ``count`` messages."""
    child = run_python(ADDER, path, 0, count, "in the journal", "stay")
    for _ in range(count):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=60)
    return path.with_name(path.name + "-wal").read_bytes()


def test_the_journal_of_a_damaged_file_is_kept_with_it(path, opened):
    store = opened()
    filled(store, 200)
    store.close()
    journal = killed_after(path, 5)
    assert journal
    size = path.stat().st_size
    path.write_bytes(b"\xff" * size)
    store = opened()
    (aside,) = path.parent.glob("chats.damaged-*.sqlite3")
    assert aside.read_bytes() == b"\xff" * size
    assert aside.with_name(aside.name + "-wal").read_bytes() == journal
    assert store.chats() == []


def test_a_damaged_file_whose_journal_holds_everything_is_whole(path, opened):
    killed_after(path, 30)
    path.write_bytes(b"\xff" * path.stat().st_size)
    assert len(opened().prompts(100)) == 30
    assert opened.notice == ""


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
def test_a_journal_whose_file_is_lost_is_kept_aside(path, opened, left):
    journal = killed_after(path, 30)
    path.unlink()
    if left == "an empty file":
        path.touch()
    store = opened()
    (aside,) = path.parent.glob("chats.damaged-*-wal")
    assert aside.read_bytes() == journal
    assert opened.notice
    assert store.chats() == []


def test_an_empty_file_is_a_fresh_one(path, opened):
    path.touch()
    assert filled(opened()).title
    assert opened.notice == ""
    assert len(list(path.parent.iterdir())) == 3  # with SQLite's own -wal and -shm


def test_damage_under_an_open_chat_is_told_and_loses_no_file(path, opened):
    store = opened()
    chat = filled(store, 60, "more than SQLite keeps in memory " * 200)
    store.close()
    store = opened()
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(b"\xff" * len(data))
    with pytest.raises(StorageError, match="damaged; start again, and it is kept aside"):
        store.messages(chat.id)
    again = opened()
    assert "kept in" in opened.notice
    with pytest.raises(StorageError, match="was moved or deleted"):
        store.messages(chat.id)
    store.close()
    again.add(again.begin({}).id, None, "user", "still here")
    again.close()
    assert opened().prompts(5) == ["still here"]


# ---- files of before


def test_a_file_of_the_first_version_opens_with_all_that_was_said_and_takes_what_is_new(path):
    db = sqlite3.connect(path)
    for statement in MIGRATIONS[0]:
        db.execute(statement)
    db.execute("INSERT INTO chats VALUES (5, 'Old', 'prompt', 8, 1.0, 2.0, '{\"system\": \"x\"}')")
    for row in ((7, 5, None, "user", "whole", "", "Hi"), (8, 5, 7, "assistant", "failed", "m", "as far as")):
        db.execute("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, 1.5, '{}', '', ?)", row)
    db.execute("INSERT INTO attachments VALUES (7, 0, 'a.txt', 'inside')")
    db.execute(f"PRAGMA application_id = {APPLICATION}")
    db.execute("PRAGMA user_version = 1")
    db.commit()
    db.close()
    store, notice = ChatStore.open(path)
    assert notice == ""
    prompt, said = store.messages(5)
    assert (prompt.text, prompt.attachments) == ("Hi", (Attachment("a.txt", "inside"),))
    assert (said.text, said.state) == ("as far as", "failed")
    assert (said.reason, said.cut, store.drafts(5)) == ("", None, {})
    changed = replace(said, reason="context full", cut=Cut("so far", 9, 12))
    store.put(changed)
    kept = store.keep_draft(5, {}, "body", "text")
    assert store.messages(5) == [prompt, changed]
    assert store.drafts(5) == kept
    assert [each.chat.title for each in store.chats("as far")] == ["Old"]
    store.delete(5)
    assert store.drafts(5) == {}
    store.close()


def test_a_chat_of_a_draft_alone_goes_with_it_and_one_that_was_named_stays(path):
    store, _ = ChatStore.open(path)
    for title in ("", "Mine"):
        chat = OpenChat.new(store, {})
        if title:
            chat.rename(title)
        chat.set_drafts(Drafts(Draft("half a prompt")))
        chat.save()
        assert store.chats()[0].chat.title == (title or "half a prompt")
        chat.set_drafts(Drafts())
        chat.save()
        assert [each.chat.title for each in store.chats()] == ([title] if title else [])
        assert chat.saved
    store.close()


def lines_of(drafts):
    """What waits to be sent is joined when it is read, line by line."""
    return {line for text in drafts.texts for line in text.split("\n") if line.strip()}


_TYPED = st.sampled_from(["", " ", "/", "/search birne", " /title", "/?", "/etc/birne", "half a prompt", "birne"])
_DRAFTS = st.builds(Draft, _TYPED, st.sampled_from([(), (Attachment("birne.txt", "inside"),)]))


@given(st.builds(Drafts, *[_DRAFTS] * 2, st.lists(_DRAFTS).map(tuple), st.lists(_TYPED).map(tuple)))
def test_a_chat_of_drafts_is_listed_and_found_by_all_but_commands(drafts):
    """And nothing else is lost: read again, the chat has what was written."""
    store = ChatStore.in_memory()
    chat = OpenChat.new(store, {})
    chat.set_drafts(drafts)
    chat.save()
    commands = all(begins_command(text) for text in drafts.texts) and not any(
        each.attachments for each in (drafts.draft, drafts.aside, *drafts.queued)
    )
    assert chat.drafts.are_commands == commands
    assert len(store.chats()) == (not commands)
    assert len(store.chats(unlisted=True)) == bool(drafts)
    assert not any(begins_command(found.chat.title) for found in store.chats())
    for word in ("/search", "birne", "half"):
        assert all(not begins_command(found.chat.title) for found in store.chats(word))
    if drafts:
        again = OpenChat.read(store, chat.chat.id)
        assert lines_of(again.drafts) == lines_of(drafts)
        again.add("user", "what is said", parent=None)
        again.save()
        assert [found.chat.title for found in store.chats()] == ["what is said"]
    store.close()


def test_a_prompt_is_never_in_neither_the_draft_nor_the_chat(path, monkeypatch):
    """Whatever write a kill comes between: messages are written before the draft that they were."""
    store, _ = ChatStore.open(path)
    chat = OpenChat.new(store, {})
    chat.set_drafts(Drafts(Draft("the prompt")))
    chat.save()
    chat.add("user", "the prompt", parent=None)
    chat.set_drafts(Drafts())

    def killed(*args):
        raise StorageError("killed")

    monkeypatch.setattr(store, "keep_draft", killed)
    with pytest.raises(StorageError):
        chat.save()
    again = OpenChat.read(store, chat.chat.id)
    assert [message.text for message in again.messages] == ["the prompt"]
    assert again.drafts.draft.text == "the prompt"
    store.close()
