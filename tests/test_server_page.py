"""The chat page in a real Chromium: a conversation, its branches, and what goes wrong in it."""

import pytest
from page_driver import IDLE, answer, ask, asked, do, shown, talk

from edge_llm.engine.request import Delta

pytestmark = pytest.mark.thorough(file=2)


def test_a_conversation_goes_on(service, tab):
    """HTTP | page | A question, its answer as it comes, and the next question with both before it."""
    ask(tab, "one")
    stream = service.wait_for(1)
    stream.put(Delta("Hel", (1,)))
    tab.wait("document.querySelector('article.assistant .body')?.innerText === 'Hel'")
    answer(service, 1, "lo **you**")
    tab.wait(IDLE)
    assert shown(tab) == [("user", "one"), ("assistant", "Hello you")]
    assert tab.run("document.querySelector('.body strong').innerText") == "you"
    assert tab.text("article.assistant .figures").startswith("1 token · ")
    ask(tab, "two")
    assert asked(service, 2) == "[user:one][assistant:Hello **you**][user:two]"


def test_a_new_chat_is_sent_alone_and_the_old_answer_goes_on(service, tab):
    """HTTP | page | "New chat" during an answer: the next question is sent alone, the old answer is kept in its chat."""
    ask(tab, "old")
    service.wait_for(1).put(Delta("Hel", (1,)))
    tab.wait("document.querySelector('article.assistant .body')?.innerText === 'Hel'")
    tab.press("Ctrl+Shift+o")
    tab.wait("document.querySelector('.welcome')")
    ask(tab, "new")
    assert asked(service, 2) == "[user:new]"
    answer(service, 1, "lo")
    answer(service, 2, "Yes")
    tab.wait(f"document.querySelectorAll('#chats .row').length === 2 && {IDLE}")
    assert shown(tab) == [("user", "new"), ("assistant", "Yes")]
    tab.click("#chats .row:not(:has([aria-current])) .open")
    tab.wait("document.querySelector('article.user')?.innerText.startsWith('old')")
    assert shown(tab) == [("user", "old"), ("assistant", "Hello")]


def test_enter_during_an_answer_does_not_stop_it(service, tab):
    """HTTP | page | A question typed during an answer waits for its end, and is sent then."""
    ask(tab, "one")
    stream = service.wait_for(1)
    stream.put(Delta("Hel", (1,)))
    ask(tab, "two")
    tab.wait("!document.querySelector('#queued').hidden")
    assert not stream.cancelled
    answer(service, 1, "lo")
    assert asked(service, 2) == "[user:one][assistant:Hello][user:two]"
    answer(service, 2, "Yes")
    tab.wait(f"document.querySelectorAll('article').length === 4 && {IDLE}")
    assert tab.run("document.querySelector('#text').value") == ""


def test_an_answer_that_is_stopped_stays_and_can_be_continued(service, tab):
    """HTTP | page | "Stop" keeps what has come; "Continue" has the model write on behind it."""
    ask(tab, "one")
    service.wait_for(1).put(Delta("Hel", (1,)))
    tab.wait("document.querySelector('article.assistant .body')?.innerText === 'Hel'")
    tab.click("#send")
    tab.wait(IDLE)
    assert tab.text("article.assistant .status") == "Stopped."
    do(tab, "Continue")
    assert asked(service, 2).startswith("[user:one][assistant:Hel")
    answer(service, 2, "lo")
    tab.wait(f"document.querySelectorAll('article').length === 2 && {IDLE} && !document.querySelector('.note')")
    assert shown(tab)[1] == ("assistant", "Hello")
    ask(tab, "two")
    assert asked(service, 3) == "[user:one][assistant:Hello][user:two]"


def test_thoughts_are_folded_and_not_sent_back(service, tab):
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
    assert asked(service, 2) == "[user:one][assistant:Yes][user:two]"


def test_another_answer_and_another_question_are_branches(service, tab):
    """HTTP | page | "Answer again" and an edited question lie beside what they replace; one can go from one to the other."""
    talk(tab, service, 1, "one", "A")
    do(tab, "Answer again")
    assert asked(service, 2) == "[user:one]"
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
    assert asked(service, 4) == "[user:one][assistant:B][user:more or less]"
    answer(service, 4, "D")
    tab.wait(f"{IDLE} && document.querySelectorAll('article').length === 4")
    assert [text for _, text in shown(tab)] == ["one", "B", "more or less", "D"]


def test_an_edited_answer_is_what_the_model_reads(service, tab):
    talk(tab, service, 1, "one", "A")
    do(tab, "Edit the answer")
    tab.type(" or B")
    tab.press("Ctrl+Enter")
    tab.wait("document.querySelector('article.assistant .body').innerText === 'A or B'")
    ask(tab, "two")
    assert asked(service, 2) == "[user:one][assistant:A or B][user:two]"


def test_what_is_deleted_can_be_brought_back(service, tab):
    talk(tab, service, 1, "one", "A")
    talk(tab, service, 2, "two", "B")
    do(tab, "Delete from here on")
    tab.wait("document.querySelectorAll('article').length === 3")
    tab.click(".toast button")
    tab.wait("document.querySelectorAll('article').length === 4")
    tab.reload()
    assert [text for _, text in shown(tab)] == ["one", "A", "two", "B"]
