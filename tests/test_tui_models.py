"""Models of the full-screen chat: chosen, loaded, brought here, and what happens when that fails."""

import re
import threading
from dataclasses import replace

import pytest
from chat_driver import drive
from hypothesis import given
from hypothesis import strategies as st
from scripted_provider import FIGURES, ScriptedCatalogue, ScriptedProvider

from edge_llm.chats.settings import ChatSettings
from edge_llm.errors import HubError, OutOfMemory, StorageError
from edge_llm.providers.base import Ended, Facts, ModelRow
from edge_llm.tui.screens.models import _BY_NEED, _COLUMNS, _FEWEST, ModelPicker, seen_columns
from edge_llm.tui.screens.questions import Confirm

pytestmark = pytest.mark.thorough(file=3)

ROWS = [
    ModelRow("first", 300 << 20, "int8", 4096, True),
    ModelRow("second", 20 << 30, "int4", 131072, False),
    ModelRow("broken", None, "", None, None, "its file `weights` is cut off"),
]


def two_models(**more):
    return ScriptedCatalogue({"first": ScriptedProvider(), "second": ScriptedProvider()}, **more)


async def open_picker(chat):
    await chat.press("f4")
    await chat.opened(ModelPicker)
    await chat.taken()


def test_the_picker_says_what_one_must_know_of_a_model(tmp_path):
    async def talk(chat):
        await open_picker(chat)
        table = {line.split()[1]: line for line in chat.screen.splitlines() if "int" in line or "broken" in line}
        assert table["first"].split()[1:-1] == ["first", "300", "MiB", "int8", "4096", "fits", "loaded"]
        assert table["second"].split()[1:-1] == ["second", "20.0", "GiB", "int4", "128k", "too", "large"]
        assert "unusable" in table["broken"]
        await chat.press("down", "down", "enter")
        await chat.until(lambda: "its file `weights` is cut off" in chat.screen)
        await chat.press("escape")
        await chat.until(lambda: not isinstance(chat.app.screen, ModelPicker))
        assert chat.session.provider.facts.name == "first"

    drive(talk, tmp_path, catalogue=two_models(rows=ROWS))


def test_another_model_is_found_chosen_and_answers_the_same_chat(tmp_path):
    catalogue = two_models()

    async def talk(chat):
        await chat.ask("Hello")
        await open_picker(chat)
        await chat.press(*"SEC")
        await chat.press("enter")
        await chat.until(lambda: chat.session.provider is catalogue.providers["second"])
        await chat.settle()
        assert catalogue.providers["first"].closed
        await chat.ask("And you?")
        assert catalogue.providers["second"].asked[0].messages[0]["content"] == "Hello"
        assert "second" in chat.screen.splitlines()[-3]
        await chat.send("/model first")
        await chat.until(lambda: chat.session.provider is catalogue.providers["first"])
        assert [wanted.model for wanted in catalogue.opened] == [None, "second", "first"]

    drive(talk, tmp_path, catalogue=catalogue)

    async def again(chat):
        assert chat.session.provider.facts.name == "first", "a chat keeps its model"

    drive(again, tmp_path, catalogue=two_models())


def test_a_burst_that_searches_and_goes_down_chooses_what_slow_typing_chooses(tmp_path):
    catalogue = ScriptedCatalogue({name: ScriptedProvider() for name in ("alpha", "beta1", "beta2", "beta3")})

    async def talk(chat):
        await chat.press("f4")
        await chat.opened(ModelPicker)
        chat.burst(*"beta", "down", "down", "up", "enter")
        await chat.until(lambda: len(catalogue.opened) == 2)
        assert catalogue.opened[-1].model == "beta2"

    drive(talk, tmp_path, catalogue=catalogue)


def test_a_name_that_no_model_has_leaves_the_one_that_answers(tmp_path):
    catalogue = two_models()

    async def talk(chat):
        await chat.send("/model frist")
        await chat.until(lambda: chat.told("no model `frist`"))
        await chat.settle()
        assert chat.session.provider is catalogue.providers["first"]
        assert chat.session.settings.model is None
        await chat.ask("Hello")
        assert chat.said[-1] == ("assistant", "You said: Hello")

    drive(talk, tmp_path, catalogue=catalogue)


@pytest.mark.parametrize("can_fetch", [True, False])
def test_only_where_models_can_be_fetched_the_picker_offers_it(tmp_path, can_fetch):
    async def talk(chat):
        await open_picker(chat)
        assert ("a hub id" in chat.screen) is can_fetch
        await chat.press(*"lab/none")
        await chat.until(lambda: ("Enter downloads `lab/none`" if can_fetch else "no model `lab/none` in this") in chat.screen)

    drive(talk, tmp_path, catalogue=two_models(can_fetch=can_fetch))


OFFERED = [
    ModelRow("qwen3:0.6b", 609 << 20, "int8", 40960, True, "", "Qwen/Qwen3-0.6B", 1_503_300_328),
    ModelRow("llama3.1:8b", 8 << 30, "int8", 131072, False, "", "meta-llama/Llama-3.1-8B-Instruct", 16_060_556_376, True),
]


def test_an_unknown_name_is_told_and_keeps_the_dialog_open(tmp_path):
    catalogue = two_models(rows=[*ROWS, *OFFERED])

    async def talk(chat):
        await open_picker(chat)
        await chat.press(*"gemma9", "enter")
        await chat.until(lambda: "no model `gemma9` in this list; type a hub id" in chat.screen)
        await chat.press("enter", "enter")
        await chat.taken()
        assert isinstance(chat.app.screen, ModelPicker) and catalogue.fetched == []
        await chat.press(*["backspace"] * 6)
        await chat.press(*"second", "enter")
        await chat.until(lambda: chat.session.provider is catalogue.providers["second"])

    drive(talk, tmp_path, catalogue=catalogue)


def test_the_catalogue_says_what_a_model_takes_and_enter_downloads_it(tmp_path):
    source = "Qwen/Qwen3-0.6B"
    gate = threading.Event()
    steps = [("download", 141_000_000, 257_000_000, 6.0, 125.0, 24e6), gate, ("layers", 3, 30, 20.0, 65.0), gate]
    catalogue = two_models(rows=[*ROWS, *OFFERED], fetches={source: steps})

    async def talk(chat):
        await open_picker(chat)
        lines = chat.screen.splitlines()
        names = ("broken", "qwen3:0.6b", "llama3.1:8b")
        at = {name: number for number, line in enumerate(lines) for name in names if name in line}
        assert at["broken"] < at["qwen3:0.6b"] < at["llama3.1:8b"]
        assert all(word in lines[at["qwen3:0.6b"]] for word in ("609 MiB", "int8", "40k", "fits", "↓ 1.5 GB"))
        assert all(word in lines[at["llama3.1:8b"]] for word in ("8.0 GiB", "too large", "↓ 16.1 GB gated"))
        await chat.press(*"llama")
        await chat.until(lambda: "accept its terms" in chat.screen and "too large for the memory" in chat.screen)
        await chat.press(*["backspace"] * 5)
        await chat.press(*"qwen3")
        await chat.until(lambda: f"Enter downloads {source} (1.5 GB, about" in chat.screen)
        assert "It fits in your memory" in chat.screen
        await chat.press("enter")
        await chat.until(lambda: f"{source}: download 141 of 257 MB, 24 MB/s, 2:0" in chat.screen)
        gate.set()
        await chat.opened(Confirm)
        await chat.press("escape")

    drive(talk, tmp_path, catalogue=catalogue, size=(120, 40))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_what_enter_does_is_seen_below_a_long_catalogue(tmp_path, size):
    rows = [*ROWS, *(replace(OFFERED[0], name=f"qwen{at}:4b") for at in range(40))]

    async def talk(chat):
        await open_picker(chat)
        await chat.press(*["down"] * 30)
        await chat.until(lambda: "Enter downloads Qwen/Qwen3-0.6B (1.5 GB" in chat.screen and "qwen27:4b" in chat.screen)
        assert "↓ 1.5 GB" in chat.screen and "It fits in your memory" in chat.screen

    drive(talk, tmp_path, catalogue=two_models(rows=rows), size=size)


@given(
    st.lists(st.tuples(*[st.text("ab-:1", min_size=1, max_size=most) for most in (60, 9, 9, 6, 9, 16)]), max_size=5),
    st.integers(0, 200),
)
def test_columns_that_are_seen_are_whole_and_the_needed_ones_come_first(rows, width):
    columns, name = seen_columns(rows, width)
    widths = [max(len(cell) for cell in column) + 2 for column in zip(_COLUMNS, *rows, strict=True)]
    assert columns[0] == 0 and columns == sorted(columns)
    assert name + 2 + sum(widths[column] for column in columns[1:]) <= max(width, widths[0], _FEWEST + 2)
    assert name + 2 >= min(widths[0], _FEWEST + 2)
    assert [*_BY_NEED[: len(columns)]] == sorted(columns, key=_BY_NEED.index)


def test_in_eighty_columns_nothing_needed_of_the_catalogue_is_cut(tmp_path):
    rows = [ModelRow("someone-who-has-a-long-name-7B-Instruct-w4", 4 << 30, "w4+int8", 131072, False), *ROWS, *OFFERED]

    async def talk(chat):
        await open_picker(chat)
        await chat.until(lambda: "memory" in chat.screen)
        lines = [" ".join(line.strip("│ ").split()) for line in chat.screen.splitlines()]
        assert any(re.match(r"someone-who\S*…\S*Instruct-w4 4.0 GiB too large", line) for line in lines)
        assert any("qwen3:0.6b 609 MiB fits ↓ 1.5 GB" in line for line in lines)
        assert any("llama3.1:8b 8.0 GiB too large ↓ 16.1 GB gated" in line for line in lines)
        said = "Enter selects someone-who-has-a-long-name-7B-Instruct-w4 (4.0 GiB, w4+int8, context 128k), Esc closes"
        await chat.press("home", *"7B")
        await chat.until(lambda: said in " ".join(line.strip(" │") for line in chat.screen.splitlines()))

    drive(talk, tmp_path, catalogue=two_models(rows=rows), size=(80, 24))


@pytest.mark.parametrize("words", ["llama 3", "3 LLAMA", "llama-3", "llama.3", "8b llama", "instruct meta 3.1"])
def test_a_model_is_found_by_its_words_in_any_order(tmp_path, words):
    rows = [
        ModelRow("here-llama", 1 << 20),
        ModelRow("my-Llama-3-8B", 1 << 20, source="meta-llama/Llama-3.1-8B-Instruct"),
        ModelRow("qwen3", 1 << 20),
    ]

    async def talk(chat):
        await open_picker(chat)
        await chat.press(*("space" if char == " " else char for char in words))
        await chat.until(lambda: "my-Llama-3-8B" in chat.screen and "qwen3" not in chat.screen)
        assert "here-llama" not in chat.screen

    drive(talk, tmp_path, catalogue=two_models(rows=rows))


def test_the_beginning_of_a_hub_id_means_no_other_model(tmp_path):
    catalogue = two_models(rows=[*ROWS, *OFFERED], fetches={"Qwen/Qwen3": []})

    async def talk(chat):
        await open_picker(chat)
        await chat.press(*"Qwen/Qwen3")
        await chat.until(lambda: "Enter downloads `Qwen/Qwen3`" in chat.screen)
        await chat.press("enter")
        await chat.until(lambda: [fetch.name for fetch in catalogue.fetched] == ["Qwen3"])

    drive(talk, tmp_path, catalogue=catalogue)


@pytest.mark.parametrize("command", ["/model second", "/set context 9"])
def test_where_no_model_can_be_loaded_the_one_of_before_comes_back(tmp_path, command):
    failures = [OutOfMemory("the weights need 9 GiB")]

    def refuse_once():
        if chats and failures and chats[0].session.settings != ChatSettings():
            raise failures.pop()

    chats = []
    catalogue = two_models(loads={"first": [refuse_once], "second": [refuse_once]})

    async def talk(chat):
        chats.append(chat)
        await chat.send(command)
        await chat.until(lambda: chat.told("9 GiB") and chat.told("of before hold again"))
        await chat.settle()
        assert chat.session.settings == ChatSettings()
        assert not chat.told("is now")
        await chat.ask("Hello")
        assert chat.said[-1] == ("assistant", "You said: Hello")
        assert catalogue.opened[0] == catalogue.opened[-1] != catalogue.opened[1]

    drive(talk, tmp_path, catalogue=catalogue)


def test_a_model_that_has_vanished_is_told_and_another_one_chosen(tmp_path):
    async def talk(chat):
        await chat.send("/model first")
        await chat.settle()
        await chat.ask("Hello")

    drive(talk, tmp_path, catalogue=two_models())
    catalogue = ScriptedCatalogue({"other": ScriptedProvider()})

    async def again(chat):
        await chat.until(lambda: chat.told("no model `first`") and chat.told("F3 has the last one"))
        await chat.ask("Anybody?")  # in a new chat, at once
        assert chat.said == [("user", "Anybody?"), ("assistant", "You said: Anybody?")]
        assert chat.titles == ["Hello", "Anybody?"]
        await chat.press("f3")
        await chat.settle()
        chat.burst(*"Hello", "enter")
        await chat.until(lambda: ("user", "Hello") in chat.said)
        await chat.send("And then?")
        await chat.until(lambda: chat.told("no model `first`") and chat.told("F4 chooses"))
        chat.forget_notices()  # they lie above the status
        await chat.until(lambda: "no model" in chat.screen.splitlines()[-3])
        await chat.send("/model other")
        await chat.until(lambda: chat.session.provider is not None)
        await chat.ask("Again")
        assert [text for _, text in chat.said][-2:] == ["Again", "You said: And then?\n\nAgain"]

    drive(again, tmp_path, catalogue=catalogue, ready=False)


@pytest.mark.parametrize("error", [OutOfMemory("the weights need 9 GiB"), MemoryError(), RuntimeError("odd")], ids=type)
def test_a_model_that_cannot_be_loaded_leaves_the_prompt_and_the_choice(tmp_path, error):
    def refuse():
        raise error

    gate = threading.Event()
    catalogue = two_models(loads={"first": [gate, refuse]})

    async def talk(chat):
        await chat.send("Hello")
        await chat.until(lambda: chat.stored == [("user", "Hello", "whole")])
        gate.set()
        await chat.until(lambda: chat.told("F4 chooses a model") and not chat.session.busy)
        assert chat.said == [("user", "Hello")]
        await chat.send("/model second")
        await chat.until(lambda: chat.session.provider is not None)
        await chat.settle()
        await chat.press("ctrl+r")
        await chat.until(lambda: "You said: Hello" in chat.screen)

    drive(talk, tmp_path, catalogue=catalogue, ready=False)


def test_who_chooses_again_while_a_model_loads_gets_the_last_choice(tmp_path):
    gate = threading.Event()
    catalogue = two_models(loads={"first": [("reading", 1, 2), gate, ("reading", 2, 2)]})

    async def talk(chat):
        await chat.until(lambda: "reading  50%" in chat.screen)
        await chat.send("/model second")
        await chat.until(lambda: chat.session.provider is catalogue.providers["second"])
        gate.set()
        await chat.settle()
        await chat.ask("Hello")
        assert chat.session.provider is catalogue.providers["second"]
        assert catalogue.providers["second"].asked
        assert not chat.told("another model was chosen")

    drive(talk, tmp_path, catalogue=catalogue, ready=False)


def test_a_prompt_that_waits_for_its_model_can_be_stopped(tmp_path):
    gate = threading.Event()
    catalogue = two_models(loads={"first": [gate]})

    async def talk(chat):
        await chat.send("Hello")
        await chat.until(lambda: ("user", "Hello") in chat.said)
        await chat.press("escape")
        await chat.until(lambda: not chat.session.busy)
        gate.set()
        await chat.until(lambda: chat.session.provider is not None)
        assert catalogue.providers["first"].asked == []
        await chat.ask("Now")
        assert catalogue.providers["first"].asked[0].messages[-1]["content"] == "Hello\n\nNow"

    drive(talk, tmp_path, catalogue=catalogue, ready=False)


def test_models_that_cannot_be_listed_are_told(tmp_path):
    catalogue = two_models()
    catalogue.refusal = StorageError("the folder of models may not be read")

    async def talk(chat):
        await chat.press("f4")
        await chat.until(lambda: chat.told("may not be read"))
        await chat.ask("Hello")

    drive(talk, tmp_path, catalogue=catalogue)


def test_the_model_is_not_changed_under_an_answer(tmp_path):
    provider = ScriptedProvider([["It grows"]])

    async def talk(chat):
        await chat.send("Go")
        await chat.until(lambda: "It grows" in chat.screen)
        for command in ("/model second", "/set context 512"):
            await chat.send(command)
            await chat.until(lambda: chat.told("Still answering. Esc to stop"))
            chat.forget_notices()
        provider.replies[0].give(" on", Ended("stop", FIGURES))
        await chat.settle()
        assert chat.stored[-1] == ("assistant", "It grows on", "whole")

    drive(talk, tmp_path, provider)


def test_the_model_is_not_changed_under_the_answer_of_another_chat(tmp_path):
    catalogue = two_models()
    catalogue.providers["first"] = first = ScriptedProvider([["It grows"]])

    async def talk(chat):
        await chat.send("Go")
        await chat.until(lambda: "It grows" in chat.screen)
        await chat.press("ctrl+n")
        await chat.until(lambda: "It grows" not in chat.screen)
        for command in ("/model second", "/set context 512"):
            await chat.send(command)
            await chat.until(lambda: chat.told("this one is answering in “Go”"))
            chat.forget_notices()
        assert len(catalogue.opened) == 1 and not first.closed
        first.replies[0].give(" on", Ended("stop", FIGURES))
        await chat.until(lambda: chat.stored[-1] == ("assistant", "It grows on", "whole"))
        await chat.send("/model second")
        await chat.until(lambda: first.closed and chat.session.provider is catalogue.providers["second"])

    drive(talk, tmp_path, catalogue=catalogue)


@pytest.mark.parametrize("switch", [True, False])
def test_a_switch_for_thoughts_that_changes_nothing_is_told(tmp_path, switch):
    async def talk(chat):
        await chat.send("/think off")
        await chat.until(lambda: chat.told("thinking is now"))
        assert chat.told("no switch for thoughts") is not switch
        chat.forget_notices()
        await chat.send("/set temperature 0.5")
        await chat.until(lambda: chat.told("temperature is now"))
        assert not chat.told("no switch for thoughts")

    drive(talk, tmp_path, ScriptedProvider(facts=Facts("scripted", 64, can_switch_thinking=switch)))


def test_notes_of_a_model_are_told(tmp_path):
    provider = ScriptedProvider(facts=Facts("scripted", 64, notes=("It knows [b]no[/b] turns.",)))

    async def talk(chat):
        assert chat.told("It knows [b]no[/b] turns.")
        assert "It knows [b]no[/b] turns." in chat.screen

    drive(talk, tmp_path, provider)


# ---- models that are brought here


def test_a_hub_id_is_brought_here_with_its_progress_and_chatted_with(tmp_path):
    gate = threading.Event()
    catalogue = two_models(fetches={"org/new": [("downloading", 1, 4), gate, ("importing", 1, 2)]})

    async def talk(chat):
        await open_picker(chat)
        await chat.press(*"org/new")
        await chat.until(lambda: "Enter downloads `org/new`" in chat.screen)
        await chat.press("enter")
        await chat.until(lambda: "org/new: downloading 1 of 4" in chat.screen)
        await chat.send("/pull org/new")
        await chat.until(lambda: chat.told("is on its way"))
        gate.set()
        await chat.until(lambda: isinstance(chat.app.screen, Confirm) and "new is here" in chat.screen)
        await chat.press("y")
        await chat.until(lambda: chat.session.provider is catalogue.providers["new"])
        await chat.settle()
        await chat.ask("Hello")
        assert catalogue.providers["new"].asked

    drive(talk, tmp_path, catalogue=catalogue)


def test_one_chats_while_a_model_comes_and_escape_stops_it(tmp_path):
    catalogue = two_models(fetches={"org/new": [("downloading", 1, 4), threading.Event()]})

    async def talk(chat):
        await chat.send("/pull org/new")
        await chat.until(lambda: "downloading" in chat.screen)
        await chat.send("Hello")
        await chat.until(lambda: "You said: Hello" in chat.screen and not chat.session.busy)
        await chat.press("escape")
        await chat.until(lambda: chat.told("Stopped"))
        assert catalogue.fetched[0].cancelled.is_set()
        await chat.settle()
        assert "downloading" not in chat.screen.splitlines()[-3]

    drive(talk, tmp_path, catalogue=catalogue)


def test_a_fetch_that_fails_or_is_not_possible_is_told(tmp_path):
    catalogue = two_models(fetches={"org/new": [("downloading", 1, 4), HubError("the hub is not reached")]})

    async def talk(chat):
        await chat.send("/pull org/new")
        await chat.until(lambda: chat.told("the hub is not reached"))
        await chat.send("/pull org/[b]other")
        await chat.until(lambda: chat.told("`org/[b]other` cannot be fetched here"))
        await chat.ask("Hello")

    drive(talk, tmp_path, catalogue=catalogue)


def test_leaving_stops_a_fetch(tmp_path):
    catalogue = two_models(fetches={"org/new": [("downloading", 1, 4), threading.Event()]})

    async def talk(chat):
        await chat.send("/pull org/new")
        await chat.until(lambda: "downloading" in chat.screen)
        await chat.press("ctrl+q")
        await chat.until(lambda: catalogue.fetched[0].cancelled.is_set())

    drive(talk, tmp_path, catalogue=catalogue)
