"""What the chat page can be told: settings, models, a key, files; and its look inside."""

import json
import re
import threading
from dataclasses import replace

import pytest
from page_driver import IDLE, answer, ask, asked, attach, do, hand_service, page_engine, shown, talk
from serving import NAMES, hosted, serving
from test_server_on_demand import ScriptedShelf, pool_of

from edge_llm.config import GenerationParams
from edge_llm.decoding.defaults import FOR_PEOPLE, with_overrides
from edge_llm.server import status
from edge_llm.server.host import ModelHost
from edge_llm.weights.base import ExpertCounts

pytestmark = pytest.mark.thorough(file=3)


@pytest.mark.thorough(keep=2)
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
def test_the_page_samples_as_the_chat_does(empty_tab, raw, expected):
    """HTTP | page | The page samples as the chat and `run` do: as the author says, else as people like it; one may set more."""
    engine, tab = page_engine(raw), empty_tab
    with serving(hosted(service := hand_service(engine), engine)) as url:
        tab.go(f"{url}/")
        ask(tab, "one")
        assert service.wait_for(1).request.params == expected == engine.defaults
        answer(service, 1, "Yes")
        tab.wait(IDLE)
        tab.press("Ctrl+,")
        for name, value in (("temperature", "0"), ("top_p", "0.5")):
            tab.click(f"#set-{name}")
            tab.type(value)
        ask(tab, "two")
        assert service.wait_for(2).request.params == with_overrides(expected, temperature=0.0, top_p=0.5)


def test_a_system_prompt_holds_for_its_chat(service, tab):
    tab.press("Ctrl+,")
    tab.type("Be brief")
    ask(tab, "one")
    assert asked(service, 1) == "[system:Be brief][user:one]"
    answer(service, 1, "Yes")
    tab.wait(IDLE)
    tab.press("Ctrl+Shift+o")
    tab.wait("document.querySelector('.welcome')")
    ask(tab, "two")
    assert asked(service, 2) == "[user:two]"


def test_a_question_before_the_model_is_there_waits_for_it(empty_tab):
    """HTTP | page | A question that is asked while the model loads is answered, with the model's defaults, once it is there."""
    engine, host, tab = page_engine({}), ModelHost(NAMES), empty_tab
    host.progress = ("read", 30, 100)
    with serving(host) as url:
        tab.go(f"{url}/")
        ask(tab, "early")
        tab.wait("document.querySelector('.reading')?.innerText.includes('30 %')")
        tab.wait("document.querySelector('#model .loading') && document.querySelector('#model').innerText.includes('30 %')")
        host.start(engine, service := hand_service(engine))
        assert service.wait_for(1).request.params == FOR_PEOPLE
        answer(service, 1, "Yes")
        tab.wait(f"{IDLE} && document.querySelector('#model .loaded')")
        assert shown(tab) == [("user", "early"), ("assistant", "Yes")]


def choose(tab, name):
    """Choose a model in the menu by keyboard; what the menu says of each."""
    tab.click("#model")
    tab.wait("document.querySelector('.menu')")
    said = tab.texts(".menu .what")
    tab.press("Home")
    for _ in range([text.split("\n")[0] for text in said].index(name)):
        tab.press("ArrowDown")
    tab.press("Enter")
    tab.wait(f"document.querySelector('#model').innerText.includes({json.dumps(name)})")
    return said


def test_models_are_loaded_by_the_question(engine, empty_tab):
    """HTTP | page | A server of many models: the menu says which are loaded; the question loads its own, and says how far."""
    shelf, tab = ScriptedShelf(engine, names="ab"), empty_tab
    shelf.gates["b"] = threading.Event()
    with serving(pool_of(shelf)) as url:
        tab.go(f"{url}/")
        ask(tab, "who are you?")
        tab.wait(f"document.querySelectorAll('article').length === 2 && {IDLE} && document.querySelector('#model .loaded')")
        said = choose(tab, "b")
        assert said[0].startswith("a\nLoaded") and said[1] == "b\nLoads with the first question · 100 B"
        tab.wait("document.querySelector('#model .unloaded')")
        ask(tab, "and you?")
        tab.wait("document.querySelector('.reading')?.innerText.includes('The model is loading: 25 %')")
        tab.wait("document.querySelector('#model .loading') && document.querySelector('#model').innerText.includes('25 %')")
        tab.press("Escape")
        tab.wait(f"{IDLE} && tested.all('.note').at(-1)?.innerText === 'Stopped.'")
        do(tab, "Answer again")
        tab.wait("document.querySelector('.reading')?.innerText.includes('The model is loading')")
        shelf.gates["b"].set()
        tab.wait(f"{IDLE} && document.querySelector('#model .loaded')")
        assert [text[:6] for who, text in shown(tab) if who == "assistant"] == ["I am a", "I am b"]
        assert tab.texts("article .name") == ["a", "b"] and shelf.loads == ["a", "b"]


def test_a_model_that_cannot_be_loaded_says_why(engine, empty_tab):
    """HTTP | page | A model that does not fit, or is broken: its own words, with "Try again"; another model answers then."""
    tab = empty_tab
    with serving(pool_of(ScriptedShelf(engine, names="a"))) as url:
        tab.go(f"{url}/")
        tab.wait("document.querySelector('#model .dot')")
        choose(tab, "large")
        ask(tab, "one")
        tab.wait("document.querySelector('.problem')")
        assert re.search("`large` takes .* and the memory for models is .*Try again", tab.text(".problem"), re.DOTALL)
        choose(tab, "broken")
        tab.click(".problem button")
        tab.wait("document.querySelector('.problem')?.innerText.includes('broken')")
        choose(tab, "a")
        tab.click(".problem button")
        tab.wait(f"{IDLE} && !document.querySelector('.problem') && document.querySelector('#model .loaded')")
        assert shown(tab)[1][1].startswith("I am a")


def test_the_page_asks_for_the_key_and_keeps_it(empty_tab):
    """HTTP | page | With an API key the page comes without it, asks for it, and keeps it in this browser."""
    engine, tab = page_engine(), empty_tab
    with serving(hosted(service := hand_service(engine), engine), keys=("the key",)) as url:
        tab.go(f"{url}/")
        tab.wait("document.querySelector('dialog input')")
        tab.type("the key")
        tab.press("Enter")
        tab.wait("document.querySelector('#model').innerText.includes('builtin')")
        tab.reload()
        ask(tab, "one")
        answer(service, 1, "Yes")
        tab.wait(f"document.querySelectorAll('article').length === 2 && {IDLE}")
        assert "the key" not in tab.run("JSON.stringify([location.href, document.cookie])")


def test_the_menu_of_models_chooses_the_model_of_the_chat(service, tab):
    ask(tab, "one")
    tab.click("#model")
    assert tab.wait("document.querySelectorAll('.menu button').length") == 2
    assert "Loaded" in tab.text(".menu button")
    tab.press("ArrowDown")
    tab.press("Enter")
    tab.wait("document.querySelector('#model').innerText.includes('an/alias')")
    answer(service, 1, "A")
    tab.wait(IDLE)
    talk(tab, service, 2, "two", "B")
    assert tab.texts("article .name") == ["builtin", "an/alias"]


def test_text_files_are_read_and_others_refused(service, tab):
    """HTTP | page | Text files go with the question; what is no text is refused by its name."""
    attach(tab, "picture.png", b"\x89PNG\0\0")
    tab.wait("document.querySelector('.toast')?.innerText.includes('picture.png is no text')")
    attach(tab, "notes.md", "```\nÜber\n```".encode())
    tab.wait("document.querySelector('.chip')?.innerText.includes('notes.md')")
    ask(tab, "what is it?")
    assert asked(service, 1) == "[user:notes.md:\n````\n```\nÜber\n```\n````\n\nwhat is it?]"
    assert tab.text("article.user .file summary").startswith("notes.md")
    assert tab.run("document.querySelectorAll('.chip').length") == 0


def test_progress_is_shown_while_the_prompt_is_read(service, tab):
    """HTTP | page | While the prompt is read the page shows how far, and for how long."""
    event = {"choices": [], "prompt_progress": {"total": 2000, "cache": 0, "processed": 500, "time_ms": 1}}
    lines = f"data: {json.dumps(event)}\n\n"
    tab.run(f"tested.answerWith({json.dumps(lines)})")
    ask(tab, "one")
    tab.wait("document.querySelector('.reading')?.innerText.includes('Reading 500 of 2,000 tokens')")
    assert tab.run("document.querySelector('.progress').ariaValueNow") == "25"


def test_look_inside_shows_what_the_server_does(service, tab):
    """HTTP | page | "Look inside" shows lanes, pages, guesses and speed from /metrics, each second."""
    talk(tab, service, 1, "one", "Yes")
    service.running = 3
    tab.click("#inside-open")
    tab.wait("tested.all('.card').some(one => one.innerText.replace(/\\s+/g, ' ').includes('Lanes 3 of 64'))")
    names = ["Speed", "Lanes", "Pages", "First token", "Prompt cache", "Guesses"]
    assert tab.texts(".card h3") == names
    tab.wait("tested.all('.card svg polyline').length === 5 && document.querySelector('.card polyline').points.length > 1")


def test_look_inside_shows_experts_where_they_come_from_flash(service, tab, monkeypatch):
    """HTTP | page | "Look inside" of a mixture that is larger than memory: experts in memory, guessed, and bytes of a token."""
    counts = ExpertCounts(used=400, read=100, tokens=8, needed=300, recalled=210, read_bytes=8 * 5 * 2**20)
    monkeypatch.setattr(status, "_expert_gauges", lambda _: counts.facts)
    tab.click("#inside-open")
    tab.wait("tested.all('.card').some(one => one.innerText.includes('Experts'))")
    card = tab.run("tested.all('.card').find(one => one.innerText.includes('Experts')).innerText.replace(/\\s+/g, ' ')")
    assert card.strip() == "Experts 75 % in memory, 70 % guessed, 5 MiB a token from flash"
