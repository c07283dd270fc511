"""One prompt to two models: both answers are seen, the chosen one goes on, the other one stays as a version."""

import pytest
from chat_driver import drive
from scripted_provider import ScriptedCatalogue, ScriptedProvider, answer

from edge_llm.errors import StorageError
from edge_llm.tui.screens.compare import Compare

pytestmark = pytest.mark.thorough(file=3)


def catalogue(**more):
    return ScriptedCatalogue(
        {
            "one": ScriptedProvider([answer("**First** word."), answer("one again")]),
            "two": ScriptedProvider([answer("Second \x1b[31mword.")]),
            **more,
        }
    )


async def comparing(chat):
    await chat.opened(Compare)
    await chat.until(lambda: "First word." in chat.screen)


async def settled(chat):
    await chat.until(lambda: chat.session.provider is not None and chat.session.provider.facts.name == "one")
    await chat.until(lambda: not chat.session.busy and not isinstance(chat.app.screen, Compare))


def run(talk, tmp_path, size, models):
    return drive(talk, tmp_path, catalogue=models, size=size)


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (40, 12)])
def test_two_models_answer_one_prompt_and_the_chosen_answer_goes_on(tmp_path, size):
    models = catalogue()

    async def talk(chat):
        await chat.send("/compare two Say a word")
        await comparing(chat)
        assert ("Second [31mword." in chat.screen) == (size[0] >= 90)
        await chat.press("right")
        await chat.until(lambda: "Second [31mword." in chat.screen)
        assert ("First word." in chat.screen) == (size[0] >= 90)
        assert "\x1b" not in chat.app.export_screenshot()
        await chat.press("left", "enter")
        await settled(chat)
        assert [wanted.model for wanted in models.opened] == [None, "two", None]
        prompt, chosen = chat.session.chat.path
        assert (prompt.text, chosen.text, chosen.model) == ("Say a word", "**First** word.", "one")
        versions = [message for message in chat.session.chat.messages if message.parent == prompt.id]
        assert [message.model for message in versions] == ["one", "two"]
        assert models.providers["two"].asked[0].messages == models.providers["one"].asked[0].messages
        await chat.ask("and?")
        assert [message["content"] for message in models.providers["one"].asked[1].messages][1] == "**First** word."

    run(talk, tmp_path, size, models)


def test_the_last_prompt_is_compared_and_the_other_model_goes_on(tmp_path):
    models = catalogue()

    async def talk(chat):
        await chat.ask("Say a word")
        await chat.send("/compare two")
        await comparing(chat)
        await chat.press("tab", "m")
        await chat.until(lambda: chat.session.settings.model == "two" and chat.session.provider is not None)
        assert chat.session.chat.path[-1].model == "two"
        assert len(models.providers["one"].asked) == 1

    run(talk, tmp_path, (120, 40), models)


def test_leaving_keeps_both_answers(tmp_path):
    async def talk(chat):
        await chat.send("/compare two Say a word")
        await comparing(chat)
        await chat.press("escape")
        await settled(chat)
        assert {message.model for message in chat.session.chat.messages} == {"", "one", "two"}

    run(talk, tmp_path, (120, 40), catalogue())


def test_a_model_that_is_not_there_changes_nothing(tmp_path):
    async def talk(chat):
        await chat.send("/compare three Say a word")
        await chat.until(lambda: chat.told("no model `three`"))
        assert chat.session.chat.path == [] and not chat.session.busy

    run(talk, tmp_path, (120, 40), catalogue())


def test_without_a_prompt_it_says_how(tmp_path):
    async def talk(chat):
        await chat.send("/compare two")
        await chat.until(lambda: chat.told("/compare two PROMPT sends one"))

    run(talk, tmp_path, (120, 40), catalogue())


def test_a_second_model_that_cannot_be_loaded_gives_the_first_one_back(tmp_path):
    models = catalogue()
    models.loads["two"] = [StorageError("no room for two")]

    async def talk(chat):
        await chat.send("/compare two Say a word")
        await chat.until(lambda: chat.told("no room for two"))
        await settled(chat)
        assert [message.model for message in chat.session.chat.path] == ["", "one"]

    run(talk, tmp_path, (120, 40), models)


def test_stopping_the_second_answer_leaves_the_chat_usable(tmp_path):
    models = catalogue(two=ScriptedProvider([["Second"]]))

    async def talk(chat):
        await chat.send("/compare two Say a word")
        await chat.until(lambda: "Second" in chat.screen and chat.session.answering is not None)
        await chat.press("escape")
        await comparing(chat)  # what there is of it
        await chat.press("enter")
        await settled(chat)
        assert chat.session.chat.path[-1].model == "one"

    run(talk, tmp_path, (120, 40), models)
