"""Models of this machine as a chat has them: the same answers as the engine's, in batches, stopped at any moment."""

import asyncio
import copy
import gc
import subprocess
import sys
import threading
import weakref

import pytest
from serving import builtin_engine

from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.errors import ContextOverflow, EdgeLLMError, ModelNotFound, Unavailable, UsageError
from edge_llm.providers.base import Ask, Ended, Wanted
from edge_llm.providers.local import LocalCatalogue, LocalProvider
from edge_llm.talk.conversation import NO_TEMPLATE, conversation_request
from edge_llm.talk.pieces import Said, Thought
from edge_llm.text.chat import ChatTemplate

pytestmark = pytest.mark.thorough(file=8)

GREEDY = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}
HELLO = ({"role": "user", "content": "Tell me a story"},)
ENDLESS = Ask(HELLO, {"temperature": 0.0, "ignore_eos": True})
SWITCH = (
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>\n{% endif %}"
)


@pytest.fixture(scope="module")
def provider(engine):
    provider = LocalProvider(engine)
    yield provider
    provider.close()


@pytest.fixture(scope="module")
def thinker(engine):
    """A provider of a model whose template opens a thought, unless it is told not to."""
    other = copy.copy(engine)
    other.template = ChatTemplate(SWITCH)
    provider = LocalProvider(other)
    yield provider
    provider.close()


async def batches_of(reply):
    return [list(pieces) async for pieces in reply]


def pieces_of(provider, ask):
    async def whole():
        return await batches_of(provider.ask(ask))

    batches = asyncio.run(whole())
    assert all(batches), "no batch is empty"
    return [piece for pieces in batches for piece in pieces]


def text_of(pieces, kind=Said):
    return "".join(piece.text for piece in pieces if isinstance(piece, kind))


def alone(engine, ask, **options):
    request, syntax = conversation_request(engine, list(ask.messages), engine.defaults.__class__(**ask.sampling), **options)
    return syntax.outcome(engine.answer(request))


def assert_pages_free(engine):
    state = engine.runner.memory.state()
    assert state["kv_pages_free"] + state["prefix_pages"] == state["kv_pages"]


# ---- answers


def test_pieces_put_together_are_the_engines_answer(engine, provider):
    ask = Ask(HELLO, GREEDY)
    *pieces, ended = pieces_of(provider, ask)
    outcome = alone(engine, ask)
    assert text_of(pieces) == outcome.said != ""
    assert (ended.reason, ended.figures.completion_tokens) == (outcome.reason, 40) == ("length", 40)
    assert ended.figures.prompt_tokens == outcome.finish.usage.prompt_tokens
    assert ended.figures.first_token_seconds > 0 and ended.figures.tokens_per_second > 0


def test_two_replies_at_once_are_each_as_alone(engine, provider):
    asks = [Ask(({"role": "user", "content": text},), GREEDY) for text in ("Who are you?", "What is 2 + 3?")]

    async def together():
        return await asyncio.gather(*(batches_of(provider.ask(ask)) for ask in asks))

    for ask, batches in zip(asks, asyncio.run(together()), strict=True):
        assert text_of([piece for pieces in batches for piece in pieces]) == alone(engine, ask).said


def test_an_answer_goes_on_where_it_ends(engine, provider):
    ask = Ask((*HELLO, {"role": "assistant", "content": "Once upon a"}), GREEDY, continues=True)
    assert text_of(pieces_of(provider, ask)) == alone(engine, ask, begun=True).said
    assert text_of(pieces_of(provider, ask)).startswith(" ")


def test_a_slow_face_gets_all_that_came_meanwhile_in_one_batch(engine, provider):
    async def slowly():
        batches = []
        async for pieces in provider.ask(Ask(HELLO, GREEDY)):
            batches.append(pieces)
            while provider._service.running:
                await asyncio.sleep(0.001)
        return batches

    batches = asyncio.run(slowly())  # the second is missing if the whole answer came before the first was taken
    assert len(batches) <= 2
    assert all(len([piece for piece in batch if isinstance(piece, Said)]) <= 1 for batch in batches)
    pieces = [piece for batch in batches for piece in batch]
    assert text_of(pieces) == alone(engine, Ask(HELLO, GREEDY)).said
    assert [isinstance(piece, Ended) for piece in pieces].index(True) == len(pieces) - 1


def test_thoughts_are_turned_off_by_the_templates_variable(engine, thinker):
    assert thinker.facts.can_switch_thinking
    on, off = (thinker.request(Ask(HELLO, thinking=wanted)) for wanted in ("high", False))
    as_text = [engine.tokenizer.decode(request.prompt, skip_special=False) for request, _ in (on, off)]
    assert as_text[0].rstrip().endswith("<think>") and as_text[1].endswith("<think></think>")
    assert text_of(pieces_of(thinker, Ask(HELLO, GREEDY)), Thought)
    quick = pieces_of(thinker, Ask(HELLO, GREEDY, thinking=False))
    assert text_of(quick) and not text_of(quick, Thought)


@pytest.mark.parametrize("length", [1, 80])
def test_an_answer_that_goes_on_is_no_thought(thinker, length):
    ask = Ask((*HELLO, {"role": "assistant", "content": "Once upon a time " * length}), GREEDY, continues=True)
    pieces = pieces_of(thinker, ask)
    assert text_of(pieces) and not text_of(pieces, Thought)


def test_the_prompts_progress_is_told_until_it_is_through(provider):
    long = Ask(({"role": "user", "content": "Tell me a story. " * 60},), GREEDY)
    async def watched():
        reply, seen = provider.ask(long), []
        assert reply.prompt_progress is None
        following = asyncio.ensure_future(batches_of(reply))
        while not following.done():
            seen.append(reply.prompt_progress)
            await asyncio.sleep(0)
        return seen, reply.prompt_progress, await following

    seen, after, _ = asyncio.run(watched())
    told = [step for step in seen if step is not None]
    assert told == sorted(told) and all(0 <= done <= total == told[0][1] for done, total in told)
    assert told and after is None


def test_what_goes_on_inside_is_seen_while_it_answers(provider):
    async def watched():
        reply = provider.ask(ENDLESS)
        async for _ in reply:
            found = provider.look()
            reply.cancel()
        return found

    assert asyncio.run(watched()).kv_bytes > 0


# ---- stopping


def test_cancelled_in_the_middle_keeps_what_came(engine, provider):
    async def stopped():
        reply, pieces = provider.ask(ENDLESS), []
        async for batch in reply:
            pieces += batch
            reply.cancel()
        reply.cancel()  # it has ended: no effect
        return pieces

    *pieces, ended = asyncio.run(stopped())
    assert ended.reason == "cancelled" and text_of(pieces)
    assert alone(engine, Ask(HELLO, GREEDY | {"max_tokens": 900})).said.startswith(text_of(pieces))
    assert_pages_free(engine)


def test_cancelled_before_nothing_is_computed(provider):
    async def stopped():
        reply = provider.ask(ENDLESS)
        reply.cancel()
        return await batches_of(reply)

    assert asyncio.run(stopped()) == [[Ended("cancelled")]]


def test_cancelled_while_the_question_is_prepared(provider, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def slow_request(ask):
        begun.set()
        go_on.wait(60)
        return LocalProvider.request(provider, ask)

    async def stopped():
        reply = provider.ask(ENDLESS)
        waiting = asyncio.ensure_future(batches_of(reply))
        await asyncio.to_thread(begun.wait, 20)
        reply.cancel()
        found = await waiting
        go_on.set()
        return found

    monkeypatch.setattr(provider, "request", slow_request)
    assert asyncio.run(stopped()) == [[Ended("cancelled")]]
    assert provider._service.running == provider._service.waiting == 0


def test_a_task_that_is_cancelled_stops_the_generation(engine, provider):
    async def stopped():
        came = asyncio.Event()

        async def follow():
            async for _ in provider.ask(ENDLESS):
                came.set()

        task = asyncio.ensure_future(follow())
        await came.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while provider._service.running:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(stopped(), 120))
    assert_pages_free(engine)


def test_an_iteration_that_is_left_stops_the_generation(provider):
    async def left():
        async for _ in provider.ask(ENDLESS):
            break
        while provider._service.running:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(left(), 120))


# ---- errors


def test_a_conversation_that_is_too_long_says_the_way_out(provider):
    ask = Ask(({"role": "user", "content": "word " * 5000},))
    with pytest.raises(ContextOverflow, match="maximum context length is 1024 tokens.*--ctx"):
        pieces_of(provider, ask)
    assert text_of(pieces_of(provider, Ask(HELLO, GREEDY)))


@pytest.mark.parametrize("sampling", [{"nonsense": 1}, {"temperature": "hot"}, {"temperature": -1.0}, {"stop_tokens": [-5]}])
def test_settings_that_make_no_sense(provider, sampling):
    with pytest.raises(UsageError):
        pieces_of(provider, Ask(HELLO, sampling))


@pytest.mark.parametrize("messages", [(), ({"role": "assistant"},), ({"role": "wizard", "content": "hm"},)])
def test_messages_that_make_no_sense(provider, messages):
    for continues in (False, True):
        with pytest.raises(EdgeLLMError):
            pieces_of(provider, Ask(messages, continues=continues))


def test_a_mistake_of_ours_is_a_readable_error_behind_what_came(provider, monkeypatch):
    async def broken():
        reply, pieces = provider.ask(ENDLESS), []
        with pytest.raises(EdgeLLMError, match="ZeroDivisionError"):
            async for batch in reply:
                pieces += batch
                reply._stream.fail(ZeroDivisionError("oh"))
        return pieces

    assert text_of(asyncio.run(broken()))


# ---- opening and closing


def test_facts_of_the_builtin_model(engine, provider):
    facts = provider.facts
    assert (facts.name, facts.context, facts.can_switch_thinking, facts.notes) == ("builtin", 1024, False, ())
    assert facts.site == str(engine.runner.site) and "\n" not in facts.site
    defaults = engine.defaults
    assert facts.sampling == {"temperature": defaults.temperature, "top_p": defaults.top_p, "loop_guard": True}


def test_notes_name_what_a_model_lacks(tiny_model):
    import_model(str(tiny_model()), "tiny")
    catalogue = LocalCatalogue(RuntimeConfig(threads=1))
    provider = catalogue.open(Wanted("tiny", {"context": 128}), lambda stage, done, total: None)
    assert provider.facts.notes == (NO_TEMPLATE,) and provider.facts.context == 128
    provider.close()
    assert {row.name for row in catalogue.rows() if not row.source} == {"builtin", "tiny"}
    assert all(row.size and row.context and not row.problem for row in catalogue.rows())


def test_what_cannot_be_opened():
    catalogue = LocalCatalogue(RuntimeConfig(threads=1))
    for wanted, error in ((Wanted("nobody"), ModelNotFound), (Wanted(None, {"context": 0}), UsageError),
                          (Wanted(None, {"nonsense": 0}), UsageError)):  # fmt: skip
        with pytest.raises(error):
            catalogue.open(wanted, lambda stage, done, total: None)


def test_close_ends_answers_and_frees_the_memory():
    provider = LocalProvider(builtin_engine())
    weights = weakref.ref(provider._engine.runner.model)
    gc.disable()  # it is the closing that collects
    try:

        async def closed():
            reply, pieces = provider.ask(ENDLESS), []
            async for batch in reply:
                pieces += batch
                await asyncio.to_thread(provider.close)
            return reply, pieces

        reply, pieces = asyncio.run(closed())
        assert pieces[-1].reason == "cancelled"
        provider.close()
        gc.collect()
        assert weights() is None and reply is not None
    finally:
        gc.enable()
    assert provider.facts.name == "builtin" and provider.look() is None
    with pytest.raises(Unavailable, match="closed"):
        pieces_of(provider, Ask(HELLO))


def test_close_of_an_idle_model_frees_the_memory_at_once():
    provider = LocalProvider(builtin_engine())
    weights = weakref.ref(provider._engine.runner.model)
    pieces_of(provider, Ask(HELLO, GREEDY))
    gc.disable()
    try:
        provider.close()
        assert weights() is None
    finally:
        gc.enable()


RESIDENT = """
import threading
import numpy as np
from pathlib import Path
from edge_llm.resources import give_memory_back

def resident():
    return next(int(line.split()[1]) >> 10 for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line)

class Cycle:
    pass

def load():
    model = Cycle()
    model.itself, model.weights = model, [np.ones(1 << 20, np.uint8) for _ in range(100)]

before = resident()
for _ in range(3):
    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    give_memory_back()
    print(resident() - before)
"""


def test_memory_that_a_thread_took_goes_back_to_the_system():
    found = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True, check=True, timeout=60)
    assert all(int(line) < 20 for line in found.stdout.split()), found.stdout
