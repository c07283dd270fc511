"""A full context is no dead end: it is foreseen, told, kept with the message, and there are four ways on."""

import asyncio
import json

import pytest
from chat_driver import drive, rows
from scripted_provider import ScriptedCatalogue, ScriptedProvider, answer

from edge_llm.chats.calls import ToolCall
from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.settings import ChatSettings
from edge_llm.chats.tree import CONTEXT_FULL, Cut, Message, path_to
from edge_llm.errors import ContextOverflow, UsageError
from edge_llm.providers.base import Ask, Facts, Figures
from edge_llm.tui.activity import context_used, is_full
from edge_llm.tui.asking import SUMMARY_SO_FAR, messages_of
from edge_llm.tui.room import SUMMARIZE, plan, summarize
from edge_llm.tui.screens.context import ContextWays
from edge_llm.tui.status import StatusLine

pytestmark = pytest.mark.thorough(file=3)

CONTEXT = 120


def small(*, most=CONTEXT):
    """A model of a hundred and twenty words: it refuses longer prompts, counts words, and writes summaries."""

    def script(ask):
        words = sum(len(message["content"].split()) for message in ask.messages)
        asked = ask.messages[-1]["content"]
        room = provider.facts.context
        if words >= room:
            return [ContextOverflow(words, room)]
        if asked.endswith(SUMMARIZE):
            return answer("They counted words.", figures=Figures(words, 0, 3))
        said = ["word"] * 8
        return answer(" ".join(said[: room - words]), reason="length" if words + 8 >= room else "stop",
                      figures=Figures(words, 0, min(8, room - words)))  # fmt: skip

    provider = ScriptedProvider(script, facts=Facts("small", CONTEXT, "device: host", most_context=most))
    return provider


async def fill(chat):
    """Ask until there is no more room."""
    for number in range(20):
        await chat.ask(f"question {number} of many")
        if chat.session.chat.path[-1].reason:
            return
    raise AssertionError("it never was full")


async def choose(chat, way):
    await chat.press("f9")
    await chat.opened(ContextWays)
    await chat.settle_but_open()
    ways = chat.app.screen.query_one("#ways")
    at = next(at for at in range(ways.option_count) if ways.get_option_at_index(at).id == way)
    ways.highlighted = at
    await chat.press("enter")
    await chat.until(lambda: not isinstance(chat.app.screen, ContextWays))


@pytest.fixture(autouse=True)
def open_screens(monkeypatch):
    """A question is open, and its worker waits: there is nothing else to wait for."""

    async def settle_but_open(self):
        await self.taken()

    monkeypatch.setattr("chat_driver.Chat.settle_but_open", settle_but_open, raising=False)


def test_a_cut_answer_says_that_the_context_is_full_also_after_a_restart(tmp_path):
    async def talk(chat):
        await fill(chat)
        assert chat.session.chat.path[-1].reason == CONTEXT_FULL
        assert "context full" in chat.screen
        await chat.until(lambda: "The context is full. F9 says how to go on" in chat.screen)

    drive(talk, tmp_path, small())

    async def again(chat):
        assert "context full" in chat.screen
        await chat.until(lambda: "The context is full. F9 says how to go on" in chat.screen)
        assert rows(chat.path, "SELECT reason FROM messages WHERE reason <> ''") == [(CONTEXT_FULL,)]

    drive(again, tmp_path, small())


def test_the_gauge_turns_yellow_and_red(tmp_path):
    def taking(tokens):
        return answer("Hi", figures=Figures(tokens - 10, 0, 10))

    provider = ScriptedProvider([taking(790), taking(810), taking(949), taking(951)], facts=Facts("scripted", 1000))

    async def talk(chat):
        for level in ("$foreground-muted", "$text-warning", "$text-warning", "bold $text-error"):
            await chat.ask("Hello")
            await chat.until(lambda level=level: level in gauge(chat))

    drive(talk, tmp_path, provider)


def gauge(chat):
    """The styles of what stands in the line of status about the context."""
    return [style for text, style in chat.app.query_one(StatusLine)._about if "/1000" in text]


def test_a_limit_of_tokens_is_not_taken_for_a_full_context(tmp_path):
    provider = ScriptedProvider([answer("One", reason="length", figures=Figures(12, 0, 3)), answer("Two", reason="length")])

    async def talk(chat):
        await chat.ask("Hello")
        await chat.until(lambda: "cut after 3 tokens (max_tokens)" in chat.screen)
        assert "is full" not in chat.screen

    drive(talk, tmp_path, provider)


def test_why_an_answer_failed_stands_with_it_after_a_restart(tmp_path):
    async def talk(chat):
        await chat.ask("Hello")
        await chat.until(lambda: "Failed: the weights are [b]gone[/b]" in chat.screen)

    drive(talk, tmp_path, ScriptedProvider([["Once", UsageError("the weights are [b]gone[/b]")]]))

    async def again(chat):
        assert "Failed: the weights are [b]gone[/b]" in chat.screen
        await chat.ask("And now?")
        assert chat.said[-1][1].startswith("You said: And now?")

    drive(again, tmp_path)


def test_it_goes_on_without_the_oldest_turns_and_a_line_shows_where(tmp_path):
    provider = small()

    async def talk(chat):
        await fill(chat)
        await chat.ask("one that finds no room at all")
        assert "Failed: context full: the prompt has" in chat.screen
        await choose(chat, "drop")
        await chat.until(lambda: chat.session.chat.path[-1].text.startswith("word") and not chat.session.busy)
        await chat.settle()
        assert chat.session.chat.path[-2].text == "one that finds no room at all"
        assert "‹" not in chat.screen, "the answer that failed is gone"
        asked = provider.asked[-1].messages
        assert asked[0]["role"] == "user" and asked[-1]["content"].endswith("finds no room at all")
        assert sum(len(each["content"].split()) for each in asked) <= CONTEXT // 2
        first = provider.asked[-1].messages[0]
        await chat.ask("and the next one")
        assert provider.asked[-1].messages[0] == first, "the beginning stays: its keys and values are kept"
        kept = len(chat.session.chat.messages)
        await chat.until(lambda: "The model sees what follows" in shown_anywhere(chat))
        return kept

    kept = drive(talk, tmp_path, provider, size=(100, 80))
    after = small()

    async def again(chat):
        assert sum(message.cut is not None for message in chat.session.chat.path) == 1
        assert len(chat.session.chat.messages) == kept, "all that was said is there"
        await chat.ask("still there?")
        assert len(after.asked[-1].messages) < kept

    drive(again, tmp_path, after, size=(100, 80))


def shown_anywhere(chat):
    return "\n".join(str(each.render()) for each in chat.app.query(".cut"))


def test_opening_with_a_dead_chat_is_not_stuck(tmp_path):
    async def talk(chat):
        await fill(chat)
        await chat.ask("no room")
        assert chat.session.chat.path[-1].state == "failed"

    drive(talk, tmp_path, small())

    async def again(chat):
        await chat.until(lambda: "The context is full. F9 says how to go on" in chat.screen)
        await choose(chat, "drop")
        await chat.until(lambda: chat.session.chat.path[-1].text.startswith("word") and not chat.session.busy)
        assert "no room" in chat.session.chat.path[-2].text

    drive(again, tmp_path, small())


def test_compact_goes_on_from_a_summary_and_undo_takes_it_back(tmp_path):
    provider = small()

    async def talk(chat):
        await chat.send("/compact")
        await chat.until(lambda: chat.told("nothing was said that could be summarized"))
        await chat.ask("first question")
        await chat.ask("second question")
        said = chat.said
        await chat.send("/compact")
        await chat.until(lambda: chat.told("The chat goes on from the summary: 9 tokens in place of 20."))
        await chat.settle()
        assert chat.said == said, "all that was said is still to be seen"
        assert "The model sees what follows" in chat.screen
        await chat.ask("third question")
        assert provider.asked[-1].messages == (
            {"role": "user", "content": f"{SUMMARY_SO_FAR}\nThey counted words.\n\nthird question"},
        )
        await chat.send("/compact undo")
        await chat.until(lambda: "The model sees what follows" not in chat.screen)
        await chat.ask("fourth question")
        assert provider.asked[-1].messages[0]["content"] == "first question"

    drive(talk, tmp_path, provider)


@pytest.mark.parametrize("way", ["export", "branch"])
def test_a_copy_of_a_compacted_chat_goes_on_as_it_does(tmp_path, way):
    """A full chat that was compacted is not full in its copy either, its gauge is the same, and the model is told the same."""
    provider = small()

    async def talk(chat):
        await fill(chat)
        await chat.send("/compact")
        await chat.until(lambda: chat.told("The chat goes on from the summary"))
        await chat.settle()
        old = chat.session.chat
        full, used = is_full(chat.session), context_used(chat.session)
        assert (full, used) == (False, 9)
        if way == "export":
            await chat.send("/export json a.json")
            await chat.until(lambda: (tmp_path / "a.json").exists())
            await chat.send("/import a.json")
        else:
            await chat.send("/branch")
        await chat.until(lambda: chat.session.chat is not old)
        await chat.settle()
        assert (is_full(chat.session), context_used(chat.session)) == (full, used)
        assert "The model sees what follows" in chat.screen
        await chat.ask("and now")
        [told] = provider.asked[-1].messages
        assert told["content"] == f"{SUMMARY_SO_FAR}\nThey counted words.\n\nand now"

    drive(talk, tmp_path, provider)


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("words", [3, 40])
def test_a_summary_stands_only_for_what_is_longer(tmp_path, counts, words):
    """Whatever the model says, the conversation is shorter with its summary, or stays as it was; both is said."""

    def script(ask):
        summary = ask.messages[-1]["content"].endswith(SUMMARIZE)
        return answer(" ".join(["word"] * (words if summary else 8)))

    provider = ScriptedProvider(script)
    provider.counts = counts

    async def talk(chat):
        await chat.ask("first question")
        await chat.ask("second question")
        before = messages_of(chat.session.chat.path, ChatSettings())
        await chat.send("/compact")
        await chat.until(lambda: not chat.session.busy and chat.notices)
        await chat.settle()
        [notice] = chat.notices
        await chat.ask("third question")
        told = provider.asked[-1].messages
        if words > 20:
            begin = "a summary would not be shorter than what was said"
            assert notice == begin + (" (46 tokens in place of 20)" if counts else "") + "; nothing is changed"
            assert told[:-1] == tuple(before)
        else:
            assert notice.startswith("The chat goes on from the summary" + (": 9 tokens in place of 20." if counts else ". "))
            assert len(told) == 1 and len(str(told)) < len(str(before))

    drive(talk, tmp_path, provider)


def test_a_summary_can_be_stopped_and_changes_nothing_then(tmp_path):
    provider = ScriptedProvider([answer("one"), ["They"]])

    async def talk(chat):
        await chat.ask("first question")
        await chat.send("/compact")
        await chat.until(lambda: "summarizing  Esc stops" in chat.screen)
        await chat.press("escape")
        await chat.until(lambda: not chat.session.busy)
        await chat.settle()
        assert [message.cut for message in chat.session.chat.messages] == [None, None]
        assert provider.replies[1].cancelled
        await chat.ask("second")
        assert provider.asked[-1].messages[0]["content"] == "first question"

    drive(talk, tmp_path, provider)


def test_a_new_chat_begins_with_the_summary(tmp_path):
    provider = small()

    async def talk(chat):
        await fill(chat)
        await chat.ask("no room for this")
        old = chat.session.chat
        await choose(chat, "new")
        await chat.until(lambda: chat.session.chat is not old and not chat.session.busy and len(chat.said) == 3)
        await chat.settle()
        assert chat.said[0] == ("user", f"{SUMMARY_SO_FAR}\nThey counted words.")
        assert provider.asked[-1].messages[-1]["content"].endswith("no room for this")
        assert chat.titles == ["question 0 of many", "question 0 of many (2)"]

    drive(talk, tmp_path, provider)


def test_a_larger_context_is_offered_where_the_model_has_one(tmp_path):
    provider = small(most=200)
    catalogue = ScriptedCatalogue({"small": provider})

    async def talk(chat):
        await fill(chat)
        await chat.ask("no room")
        await chat.press("f9")
        await chat.until(lambda: "A larger context: 200 tokens" in chat.screen)
        await chat.press("escape")
        catalogue.loads["small"] = [lambda: setattr(provider, "facts", Facts("small", 200, "device: host", most_context=200))]
        await choose(chat, "larger")
        await chat.until(lambda: chat.session.chat.path[-1].text.startswith("word") and not chat.session.busy)
        assert catalogue.opened[-1].runtime == {"context": 200}
        assert chat.session.chat.path[-2].text == "no room"
        await chat.press("f9")
        await chat.until(lambda: "this model was made for 200 tokens" in chat.screen)
        await chat.press("escape")

    drive(talk, tmp_path, catalogue=catalogue)


# ---- summaries of chats with calls of tools


def with_calls(turns):
    """A chat in which every answer called a tool; its words are numbered."""
    path, last = [], None
    for at in range(turns):
        arguments = json.dumps({"a": at, "text": f'argument{at} "quoted"'})
        made = ToolCall(f"c{at}", "add", arguments, "small", "done", f"result{at} " * 3)
        for text, calls in ((f"question{at}", ()), (f"thinking{at}", (made,)), (f"said{at}", ())):
            role = "user" if text.startswith("question") else "assistant"
            path.append(Message(len(path) + 1, 1, last, role, text, calls=calls))
            last = path[-1].id
    return path


@pytest.mark.parametrize("context", [1 << 16, 400, 150])
@pytest.mark.parametrize("turns", [1, 7])
def test_a_summary_of_a_chat_with_calls_is_of_all_that_was_said_called_and_given(turns, context):
    """In plain turns that any template takes, in as many steps as the context needs; arguments as the model wrote them."""
    provider = ScriptedProvider(lambda ask: answer("They counted."), facts=Facts("small", context))
    path = with_calls(turns)
    seen = []
    text = asyncio.run(summarize(provider, messages_of(path, ChatSettings()), {}, seen.append))
    assert text == "They counted."
    asks = [ask.messages for ask in provider.asked]
    assert (len(asks) > 1) == (turns == 7 and context < 400) and len(seen) == len(asks)
    for messages in asks:
        assert [each["role"] for each in messages] == [("user", "assistant")[at % 2] for at in range(len(messages))]
        assert all(each.keys() == {"role", "content"} for each in messages)
        assert messages[-1]["content"].endswith(SUMMARIZE)
        assert provider.count(Ask(messages)) < context
    told = "\n".join(each["content"] for messages in asks for each in messages)
    parts = [f"{part}{at}" for at in range(turns) for part in ("question", "thinking", "argument", "result", "said")]
    places = [told.index(part) for part in parts]
    assert places == sorted(places)
    assert f'<tool_call>\n{{"name": "add", "arguments": {path[1].calls[0].arguments}}}\n</tool_call>' in told


def test_a_chat_with_calls_is_compacted_and_goes_on(tmp_path):
    def script(ask):
        return answer("They counted." if ask.messages[-1]["content"].endswith(SUMMARIZE) else "Good.")

    provider = ScriptedProvider(script)

    async def talk(chat):
        kept = OpenChat.new(chat.session.store, {})
        parent = None
        for each in with_calls(3):
            parent = kept.add(each.role, each.text, parent=parent, calls=each.calls).id
        await chat.session.save(kept)
        await chat.session.show(kept)
        await chat.send("/compact")
        await chat.until(lambda: chat.told("The chat goes on from the summary"))
        await chat.settle()
        await chat.ask("and now")
        told = ({"role": "user", "content": f"{SUMMARY_SO_FAR}\nThey counted.\n\nand now"},)
        assert provider.asked[-1].messages == told
        assert [each.calls for each in chat.session.chat.path[:9]] == [each.calls for each in with_calls(3)]

    drive(talk, tmp_path, provider)


# ---- what a model is told


@pytest.mark.parametrize("turns", [1, 2, 3, 9, 40])
def test_half_of_the_context_is_free_and_turns_stay_whole(turns):
    provider = small()
    path = []
    for at in range(2 * turns):
        role = "assistant" if at % 2 else "user"
        path.append(Message(at + 1, 1, at or None, role, " ".join(["word"] * 6)))
    found = plan(provider, path, ChatSettings())
    if turns == 1:
        assert found is None
        return
    cut = [*path]
    at = cut.index(found.last)
    cut[at] = Message(at + 1, 1, at or None, found.last.role, found.last.text, cut=Cut("", 99, found.tokens))
    left = messages_of(cut, ChatSettings())
    assert left[0]["role"] == "user"
    assert provider.count(Ask(tuple(left))) == found.tokens <= CONTEXT // 2
    assert len(left) == 2 * turns - found.messages
    fewer = messages_of([Message(0, 0, None, "user", "", cut=Cut()), *path[found.messages - 2 :]], ChatSettings())
    assert found.messages == 2 or provider.count(Ask(tuple(fewer))) > CONTEXT // 2, "no more goes than must"


def test_a_cut_is_for_what_follows_it_and_the_last_one_counts():
    path = [
        Message(1, 1, None, "user", "a"),
        Message(2, 1, 1, "assistant", "b", cut=Cut("first", 9)),
        Message(3, 1, 2, "user", "c"),
        Message(4, 1, 3, "assistant", "d", cut=Cut("second", 10)),
        Message(5, 1, 4, "user", "e"),
    ]

    def told(last):
        return [each["content"] for each in messages_of(path_to(path, last), ChatSettings(system="S"))]

    assert told(2) == ["S", "a", "b"]
    assert told(4) == ["S", f"{SUMMARY_SO_FAR}\nfirst\n\nc", "d"]
    assert told(5) == ["S", f"{SUMMARY_SO_FAR}\nsecond\n\ne"]


def test_a_server_that_says_in_its_own_words_that_the_context_is_full_is_understood(tmp_path):
    words = "the server refuses the request (400): This model's maximum context length is 8192 tokens"

    async def talk(chat):
        await chat.ask("Hello")
        assert f"Failed: context full: {words}"[:60] in chat.screen
        await chat.until(lambda: "F9 says how to go on" in chat.screen)

    drive(talk, tmp_path, ScriptedProvider([[UsageError(words)]], facts=Facts("far", None, "server: http://x")))


