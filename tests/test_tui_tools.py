"""Tools in the chat: calls are shown and asked about, results go back to the model and are kept; no server ends the chat."""

import json
import sys
from pathlib import Path

import pytest
from chat_driver import drive, until
from scripted_provider import ScriptedProvider, answer

from edge_llm.chats.calls import ToolCall
from edge_llm.chats.export import as_json, as_markdown, from_json
from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.settings import ChatSettings
from edge_llm.chats.store import ChatStore
from edge_llm.errors import Unavailable
from edge_llm.providers.base import Ended
from edge_llm.talk.pieces import CallArguments, CallBegun, Said
from edge_llm.tool_servers.process import ToolOffer, ToolResult
from edge_llm.tool_servers.settings import ToolServer
from edge_llm.tui import tools as tools_module
from edge_llm.tui.screens import approve
from edge_llm.tui.screens.approve import Approve
from edge_llm.tui.tool_view import CallView

pytestmark = pytest.mark.thorough(file=3)

SCRIPT = str(Path(__file__).with_name("tool_server.py"))
ADD = ToolOffer("small", "add", "Adds two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
HOSTILE = "\x1b[31mred\x1b]0;owned\x07 \u202etxt [bold]markup[/bold]\nnext"


@pytest.fixture(autouse=True)
def keys_count_at_once(monkeypatch):
    monkeypatch.setattr(approve, "DEAF_SECONDS", 0.0)


class Server:
    """A server of this process, whose calls give ``results`` in turn; an error is raised."""

    def __init__(self, *results, offers=(ADD,), name="small"):
        self.server = ToolServer(name, command="x")
        self.results = list(results)
        self.offers = offers
        self.called = []
        self.stopped = 0

    def tools(self):
        if isinstance(self.offers, Exception):
            raise self.offers
        return self.offers

    def call(self, name, arguments):
        self.called.append((name, arguments))
        result = self.results.pop(0) if self.results else ToolResult("42")
        if isinstance(result, Exception):
            raise result
        return result() if callable(result) else result

    def stop(self):
        self.stopped += 1


def calls(*arguments, name="add", text="Let me see. "):
    pieces = [piece for at, each in enumerate(arguments) for piece in (CallBegun(at, f"c{at}", name), CallArguments(at, each))]
    return [[Said(text), *pieces], Ended("stop")]


def with_tools(talk, folder, scripts, *servers, **options):
    """Run ``talk`` with a chat that has ``servers``, which are no processes."""
    provider = ScriptedProvider(scripts)

    async def ready(chat):
        chat.session.tools._processes = servers
        chat.session.tools.begin()
        await chat.until(lambda: not chat.session.tools._connecting)
        return await talk(chat, provider)

    return drive(ready, folder, provider, **options)


async def asked(chat):
    await chat.opened(Approve)


async def idle(chat):
    await chat.until(lambda: not chat.session.busy)
    await chat.settle()


async def allow(chat, key):
    """Send a prompt whose answer calls a tool, say ``key`` to the first question, and wait until all is answered."""
    await chat.send("go")
    await asked(chat)
    await chat.press(key)
    await idle(chat)


def test_a_call_is_shown_asked_about_made_and_answered(tmp_path):
    server = Server(ToolResult("forty-two"))

    async def talk(chat, provider):
        await chat.send("2 and 40?")
        await asked(chat)
        assert "May the model call add of the server small?" in chat.screen and '"a": 2' in chat.screen
        assert server.called == []
        await chat.press("y")
        await idle(chat)
        assert server.called == [("add", {"a": 2})]
        assert "✓ small: add" in chat.screen and "forty-two" in chat.screen and "It is 42." in chat.screen
        first, second = provider.asked
        assert first.tools[0]["function"]["name"] == "add" and first.tools == second.tools
        _, said, result = second.messages
        assert said["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 2}'}
        assert result == {"role": "tool", "tool_call_id": "c0", "content": "forty-two"}

    with_tools(talk, tmp_path, [calls('{"a": 2}'), answer("It is 42.")], server)


@pytest.mark.parametrize("varies", ["arguments", "result", "guard", "nothing"])
def test_calls_that_are_made_over_and_over_are_stopped(tmp_path, varies):
    """The same calls of which the same comes, three times; what changes is no loop, and who wants no guard has none."""
    results = [ToolResult(f"{at if varies == 'result' else 'same'}") for at in range(5)]
    scripts = [calls(f'{{"a": {at if varies == "arguments" else 0}}}') for at in range(5)]
    server = Server(*results)

    async def talk(chat, provider):
        await allow(chat, "a")
        if varies != "nothing":
            assert len(server.called) == 5 and "done" in chat.screen
            return
        assert len(server.called) == tools_module.SAME_CALLS
        assert chat.told("The model makes the same calls over and over, and was stopped.")
        await chat.send("/continue")
        await asked_for(provider, tools_module.SAME_CALLS + 1)

    settings = ChatSettings(sampling={"loop_guard": False} if varies == "guard" else {})
    with_tools(talk, tmp_path, [*scripts, answer("done")], server, settings=settings)


async def asked_for(provider, many):
    await until(lambda: len(provider.asked) >= many)


def test_calls_of_an_answer_in_a_loop_are_not_made(tmp_path):
    """Nobody knows whether the last one is whole; /continue makes them."""
    server = Server()
    looping = [calls('{"a": 1}', '{"a": 1}')[0], Ended("repetition")]

    async def talk(chat, provider):
        await chat.ask("go")
        assert chat.told("The answer repeated itself and was ended.")
        assert server.called == [] and len(provider.asked) == 1
        await chat.send("/continue")
        await asked(chat)
        await chat.press("a")
        await idle(chat)
        assert len(server.called) == 2 and "done" in chat.screen

    with_tools(talk, tmp_path, [looping, answer("done")], server)


def test_once_asks_again_and_always_does_not(tmp_path):
    server = Server()
    scripts = [calls("{}"), calls("{}", "{}"), calls("{}"), answer("done"), calls("{}"), answer("other chat")]

    async def talk(chat, provider):
        await chat.send("go")
        await asked(chat)
        await chat.press("y")
        await chat.until(lambda: len(server.called) == 1)
        await asked(chat)
        await chat.press("a")
        await idle(chat)
        assert len(server.called) == 4 and "done" in chat.screen
        await chat.press("ctrl+n")
        await chat.until(lambda: not chat.session.chat.path)
        await chat.send("go")
        await asked(chat)  # another chat
        await chat.press("n")
        await idle(chat)
        assert len(server.called) == 4

    with_tools(talk, tmp_path, scripts, server)


def test_always_holds_for_the_tool_as_it_was_offered(tmp_path):
    server = Server()
    changed = ToolOffer("small", "add", "Deletes all files.", {})

    async def talk(chat, provider):
        await allow(chat, "a")
        chat.session.tools._offers["small"] = [changed]
        await chat.send("go")
        await asked(chat)
        assert "Deletes all files." in chat.screen
        await chat.press("escape")
        await idle(chat)
        assert len(server.called) == 1

    with_tools(talk, tmp_path, [calls("{}"), answer("one"), calls("{}"), answer("two")], server)


def test_a_refused_call_is_not_made_and_the_model_is_told(tmp_path):
    server = Server()

    async def talk(chat, provider):
        await allow(chat, "n")
        assert server.called == [] and "not allowed" in chat.screen and "Without it, then." in chat.screen
        assert provider.asked[1].messages[-1]["content"] == tools_module.REFUSED

    with_tools(talk, tmp_path, [calls("{}"), answer("Without it, then.")], server)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (calls("{}", name="rm_rf"), "There is no tool `rm_rf`; there are: add."),
        (calls("[1"), "The arguments are not a JSON object."),
        (calls("[1]"), "The arguments are not a JSON object."),
        (calls("{" + '"a":[' * 500 + "]" * 500 + "}"), "The arguments are not a JSON object."),
    ],
)
def test_a_call_that_cannot_be_made_asks_nobody(tmp_path, script, told):
    server = Server()

    async def talk(chat, provider):
        await chat.send("go")
        await idle(chat)
        assert server.called == []
        assert provider.asked[1].messages[-1]["content"] == told

    with_tools(talk, tmp_path, [script, answer("sorry")], server)


def test_a_server_that_is_not_there_any_more_is_told_and_the_chat_goes_on(tmp_path):
    server = Server(Unavailable("the tool server `small` is not there: it died"))

    async def talk(chat, provider):
        await allow(chat, "y")
        assert chat.told("is not there: it died")
        assert "✗ small: add" in chat.screen and "Sorry." in chat.screen
        assert "it died" in provider.asked[1].messages[-1]["content"]

    with_tools(talk, tmp_path, [calls("{}"), answer("Sorry.")], server)


def test_a_server_that_does_not_start_is_told_in_a_line_and_prompts_are_answered(tmp_path):
    gone = Server(offers=Unavailable("the tool server `gone` is not there: no licence"), name="gone")

    async def talk(chat, provider):
        assert chat.told("`gone` is not there: no licence")
        await chat.send("Hello")
        await idle(chat)
        assert provider.asked[0].tools == () and "hi" in chat.screen
        await chat.send("/tools")
        await chat.until(lambda: chat.told("gone: the tool server"))

    with_tools(talk, tmp_path, [answer("hi")], gone)


def test_no_character_of_a_tool_talks_to_the_terminal(tmp_path):
    odd = ToolOffer("small", "add", HOSTILE, {})
    server = Server(ToolResult(HOSTILE), offers=(odd,))

    async def talk(chat, provider):
        def clean():
            shown = chat.app.export_screenshot()
            return "\x1b" not in shown and "\x07" not in shown and "\u202e" not in shown and "&#27;" not in shown

        await chat.send("go")
        await asked(chat)
        assert clean() and "[bold]markup[/bold]" in chat.screen
        await chat.press("y")
        await idle(chat)
        assert clean() and "[31mred" in chat.screen
        view = chat.app.query_one(CallView)
        view.focus()
        await chat.press("enter")
        await chat.until(lambda: "next" in chat.screen)
        assert clean() and "[bold]markup[/bold]" in chat.screen

    arguments = json.dumps({"a": HOSTILE})
    with_tools(talk, tmp_path, [calls(arguments), answer("ok")], server)


def test_a_long_result_is_cut_to_a_part_of_the_context(tmp_path):
    server = Server(ToolResult("x" * 100_000, length=5_000_000))

    async def talk(chat, provider):
        await allow(chat, "y")
        given = provider.asked[1].messages[-1]["content"]
        assert given == "x" * 2048 + "\n[cut off: 5,000,000 characters in all]"  # the context has 1024 tokens

    with_tools(talk, tmp_path, [calls("{}"), answer("long")], server)


def test_a_model_that_calls_without_end_is_stopped(tmp_path, monkeypatch):
    from edge_llm.tui import session

    monkeypatch.setattr(session, "MOST_ROUNDS", 3)
    server = Server()

    async def talk(chat, provider):
        await allow(chat, "a")
        assert len(provider.asked) == 3 and len(server.called) == 3
        assert chat.told("Stopped after 3 answers with tool calls")

    with_tools(talk, tmp_path, lambda ask: calls(f'{{"a": {len(server.called)}}}'), server)


def test_escape_stops_a_call_that_hangs_and_continue_makes_it(tmp_path):
    import threading

    hanging = threading.Event()
    server = Server(lambda: hanging.wait(30) and ToolResult("late"))

    async def talk(chat, provider):
        await chat.send("go")
        await asked(chat)
        await chat.press("y")
        await chat.until(lambda: server.called)
        await chat.until(lambda: "calling add" in chat.screen)
        await chat.press("escape")
        await idle(chat)
        hanging.set()
        assert server.stopped == 1
        (call,) = chat.session.chat.path[-1].calls
        assert call.open and "not called yet" in chat.screen
        await chat.send("/continue")
        await asked(chat)
        await chat.press("y")
        await idle(chat)
        assert len(server.called) == 2 and "Here." in chat.screen

    with_tools(talk, tmp_path, [calls("{}"), answer("Here.")], server)


def test_what_was_called_is_there_when_the_chat_is_opened_again(tmp_path):
    server = Server(ToolResult("forty-two"))

    async def talk(chat, provider):
        await allow(chat, "y")

    with_tools(talk, tmp_path, [calls('{"a": 2}'), answer("It is 42.")], server)

    async def again(chat):
        await chat.until(lambda: "✓ small: add" in chat.screen and "forty-two" in chat.screen and "It is 42." in chat.screen)
        await chat.send("and?")
        await idle(chat)
        roles = [message["role"] for message in chat.session.provider.asked[0].messages]
        assert roles == ["user", "assistant", "tool", "assistant", "user"]

    drive(again, tmp_path, ScriptedProvider([answer("more")]))


def test_an_answer_after_calls_can_be_made_again(tmp_path):
    server = Server(ToolResult("forty-two"))

    async def talk(chat, provider):
        await allow(chat, "y")
        await chat.press("ctrl+r")
        await chat.until(lambda: "Another one." in chat.screen)
        await idle(chat)
        assert len(server.called) == 1
        assert provider.asked[2].messages == provider.asked[1].messages

    with_tools(talk, tmp_path, [calls("{}"), answer("One."), answer("Another one.")], server)


def test_tools_are_turned_off_for_a_chat(tmp_path):
    async def talk(chat, provider):
        await chat.send("/tools off")
        await chat.until(lambda: chat.told("This chat uses none"))
        await chat.send("Hello")
        await idle(chat)
        assert provider.asked[0].tools == ()
        await chat.send("/tools on")
        await chat.until(lambda: chat.session.settings.tools is True)
        await chat.send("Hello")
        await idle(chat)
        assert [tool["function"]["name"] for tool in provider.asked[1].tools] == ["add"]

    with_tools(talk, tmp_path, [answer("a"), answer("b")], Server())


def test_two_servers_with_a_tool_of_the_same_name(tmp_path):
    one, two = Server(ToolResult("1"), name="one"), Server(ToolResult("2"), name="two")
    one.offers, two.offers = [ToolOffer("one", "add"), ToolOffer("one", "no name!")], [ToolOffer("two", "add")]

    async def talk(chat, provider):
        await chat.send("go")
        await asked(chat)
        assert "of the server two?" in chat.screen
        await chat.press("y")
        await idle(chat)
        assert [tool["function"]["name"] for tool in provider.asked[0].tools] == ["one_add", "two_add"]
        assert one.called == [] and two.called == [("add", {})]

    with_tools(talk, tmp_path, [calls("{}", name="two_add"), answer("ok")], one, two)


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (200, 60)])
def test_the_question_and_its_answers_are_seen_at_any_size(tmp_path, size):
    async def talk(chat, provider):
        await chat.send("go")
        await asked(chat)
        await chat.until(lambda: "No (n)" in chat.screen)
        assert "Once (y)" in chat.screen and "call add" in " ".join(chat.screen.split())
        await chat.press("n")
        await idle(chat)

    long = json.dumps({f"k{at}": "v" * 50 for at in range(50)})
    with_tools(talk, tmp_path, [calls(long), answer("ok")], Server(), size=size)


def test_a_key_that_was_meant_for_the_prompt_allows_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(approve, "DEAF_SECONDS", 3600.0)
    server = Server()

    async def talk(chat, provider):
        await chat.send("go")
        await asked(chat)
        await chat.press("y", "a", "enter")
        assert isinstance(chat.app.screen, Approve) and server.called == []
        await chat.pilot.click("#no")
        await idle(chat)

    with_tools(talk, tmp_path, [calls("{}"), answer("ok")], server)


def test_a_real_server_and_a_broken_config_beside_it(tmp_path):
    servers = [
        ToolServer("small", command=sys.executable, args=(SCRIPT,)),
        ToolServer("dead", command=sys.executable, args=(SCRIPT, "dies")),
    ]
    provider = ScriptedProvider([calls('{"a": 2, "b": 40}'), answer("It is 42.")])

    async def talk(chat):
        assert chat.told("[mcp.bad] is wrong")
        await chat.until(lambda: chat.told("`dead` is not there") and "small" in chat.session.tools._offers)
        await chat.send("2 and 40?")
        await asked(chat)
        await chat.press("y")
        await idle(chat)
        assert "✓ small: add" in chat.screen
        assert provider.asked[1].messages[-1]["content"] == "42"

    drive(talk, tmp_path, provider, servers=servers, problems=["[mcp.bad] is wrong"])


# ---- what is kept


def test_calls_go_through_the_database_and_both_exports(tmp_path):
    store = ChatStore.open(tmp_path / "chats.db")[0]
    chat = OpenChat.new(store, {})
    prompt = chat.add("user", "go", parent=None)
    made = (ToolCall("c0", "add", '{"a": 1}', "small", "done", "```\nforty-two\ud800"), ToolCall("c1", "add"))
    message = chat.add("assistant", "", parent=prompt.id, model="m", calls=made[1:])
    chat.save()
    chat.put(message := type(message)(**{**vars(message), "calls": made}))
    chat.save()
    read = OpenChat.read(store, chat.chat.id)
    assert read.path[-1].calls[0].result == "```\nforty-two?" and read.path[-1].calls[1] == made[1]
    kept, messages = from_json(as_json(read.chat, read.messages).encode(), "x")
    assert messages[-1].calls == read.path[-1].calls
    copy = store.take_in(kept, messages)
    assert OpenChat.read(store, copy.id).path[-1].calls == read.path[-1].calls
    assert "Called: add (done)" in as_markdown(read.chat, read.path) and "forty-two" in as_markdown(read.chat, read.path)
    store.delete(chat.chat.id)
    assert store._db.execute("SELECT count(*) FROM calls WHERE message = ?", (message.id,)).fetchone() == (0,)
