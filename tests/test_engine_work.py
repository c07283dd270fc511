"""Kinds of work on the host: what is timed adds up, changes no answer, and the memory's rate is measured beside no answer."""

import threading
import time

import pytest
from serving import builtin_engine

from edge_llm.bench.roofs import Costs
from edge_llm.config import GenerationParams
from edge_llm.engine import memory_roof
from edge_llm.engine.inside import look
from edge_llm.formats.bundle import open_bundle
from edge_llm.paths import builtin_bundle
from edge_llm.runner.inside import WORK_KINDS

STORY = "Once upon a time there was a little girl who lived in a house by the sea. "


def ask(engine, text, tokens=40):
    return engine.text_request(text, GenerationParams(max_tokens=tokens, ignore_eos=True))


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch):
    monkeypatch.setattr(memory_roof, "_known", {})
    monkeypatch.setattr(memory_roof, "read_bandwidth", lambda pool, nbytes: 20e9)


@pytest.fixture(scope="module")
def engine():
    return builtin_engine(context=512, chunk=64)


def test_the_kinds_of_a_prompt_and_of_steps_add_up_to_their_time(engine):
    engine.answer(ask(engine, STORY * 8))
    inside = look(engine)
    for work in (inside.prompt.work, inside.step):
        assert set(work.seconds) <= set(WORK_KINDS)
        assert {"products", "attention", "keys", "output"} <= set(work.seconds)
        assert all(taken > 0 for taken in work.seconds.values())
    assert inside.step.runs >= 2
    assert sum(inside.prompt.work.seconds.values()) >= inside.prompt.seconds


def test_the_bytes_of_a_step_are_those_that_bench_reckons_with(engine):
    engine.answer(ask(engine, STORY * 8, 2))  # one step, right behind the prompt
    inside = look(engine)
    with open_bundle(builtin_bundle()) as bundle:
        costs = Costs.of_bundle(bundle)
    context = len(engine.tokenizer.encode(STORY * 8)) + 1
    assert inside.step.runs == 1
    assert inside.step.bytes == pytest.approx(costs.weight_bytes + context * costs.kv_bytes, rel=0.03)


def test_a_card_shows_what_it_showed():
    engine = builtin_engine(context=512, chunk=64, device="emulated:310p")
    engine.answer(ask(engine, STORY * 8))
    inside = look(engine)
    assert inside.step is None and inside.prompt.work is None and inside.memory_rate is None
    assert {lane.name for lane in inside.prompt.lanes} == {"cpu", "npu"}


def test_waiting_for_flash_is_a_kind_and_memory_is_no_roof_then():
    engine = builtin_engine(context=512, chunk=64, memory="60%")
    engine.answer(ask(engine, STORY * 8))
    inside = look(engine)
    assert inside.step.seconds["flash"] > 0
    assert inside.step.seconds.get("rest", 0.0) < inside.step.seconds["flash"]  # no more than the embedding
    assert inside.memory_tokens is None


def test_timed_and_untimed_steps_give_the_same_tokens(engine, monkeypatch):
    from edge_llm.runner import work

    found = []
    for every in (1, 10**9):
        monkeypatch.setattr(work, "EVERY", every)
        fresh = builtin_engine(context=512, chunk=64)
        found.append(fresh.answer(ask(fresh, STORY * 3, 100)).tokens)
    assert found[0] == found[1]


def test_a_step_that_fails_leaves_nobody_watching(engine):
    runner = engine.runner
    with pytest.raises(Exception, match="context"):
        runner.forward(runner.open(), [1] * 513)
    assert runner.model.watching.watch is None


def wait_for(done):
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_rate_of_the_memory_is_measured_once_in_a_thread(engine, monkeypatch):
    threads = []
    monkeypatch.setattr(memory_roof, "read_bandwidth", lambda pool, nbytes: threads.append(threading.current_thread()) or 20e9)
    engine.answer(ask(engine, STORY * 8))
    assert look(engine).memory_rate is None
    wait_for(lambda: look(engine).memory_rate == 20e9)
    measured = len(threads)  # more than one where another answer disturbed the first
    assert measured and threading.main_thread() not in threads
    inside = look(engine)
    assert len(threads) == measured
    assert inside.memory_tokens == pytest.approx(20e9 * inside.step.runs / inside.step.bytes)


def test_what_an_answer_disturbed_is_measured_again(monkeypatch):
    begun, measured = [0], []

    def read(pool, nbytes):
        measured.append(nbytes)
        if len(measured) == 1:
            begun[0] += 1
        return 1e9 * len(measured)

    monkeypatch.setattr(memory_roof, "read_bandwidth", read)
    assert memory_roof.memory_rate(2, lambda: begun[0], idle=False) is None
    time.sleep(0.05)
    assert measured == []
    wait_for(lambda: memory_roof.memory_rate(2, lambda: begun[0], idle=True) == 2e9)


def test_a_machine_without_room_is_not_measured(monkeypatch):
    monkeypatch.setattr(memory_roof, "free_memory", lambda: 512 << 20)
    assert memory_roof.memory_rate(2, lambda: 0, idle=True) is None
    assert not memory_roof._measuring.locked()
