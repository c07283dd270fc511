"""Another answer, and an answer that was in a loop, in the full-screen chat."""

import pytest
from chat_driver import drive
from scripted_provider import ScriptedProvider, answer

pytestmark = pytest.mark.thorough(file=3)

NOTICE = "The answer repeated itself and was ended."


def test_an_answer_that_is_made_again_is_asked_to_be_another(tmp_path):
    provider = ScriptedProvider([answer("one"), answer("two"), answer("three"), answer("four")])

    async def talk(chat):
        await chat.ask("Roll")
        await chat.press("ctrl+r")
        await chat.until(lambda: "two" in chat.screen and not chat.session.busy)
        await chat.focus_message(1)
        await chat.press("r")
        await chat.until(lambda: "three" in chat.screen and not chat.session.busy)
        await chat.ask("And now?")
        assert [ask.again for ask in provider.asked] == [False, True, True, False]

    drive(talk, tmp_path, provider)


def test_the_first_answer_that_failed_is_made_as_it_was_asked_for(tmp_path):
    provider = ScriptedProvider([answer(""), answer("one")])

    async def talk(chat):
        await chat.ask("Roll")
        await chat.send("/regenerate")
        await chat.until(lambda: "one" in chat.screen and not chat.session.busy)
        assert [ask.again for ask in provider.asked] == [False, False]

    drive(talk, tmp_path, provider)


def test_an_answer_in_a_loop_is_told_of_and_can_go_on(tmp_path):
    provider = ScriptedProvider([answer("ha ha", reason="repetition"), answer(" ha", reason="repetition"), answer("Well.")])

    async def talk(chat):
        await chat.ask("Laugh")
        assert chat.told(NOTICE) and chat.told("/continue goes on, /regenerate answers again")
        await chat.send("/continue")
        await chat.until(lambda: "ha ha ha" in chat.screen and not chat.session.busy)
        assert provider.asked[1].continues and not provider.asked[1].again
        await chat.send("/regenerate")
        await chat.until(lambda: "Well." in chat.screen and not chat.session.busy)
        assert provider.asked[2].again
        assert chat.stored == [
            ("user", "Laugh", "whole"), ("assistant", "ha ha ha", "whole"), ("assistant", "Well.", "whole"),
        ]  # fmt: skip

    drive(talk, tmp_path, provider)


def test_the_guard_is_turned_off_for_one_chat(tmp_path):
    provider = ScriptedProvider()

    async def talk(chat):
        await chat.send("/set loop_guard off")
        await chat.settle()
        await chat.ask("Laugh")
        assert provider.asked[0].sampling == {"loop_guard": False}

    drive(talk, tmp_path, provider)
