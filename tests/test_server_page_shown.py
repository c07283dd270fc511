"""What the chat page shows: Markdown, hostile texts, narrow screens, by keyboard, to a screen reader."""

import json
import re

import pytest
from page_driver import IDLE, answer, ask, asked, attach, talk
from serving import end

from edge_llm.engine.request import Delta

pytestmark = pytest.mark.thorough(file=3)

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


def test_code_is_copied_as_it_was_written(service, tab):
    tab.run("navigator.clipboard.writeText = async text => { window.copied = text; }")
    talk(tab, service, 1, "one", "```python\ndef f(x):\n    return x < 1\n```\nso.")
    tab.click(".code .copy")
    assert tab.wait("window.copied") == "def f(x):\n    return x < 1"


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

def test_a_long_chat_is_shown_from_its_end(tab):
    """HTTP | page | Of a chat of hundreds of messages the last ones are there at once, and then all; the end stays in sight."""
    roles = ("user", "assistant")
    messages = [{"id": n, "parent": n - 1, "role": roles[n % 2], "content": f"said {n}", "created": n} for n in range(200)]
    file = {"kind": "edge-llm chats", "chats": [{"title": "long", "messages": messages, "head": 199}]}
    tab.run(f"tested.imports({json.dumps(json.dumps(file))})")
    tab.click("#chats .open")
    tab.wait("tested.all('article .body').at(-1)?.innerText === 'said 199'")
    tab.wait("document.querySelectorAll('article').length === 200 && tested.atEnd()")
    assert [text for _, text in tab.run("tested.shown()")] == [f"said {n}" for n in range(200)]


def test_a_long_question_is_folded_and_files_stay_open(service, tab):
    """HTTP | page | Of a long question the beginning is shown until one wants all; what is unfolded stays unfolded."""
    attach(tab, "notes.txt", "\ufeffÜber".encode("utf-16-le"))
    tab.wait("document.querySelector('.chip')")
    ask(tab, "line\n" * 60)
    stream = service.wait_for(1)
    assert asked(service, 1).startswith("[user:notes.txt:\n```\nÜber\n```")
    tab.run("document.querySelector('.file').open = true")
    assert tab.run("document.querySelector('.words').getBoundingClientRect().height") < 400
    tab.click("article.user .named")
    assert tab.run("document.querySelector('.words').getBoundingClientRect().height") > 1000
    assert tab.run("document.querySelector('article.user .named').ariaExpanded") == "true"
    stream.put(Delta("Yes", (1,)))
    stream.put(end())
    tab.wait(f"{IDLE} && document.querySelectorAll('article').length === 2")
    assert tab.run("document.querySelector('.file').open && document.querySelector('.words').classList.contains('whole')")


# ---- narrow, by keyboard, for a screen reader


def test_a_phone_shows_all_of_it(service, tab):
    """HTTP | page | 360 pixels wide: nothing is cut or scrolls sideways, and all is in reach."""
    tab.resize(360, 740, mobile=True)
    wide = "\n\n```\n" + "wide " * 80 + "\n```\n\n| " + "wide | " * 40 + "\n|" + "--|" * 40 + "\n"
    talk(tab, service, 1, "one " + "x" * 300, MARKDOWN, wide)
    assert tab.run("tested.sideways(360)") == []
    for opens in (True, False, True):  # each press counts, also while the column still slides
        tab.run("document.querySelector('#side-open').click()")
        assert tab.run("document.body.classList.contains('with-side')") == opens
    tab.wait("document.querySelector('#side').getBoundingClientRect().left === 0")
    assert tab.run("document.querySelector('main').inert")
    tab.click("#chats .open")
    tab.press("Escape")
    tab.wait("getComputedStyle(document.querySelector('#side')).visibility === 'hidden'")
    assert tab.run("[document.querySelector('main').inert, document.activeElement.id]") == [False, "side-open"]
    for button, panel in (("#settings-open", "settings"), ("#inside-open", "inside")):
        tab.click(button)
        assert tab.run("document.querySelector('#panel').dataset.name") == panel
        assert tab.run("document.querySelector('#panel').getBoundingClientRect().width") == 360
        assert tab.run("document.querySelector('main').inert"), "the focus stays in what covers the page"
        tab.click("#panel .panel-head button")
    assert tab.complaints == []


def test_fingers_can_stop_and_break_lines(service, tab):
    """HTTP | page | On a phone, without Esc and Shift: Stop has a button while one types, and Enter breaks the line."""
    tab.resize(360, 740, mobile=True)
    tab.touch(True)
    tab.reload()
    tab.run("document.querySelector('#text').focus()")
    tab.type("one")
    tab.press("Enter")
    tab.type("two")
    assert tab.run("document.querySelector('#text').value") == "one\ntwo"
    tab.click("#send")
    assert asked(service, 1) == "[user:one\ntwo]"
    service.wait_for(1).put(Delta("Hel", (1,)))
    tab.wait("document.querySelector('article.assistant .body')?.innerText === 'Hel'")
    tab.type("three")
    tab.click("#halt")
    tab.wait(f"{IDLE} && document.querySelector('.note')?.innerText === 'Stopped.'")
    assert tab.run("[document.querySelector('#text').value, document.querySelector('#halt').hidden]") == ["three", True]
    assert tab.run("tested.sideways(360)") == []
    tab.touch(False)


def test_all_of_it_by_keyboard(service, tab):
    """HTTP | page | Without a mouse: send, stop, edit, go through messages, search, rename, delete, and close what is open."""
    tab.type("one")
    tab.press("Shift+Enter")
    tab.type("more")
    tab.press("Enter")
    assert asked(service, 1) == "[user:one\nmore]"
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
    tab.run("document.activeElement.blur()")
    tab.wait("document.querySelector('.toast button')")
    tab.press("Ctrl+z")
    tab.wait("document.querySelectorAll('article').length === 2 && document.querySelector('#chats .row')")
    tab.press("Alt+ArrowUp")
    for _ in range(4):
        tab.press("Tab")
    assert tab.run("document.activeElement.ariaLabel") == "Delete from here on"
    tab.press("Enter")
    tab.wait("document.querySelectorAll('article').length === 1 && document.activeElement.className.startsWith('user')")
    tab.wait("document.querySelector('.toast button')")
    tab.press("Ctrl+z")
    tab.wait("document.querySelectorAll('article').length === 2")
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
