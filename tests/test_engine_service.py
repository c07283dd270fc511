"""One engine for many callers: order, cancellation, limits and the end, on the built-in model."""

import asyncio
import random
import threading
import time

import numpy as np
import pytest
from paged_script import forget
from serving import builtin_engine

from edge_llm.config import GenerationParams
from edge_llm.engine.delta_stream import DeltaStream
from edge_llm.engine.engine import collect
from edge_llm.engine.request import Request
from edge_llm.engine.service import BatchingService
from edge_llm.errors import ContextOverflow, Overloaded, Unavailable

pytestmark = pytest.mark.thorough(file=8)


@pytest.fixture
def service(engine):
    service = BatchingService(engine, queue_limit=4)
    yield service
    service.close(drain_seconds=0.0)


def ask(engine, text="Once upon a time", **params):
    return engine.text_request(text, GenerationParams(**{"max_tokens": 8, "ignore_eos": True, **params}))


def long(engine):
    return ask(engine, max_tokens=900)


def test_a_submitted_request_gets_the_engine_s_own_answer(engine, service):
    request = ask(engine)
    alone = engine.answer(request)
    assert collect(service.submit(request)).text == alone.text


def test_threads_and_event_loops_see_the_same_deltas(engine, service):
    request = ask(engine, logprobs=2)

    async def on_a_loop():
        return [delta async for delta in service.submit(request)]

    in_thread, on_loop = list(service.submit(request)), asyncio.run(on_a_loop())
    assert [(d.text, d.tokens, d.logprobs) for d in in_thread] == [(d.text, d.tokens, d.logprobs) for d in on_loop]


def test_a_wait_that_is_cancelled_loses_no_delta(engine, service):
    async def impatient():
        stream = service.submit(ask(engine, max_tokens=40)).__aiter__()
        found = []
        while True:
            try:
                async with asyncio.timeout(0.0002):
                    found.append(await stream.__anext__())
            except TimeoutError:
                continue
            except StopAsyncIteration:
                return found

    assert collect(asyncio.run(impatient())).text == engine.answer(ask(engine, max_tokens=40)).text


def test_many_threads_get_each_its_own_answer(engine):
    service = BatchingService(engine, queue_limit=64)
    prompts = [f"Question number {n}:" for n in range(12)]
    expected = [engine.answer(ask(engine, prompt)).text for prompt in prompts]
    found = [""] * len(prompts)

    def work(index):
        found[index] = collect(service.submit(ask(engine, prompts[index]))).text

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    service.close(drain_seconds=1.0)
    assert found == expected


def test_cancelling_a_running_request_ends_it_soon(engine, service):
    stream = service.submit(long(engine))
    deltas = iter(stream)
    next(deltas)
    stream.cancel()
    finish = collect(deltas).finish
    assert (finish.reason, finish.usage.completion_tokens < 900) == ("cancelled", True)


def test_cancelling_a_waiting_request_ends_it_at_once(engine, service):
    running, waiting = service.submit(long(engine)), service.submit(ask(engine))
    waiting.cancel()
    answer = collect(waiting)
    assert (answer.text, answer.finish.reason) == ("", "cancelled")
    running.cancel()
    assert collect(running).finish.reason == "cancelled"


def test_cancelling_an_answer_that_has_ended_changes_nothing(engine, service):
    stream = service.submit(ask(engine))
    assert collect(stream).finish.reason == "length"
    stream.cancel()
    assert stream.poll() is None


def test_the_queue_has_an_end(engine, service):
    first = service.submit(long(engine))
    next(iter(first))
    with engine.driver.changed:  # no step begins meanwhile, however slow this thread is
        waiting = [service.submit(ask(engine)) for _ in range(4)]
        with pytest.raises(Overloaded, match="`4` requests are waiting"):
            service.submit(ask(engine))
    first.cancel()
    assert [collect(stream).finish.reason for stream in waiting] == ["length"] * 4


def test_what_can_never_fit_is_refused_at_once(engine, service):
    context = engine.runner.context
    with pytest.raises(ContextOverflow):
        service.submit(Request((1,) * context, GenerationParams()))
    with pytest.raises(ContextOverflow):
        service.embed([[1] * (context + 1)])
    assert service.embed([[1] * context]).result().shape == (1, engine.config.hidden_size)


def test_closing_lets_answers_end_and_refuses_new_ones(engine):
    service = BatchingService(engine)
    streams = [service.submit(ask(engine)) for _ in range(3)]
    service.close(drain_seconds=10.0)
    assert [collect(stream).finish.reason for stream in streams] == ["length"] * 3
    with pytest.raises(Unavailable):
        service.submit(ask(engine))


def test_closing_without_patience_cancels_all(engine):
    service = BatchingService(engine)
    streams = [service.submit(long(engine)) for _ in range(3)]
    service.close(drain_seconds=0.0)
    assert [collect(stream).finish.reason for stream in streams] == ["cancelled"] * 3


def test_an_error_reaches_the_caller_and_the_next_request_is_answered(engine, service, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "run", lambda *args, **kwargs: (_ for _ in ()).throw(OSError("x")))
        with pytest.raises(OSError, match="x"):
            collect(service.submit(ask(engine)))
    assert collect(service.submit(ask(engine))).finish.reason == "length"


def test_embeddings_are_unit_vectors_that_do_not_depend_on_company(engine, service):
    prompts = [engine.tokenizer.encode(text) for text in ("a dog", "a cat", "seven times seven" * 30)]
    together = service.embed(prompts).result()
    alone = np.concatenate([service.embed([prompt]).result() for prompt in prompts])
    assert np.array_equal(together, alone)
    assert np.allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-6)


def test_cancelling_embeddings_stops_the_work(engine, service, monkeypatch):
    steps, run = [], engine.runner.run
    monkeypatch.setattr(engine.runner, "run", lambda *args, **options: steps.append(1) or run(*args, **options))
    job = service.embed([[5] * 500] * 5000)
    while not steps:
        time.sleep(0.001)
    job.cancel()
    assert collect(service.submit(ask(engine))).finish.reason == "length"
    while service.running or service.waiting:
        time.sleep(0.001)
    assert len(steps) < 2000, "each of 5,000 texts takes a step"


def test_a_loop_that_ended_early_harms_nobody(engine, service):
    async def leave_at_once():
        stream = service.submit(ask(engine, max_tokens=100))
        await stream.__aiter__().__anext__()
        return stream

    stream = asyncio.run(leave_at_once())
    assert collect(service.submit(ask(engine))).finish.reason == "length"
    stream.cancel()


def test_nothing_follows_the_end_of_a_stream():
    from serving import end

    stream = DeltaStream(Request((1,), GenerationParams()), lambda stream: None)
    stream.put(end())
    stream.put(end("cancelled"))
    assert [delta.finish.reason for delta in stream] == ["stop"]
    assert stream.poll() is None


def test_a_thousand_requests_with_random_disconnects_end_once_and_give_all_pages_back():
    engine = builtin_engine()
    service = BatchingService(engine, queue_limit=1000)
    pick = random.Random(2)
    texts = ["Once upon a time", "Who are you?", "one two three", "What is edge-llm? " * 8]
    free = engine.runner.memory.pages.free + forget(engine.runner.memory)
    ends = []

    async def client(number):
        await asyncio.sleep(pick.random() * 0.5)
        stream = service.submit(ask(engine, texts[number % 4] + str(number % 50), max_tokens=pick.randint(1, 24)))
        patience = pick.choice([0, 1, 5, 1000])
        finishes = 0
        async for delta in stream:
            finishes += delta.finish is not None
            patience -= 1
            if patience < 0:
                stream.cancel()
        ends.append(finishes)

    async def everybody():
        await asyncio.gather(*(client(number) for number in range(1000)))

    asyncio.run(everybody())
    assert ends == [1] * 1000
    assert (service.running, service.waiting) == (0, 0)
    service.close(drain_seconds=0.0)
    assert engine.runner.memory.pages.free + forget(engine.runner.memory) == free


@pytest.mark.parametrize("kind", [OSError, MemoryError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["run", "memory.open", "memory.remember", "memory.reserve", "memory.check_fits"])
def test_a_worker_outlives_whatever_is_raised_in_its_steps(engine, monkeypatch, kind, place):
    service = BatchingService(engine)
    *path, name = place.split(".")
    owner = engine.runner.memory if path else engine.runner
    request = ask(engine)
    with monkeypatch.context() as patch:
        raised = threading.Event()

        def fail(*args, **kwargs):
            if threading.current_thread() is service._worker:
                raised.set()
                patch.undo()
                raise kind("a fault of the test")
            return getattr(type(owner), name)(owner, *args, **kwargs)

        patch.setattr(owner, name, fail)
        streams = [service.submit(request), service.submit(request)]
        assert raised.wait(60)
        ends = [end_of(stream) for stream in streams]
    expected = engine.answer(request).text
    assert all(isinstance(end, Exception) or end == expected for end in ends)
    assert collect(service.submit(request)).text == expected
    service.close(drain_seconds=5.0)
    assert not engine.driver.busy and not service._worker.is_alive()


def end_of(stream):
    try:
        return collect(stream).text
    except Exception as error:
        return error
