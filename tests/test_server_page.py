"""The chat page's own script, run by Node in a small document against a real server whose answers the test writes."""

import copy
import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from serving import HandService, builtin_engine, end, hosted, serving

from edge_llm.engine.request import Delta
from edge_llm.text.chat import ChatTemplate

NODE = shutil.which("node") or shutil.which("nodejs")
DRIVER = Path(__file__).with_name("page_driver.js")
TEMPLATE = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{{ '' if true else '<think></think>' }}"


class Page:
    """The page in Node."""

    def __init__(self, url):
        self.process = subprocess.Popen([NODE, DRIVER, f"{url}/"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, **command):
        """What the page shows after ``command``."""
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def wait_until(self, what):
        """What the page shows when ``what`` holds of it."""
        until = time.monotonic() + 10
        while not what(state := self.do(state=True)):
            assert time.monotonic() < until, state
            time.sleep(0.01)
        return state


@pytest.fixture(scope="module")
def engine():
    engine = copy.copy(builtin_engine())
    engine.template = ChatTemplate(TEMPLATE)
    return engine


@pytest.fixture
def service():
    return HandService()


@pytest.fixture
def page(engine, service):
    if NODE is None:
        pytest.skip("there is no Node here to run the page's script")
    with serving(hosted(service, engine)) as url:
        page = Page(url)
        yield page
        page.process.kill()
        page.process.communicate()


def answer(service, number, *texts):
    stream = service.wait_for(number)
    for text in texts:
        stream.put(Delta(text, (1,)))
    stream.put(end())


def asked(engine, service, number):
    return engine.tokenizer.decode(service.wait_for(number).request.prompt)


def test_a_conversation_goes_on(engine, service, page):
    """HTTP | page | A question, its answer as it comes, and the next question with both before it."""
    assert page.do(ask="one")["send"] == "Stop"
    answer(service, 1, "Hel", "lo")
    state = page.wait_until(lambda state: state["send"] == "Send")
    assert state["shown"] == [{"kind": "user", "text": "one"}, {"kind": "assistant", "text": "Hello"}]
    assert "tokens" in state["status"]
    page.do(ask="two")
    assert asked(engine, service, 2) == "[user:one][assistant:Hello][user:two]"


@pytest.mark.parametrize("begun", [(), ("Hel",)])
def test_a_new_chat_during_an_answer_forgets_the_old_one(engine, service, page, begun):
    """HTTP | page | "New chat" during an answer: the next question is sent alone."""
    page.do(ask="old")
    stream = service.wait_for()
    for text in begun:
        stream.put(Delta(text, (1,)))
    page.wait_until(lambda state: len(state["shown"]) == 1 + len(begun))
    assert page.do(click="clear") == {"shown": [], "send": "Send", "status": ""}
    until = time.monotonic() + 5
    while not stream.cancelled:
        assert time.monotonic() < until
        page.do(state=True)
    page.do(ask="new")
    assert asked(engine, service, 2) == "[user:new]"
    answer(service, 2, "Yes")
    state = page.wait_until(lambda state: state["send"] == "Send")
    assert state["shown"] == [{"kind": "user", "text": "new"}, {"kind": "assistant", "text": "Yes"}]
    page.do(ask="more")
    assert asked(engine, service, 3) == "[user:new][assistant:Yes][user:more]"


def test_an_answer_that_is_stopped_stays(engine, service, page):
    """HTTP | page | "Stop" keeps what has come."""
    page.do(ask="one")
    service.wait_for().put(Delta("Hel", (1,)))
    page.wait_until(lambda state: len(state["shown"]) == 2)
    page.do(ask="stop")
    state = page.wait_until(lambda state: state["send"] == "Send")
    assert state["status"] == "stopped"
    page.do(ask="two")
    assert asked(engine, service, 2) == "[user:one][assistant:Hel][user:two]"


def test_thoughts_are_shown_and_not_sent_back(engine, service, page):
    """HTTP | page | What the model thinks is shown apart, folded when the answer begins, and not sent back."""
    page.do(ask="one")
    service.wait_for().put(Delta("<think>hm", (1,)))
    state = page.wait_until(lambda state: len(state["shown"]) == 2)
    assert (state["shown"][1]["kind"], state["shown"][1]["open"]) == ("details", True)
    answer(service, 1, ", so</think>", "Yes")
    state = page.wait_until(lambda state: state["send"] == "Send")
    _, thought, said = state["shown"]
    assert [part["text"] for part in thought["children"]] == ["Thinking", "hm, so"]
    assert (thought["open"], said) == (False, {"kind": "assistant", "text": "Yes"})
    page.do(ask="two")
    assert asked(engine, service, 2) == "[user:one][assistant:Yes][user:two]"


def test_an_error_is_shown(service, page):
    page.do(ask="one")
    service.wait_for().fail(ZeroDivisionError("secret"))
    state = page.wait_until(lambda state: state["send"] == "Send")
    assert state["shown"][-1]["kind"] == "problem"
    assert "secret" not in state["shown"][-1]["text"]
