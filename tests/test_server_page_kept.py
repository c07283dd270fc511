"""The chat page loses nothing: reloads, two tabs, a server that goes, chats as files."""

import json

import pytest
from page_driver import HELPERS, IDLE, answer, ask, asked, attach, begun, do, hand_service, page_engine, shown, talk
from serving import end, hosted, serving

from edge_llm.engine.request import Delta
from edge_llm.errors import ContextOverflow

pytestmark = pytest.mark.thorough(file=4)

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


def test_a_reload_keeps_chat_draft_and_a_half_answer(service, tab):
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
    assert tab.wait("document.querySelector('#system')?.value") == "Be brief"
    tab.press("Ctrl+Shift+o")
    tab.wait("document.querySelector('.chip')")
    assert tab.run("document.querySelector('#text').value") == "for another"


def test_two_tabs_see_one_history(service, profile, tab):
    """HTTP | page | A chat that is open in two tabs: both show the answer and can stop it, and the second one can go on."""
    ask(tab, "one")
    stream = service.wait_for(1)
    stream.put(Delta("Hel", (1,)))
    tab.wait("document.querySelector('article.assistant .body')?.innerText === 'Hel'")
    other = profile.tab(tab.run("location.href"))
    other.wait("document.querySelector('article.assistant .body')?.innerText === 'Hel'")
    tab.run("new Promise(resolve => setTimeout(resolve, 50))")
    assert other.text(".note") is None
    answer(service, 1, "lo")
    other.wait(f"{IDLE} && document.querySelector('article.assistant .body').innerText === 'Hello'")
    talk(other, service, 2, "two", "Yes")
    tab.wait("document.querySelectorAll('article .body')[3]?.innerText === 'Yes'")
    assert shown(tab) == shown(other) == [("user", "one"), ("assistant", "Hello"), ("user", "two"), ("assistant", "Yes")]
    stream = begun(other, service, 3, "three", "Ha")
    tab.wait("tested.all('article.assistant .body').at(-1)?.innerText === 'Ha'")
    tab.click("#send")  # it stops what the other tab writes
    other.wait(f"{IDLE} && tested.all('.note').at(-1)?.innerText === 'Stopped.'")
    assert stream.cancelled
    tab.wait(f"{IDLE} && tested.all('.note').at(-1)?.innerText === 'Stopped.'")
    assert other.complaints == []
    other.close()


TYPED = "document.querySelector('#text').value"


EARLY = """
addEventListener("DOMContentLoaded", () => { const box = document.querySelector("#text"); box.value ||= "early"; });
"""


def test_what_is_typed_before_the_page_is_ready_stays(service, browser):
    """HTTP | page | What is typed while the page still opens its database is in the box when it is ready."""
    profile = browser.profile(HELPERS + EARLY)
    tab = profile.tab(service.url)
    assert tab.run(TYPED) == "early"
    ask(tab, "")
    assert asked(service, 1) == "[user:early]"
    assert tab.complaints == []
    profile.close()


def test_two_questions_at_once_are_one_after_the_other(service, tab):
    """HTTP | page | A question that is sent while the one before is still on its way into the store waits for its answer."""
    box = "document.querySelector('#text')"
    enter = f"{box}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Enter', bubbles: true, cancelable: true}}))"
    tab.run(f"for (const text of ['one', 'two']) {{ {box}.value = text; {box}.dispatchEvent(new Event('input')); {enter}; }}")
    answer(service, 1, "A")
    assert asked(service, 2) == "[user:one][assistant:A][user:two]"
    answer(service, 2, "B")
    tab.wait(f"{IDLE} && document.querySelectorAll('article').length === 4")


NO_LOCKS = "Object.defineProperty(Navigator.prototype, 'locks', {get: () => undefined});"


def test_tabs_ask_each_other_where_the_browser_does_not_know(service, browser):
    """HTTP | page | A browser has no locks at a plain address of another machine: two tabs and a reload lose nothing, too."""
    profile = browser.profile(HELPERS + NO_LOCKS)
    tab = profile.tab(service.url)
    stream = begun(tab, service, 1, "one", "Hel")
    tab.type("half a thou")
    other = profile.tab(tab.run("location.href"))
    other.wait("document.querySelector('article.assistant .body')?.innerText === 'Hel'")
    other.close()
    assert not stream.cancelled
    tab.reload()
    tab.wait("document.querySelector('.note')?.innerText.startsWith('Broke off')")
    assert shown(tab) == [("user", "one"), ("assistant", "Hel")]
    assert tab.run(TYPED) == "half a thou"
    assert tab.complaints == []
    profile.close()


def test_each_tab_keeps_what_is_typed_in_it(service, profile, tab):
    """HTTP | page | Two tabs type into a new chat: each keeps its own text over a reload, that of a closed tab comes back."""
    tab.type("the first")
    attach(tab, "first.txt", b"1")
    other = profile.tab(service.url)
    assert other.run(TYPED) == ""
    other.type("the second")
    attach(other, "second.txt", b"2")
    other.wait("document.querySelector('.chip')")
    for one, text in ((tab, "first"), (other, "second")):
        one.reload()
        assert one.run(TYPED) == f"the {text}"
        assert one.wait("document.querySelector('.chip')?.innerText").startswith(f"{text}.txt")
    other.close()
    third = profile.tab(service.url)
    third.wait(f"{TYPED} === 'the second' && document.querySelector('.chip')?.innerText.startsWith('second.txt')")
    assert tab.run(TYPED) == "the first"
    ask(third, "")
    assert asked(service, 1) == "[user:second.txt:\n```\n2\n```\n\nthe second]"
    third.close()
    tab.reload()
    assert tab.run(TYPED) == "the first"


def test_a_tab_that_crashes_loses_nothing(service, browser):
    """HTTP | page | The tab crashes in the middle of an answer: what has come, and what is typed, is there in the next one."""
    profile = browser.profile(HELPERS)
    tab = profile.tab(service.url)
    begun(tab, service, 1, "one", "Hel")
    tab.type("half a thou")
    tab.wait("tested.isKept('Hel')")
    place = tab.run("location.href")
    tab.crash()
    other = profile.tab(place)
    other.wait("document.querySelector('.note')?.innerText.startsWith('Broke off')")
    assert shown(other) == [("user", "one"), ("assistant", "Hel")]
    assert other.run(TYPED) == "half a thou"
    profile.close()


FULL = """(() => {
  const full = () => { throw new DOMException("full", "QuotaExceededError"); };
  Storage.prototype.setItem = IDBObjectStore.prototype.put = full;
})()"""


def test_a_full_browser_loses_nothing(service, tab):
    """HTTP | page | No room in the browser: a question that cannot be kept is not sent and stays in the box, drafts last."""
    talk(tab, service, 1, "one", "A")
    tab.type("kept")
    begins = tab.run(FULL)
    assert begins is None
    tab.type(" and not")
    ask(tab, "")
    tab.wait("document.querySelector('.toast')?.innerText.includes('could not be kept')")
    assert tab.run(TYPED) == "kept and not"
    tab.press("Ctrl+Shift+o")
    tab.wait("document.querySelector('.welcome')")
    tab.type("of another")
    tab.click("#chats .open")
    tab.wait(f"document.querySelectorAll('article').length === 2 && {TYPED} === 'kept and not'")
    tab.press("Ctrl+,")
    tab.type("Be brief")
    tab.wait("tested.all('.toast').some(one => one.innerText.includes('until the page is closed'))")
    assert len(service.streams) == 1
    tab.reload()
    assert tab.run(TYPED) == "kept"


def test_an_answer_that_cannot_be_kept_is_shown_and_said(service, tab):
    """HTTP | page | The browser is full when the answer ends: it stays on the page, and one is told."""
    stream = begun(tab, service, 1, "one", "Hel")
    tab.run("IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError'); }")
    stream.put(Delta("lo", (1,)))
    stream.put(end())
    tab.wait(f"{IDLE} && document.querySelector('.toast')?.innerText.includes('no room left')")
    assert shown(tab) == [("user", "one"), ("assistant", "Hello")]
    tab.reload()
    tab.wait("document.querySelector('.note')")
    assert shown(tab) == [("user", "one"), ("assistant", "Hello")]


def test_an_answer_ends_though_the_database_does_not_answer(service, tab):
    """HTTP | page | A database that hangs: the answer ends all the same, and the next question can be typed."""
    stream = begun(tab, service, 1, "one", "Hel")
    tab.run("Object.defineProperty(IDBTransaction.prototype, 'oncomplete', {set() {}}); null")
    stream.put(Delta("lo", (1,)))
    stream.put(end())
    tab.wait(f"{IDLE} && !document.querySelector('#send').classList.contains('stop')")
    tab.reload()
    assert shown(tab) == [("user", "one"), ("assistant", "Hello")]


CLOSED = """
for (const name of ["localStorage", "sessionStorage", "indexedDB"]) {
  Object.defineProperty(window, name, {get() { throw new DOMException("closed", "SecurityError"); }});
}
"""


def test_a_browser_that_keeps_nothing(service, browser):
    """HTTP | page | Without storage, as in some private modes, the page works and says that it keeps nothing."""
    profile = browser.profile(HELPERS + CLOSED)
    tab = profile.tab(service.url)
    tab.wait("document.querySelector('.toast')?.innerText.includes('keeps nothing')")
    talk(tab, service, 1, "one", "A")
    tab.type("a draft")
    tab.press("Ctrl+Shift+o")
    tab.wait("document.querySelector('.welcome')")
    tab.click("#chats .open")
    tab.wait(f"document.querySelectorAll('article').length === 2 && {TYPED} === 'a draft'")
    assert tab.complaints == []
    profile.close()


def test_what_is_deleted_during_its_answer_stays_deleted(service, tab):
    """HTTP | page | A question is deleted during its answer: that ends, is gone after a reload, and comes back by Undo."""
    talk(tab, service, 1, "one", "A")
    stream = begun(tab, service, 2, "two", "Hel")
    tab.run("tested.all('article.user').at(-1).querySelector('[aria-label=\"Delete from here on\"]').click()")
    tab.wait(f"{IDLE} && document.querySelectorAll('article').length === 2")
    assert stream.cancelled
    tab.click(".toast button")
    tab.wait("tested.all('.note').at(-1)?.innerText === 'Stopped.'")
    assert shown(tab)[2:] == [("user", "two"), ("assistant", "Hel")]
    do(tab, "Delete from here on")
    tab.wait("document.querySelectorAll('article').length === 3")
    begun(tab, service, 3, "three", "Hel")
    tab.press("Ctrl+k")
    tab.press("ArrowDown")
    tab.press("Delete")
    tab.wait("document.querySelector('.welcome') && !document.querySelector('#chats .row')")
    tab.reload()
    assert tab.run("tested.kept()") == {"chats": 0, "messages": 0}


def test_a_chat_that_another_tab_deletes_leaves_what_is_typed(service, profile, tab):
    """HTTP | page | A chat is deleted in another tab: what is typed for it moves to a new chat, its answer stops."""
    tab.type("for a new one")
    tab.run("document.querySelector('#text').value = ''")
    stream = begun(tab, service, 1, "one", "Hel")
    tab.type("and then?")
    other = profile.tab(service.url)
    other.press("Ctrl+k")
    other.press("ArrowDown")
    other.press("Delete")
    tab.wait(f"document.querySelector('.welcome') && {TYPED}.endsWith('and then?')")
    other.wait("tested.kept().then(kept => !kept.messages && !kept.chats)")
    assert stream.cancelled
    other.close()


def test_a_server_that_goes_and_comes_back(empty_tab):
    """HTTP | page | The server is gone: the question stays, one is told, and "Try again" has it answered when it is back."""
    engine, tab = page_engine(), empty_tab
    with serving(hosted(service := hand_service(engine), engine), drain_seconds=0.0) as url:
        tab.go(f"{url}/")
        talk(tab, service, 1, "one", "A")
        ask(tab, "two")
        service.wait_for(2).put(Delta("Half", (1,)))
        tab.wait("document.querySelectorAll('article .body')[3]?.innerText === 'Half'")
    tab.wait(IDLE)
    ask(tab, "three")
    tab.wait("document.querySelector('.problem') && !document.querySelector('#banner').hidden")
    assert [text for _, text in shown(tab)][-2:] == ["three", ""]
    with serving(hosted(service := hand_service(engine), engine), port=int(url.rpartition(":")[2])):
        tab.wait("document.querySelector('#banner').hidden")
        tab.run("[...document.querySelectorAll('.problem button')].at(-1).click()")
        assert asked(service, 1) == "[user:one][assistant:A][user:two][assistant:Half][user:three]"
        answer(service, 1, "There")
        tab.wait(f"{IDLE} && !document.querySelector('article:last-of-type .problem')")
        assert shown(tab)[-1] == ("assistant", "There")


def test_an_error_is_told_and_can_be_tried_again(service, tab):
    ask(tab, "one")
    service.wait_for(1).fail(ZeroDivisionError("secret"))
    tab.wait("document.querySelector('.problem')")
    assert "secret" not in tab.text(".problem")
    tab.click(".problem button")
    answer(service, 2, "Yes")
    tab.wait(f"{IDLE} && !document.querySelector('.problem')")
    assert shown(tab) == [("user", "one"), ("assistant", "Yes")]


def test_a_chat_that_no_longer_fits_goes_on_without_its_oldest_turns(service, tab):
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
    assert asked(service, 3) == "[user:second][assistant:B][user:third]"
    answer(service, 3, "C")
    tab.wait(f"{IDLE} && document.querySelector('.cut')")
    assert shown(tab)[0][1].startswith("first")

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
