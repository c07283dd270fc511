"""The chat page's own script, run by Node in a small document against a real server whose answers the test writes."""

import copy
import json
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from serving import NAMES, HandService, builtin_engine, end, hosted, serving

from edge_llm.config import GenerationParams
from edge_llm.decoding.defaults import FOR_PEOPLE, generation_defaults, with_overrides
from edge_llm.engine.request import Delta
from edge_llm.server.host import ModelHost
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
        until = time.monotonic() + 60
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
    until = time.monotonic() + 60
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


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({}, FOR_PEOPLE),
        ({"repetition_penalty": 1.2}, replace(FOR_PEOPLE, repetition_penalty=1.2)),
        ({"temperature": 0.3, "top_k": 5}, GenerationParams(temperature=0.3, top_k=5, loop_guard=True)),
        ({"temperature": 50.0}, GenerationParams(temperature=50.0, loop_guard=True)),  # more than a request may ask for
        ({"do_sample": False}, GenerationParams(loop_guard=True)),
    ],
)
def test_the_page_samples_as_the_chat_does(engine, service, raw, expected):
    """HTTP | page | The page samples as the chat and `run` do: as the author says, else as people like it; one may set more."""
    if NODE is None:
        pytest.skip("there is no Node here to run the page's script")
    found, other = generation_defaults(raw), copy.copy(engine)
    other.defaults, other.served = found.params, found.served
    with serving(hosted(service, other)) as url:
        page = Page(url)
        page.do(ask="one")
        assert service.wait_for(1).request.params == expected == other.defaults
        answer(service, 1, "Yes")
        page.wait_until(lambda state: state["send"] == "Send")
        page.do(set={"temperature": "0", "top_p": "0.5"})
        page.do(ask="two")
        assert service.wait_for(2).request.params == with_overrides(expected, temperature=0.0, top_p=0.5)
        page.process.kill()
        page.process.communicate()


def test_a_page_that_was_there_before_the_model_learns_how_to_sample(engine, service):
    """HTTP | page | A page that is opened while the model loads asks with the model's defaults once it is there."""
    if NODE is None:
        pytest.skip("there is no Node here to run the page's script")
    found, other = generation_defaults({}), copy.copy(engine)
    other.defaults, other.served = found.params, found.served
    host = ModelHost(NAMES)
    with serving(host) as url:
        page = Page(url)
        page.do(ask="early")
        assert "loading" in page.wait_until(lambda state: state["send"] == "Send")["shown"][-1]["text"]
        host.start(other, service)
        page.do(ask="one")
        assert service.wait_for(1).request.params == FOR_PEOPLE
        page.process.kill()
        page.process.communicate()
