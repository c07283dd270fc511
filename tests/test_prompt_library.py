"""Stored prompts: files that a person may write by hand, with places to be filled in, in the chat and by name."""

import errno
import os
import re
import time
from pathlib import Path

import pytest
from chat_driver import drive
from hypothesis import given
from hypothesis import strategies as st

from edge_llm.chats.prompt_library import MOST_BYTES, PLACE, prompt_names, store_prompt, stored_prompt
from edge_llm.errors import EdgeLLMError, StorageError, UsageError
from edge_llm.paths import prompts_folder


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGE_LLM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_files_are_prompts(home):
    folder = prompts_folder()
    assert folder == home / "prompts" and prompt_names(folder) == []
    folder.mkdir(parents=True)
    (folder / "translate.txt").write_text("To {{language}}: {{text}} ({{ language }})\n")
    (folder / "kürzen.md").write_text("Kürze:\n")
    for other in ("notes.pdf", ".hidden.md", "-x.md"):
        (folder / other).write_text("no")
    assert prompt_names(folder) == ["kürzen", "translate"]
    assert stored_prompt(folder, "translate") == "To {{language}}: {{text}} ({{ language }})"
    assert stored_prompt(folder, "translate", "German") == "To German: {{text}} (German)"
    assert stored_prompt(folder, "kürzen", "Text") == "Kürze:\n\nText"


@given(st.text(), st.text(min_size=1))
def test_a_filling_stands_in_the_prompt_as_it_is(tmp_path_factory, text, filling):
    folder = tmp_path_factory.mktemp("prompts")
    text = text.replace("\r", "").encode("utf-8", "replace").decode()
    store_prompt(folder, "p", text)
    assert stored_prompt(folder, "p") == text.rstrip("\n")
    assert filling in stored_prompt(folder, "p", filling)


OLD_PLACE = re.compile(r"\{\{ *([^{}\n]{1,80}?) *\}\}")
"""The same places by another way, which takes long."""


@given(st.text("{} ab\n\t", max_size=60) | st.from_regex(r"x?\{\{ {0,3}[a-c ]{0,90} {0,3}\}\}?", fullmatch=True))
def test_places_are_what_stands_in_double_braces(text):
    found = [match.span() for match in OLD_PLACE.finditer(text) if match[1].strip(" ")]
    assert [match.span() for match in PLACE.finditer(text)] == found
    assert all(match[1] == match[1].strip(" ") and 0 < len(match[1]) <= 80 for match in PLACE.finditer(text))


@pytest.mark.parametrize("part", ["{{ ", "{{", "{ ", " ", "{{a ", "{{a b", "{{" + "a " * 39, "}} {{", "{{ a }}"])
@pytest.mark.parametrize("begins", ["", "{{", "{{ a"])
def test_places_are_looked_for_once(begins, part):
    """A prompt as large as one may be takes no longer by its form: the slowest old one took hours."""
    text = begins + part * (MOST_BYTES // len(part))
    until = time.monotonic() + 60
    PLACE.sub("x", text)
    assert time.monotonic() < until


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_prompt_is_stored_whole_or_not_at_all(home, monkeypatch, call):
    folder = prompts_folder()
    store_prompt(folder, "one", "first")

    def full(*_, **__):
        assert prompt_names(folder) == ["one"], "half a prompt is seen"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*{"write": (os, "fdopen"), "fsync": (os, "fsync"), "replace": (Path, "replace")}[call], full)
    with pytest.raises(StorageError, match="No space left"):
        store_prompt(folder, "two", "second")
    assert [path.name for path in folder.iterdir()] == ["one.md"]


@pytest.mark.parametrize("name", ["../x", "a/b", "", "save", "a b", ".x", "x" * 100, "a\0"])
def test_what_is_no_name_is_refused_and_nothing_is_written(home, name):
    with pytest.raises(UsageError, match="is no name for a prompt"):
        store_prompt(prompts_folder(), name, "text")
    with pytest.raises(UsageError, match="there is no prompt"):
        stored_prompt(prompts_folder(), name)
    assert not home.exists()


def test_nothing_stored_is_replaced_and_odd_files_are_told(home):
    folder = prompts_folder()
    store_prompt(folder, "one", "first")
    with pytest.raises(UsageError, match="a prompt `one` already"):
        store_prompt(folder, "one", "second")
    assert stored_prompt(folder, "one") == "first"
    (folder / "large.md").write_bytes(b"x" * (MOST_BYTES + 1))
    (folder / "folder.md").mkdir()
    for name in ("large", "folder"):
        with pytest.raises(EdgeLLMError, match=name):
            stored_prompt(folder, name)
    (home / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        store_prompt(home / "file", "x", "text")


def test_what_cannot_be_read_again_is_not_stored_and_a_link_that_leads_nowhere_is_told(home):
    folder = prompts_folder()
    with pytest.raises(UsageError, match="256 KiB"):
        store_prompt(folder, "big", "x" * MOST_BYTES)
    assert prompt_names(folder) == []
    store_prompt(folder, "big", "x" * (MOST_BYTES - 1))
    assert len(stored_prompt(folder, "big")) == MOST_BYTES - 1
    (folder / "gone.md").symlink_to(folder / "nowhere")
    with pytest.raises(UsageError, match="gone"):
        stored_prompt(folder, "gone")


def test_a_prompt_is_stored_completed_and_used_in_the_chat(tmp_path, home):
    async def talk(chat):
        await chat.send("/prompt")
        await chat.until(lambda: chat.told("No prompts yet."))
        await chat.ask("Say hello in {{language}} twice")
        await chat.send("/prompt save hello")
        await chat.until(lambda: chat.told("Stored: "))
        assert (home / "prompts" / "hello.md").read_text() == "Say hello in {{language}} twice\n"
        await chat.write("/prompt he")
        await chat.until(lambda: chat.app.prompt.query_one("#completions").display)
        await chat.press("tab")
        assert chat.typed.startswith("/prompt hello")
        await chat.press("enter")
        await chat.until(lambda: chat.typed == "Say hello in {{language}} twice")
        assert chat.app.prompt.area.selected_text == "{{language}}"
        await chat.press(*"Finnish")
        assert chat.typed == "Say hello in Finnish twice"
        await chat.press("ctrl+u")
        await chat.press("ctrl+k")
        await chat.send("/prompt hello Greek")
        await chat.until(lambda: chat.typed == "Say hello in Greek twice")

    drive(talk, tmp_path)


def test_a_prompt_that_is_not_there_is_told(tmp_path, home):
    async def talk(chat):
        await chat.send("/prompt nothing")
        await chat.until(lambda: chat.told("there is no prompt `nothing`; none is stored in"))
        await chat.send("/prompt save")
        await chat.until(lambda: chat.told("is no name for a prompt") or chat.told("there is no prompt yet"))

    drive(talk, tmp_path)
