"""`edge-llm chat --url` against the project's own server, full screen and line by line."""

import os
import subprocess
import sys

import pytest
from real_terminal import Terminal
from scripted_server import ScriptedServer

pytestmark = pytest.mark.thorough(file=3)


def test_full_screen_chat_with_our_own_server(url):
    with Terminal("chat", "--url", url) as chat:
        chat.wait_for("builtin")
        chat.write("Hello, who are you?\r")
        chat.wait_for("tokens")
        assert "built-in model" in chat.text
        chat.write("/model an/alias\r")
        chat.wait_for(lambda text: "an/alias" in text.splitlines()[-3])
        chat.write("/quit\r")
        assert chat.wait_end() == 0
        chat.check_left()


def test_piped_chat_with_our_own_server(url):
    command = [sys.executable, "-m", "edge_llm", "chat", "--url", url, "--temperature", "0"]
    lines = "Hello, who are you?\nAnd again: who are you?\n"
    result = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60, env={**os.environ})
    assert result.returncode == 0, result.stderr
    assert "built-in model" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "not an address"])
def test_a_wrong_address_is_told_and_the_chat_stays(address):
    with Terminal("chat", "--url", address) as chat:
        chat.wait_for("F4 chooses a model")
        chat.write("still here")
        chat.wait_for("still here")
        chat.press("ctrl+q")
        assert chat.wait_end() == 0
        chat.check_left()


def test_a_server_that_dies_in_the_middle_leaves_what_came():
    with ScriptedServer() as server, Terminal("chat", "--url", server.url) as chat:
        chat.wait_for("scripted")
        chat.write("hello\r")
        answer = server.next()
        answer.say("as far as it came")
        chat.wait_for("as far as it came")
        answer.drop()
        chat.wait_for("Failed: ")
        assert "as far as it came" in chat.text
        chat.wait_gone("Esc stops")  # until then what is sent waits, and behind a failed answer it waits for a person
        chat.write("once more\r")
        assert server.next().body["messages"][1]["content"] == "as far as it came"


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m[bold]x[/bold] [link=file:///etc]y[/link]\x1b]52;c;aGk=\x07\u202eback"


def test_hostile_text_never_reaches_the_terminal_raw():
    name = "bad\x1b]0;owned\x07name"
    with ScriptedServer(name) as server, Terminal("chat", "--url", server.url) as chat:
        chat.wait_for("bad")
        chat.write("/title \x1b[31mowned\r")
        chat.write("hello\r")
        answer = server.next()
        answer.think(HOSTILE)
        answer.say(HOSTILE, "\n\n```\n", HOSTILE, "\n```\n\n| ", HOSTILE, " |\n|---|\n\nthe end")
        answer.end()
        chat.wait_for("the end")
        chat.press("f3")
        chat.wait_for("search chats")
    for raw in (b"\x1b]0", b"\x1b[2J", b"\x1b]52", b"owned\x07", "\x9b".encode(), "\u202e".encode()):
        assert raw not in chat.raw


@pytest.mark.parametrize(("limit", "says"), [(["-n", "3"], "[cut short after 3 tokens; --max-tokens allows more]"), ([], "")])
def test_a_piped_chat_says_whose_limit_cut_the_answer(url, limit, says):
    command = [sys.executable, "-m", "edge_llm", "chat", "--url", url, "--temperature", "0", *limit]
    result = subprocess.run(command, input="Hello, who are you?\n", capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr.strip()) == (0, says)
