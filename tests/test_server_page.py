"""The chat page in a real Chromium, against a real server whose answers the test writes."""

import copy
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from browser import CHROMIUM, WHY_NOT, Browser
from serving import NAMES, HandService, builtin_engine, end, hosted, serving

from edge_llm.config import GenerationParams
from edge_llm.decoding.defaults import FOR_PEOPLE, generation_defaults, with_overrides
from edge_llm.engine.request import Delta
from edge_llm.errors import ContextOverflow
from edge_llm.server.host import ModelHost
from edge_llm.text.chat import ChatTemplate

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
TEMPLATE = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{{ '' if true else '<think></think>' }}"
HELPERS = Path(__file__).with_name("page_helpers.js").read_text()
IDLE = "tested.idle()"


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        try:
            browser.call("Browser.getVersion")
        except (AssertionError, OSError):
            pytest.skip("the Chromium here does not start")
        yield browser


@pytest.fixture(scope="module")
def engine():
    engine = copy.copy(builtin_engine())
    engine.template = ChatTemplate(TEMPLATE)
    return engine


@pytest.fixture
def service():
    return HandService()


@pytest.fixture
def url(engine, service):
    with serving(hosted(service, engine)) as url:
        yield f"{url}/"


@pytest.fixture
def profile(browser):
    profile = browser.profile(HELPERS)
    yield profile
    profile.close()


@pytest.fixture
def tab(profile, url):
    tab = profile.tab(url)
    yield tab
    assert tab.complaints == []
    assert [one for one in tab.requests if not one.startswith((url, "data:", "blob:"))] == [], "it talks to its server alone"


def ask(tab, text):
    tab.run("document.querySelector('#text').focus()")
    tab.type(text)
    tab.press("Enter")


def answer(service, number, *texts, reason="stop"):
    stream = service.wait_for(number)
    for text in texts:
        stream.put(Delta(text, (1,)))
    stream.put(end(reason))


def asked(engine, service, number):
    return engine.tokenizer.decode(service.wait_for(number).request.prompt)


def shown(tab):
    """What the messages on the page say, (who, text)."""
    return [(who, text) for who, text in tab.run("tested.shown()")]


def talk(tab, service, number, question, *texts, reason="stop"):
    """A question, and its whole answer."""
    ask(tab, question)
    answer(service, number, *texts, reason=reason)
    tab.wait(f"document.querySelectorAll('article.assistant').length && {IDLE}")


def do(tab, label):
    """Press the last button of this name below a message."""
    button = f"tested.foot({json.dumps(label)})"
    tab.wait(f"{button} !== undefined")
    tab.run(f"{button}.click()")


# ---- a conversation


def test_a_conversation_goes_on(engine, service, tab):
    """HTTP | page | A question, its answer as it comes, and the next question with both before it."""
    ask(tab, "one")
    stream = service.wait_for(1)
    stream.put(Delta("Hel", (1,)))
    tab.wait("document.querySelector('article.assistant .body')?.innerText === 'Hel'")
    answer(service, 1, "lo **you**")
    tab.wait(IDLE)
    assert shown(tab) == [("user", "one"), ("assistant", "Hello you")]
    assert tab.run("document.querySelector('.body strong').innerText") == "you"
    assert "tokens" in tab.text("article.assistant .figures")
    ask(tab, "two")
    assert asked(engine, service, 2) == "[user:one][assistant:Hello **you**][user:two]"


def test_a_new_chat_is_sent_alone_and_the_old_answer_goes_on(engine, service, tab):
    """HTTP | page | "New chat" during an answer: the next question is sent alone, the old answer is kept in its chat."""
    ask(tab, "old")
    service.wait_for(1).put(Delta("Hel", (1,)))
    tab.wait("document.querySelector('article.assistant .body')?.innerText === 'Hel'")
    tab.press("Ctrl+Shift+o")
    tab.wait("document.querySelector('.welcome')")
    ask(tab, "new")
    assert asked(engine, service, 2) == "[user:new]"
    answer(service, 1, "lo")
    answer(service, 2, "Yes")
    tab.wait(f"document.querySelectorAll('#chats .row').length === 2 && {IDLE}")
    assert shown(tab) == [("user", "new"), ("assistant", "Yes")]
    tab.click("#chats .row:not(:has([aria-current])) .open")
    tab.wait("document.querySelector('article.user')?.innerText.startsWith('old')")
    assert shown(tab) == [("user", "old"), ("assistant", "Hello")]


def test_enter_during_an_answer_does_not_stop_it(engine, service, tab):
    """HTTP | page | A question typed during an answer waits for its end, and is sent then."""
    ask(tab, "one")
    stream = service.wait_for(1)
    stream.put(Delta("Hel", (1,)))
    ask(tab, "two")
    tab.wait("!document.querySelector('#queued').hidden")
    assert not stream.cancelled
    answer(service, 1, "lo")
    assert asked(engine, service, 2) == "[user:one][assistant:Hello][user:two]"
    answer(service, 2, "Yes")
    tab.wait(f"document.querySelectorAll('article').length === 4 && {IDLE}")
    assert tab.run("document.querySelector('#text').value") == ""


def test_an_answer_that_is_stopped_stays_and_can_be_continued(engine, service, tab):
    """HTTP | page | "Stop" keeps what has come; "Continue" has the model write on behind it."""
    ask(tab, "one")
    service.wait_for(1).put(Delta("Hel", (1,)))
    tab.wait("document.querySelector('article.assistant .body')?.innerText === 'Hel'")
    tab.click("#send")
    tab.wait(IDLE)
    assert tab.text("article.assistant .status") == "Stopped."
    do(tab, "Continue")
    assert asked(engine, service, 2).startswith("[user:one][assistant:Hel")
    answer(service, 2, "lo")
    tab.wait(f"document.querySelectorAll('article').length === 2 && {IDLE} && !document.querySelector('.note')")
    assert shown(tab)[1] == ("assistant", "Hello")
    ask(tab, "two")
    assert asked(engine, service, 3) == "[user:one][assistant:Hello][user:two]"


def test_thoughts_are_folded_and_not_sent_back(engine, service, tab):
    """HTTP | page | What the model thinks is shown apart, folded when the answer begins, and not sent back."""
    ask(tab, "one")
    service.wait_for(1).put(Delta("<think>hm", (1,)))
    tab.wait("document.querySelector('.thought')?.open && document.querySelector('.thought-text').innerText === 'hm'")
    answer(service, 1, ", so</think>", "Yes")
    tab.wait(IDLE)
    assert shown(tab)[1] == ("assistant", "Yes")
    assert tab.run("document.querySelector('.thought').open") is False
    assert tab.run("document.querySelector('.thought-text').textContent") == "hm, so"
    assert tab.text(".thought summary").startswith("Thought for")
    ask(tab, "two")
    assert asked(engine, service, 2) == "[user:one][assistant:Yes][user:two]"


def test_another_answer_and_another_question_are_branches(engine, service, tab):
    """HTTP | page | "Answer again" and an edited question lie beside what they replace; one can go from one to the other."""
    talk(tab, service, 1, "one", "A")
    do(tab, "Answer again")
    assert asked(engine, service, 2) == "[user:one]"
    answer(service, 2, "B")
    tab.wait(f"{IDLE} && document.querySelector('.versions')?.innerText.includes('2/2')")
    assert shown(tab) == [("user", "one"), ("assistant", "B")]
    talk(tab, service, 3, "more", "C")
    do(tab, "Earlier version")
    tab.wait("document.querySelectorAll('article').length === 2")
    assert shown(tab) == [("user", "one"), ("assistant", "A")]
    do(tab, "Later version")
    tab.wait("document.querySelectorAll('article').length === 4")
    assert [text for _, text in shown(tab)] == ["one", "B", "more", "C"]
    do(tab, "Edit and ask again")
    tab.type(" or less")
    tab.press("Enter")
    assert asked(engine, service, 4) == "[user:one][assistant:B][user:more or less]"
    answer(service, 4, "D")
    tab.wait(f"{IDLE} && document.querySelectorAll('article').length === 4")
    assert [text for _, text in shown(tab)] == ["one", "B", "more or less", "D"]


def test_an_edited_answer_is_what_the_model_reads(engine, service, tab):
    talk(tab, service, 1, "one", "A")
    do(tab, "Edit the answer")
    tab.type(" or B")
    tab.press("Ctrl+Enter")
    tab.wait("document.querySelector('article.assistant .body').innerText === 'A or B'")
    ask(tab, "two")
    assert asked(engine, service, 2) == "[user:one][assistant:A or B][user:two]"


def test_what_is_deleted_can_be_brought_back(service, tab):
    talk(tab, service, 1, "one", "A")
    talk(tab, service, 2, "two", "B")
    do(tab, "Delete from here on")
    tab.wait("document.querySelectorAll('article').length === 3")
    tab.click(".toast button")
    tab.wait("document.querySelectorAll('article').length === 4")
    tab.reload()
    assert [text for _, text in shown(tab)] == ["one", "A", "two", "B"]


# ---- nothing is lost


def test_a_half_answer_is_kept_where_the_database_is_too_slow_for_a_page_that_goes(service, tab):
    """HTTP | page | A reload keeps what has come of an answer, even if the browser's database never got it."""
    ask(tab, "one")
    stream = service.wait_for(1)
    tab.run("IDBObjectStore.prototype.put = () => { throw new Error('too late'); }")
    stream.put(Delta("Hel", (1,)))
    tab.wait("document.querySelector('article.assistant .body')?.innerText === 'Hel'")
    tab.reload()
    tab.wait("document.querySelector('.note')?.innerText.startsWith('Broke off')")
    assert shown(tab) == [("user", "one"), ("assistant", "Hel")]


def test_a_reload_keeps_chat_draft_and_a_half_answer(engine, service, tab):
    """HTTP | page | A reload during an answer keeps the question, what has come, and what is typed."""
    ask(tab, "one")
    service.wait_for(1).put(Delta("Hel", (1,)))
    tab.wait("document.querySelector('article.assistant .body')?.innerText === 'Hel'")
    tab.type("half a thou")
    tab.reload()
    tab.wait("document.querySelector('.note')?.innerText.startsWith('Broke off')")
    assert shown(tab) == [("user", "one"), ("assistant", "Hel")]
    assert tab.run("document.querySelector('#text').value") == "half a thou"
    do(tab, "Continue")
    answer(service, 2, "lo")
    tab.wait(f"{IDLE} && document.querySelector('article.assistant .body').innerText === 'Hello'")


def test_drafts_belong_to_their_chat(service, tab):
    """HTTP | page | What is typed and not sent stays with its chat: an edit, a system prompt, an attached file, too."""
    talk(tab, service, 1, "one", "A")
    tab.type("for the first")
    tab.press("Ctrl+Shift+o")
    tab.wait("document.querySelector('.welcome')")
    assert tab.run("document.querySelector('#text').value") == ""
    tab.type("for another")
    attach(tab, "notes.txt", b"remember")
    tab.click("#chats .open")
    tab.wait("document.querySelectorAll('article').length === 2")
    assert tab.run("document.querySelector('#text').value") == "for the first"
    do(tab, "Edit and ask again")
    tab.type(" edited")
    tab.press("Ctrl+,")
    tab.type("Be brief")
    tab.reload()
    assert tab.wait("document.querySelector('.editor textarea')?.value") == "one edited"
    tab.press("Ctrl+,")
    assert tab.run("document.querySelector('#system').value") == "Be brief"
    tab.press("Ctrl+Shift+o")
    tab.wait("document.querySelector('.chip')")
    assert tab.run("document.querySelector('#text').value") == "for another"


def test_two_tabs_see_one_history(engine, service, profile, url, tab):
    """HTTP | page | A chat that is open in two tabs: both show the answer, and the second one can go on."""
    ask(tab, "one")
    stream = service.wait_for(1)
    stream.put(Delta("Hel", (1,)))
    tab.wait("document.querySelector('article.assistant .body')?.innerText === 'Hel'")
    other = profile.tab(tab.run("location.href"))
    other.wait("document.querySelector('article.assistant .body')?.innerText === 'Hel'")
    time.sleep(0.8)  # longer than a tab that nobody answers takes the answer for broken
    assert other.text(".note") is None
    answer(service, 1, "lo")
    other.wait(f"{IDLE} && document.querySelector('article.assistant .body').innerText === 'Hello'")
    talk(other, service, 2, "two", "Yes")
    tab.wait("document.querySelectorAll('article .body')[3]?.innerText === 'Yes'")
    assert shown(tab) == shown(other) == [("user", "one"), ("assistant", "Hello"), ("user", "two"), ("assistant", "Yes")]
    assert other.complaints == []


def test_a_server_that_goes_and_comes_back(engine, browser):
    """HTTP | page | The server is gone: the question stays, one is told, and "Try again" has it answered when it is back."""
    profile, service = browser.profile(HELPERS), HandService()
    with serving(hosted(service, engine)) as url:
        tab = profile.tab(f"{url}/")
        talk(tab, service, 1, "one", "A")
        ask(tab, "two")
        service.wait_for(2).put(Delta("Half", (1,)))
        tab.wait("document.querySelectorAll('article .body')[3]?.innerText === 'Half'")
    tab.wait(IDLE)
    ask(tab, "three")
    tab.wait("document.querySelector('.problem') && !document.querySelector('#banner').hidden")
    assert [text for _, text in shown(tab)][-2:] == ["three", ""]
    with serving(hosted(service := HandService(), engine), port=int(url.rpartition(":")[2])):
        tab.wait("document.querySelector('#banner').hidden")
        tab.run("[...document.querySelectorAll('.problem button')].at(-1).click()")
        assert asked(engine, service, 1) == "[user:one][assistant:A][user:two][assistant:Half][user:three]"
        answer(service, 1, "There")
        tab.wait(f"{IDLE} && !document.querySelector('article:last-of-type .problem')")
        assert shown(tab)[-1] == ("assistant", "There")
    profile.close()


def test_an_error_is_told_and_can_be_tried_again(service, tab):
    ask(tab, "one")
    service.wait_for(1).fail(ZeroDivisionError("secret"))
    tab.wait("document.querySelector('.problem')")
    assert "secret" not in tab.text(".problem")
    tab.click(".problem button")
    answer(service, 2, "Yes")
    tab.wait(f"{IDLE} && !document.querySelector('.problem')")
    assert shown(tab) == [("user", "one"), ("assistant", "Yes")]


def test_a_chat_that_no_longer_fits_goes_on_without_its_oldest_turns(engine, service, tab):
    """HTTP | page | A full context: the page says so, and goes on without the oldest turns if one wants."""
    talk(tab, service, 1, "first " * 30, "A" * 100)
    talk(tab, service, 2, "second", "B")
    service.refusal = ContextOverflow(2000, 1024)
    ask(tab, "third")
    tab.wait("document.querySelector('.problem')")
    assert "2,000 tokens" in tab.text(".problem")
    assert ["status of 400" in one for one in tab.complaints] == [True]
    tab.complaints.clear()
    service.refusal = None
    tab.click(".problem button")
    assert asked(engine, service, 3) == "[user:second][assistant:B][user:third]"
    answer(service, 3, "C")
    tab.wait(f"{IDLE} && document.querySelector('.cut')")
    assert shown(tab)[0][1].startswith("first")


# ---- Markdown

MARKDOWN = """# Title

Some **bold** and `code`, a [link](https://example.org) and <b>no HTML</b>.

```python
def f(x):
    return x < 1  # why
```

| a | b |
|---|--:|
| 1 | 2 |

1. one

   ```sh
   ls
   ```
2. two
   - [x] done

> quote

[named][1] until the end

Setext
------

[1]: https://example.org/named
"""


def test_markdown_looks_the_same_however_it_comes(tab):
    """HTTP | page | Markdown that comes in pieces of any size looks as it does when it comes whole."""
    whole, *pieces = tab.run(f"tested.drawn({json.dumps(MARKDOWN)})")
    assert all(piece == whole for piece in pieces)
    wanted = ("<h1>Title</h1>", "<strong>bold</strong>", "&lt;b&gt;no HTML&lt;/b&gt;", "hljs-keyword")
    for found in (*wanted, '<td align="right">2</td>', 'type="checkbox"', 'href="https://example.org/named"'):
        assert found in whole
    for mark in "*`|[":
        assert mark not in re.sub(r"<[^>]*>", "", whole).replace("[x]", "")


def test_code_is_copied_as_it_was_written(profile, service, tab):
    tab.run("navigator.clipboard.writeText = async text => { window.copied = text; }")
    talk(tab, service, 1, "one", "```python\ndef f(x):\n    return x < 1\n```\nso.")
    tab.click(".code .copy")
    assert tab.wait("window.copied") == "def f(x):\n    return x < 1"


HOSTILE = [
    "<img src=x onerror=window.pwned=1>",
    "<script>window.pwned=1</script>",
    "<svg/onload=window.pwned=1>",
    "<iframe src=javascript:parent.pwned=1></iframe>",
    "[click](javascript:window.pwned=1)",
    "[click](JaVaScRiPt&colon;window.pwned=1)",
    "[click](data:text/html,<script>opener.pwned=1</script>)",
    "![picture](http://127.0.0.9:9/x.png?secret)",
    '[a](https://a.example/"onmouseover="window.pwned=1)',
    "<style>*{background:url(http://127.0.0.9:9/y)}</style>",
    "<a href=//127.0.0.9:9 ping=http://127.0.0.9:9>x</a>",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.pwned=1>",
    "```<img src=x onerror=window.pwned=1>\n<script>window.pwned=1</script>\n```",
    "| <img src=x onerror=window.pwned=1> | b |\n|---|---|\n| [x](vbscript:1) | <form action=http://127.0.0.9:9><button>b |",
    "<base href=http://127.0.0.9:9/><link rel=stylesheet href=http://127.0.0.9:9/z>",
    "<meta http-equiv=refresh content=0;url=http://127.0.0.9:9>",
    "[x]: javascript:window.pwned=1\n\n[x]",
    "<javascript:window.pwned=1>",
    '<p style="position:fixed;inset:0" id=text>x</p>',
]


def test_hostile_text_stays_text(service, tab):
    """HTTP | page | Hostile Markdown in answers, questions and titles runs no script and sends no request."""
    ask(tab, HOSTILE[0])
    text = "\n\n".join(HOSTILE)
    stream = service.wait_for(1)
    for start in range(0, len(text), 11):
        stream.put(Delta(text[start : start + 11], (1,)))
    stream.put(Delta(f"</think>{HOSTILE[1]}", (1,)))
    stream.put(end())
    tab.wait(f"{IDLE} && document.querySelectorAll('article').length === 2")
    tab.run("tested.all('.block a').forEach(one => one.dispatchEvent(new MouseEvent('mouseover', {bubbles: true})))")
    tab.reload()
    assert tab.run("window.pwned") is None
    assert tab.run("tested.dangerous()") == []
    links = tab.run("tested.links()")
    assert links
    assert all(re.match("https?:|mailto:", href) and target == "_blank" and "noopener" in rel for href, target, rel in links)


def test_a_long_answer_in_many_pieces(service, tab):
    """HTTP | page | 100 KB in thousands of pieces: all of it is shown, and the page can be used meanwhile."""
    ask(tab, "one")
    paragraphs = [f"Paragraph {number} " + "of words " * 40 for number in range(150)]
    text = "\n\n".join((*paragraphs, "```\n" + "line of code\n" * 4000 + "```", "end."))
    assert len(text) > 100_000
    stream = service.wait_for(1)
    for start in range(0, len(text) // 2, 8):
        stream.put(Delta(text[start : start + 8], (1,)))
    tab.type("typed meanwhile")
    assert tab.run("document.querySelector('#text').value") == "typed meanwhile"
    for start in range(len(text) // 2 // 8 * 8 + (8 if len(text) // 2 % 8 else 0), len(text), 8):
        stream.put(Delta(text[start : start + 8], (1,)))
    stream.put(end())
    tab.wait(f"document.querySelectorAll('article').length === 2 && {IDLE}")
    squeezed = "document.querySelector('article.assistant .body').textContent.replace(/\\s+/g, '').replace('textCopy', '')"
    assert tab.run(squeezed) == re.sub(r"\s+|```", "", text)
    assert tab.run("tested.atEnd()")


# ---- narrow, by keyboard, for a screen reader


def test_a_phone_shows_all_of_it(service, profile, url):
    """HTTP | page | 360 pixels wide: nothing is cut or scrolls sideways, and all is in reach."""
    tab = profile.tab(url, 360, 740, mobile=True)
    wide = "\n\n```\n" + "wide " * 80 + "\n```\n\n| " + "wide | " * 40 + "\n|" + "--|" * 40 + "\n"
    talk(tab, service, 1, "one " + "x" * 300, MARKDOWN, wide)
    assert tab.run("tested.sideways(360)") == []
    tab.click("#side-open")
    tab.wait("document.querySelector('#side').getBoundingClientRect().left === 0")
    tab.click("#chats .open")
    tab.press("Escape")
    tab.wait("getComputedStyle(document.querySelector('#side')).visibility === 'hidden'")
    for button, panel in (("#settings-open", "settings"), ("#inside-open", "inside")):
        tab.click(button)
        assert tab.run("document.querySelector('#panel').dataset.name") == panel
        assert tab.run("document.querySelector('#panel').getBoundingClientRect().width") == 360
        tab.click("#panel .panel-head button")
    assert tab.complaints == []


def test_all_of_it_by_keyboard(engine, service, tab):
    """HTTP | page | Without a mouse: send, stop, edit, go through messages, search, rename, delete, and close what is open."""
    tab.type("one")
    tab.press("Shift+Enter")
    tab.type("more")
    tab.press("Enter")
    assert asked(engine, service, 1) == "[user:one\nmore]"
    service.wait_for(1).put(Delta("Hel", (1,)))
    tab.wait("document.querySelector('article.assistant .body')?.innerText === 'Hel'")
    tab.press("Escape")
    tab.wait(f"{IDLE} && document.querySelector('.note')")
    tab.press("ArrowUp")
    assert tab.run("document.activeElement.value") == "one\nmore"
    tab.type("!")
    tab.press("Enter")
    answer(service, 2, "Yes")
    tab.wait(f"{IDLE} && document.querySelector('article.assistant .body').innerText === 'Yes'")
    assert tab.run("document.activeElement.id") == "text"
    tab.press("Alt+ArrowUp")
    assert tab.run("document.activeElement.className").startswith("assistant")
    tab.press("Tab")
    assert tab.run("document.activeElement.ariaLabel") == "Copy"
    tab.press("Ctrl+k")
    tab.type("YES")
    tab.wait("document.querySelector('#chats small')?.innerText.includes('Yes')")
    tab.press("ArrowDown")
    tab.press("F2")
    tab.wait("document.querySelector('dialog input')")
    tab.run("document.querySelector('dialog input').select()")
    tab.type("Renamed")
    tab.press("Enter")
    tab.wait("document.querySelector('#title').innerText === 'Renamed' && document.activeElement.className === 'open'")
    tab.press("Delete")
    tab.wait("document.querySelector('.welcome') && !document.querySelector('#chats .row')")
    tab.press("Ctrl+i")
    tab.wait("document.querySelector('.card')")
    tab.press("Escape")
    assert tab.run("[document.querySelector('#panel').hidden, document.activeElement.id]") == [True, "inside-open"]
    tab.press("Escape")
    assert tab.run("document.activeElement.id") == "text"


def test_the_focus_reaches_all_and_everything_has_a_name(service, tab):
    """HTTP | page | Tab goes through every control; each has a name; a screen reader hears the answer once."""
    talk(tab, service, 1, "one", "The answer.\n\n```\nx\n```")
    tab.wait("document.querySelector('#said').textContent === 'Answer: The answer.\\n\\n```\\nx\\n```'")
    tab.click("#settings-open")
    assert tab.run("tested.nameless()") == []
    tab.run("document.activeElement.blur()")
    wanted = set(tab.run("tested.reachable()"))
    reached = set()
    for _ in range(len(wanted) + 12):
        tab.press("Tab")
        reached.add(tab.run("document.activeElement?.dataset.tested"))
    assert wanted <= reached


def test_all_text_can_be_read(service, tab):
    """HTTP | page | In light and dark, every text has a contrast of 4.5 or more."""
    code = "```python\n@x\nclass A(B):\n    'text'\n    n = 1.5 + len(None)\n```"
    talk(tab, service, 1, "one", MARKDOWN, code, reason="length")
    tab.click("#settings-open")
    for theme in ("light", "dark"):
        tab.run(f"document.documentElement.dataset.theme = '{theme}'")
        assert tab.run("tested.faint()") == [], theme


# ---- settings, models, keys, files


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
def test_the_page_samples_as_the_chat_does(engine, service, profile, raw, expected):
    """HTTP | page | The page samples as the chat and `run` do: as the author says, else as people like it; one may set more."""
    found, other = generation_defaults(raw), copy.copy(engine)
    other.defaults, other.served = found.params, found.served
    with serving(hosted(service, other)) as url:
        tab = profile.tab(f"{url}/")
        ask(tab, "one")
        assert service.wait_for(1).request.params == expected == other.defaults
        answer(service, 1, "Yes")
        tab.wait(IDLE)
        tab.press("Ctrl+,")
        for name, value in (("temperature", "0"), ("top_p", "0.5")):
            tab.click(f"#set-{name}")
            tab.type(value)
        ask(tab, "two")
        assert service.wait_for(2).request.params == with_overrides(expected, temperature=0.0, top_p=0.5)


def test_a_system_prompt_holds_for_its_chat(engine, service, tab):
    tab.press("Ctrl+,")
    tab.type("Be brief")
    ask(tab, "one")
    assert asked(engine, service, 1) == "[system:Be brief][user:one]"
    answer(service, 1, "Yes")
    tab.wait(IDLE)
    tab.press("Ctrl+Shift+o")
    tab.wait("document.querySelector('.welcome')")
    ask(tab, "two")
    assert asked(engine, service, 2) == "[user:two]"


def test_a_question_before_the_model_is_there_waits_for_it(engine, service, profile):
    """HTTP | page | A question that is asked while the model loads is answered, with the model's defaults, once it is there."""
    found, other = generation_defaults({}), copy.copy(engine)
    other.defaults, other.served = found.params, found.served
    host = ModelHost(NAMES)
    host.progress = ("read", 30, 100)
    with serving(host) as url:
        tab = profile.tab(f"{url}/")
        ask(tab, "early")
        tab.wait("document.querySelector('.reading')?.innerText.includes('30 %')")
        tab.wait("document.querySelector('#model .loading') && document.querySelector('#model').innerText.includes('30 %')")
        host.start(other, service)
        assert service.wait_for(1).request.params == FOR_PEOPLE
        answer(service, 1, "Yes")
        tab.wait(f"{IDLE} && document.querySelector('#model .loaded')")
        assert shown(tab) == [("user", "early"), ("assistant", "Yes")]


def test_a_model_that_is_not_loaded_is_loaded_with_the_question(service, tab):
    """HTTP | page | A chat with a model that is not loaded has it loaded first, shows how far that is, and then asks."""
    tab.wait("document.querySelector('#model .loaded')")
    tab.run("tested.unloadFirst(); null")
    tab.click("#model")
    tab.wait("document.querySelector('.menu .unloaded')")
    tab.press("Home")
    tab.press("Enter")
    tab.wait("document.querySelector('#model .unloaded')")
    ask(tab, "one")
    tab.wait("document.querySelector('.reading')?.innerText.includes('The model is loading: 25 %')")
    assert service.streams == []
    tab.run("finishLoading()")
    answer(service, 1, "Yes")
    tab.wait(f"document.querySelectorAll('article').length === 2 && {IDLE}")
    assert shown(tab) == [("user", "one"), ("assistant", "Yes")]


def test_the_page_asks_for_the_key_and_keeps_it(engine, service, profile):
    """HTTP | page | With an API key the page comes without it, asks for it, and keeps it in this browser."""
    with serving(hosted(service, engine), keys=("the key",)) as url:
        tab = profile.tab(f"{url}/")
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


def attach(tab, name, data):
    tab.run(f"tested.attach({json.dumps(name)}, {list(data)})")


def test_text_files_are_read_and_others_refused(engine, service, tab):
    """HTTP | page | Text files go with the question; what is no text is refused by its name."""
    attach(tab, "picture.png", b"\x89PNG\0\0")
    tab.wait("document.querySelector('.toast')?.innerText.includes('picture.png is no text')")
    attach(tab, "notes.md", "```\nÜber\n```".encode())
    tab.wait("document.querySelector('.chip')?.innerText.includes('notes.md')")
    ask(tab, "what is it?")
    assert asked(engine, service, 1) == "[user:notes.md:\n````\n```\nÜber\n```\n````\n\nwhat is it?]"
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


# ---- chats as files

BROKEN = [
    "", "{}", "[]", "null", '{"kind":"edge-llm chats","chats":[null]}',
    '{"kind":"edge-llm chats","chats":[{"messages":[null]}]}',
    '{"kind":"edge-llm chats","chats":[{"messages":[{"role":"system","content":""}]}]}',
]  # fmt: skip


def test_chats_are_exported_and_imported(service, tab):
    """HTTP | page | An export as JSON holds all branches and is imported beside what is there; Markdown holds what is shown."""
    talk(tab, service, 1, "one", "A")
    do(tab, "Answer again")
    answer(service, 2, "B")
    tab.wait(f"{IDLE} && document.querySelector('.versions')")
    found = tab.run(f"tested.transferred({json.dumps(BROKEN)})")
    assert found["markdown"] == "# one\n\n## You\n\none\n\n## builtin\n\nB\n"
    assert found["after"] == found["before"]
    assert (found["fresh"], found["linked"]) == (True, 2)
    assert all(reason.startswith(("this is no", "a ")) for reason in found["refused"])
