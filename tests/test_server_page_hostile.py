"""Hostile texts on the chat page, wherever a text can come from: no script runs, nobody is asked, and the page goes on."""

import json
import re
from pathlib import Path

import pytest
from page_driver import IDLE, ask, attach, do, shown, talk
from serving import end, serving
from test_server_on_demand import ScriptedShelf, pool_of

from edge_llm.engine.request import Delta

pytestmark = pytest.mark.thorough(file=2)

HOSTILE = [line for line in (Path(__file__).parent / "hostile_markdown.txt").read_text().split("\n---\n") if line]
"""Of the usual lists: HTML, SVG, MathML, mutation, links, pictures, fences, tables, templates; each sets ``window.pwned``."""
NAMES = [one for one in HOSTILE if "\n" not in one]


def is_harmless(tab):
    """Whether nothing ran, nothing is there that could, and every link leads to the web, in another tab."""
    tab.run("tested.touchAll()")
    links = tab.run("tested.links()")
    return (
        tab.run("window.pwned ?? null") is None
        and tab.run("tested.dangerous()") == []
        and all(re.match("https?:|mailto:", href) and target == "_blank" and "noopener" in rel for href, target, rel in links)
    )


def test_hostile_text_stays_text(service, tab):
    """HTTP | page | Hostile Markdown in questions, thoughts and answers, of 60 kinds, runs no script and sends no request."""
    ask(tab, HOSTILE[0])
    text = "\n\n".join(HOSTILE)
    stream = service.wait_for(1)
    stream.put(Delta(f"<think>{text}", (1,)))
    stream.put(Delta("</think>", (1,)))
    for start in range(0, len(text), 11):
        stream.put(Delta(text[start : start + 11], (1,)))
    stream.put(end())
    tab.wait(f"{IDLE} && document.querySelectorAll('article').length === 2")
    assert is_harmless(tab)
    tab.reload()
    assert is_harmless(tab)
    assert tab.run("tested.links().length") > 0
    do(tab, "Edit and ask again")
    assert tab.run("document.activeElement.value") == HOSTILE[0]


def chat_file(*chats):
    return json.dumps({"kind": "edge-llm chats", "chats": [*chats]})


def hostile_chat(number, text):
    """A chat of a file, all of whose texts are ``text``."""
    question = {"id": text, "parent": None, "role": "user", "content": text, "files": [{"name": text, "text": text}]}
    answer = {"id": f"{text}2", "parent": text, "role": "assistant", "content": text, "thought": text, "figures": {text: text}}
    answer |= {"state": text, "error": {"text": text, "code": text}, "model": text, "thoughtMs": text}
    settings = {"sampling": {"temperature": text, text: 1, "__proto__": 2}, "thinking": text, "system": text, "model": text}
    return {"id": text, "title": text, "messages": [question, answer], "updated": number, "head": f"{text}2", **settings}


def test_hostile_chats_of_a_file_stay_text(service, tab):
    """HTTP | page | Titles, names of files, models and settings of an imported chat are text in list, chat and menu."""
    chats = [hostile_chat(number, text) for number, text in enumerate(HOSTILE)]
    tab.run(f"tested.imports({json.dumps(chat_file(*chats))})")
    tab.wait(f"document.querySelectorAll('#chats .row').length === {len(HOSTILE)}")
    assert is_harmless(tab)
    for number in (1, 7, 20, 40):
        tab.run(f"document.querySelectorAll('#chats .open')[{number}].click()")
        tab.wait(f"tested.all('#chats .open')[{number}].ariaCurrent && document.querySelectorAll('article').length === 2")
        tab.run("document.querySelectorAll('.file').forEach(one => { one.open = true; })")
        tab.run(f"document.querySelectorAll('#chats .row button')[{number}].click()")
        tab.wait("document.querySelector('.menu')")
        assert is_harmless(tab)
        tab.press("Escape")
    assert tab.texts("article.assistant .status") == ["Broke off: the page was closed while it was written."]
    talk(tab, service, 1, "goes on", "Yes")
    assert service.streams[0].request.params.temperature == service.engine.defaults.temperature


def test_hostile_names_of_models_and_files_stay_text(empty_tab, engine):
    """HTTP | page | Names of models in the menu, and of attached files, are text."""
    tab = empty_tab
    with serving(pool_of(ScriptedShelf(engine, names=NAMES))) as url:
        tab.go(f"{url}/")
        tab.wait("document.querySelector('#model .dot')")
        tab.click("#model")
        tab.wait(f"document.querySelectorAll('.menu button').length === {len(NAMES) + 2}")
        assert [text.split("\n")[0] for text in tab.texts(".menu button .what")][:3] == NAMES[:3]
        tab.press("Enter")
        for name in NAMES[::5]:
            attach(tab, name, b"x")
        tab.wait(f"document.querySelectorAll('.chip').length === {len(NAMES[::5])}")
        assert is_harmless(tab)
        ask(tab, "one")
        tab.wait(f"document.querySelectorAll('article').length === 2 && {IDLE}")
        assert is_harmless(tab)
        assert tab.texts("article .name") == [NAMES[0]]


DEEP = {
    "quotes in quotes": "> " * 20000 + "x", "lists in lists": "- " * 20000 + "x",
    "open emphasis": "**a* " * 20000, "underscores": "__a_ " * 20000,
    "links in links": "[a](" * 20000, "many fences": "```" * 20000, "tags": "<a " * 20000, "one word": "a" * 300000,
}  # fmt: skip


def test_texts_that_are_hard_to_parse_are_shown(tab):
    """HTTP | page | Markdown that is nested without end, or full of open marks, is shown as text; the page goes on."""
    for name, text in DEEP.items():
        shown = tab.run(f"tested.whole({json.dumps(text)})")
        assert len(shown) >= len(text) * 0.5 or name == "many fences", name


def test_a_chat_that_is_hard_to_parse_opens(service, tab):
    """HTTP | page | What the parser of Markdown gives up on is shown as it came, after a reload, too."""
    text = DEEP["quotes in quotes"]
    ask(tab, "one")
    stream = service.wait_for(1)
    for start in range(0, len(text), 8000):
        stream.put(Delta(text[start : start + 8000], (1,)))
    stream.put(end())
    tab.wait(f"{IDLE} && document.querySelectorAll('article').length === 2")
    tab.reload()
    assert [len(said) for _, said in shown(tab)] == [3, len(text)]
    tab.press("Ctrl+Shift+o")
    tab.wait("document.querySelector('.welcome')")


def test_other_peoples_files_of_chats_are_checked(service, tab):
    """HTTP | page | A file whose messages come after themselves, or twice, is refused whole; what is there stays."""
    talk(tab, service, 1, "one", "A")
    one = {"id": "a", "parent": None, "role": "user", "content": "x"}
    answer = {"role": "assistant", "content": "x"}
    for messages, reason in (
        ([one | {"parent": "a"}], "comes after itself"),
        ([one | {"parent": "b"}, answer | {"id": "b", "parent": "a"}], "comes after itself"),
        ([one, one], "the same id"),
    ):
        tab.run(f"tested.imports({json.dumps(chat_file({'messages': [one]}, {'messages': messages}))})")
        tab.wait(f"tested.all('.toast').some(toast => toast.innerText.includes({json.dumps(reason)}))")
        tab.run("tested.all('.toast').forEach(toast => toast.remove())")
    assert tab.run("document.querySelectorAll('#chats .row').length") == 1
    deep = [one | {"id": number, "parent": number - 1, "role": ("user", "assistant")[number % 2]} for number in range(3000)]
    tab.run(f"tested.imports({json.dumps(chat_file({'title': 'deep', 'messages': deep}))})")
    tab.wait("document.querySelectorAll('#chats .row').length === 2")
