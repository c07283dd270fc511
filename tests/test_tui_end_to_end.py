"""The full-screen chat with the built-in model: from the keys to its tokens and to the file."""

from chat_driver import drive

from edge_llm.chats.settings import ChatSettings
from edge_llm.config import RuntimeConfig
from edge_llm.providers.local import LocalCatalogue


def test_the_built_in_model_answers_is_stopped_and_looked_into(tmp_path):
    settings = ChatSettings(sampling={"temperature": 0.0, "max_tokens": 12})

    async def talk(chat):
        await chat.press(*"Hello", "enter")
        await chat.until(lambda: len(chat.said) == 2 and not chat.session.busy)
        await chat.settle()
        (_, asked, _), (_, said, state) = chat.stored
        assert (asked, state) == ("Hello", "whole")
        assert said
        assert " tokens · " in chat.screen
        await chat.press("f2")
        await chat.until(lambda: "answers 1 " in chat.screen and "Keys and values" in chat.screen)
        await chat.press("f2")
        await chat.send("/set max_tokens 100000")
        await chat.until(lambda: chat.session.settings.sampling["max_tokens"] == 100000)
        await chat.send("Tell me more")
        await chat.until(lambda: len(chat.said) == 4)
        await chat.press("escape")
        await chat.until(lambda: not chat.session.busy)
        await chat.settle()
        assert chat.stored[-1][2] in ("stopped", "whole")  # it may have said all before

    drive(talk, tmp_path, catalogue=LocalCatalogue(RuntimeConfig()), settings=settings, size=(140, 50))
