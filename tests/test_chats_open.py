"""A chat that several terminals have open: what one says is kept, whatever the others delete and the disk refuses."""

import sqlite3
import threading
from dataclasses import replace

import pytest

from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.store import ChatStore
from edge_llm.chats.tree import path_to
from edge_llm.errors import StorageError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chats.sqlite3"


@pytest.fixture
def terminals(path):
    """Two stores on one file, and a chat of four messages that both have open."""
    stores = [ChatStore.open(path, 0.1)[0] for _ in range(2)]
    first = OpenChat.new(stores[0], {"system": "x"})
    parent = None
    for number in range(4):
        parent = first.add("assistant" if number % 2 else "user", f"text {number}", parent=parent).id
    first.save()
    yield stores[0], first, OpenChat.read(stores[1], first.chat.id)
    for store in stores:
        store.close()


def kept(store, chat):
    again = OpenChat.read(store, chat.chat.id)
    return again and (again.path, again.chat.settings)


def delete_chat(store, first):
    store.delete(first.chat.id)


def delete_first_message(store, first):
    first.remove(first.path[0].id)
    first.save()


def delete_last_message(store, first):
    first.remove(first.path[-1].id)
    first.save()


def say_more(second):
    return second.add("user", "more", parent=second.chat.leaf)


def grow_the_last(second):
    second.put(replace(second.path[-1], text="grown"))


def show_another(second):
    second.add("user", "beside", parent=second.path[2].id)
    second.select(second.path[3].id)


def change_settings(second):
    second.set_settings({"system": "y"})


def rename(second):
    second.rename("Mine")


@pytest.mark.parametrize("delete", [delete_chat, delete_first_message, delete_last_message])
@pytest.mark.parametrize("do", [say_more, grow_the_last, show_another])
def test_what_is_said_where_another_terminal_deleted_is_kept_with_all_before_it(terminals, delete, do):
    store, first, second = terminals
    delete(store, first)
    do(second)
    second.save()
    assert second.saved
    stored = OpenChat.read(store, second.chat.id)
    assert path_to(stored.messages, second.chat.leaf) == second.path
    assert stored.chat.settings == second.chat.settings


@pytest.mark.parametrize("do", [change_settings, rename])
def test_a_change_of_a_chat_that_another_terminal_deleted_is_kept(terminals, do):
    store, first, second = terminals
    delete_chat(store, first)
    do(second)
    second.save()
    assert second.saved
    assert kept(store, second) == (second.path, second.chat.settings)


def test_both_terminals_go_on_in_one_chat(terminals):
    store, first, second = terminals
    for number in range(3):
        for chat in (first, second):
            chat.add("user", f"{number} of {chat is first}", parent=chat.chat.leaf)
            chat.save()
    texts = {message.text for message in OpenChat.read(store, first.chat.id).messages}
    assert {message.text for message in (*first.path, *second.path)} == texts
    assert kept(store, second)[0] == second.path


def test_what_a_locked_file_refused_is_written_later_and_in_order(terminals, path):
    store, first, _ = terminals
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for number in range(3):
        first.add("user", f"later {number}", parent=first.chat.leaf)
        with pytest.raises(StorageError, match="another program holds it"):
            first.save()
        assert not first.saved
    other.execute("ROLLBACK")
    other.close()
    first.save()
    assert first.saved
    assert kept(store, first)[0] == first.path


def test_the_path_that_is_shown_stays_when_what_was_not_written_is_removed(terminals):
    store, first, _ = terminals
    made = first.add("user", "oops", parent=first.chat.leaf)
    first.remove(made.id)
    first.save()
    assert kept(store, first)[0] == first.path
    assert first.path[-1].text == "text 3"


def test_what_changes_while_it_is_written_is_written_next(terminals, monkeypatch):
    store, first, _ = terminals
    put, rename = store.put, store.rename

    def put_and_grow(message):
        put(message)
        if len(message.text) < 5:
            first.put(replace(message, text=message.text + "!"))

    def rename_and_again(chat_id, title):
        rename(chat_id, title)
        if len(title) < 5:
            first.rename(title + "!")

    monkeypatch.setattr(store, "put", put_and_grow)
    monkeypatch.setattr(store, "rename", rename_and_again)
    first.add("assistant", "", parent=first.chat.leaf, state="growing")
    first.rename("a")
    for _ in range(6):
        assert not first.saved
        first.save()
    assert first.saved
    again = OpenChat.read(store, first.chat.id)
    assert (again.path[-1].text, again.chat.title) == ("!!!!!", "a!!!!")
    assert again.path == first.path


def test_a_thread_that_saves_all_the_time_misses_nothing(terminals):
    store, first, _ = terminals
    done = threading.Event()

    def save():
        while not done.is_set():
            first.save()

    saver = threading.Thread(target=save)
    saver.start()
    for number in range(60):
        made = first.add("user", f"{number}", parent=first.chat.leaf)
        for length in range(20):
            first.put(replace(made, text=f"{number} " + "x" * length))
        if number % 7 == 6:
            first.remove(made.id)
    done.set()
    saver.join()
    first.save()
    again = OpenChat.read(store, first.chat.id)
    assert (again.path, len(again.messages)) == (first.path, len(first.messages))
