"""Texts to embed are background work: chats keep their pace, texts wait for pages, and no vector depends on company."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_script import CONFIG, PagedScript, forget
from serving import builtin_engine
from test_engine_stream import byte_tokenizer

from edge_llm.config import GenerationParams
from edge_llm.engine.batcher import Batcher, Limits
from edge_llm.engine.embedding import Embedding, EmbeddingJob
from edge_llm.engine.engine import Engine, collect
from edge_llm.engine.request import Delta
from edge_llm.engine.service import BatchingService
from edge_llm.errors import ContextOverflow, OutOfMemory, UsageError
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.models import load_config
from edge_llm.models.reference import FloatModel
from edge_llm.runner.base import Segment
from edge_llm.runner.float_path import FloatRunner
from edge_llm.text.chat import ChatTemplate

TOKENIZER = byte_tokenizer()
LIMITS = Limits(step_tokens=64, mixed_tokens=24, background_tokens=8, most_running=4)


def make_engine(kv_tokens=256, limits=LIMITS):
    runner = PagedScript(kv_tokens)
    return Engine("script", CONFIG, TOKENIZER, ChatTemplate(""), GenerationParams(), runner, load_ms=0.0, limits=limits)


def request(engine, text, tokens=20):
    return engine.text_request(text, GenerationParams(max_tokens=tokens, ignore_eos=True))


def submit(engine, request):
    generation, stream = engine.prepare(request)
    engine.driver.add(generation, stream)
    return stream


def vector(tokens):
    """What a text gets when it is the only one, in one piece."""
    runner = PagedScript(1024, context=1024)
    states = runner.run([Segment(runner.memory.open(), tokens, len(tokens), states=True)])[0]
    mean = states.mean(axis=0, dtype=np.float64).astype(np.float32)
    return (mean / float(np.linalg.norm(mean))).astype(np.float32)


def test_answers_get_a_token_in_every_step_and_new_ones_start_at_once():
    engine = make_engine()
    first = submit(engine, request(engine, "first", 40))
    job = EmbeddingJob([[token % 250] * 30 for token in range(200)])
    engine.driver.add_job(job)
    engine.driver.run_until(lambda: first.ready)
    engine.runner.steps.clear()
    second = submit(engine, request(engine, "second", 5))
    engine.driver.run_until(lambda: second.ready)
    assert len(engine.runner.steps) == 1  # its prompt did not wait for 200 texts
    found = []
    while not found or found[-1].finish is None:
        engine.driver.run_until(lambda: first.ready)
        found.append(first.poll())
    assert len(engine.runner.steps) <= 41
    assert all(background == LIMITS.background_tokens for _, background in engine.runner.steps)
    engine.driver.run_until(job.future.done)
    assert max(background for _, background in engine.runner.steps) == LIMITS.step_tokens  # alone it may have all
    assert np.array_equal(job.future.result(), [vector([token % 250] * 30) for token in range(200)])


def test_jobs_take_turns():
    engine = make_engine()
    long, short = EmbeddingJob([[1] * 30] * 100), EmbeddingJob([[2] * 30, [3] * 30])
    engine.driver.add_job(long)
    engine.driver.add_job(short)
    engine.driver.run_until(short.future.done)
    assert len(engine.runner.steps) < 12 and not long.future.done()
    long.future.cancel()
    engine.driver.run_until(lambda: not engine.driver.busy)
    assert long.future.exception() is not None


def test_a_text_waits_for_pages_that_a_chat_holds():
    engine = make_engine(kv_tokens=64)
    chat = submit(engine, request(engine, "a chat", 40))
    engine.driver.run_until(lambda: chat.ready)
    text = [7] * 64  # as much as there is
    job = EmbeddingJob([text])
    engine.driver.add_job(job)
    engine.driver.run_until(job.future.done)
    assert np.array_equal(job.future.result(), [vector(text)])
    assert collect(iter(chat)).tokens == collect(make_engine().stream(request(engine, "a chat", 40))).tokens


@settings(max_examples=40, deadline=None)
@given(
    kv_tokens=st.integers(4, 16).map(lambda pages: 16 * pages),
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=8),
    texts=st.lists(st.sampled_from(["a", "some words", "some words more, and more"]), max_size=4),
    background=st.integers(1, 16),
    data=st.data(),
)
def test_any_company_and_any_memory_change_no_vector_and_no_token(kv_tokens, lengths, texts, background, data):
    limits = Limits(data.draw(st.integers(8, 64)), data.draw(st.integers(4, 24)), background, data.draw(st.integers(1, 4)))
    engine = make_engine(kv_tokens, limits)
    prompts = [[data.draw(st.integers(0, 255))] * length for length in lengths]
    job = EmbeddingJob(prompts)
    streams = []
    when = data.draw(st.integers(0, len(texts)))
    for number in range(len(texts) + 1):
        if number == when:
            engine.driver.add_job(job)
        if number < len(texts):
            streams.append(submit(engine, request(engine, texts[number])))
            engine.driver.run_until(lambda stream=streams[-1]: stream.ready)
    engine.driver.run_until(lambda: not engine.driver.busy)
    assert np.array_equal(job.future.result(), [vector(prompt) for prompt in prompts])
    for text, stream in zip(texts, streams, strict=True):
        assert collect(iter(stream)).tokens == collect(make_engine().stream(request(engine, text))).tokens
    assert engine.runner.memory.pages.free + forget(engine.runner.memory) == engine.runner.memory.pages.pages


def test_a_text_larger_than_all_memory_is_refused_at_once():
    batcher = Batcher(PagedScript(32), LIMITS)
    with pytest.raises(OutOfMemory, match="holds `32` tokens and the request needs `33`"):
        batcher.add(Embedding([1] * 33))
    batcher.add(Embedding([1] * 32))
    assert [delta.finish.reason for _, delta in run(batcher)] == ["stop"]


def run(batcher):
    while batcher.busy:
        yield from batcher.step()


# ---- with a real model


@pytest.fixture(scope="module")
def engine():
    return builtin_engine(chunk=32, window=2)


def test_a_vector_is_the_mean_of_all_states(engine):
    tokens = engine.tokenizer.encode("seven times seven " * 30)
    sequence = engine.runner.memory.open()
    states = engine.runner.run([Segment(sequence, tokens, len(tokens), states=True)])[0]
    sequence.close()
    mean = states.mean(axis=0, dtype=np.float64).astype(np.float32)
    for piece in (5, 64, 1, 1000):
        batcher, work = Batcher(engine.runner, Limits(step_tokens=piece)), Embedding(tokens)
        batcher.add(work)
        assert all(isinstance(delta, Delta) for _, delta in run(batcher))
        assert np.array_equal(work.vector, (mean / float(np.linalg.norm(mean))).astype(np.float32))


def test_a_service_answers_while_it_embeds(engine):
    service = BatchingService(engine)
    future = service.embed([[5] * 400] * 2048)
    streams = [service.submit(request(engine, "Once upon a time", 12)) for _ in range(3)]
    texts = [collect(stream).text for stream in streams]
    assert not future.done()  # 800,000 tokens
    assert texts == [engine.answer(request(engine, "Once upon a time", 12)).text] * 3
    assert (service.running, service.waiting) == (1, 0)
    future.cancel()
    service.close(drain_seconds=20.0)
    assert not engine.driver.busy


def test_a_service_has_nothing_to_do_for_no_text(engine):
    service = BatchingService(engine)
    with pytest.raises(UsageError, match="nothing to embed"):
        service.embed([])
    service.close(drain_seconds=1.0)


def test_embeddings_of_many_callers_are_each_its_own(engine):
    service = BatchingService(engine)
    texts = [[number + 3] * (number + 1) for number in range(12)]
    expected = service.embed(texts).result()
    found = {}

    def work(number):
        found[number] = service.embed([texts[number]]).result()[0]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert np.array_equal([found[number] for number in range(12)], expected)
    until = time.monotonic() + 60
    while service.running and time.monotonic() < until:
        time.sleep(0.001)
    assert (service.running, service.waiting) == (0, 0)
    service.close(drain_seconds=1.0)


def test_the_float_runner_gives_the_same_states_in_any_pieces(tiny_model):
    with open_model_folder(tiny_model()) as source:
        runner = FloatRunner(FloatModel(source, load_config(source.config)), 64)
    tokens = list(range(3, 43))
    whole = runner.run([Segment(runner.memory.open(), tokens, len(tokens), states=True)])[0]
    sequence = runner.memory.open()
    pieces = [runner.run([Segment(sequence, tokens[at : at + 7], 7, states=True)])[0] for at in range(0, 35, 7)]
    assert np.allclose(np.concatenate(pieces), whole[:35], atol=1e-5)
    with pytest.raises(ContextOverflow):
        runner.run([Segment(sequence, tokens, len(tokens), states=True)])
    assert sequence.length == 35
