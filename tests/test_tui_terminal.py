"""The full-screen chat in a real pseudo-terminal: what the person sees, what is saved, and how the terminal is left."""

import re
import signal
import sqlite3
import sys

import pytest
from real_terminal import Terminal
from scripted_server import ScriptedServer

from edge_llm.chats.store import ChatStore
from edge_llm.paths import chats_file
from edge_llm.tui.welcome import TOY_PROMPTS

pytestmark = pytest.mark.thorough(file=3)

FOOTER = "f1 Help"
PYTHON = sys.executable
COLOUR = re.compile(rb"\x1b\[(?:[0-9;]*;)?(?:3[1-7]|9[1-7])(?:;[0-9;]*)?m")


@pytest.fixture
def server():
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def chat(server):
    """A terminal whose chat the test answers by ``server``."""
    with Terminal("chat", "--url", server.url) as terminal:
        terminal.wait_for("scripted")
        yield terminal


def ask(terminal, server, text="hello"):
    """Send ``text``; the answer that the test gives."""
    terminal.write(f"{text}\r")
    return server.next()


def stored():
    """Every message on disk, as (role, text, state), oldest chat first."""
    store = ChatStore.open(chats_file())[0]
    chats = sorted((found.chat for found in store.chats()), key=lambda chat: chat.id)
    return [(message.role, message.text, message.state) for chat in chats for message in store.messages(chat.id)]


def lines(begin, end):
    return "".join(f"line {number}\n\n" for number in range(begin, end))


def finish(terminal, answer):
    """End ``answer``, of which something is shown, and wait until the chat is idle."""
    terminal.wait_for("writing")
    answer.end()
    terminal.wait_gone("writing")


def beginnings(screen):
    """The first lines of the chat on ``screen``, without the scroll bar."""
    return [line[:60].rstrip() for line in screen.splitlines()[1:20]]


# ---- with the built-in model


def test_built_in_model_answers_and_the_terminal_is_as_before():
    with Terminal() as terminal:
        terminal.wait_for(FOOTER)
        terminal.write("Hello, who are you?\r")  # at once: the model may still be loading
        terminal.wait_for("tokens")
        terminal.press("f2")
        terminal.wait_for("Keys and values")
        terminal.press("ctrl+q")
        assert terminal.wait_end() == 0
        terminal.check_left()
    (_, prompt, _), (_, answer, state) = stored()
    assert (prompt, state) == ("Hello, who are you?", "whole")
    assert "built-in model" in answer


def test_alt_and_a_digit_writes_a_prompt_of_the_welcome():
    """Most terminals send it as Escape and the digit."""
    with Terminal() as terminal:
        terminal.wait_for(f"1  {TOY_PROMPTS[0]}")
        terminal.write("\x1b2")
        terminal.wait_for(f"█ {TOY_PROMPTS[1]}")


# ---- answers that stream


def test_answer_streams_and_escape_stops_it(chat, server):
    answer = ask(chat, server)
    answer.say("one ")
    chat.wait_for("one")
    answer.say("two ")
    chat.wait_for("one two")
    chat.press("escape")
    assert answer.lost.wait(240), "the server is told"
    chat.wait_for("stopped")
    assert stored() == [("user", "hello", "whole"), ("assistant", "one two ", "stopped")]
    again = ask(chat, server, "and now?")
    assert [message["content"] for message in again.body["messages"]] == ["hello", "one two ", "and now?"]


@pytest.mark.parametrize(("away", "back"), [("pageup", "pagedown"), ("wheel up", "wheel down")])
def test_who_scrolls_away_stays_there_while_the_answer_grows(chat, server, away, back):
    answer = ask(chat, server)
    answer.say(lines(0, 40))
    chat.wait_for("line 39")
    chat.press(*[away] * 40)
    seen = beginnings(chat.wait_for("line 0"))
    answer.say(lines(40, 60))
    finish(chat, answer)
    assert beginnings(chat.text) == seen
    chat.press(*[back] * 60)
    chat.wait_for("line 59")
    assert chat.text.count("hello") == 1, "only the title: the rest is above"


def _says_size_6(screen):
    return "size 6: 你 好  😀" in screen or "size 6: 你好 😀" in screen.replace("你 好 ", "你好")


def test_sizes_change_while_the_answer_grows(chat, server):
    answer = ask(chat, server)
    for number, size in enumerate([(40, 12), (200, 60), (10, 3), (1, 1), (120, 40), (40, 12), (200, 60)]):
        answer.say(f"size {number}: 你好 😀 {'wide ' * 30}\n\n")
        chat.resize(*size)
    answer.say("the end")
    answer.end()
    chat.wait_for(lambda text: FOOTER in text and "the end" in text and _says_size_6(text))
    chat.resize(40, 12)
    chat.wait_for("the end")
    chat.write("still here")
    chat.wait_for("still here")


# ---- what is typed and pasted


def test_text_and_enter_in_one_write_are_in_order(chat, server):
    for number in range(3):
        answer = ask(chat, server, f"prompt {number} {'x' * 200}")
        answer.say(f"answer {number}")
        finish(chat, answer)
        chat.wait_for(f"answer {number}")
    assert [text for role, text, _ in stored() if role == "user"] == [f"prompt {number} {'x' * 200}" for number in range(3)]


def test_pasted_lines_are_one_prompt(chat, server):
    text = "first line\nsecond 你好 line\n\tindented 😀\nlast"
    chat.paste(text)
    chat.wait_for("last")
    chat.write("\r")
    assert server.next().body["messages"][-1]["content"] == text


def test_long_lines_are_sent_and_shown(chat, server):
    long = "long " * 2000 + "你" * 10_000
    chat.paste(f"{long}\n{'y' * 10_000}")
    chat.wait_for("yyyyy")
    chat.write("\r")
    answer = server.next()
    assert answer.body["messages"][-1]["content"] == f"{long}\n{'y' * 10_000}"
    for around in ("{}\n\n", "`{}`\n\n", "```\n{}\n```\n\n", "| a |\n|---|\n| {} |\n\n", "the end"):
        answer.say(around.format("z" * 10_000))
    answer.end()
    chat.wait_for("the end")
    chat.resize(40, 12)
    chat.wait_for(lambda text: "the end" in text and FOOTER in text)


def test_bytes_that_are_no_text_do_no_harm(chat, server):
    chat.write(b"caf\xe9 \xff\xfe")
    chat.write("ok\r")
    content = server.next().body["messages"][-1]["content"]
    assert content.startswith("caf") and content.endswith("ok")


def test_screens_open_and_close(chat, server):
    answer = ask(chat, server)
    for key, wanted in (("f1", "Writing"), ("f2", "Speed"), ("f3", "search chats"), ("f5", "temperature")):
        chat.press(key)
        chat.wait_for(wanted)
        answer.say(f"while {key} ")
        chat.press("escape" if key in ("f1", "f5") else key)
        chat.wait_gone(wanted)
    answer.end()
    chat.wait_for("while f5")
    chat.press("f4")
    chat.wait_for("scripted")
    chat.press("escape")
    chat.write("and back")
    chat.wait_for("and back")


# ---- how it ends


@pytest.mark.parametrize("keys", [["ctrl+q"], ["ctrl+c", "ctrl+c"], ["/quit"]], ids=" ".join)
def test_leaving_gives_the_terminal_back(chat, keys):
    for key in keys:
        if key == "/quit":
            chat.write("/quit\r")
        else:
            chat.press(key)
    assert chat.wait_end() == 0
    chat.check_left()


def test_control_c_stops_an_answer_and_does_not_leave(chat, server):
    answer = ask(chat, server)
    answer.say("one")
    chat.wait_for("one")
    chat.press("ctrl+c")
    chat.wait_for("stopped")
    chat.press("ctrl+c")
    chat.wait_for("Press Ctrl+C again")
    chat.write("still here")
    chat.wait_for("still here")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_it_and_lose_nothing(chat, server, number):
    answer = ask(chat, server)
    answer.say("as far as it came")
    chat.wait_for("as far as it came")
    chat.signal(number)
    assert chat.wait_end() == 128 + number
    chat.check_left()
    assert stored() == [("user", "hello", "whole"), ("assistant", "as far as it came", "stopped")]


def test_leaving_in_the_middle_of_an_answer_keeps_all_that_came(chat, server):
    answer = ask(chat, server)
    answer.say("as far as it came")
    chat.wait_for("as far as it came")
    chat.press("ctrl+q")
    assert chat.wait_end() == 0
    assert stored() == [("user", "hello", "whole"), ("assistant", "as far as it came", "stopped")]


def test_terminal_that_is_closed_ends_it_and_loses_nothing(chat, server):
    answer = ask(chat, server)
    answer.say("as far as it came")
    chat.wait_for("as far as it came")
    chat.hang_up()
    assert chat.wait_end() == 128 + signal.SIGHUP
    assert stored() == [("user", "hello", "whole"), ("assistant", "as far as it came", "stopped")]


def test_killed_when_the_prompt_is_shown_it_is_there(chat, server):
    text = "a prompt that is not to be lost"
    chat.write(text)
    chat.wait_for(text)
    chat.write("\r")
    chat.wait_for(lambda screen: "you" in screen.split() and text in screen)
    chat.signal(signal.SIGKILL)
    assert chat.wait_end() == -signal.SIGKILL
    with Terminal("chat", "--url", server.url) as again:
        again.wait_for(text)
    assert stored()[0] == ("user", text, "whole")
    with sqlite3.connect(chats_file()) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_killed_in_the_middle_of_an_answer_it_keeps_all_but_the_last_second(chat, server):
    answer = ask(chat, server)
    answer.say("begun ")
    chat.wait_for("begun")
    chat.wait_for("2 s  Esc stops")  # by then what is older than a second is on disk
    answer.say("late")
    chat.wait_for("late")
    chat.signal(signal.SIGKILL)
    chat.wait_end()
    with Terminal("chat", "--url", server.url) as again:
        again.wait_for("begun")
        again.wait_for("unfinished")


def test_suspended_it_gives_the_terminal_to_the_shell_and_comes_back(server):
    with Terminal(command=["/bin/sh", "-i"], PS1="shell> ") as shell:
        shell.wait_for("shell>")
        shell.write(f"{PYTHON} -m edge_llm chat --url {server.url}\n")
        shell.wait_for("scripted")
        answer = ask(shell, server)
        answer.say("before")
        shell.wait_for("before")
        shell.press("ctrl+z")
        shell.wait_for("Stopped")
        assert shell.switched_on() == set()
        shell.write("echo $((6 * 7))\n")
        shell.wait_for("42")
        shell.write("fg\n")
        shell.wait_for(lambda text: "before" in text and FOOTER in text and "scripted" in text)
        answer.say(" and after")
        answer.end()
        shell.wait_for("before and after")
        shell.press("ctrl+q")
        shell.wait_for(lambda text: "shell>" in text and not shell.switched_on())


MISTAKE = """
import edge_llm.tui.actions.prompts as prompts
from edge_llm.__main__ import main

def mistake(*_):
    raise ZeroDivisionError("a mistake of ours")

prompts.PromptActions.take = mistake
main()
"""


def test_a_mistake_of_ours_is_one_line_and_loses_nothing():
    with Terminal(command=[PYTHON, "-c", MISTAKE, "chat", "--system", "be kind"]) as terminal:
        terminal.wait_for("builtin")
        terminal.write("hello\r")
        assert terminal.wait_end() == 1
        terminal.check_left()
        assert "internal error, ZeroDivisionError: a mistake of ours" in terminal.text
        assert "Traceback" not in terminal.text


def test_without_a_shell_it_is_not_suspended(chat):
    chat.press("ctrl+z")
    chat.wait_for("no shell to go back to")


# ---- other terminals


LESS = [{"TERM": "xterm"}, {"TERM": "linux"}, {"NO_COLOR": "1"}, {"COLORTERM": None}, {"LANG": "C", "LC_ALL": "C"}]


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("env", LESS, ids=str)
def test_terminals_with_less(server, env):
    with Terminal("chat", "--url", server.url, **env) as chat:
        chat.wait_for("scripted")
        answer = ask(chat, server, "hello 你好")
        answer.say("**an** answer 😀")
        answer.end()
        chat.wait_for("an answer")
        chat.press("ctrl+q")
        assert chat.wait_end() == 0
        chat.check_left()
    assert stored()[0][1] == "hello 你好"
    if "NO_COLOR" in env:
        assert not COLOUR.search(chat.raw), "grey is what is left of colours"


def test_terminal_of_ten_columns_and_three_rows(server):
    with Terminal("chat", "--url", server.url, columns=10, rows=3) as chat:
        chat.wait_raw(b"Help")
        answer = ask(chat, server)
        answer.say("a long answer " * 50)
        answer.end()
        chat.resize(100, 30)
        chat.wait_for("a long answer")


@pytest.mark.parametrize("more", [{"TERM": "dumb"}, {"arguments": ["--plain"]}], ids=str)
def test_plain_terminals_are_served_line_by_line(server, more):
    arguments = more.pop("arguments", [])
    with Terminal("chat", "--url", server.url, *arguments, **more) as chat:
        chat.wait_for(">")
        answer = ask(chat, server)
        answer.say("one\x1b]0;hostile\x07\x1b[2J", " two")
        answer.end()
        chat.wait_for("two")
        chat.write("/exit\r")
        assert chat.wait_end() == 0
    assert not chat.switched_on() - {"bracketed paste"}
    assert b"\x1b[?1049h" not in chat.raw
    assert b"\x1b]0" not in chat.raw and b"\x1b[2J" not in chat.raw
