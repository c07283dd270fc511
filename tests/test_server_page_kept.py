"""The chat page loses nothing: reloads, two tabs, a server that goes, chats as files."""

import json
import time

from page_driver import IDLE, answer, ask, asked, attach, do, hand_service, page_engine, shown, talk
from serving import hosted, serving

from edge_llm.engine.request import Delta
from edge_llm.errors import ContextOverflow

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
    assert tab.run("document.querySelector('#system').value") == "Be brief"
    tab.press("Ctrl+Shift+o")
    tab.wait("document.querySelector('.chip')")
    assert tab.run("document.querySelector('#text').value") == "for another"


def test_two_tabs_see_one_history(service, profile, tab):
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
