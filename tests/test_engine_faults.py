"""Whatever is raised wherever in a step: every request ends once, and what did not fail is what it is alone."""

import itertools
import signal
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_script import CONFIG, DictDisk, PagedScript, forget
from test_engine_stream import byte_tokenizer

import edge_llm
from edge_llm.config import GenerationParams
from edge_llm.engine.batcher import Limits
from edge_llm.engine.delta_stream import DeltaStream
from edge_llm.engine.embedding import EmbeddingJob
from edge_llm.engine.engine import Engine, collect
from edge_llm.errors import Unavailable
from edge_llm.text.chat import ChatTemplate

pytestmark = pytest.mark.thorough(file=4)

LIMITS = Limits(step_tokens=48, mixed_tokens=24, background_tokens=8, most_running=3)
TEXTS = ("Once upon a time there was", "Once upon a time there were", "abcabcabcabcabcabcabcabcabc", "x")
WAYS = ({}, {"temperature": 1.0, "seed": 3}, {"stop": ("q", "\x00")}, {"min_tokens": 5, "repetition_penalty": 1.3})
TO_EMBED = ("the quick brown fox jumps", "over")
TOKENIZER = byte_tokenizer()


class Scene:
    """Four answers that begin at different times and two texts to embed, in too little memory for all."""

    def __init__(self, kv_tokens=96):
        self.runner = PagedScript(kv_tokens, disk=DictDisk())
        self.engine = Engine(
            "script", CONFIG, TOKENIZER, ChatTemplate(""), GenerationParams(), self.runner, load_ms=0.0, limits=LIMITS
        )

    def submit(self, number):
        params = GenerationParams(max_tokens=14, ignore_eos=True, **WAYS[number])
        generation, stream = self.engine.prepare(self.engine.text_request(TEXTS[number], params))
        self.engine.driver.add(generation, stream)
        return stream

    def play(self):
        """The answers and the vectors, or their errors: all of them end, or this never does."""
        streams = [self.submit(0), self.submit(1)]
        job = EmbeddingJob([TOKENIZER.encode(text) for text in TO_EMBED])
        self.engine.driver.add_job(job)
        for number in (2, 3):
            self.run_until(lambda: streams[0].ready)
            streams.append(self.submit(number))
        self.drain()
        assert job.future.done()
        return [outcome(stream) for stream in streams], job.future.exception() or job.future.result()

    def drain(self):
        self.run_until(lambda: not self.engine.driver.busy)

    def run_until(self, done):
        for _ in range(2):
            try:
                return self.engine.driver.run_until(done)
            except KeyboardInterrupt:
                continue
        raise AssertionError("interrupted twice by one fault")

    def free_pages(self):
        return self.runner.memory.pages.free + forget(self.runner.memory)


def outcome(stream):
    """(text, tokens, reason) or the error; fails if the stream has no end, or more than one."""
    deltas, errors = [], []
    while stream.ready:
        try:
            deltas.append(stream.poll())
        except Exception as error:
            errors.append(error)
    assert len(errors) + sum(delta.finish is not None for delta in deltas) == 1
    if errors:
        return errors[0]
    answer = collect(deltas)
    return answer.text, answer.tokens, answer.finish.reason


@pytest.fixture(scope="module")
def alone():
    """Every answer when it is the only one, and the vectors."""
    answers = []
    for number in range(len(TEXTS)):
        scene = Scene()
        stream = scene.submit(number)
        scene.drain()
        answers.append(outcome(stream))
    return answers, Scene().play()[1]


def test_all_together_are_each_alone(alone):
    scene = Scene()
    answers, vectors = scene.play()
    assert answers == alone[0]
    assert np.array_equal(vectors, alone[1])
    assert scene.engine.batcher.preempted > 0
    assert scene.free_pages() == scene.runner.memory.pages.pages


# ---- a fault at every line

FOLDER = Path(edge_llm.__file__).parent
FILES = {
    str(FOLDER / name)
    for name in (
        "engine/batcher.py", "engine/generation.py", "engine/embedding.py", "kv/memory.py", "kv/prefix.py", "kv/pages.py",
        "kv/sequence.py", "decoding/sampler.py", "decoding/edits.py", "decoding/draft.py", "decoding/stop.py",
    )
} | {str(Path(__file__).parent / "paged_script.py")}  # fmt: skip
ENDS = {
    # how work changes from one list to another and how a request is told of its end cannot fail
    "_preempt", "_remove", "_end", "_tell", "_line", "_running", "works", "clear", "put", "fail", "stop", "close",
    # asked by those who wait, not by a step
    "busy", "running", "waiting",
}  # fmt: skip


def may_fail(frame):
    """Whether it is of a step, and none that ends work."""
    if frame.f_code.co_filename not in FILES:
        return False
    while frame is not None and frame.f_code.co_name not in ENDS:
        if frame.f_code.co_name == "_turn":
            return True
        frame = frame.f_back
    return False


def traced(visit, run, watched=may_fail):
    """The result of ``run``, with ``visit(file, line)`` called before every line of ``watched`` frames; it may raise, once."""

    def at_line(frame, event, _):
        if event == "line":
            visit(frame.f_code.co_filename, frame.f_lineno)
        return at_line

    def at_call(frame, event, _):
        return at_line if watched(frame) else None

    sys.settrace(at_call)
    try:
        return run()
    finally:
        sys.settrace(None)


def places(watched=may_fail):
    """Every line that a step comes by, and how often."""
    visits = Counter()
    traced(lambda *place: visits.update([place]), Scene().play, watched)
    return visits


@pytest.fixture(scope="module")
def visited():
    return places()


def test_faults_reach_all_of_a_step(visited):
    assert len(visited) > 250
    assert {Path(file).name for file, _ in visited} == {Path(file).name for file in FILES}


@settings(max_examples=70, deadline=None)
@given(data=st.data(), kind=st.sampled_from([OSError, MemoryError, KeyboardInterrupt]))
def test_a_fault_at_any_line_ends_no_request_twice_or_never(alone, visited, data, kind):
    place = data.draw(st.sampled_from(sorted(visited)))
    number = data.draw(st.integers(1, visited[place]))
    scene = check(alone, place, number, kind)
    if kind is not KeyboardInterrupt and not place[0].endswith(("pages.py", "prefix.py", "sequence.py")):  # these own the pages
        assert scene.free_pages() == scene.runner.memory.pages.pages


def check(alone, place, number, kind):
    """Play a scene with a fault at the ``number``-th visit of ``place``; the scene."""
    visits = itertools.count(1)

    def visit(*here):
        if here == place and next(visits) == number:
            raise kind("a fault of the test")

    scene = Scene()
    answers, vectors = traced(visit, scene.play)
    for found, expected in zip(answers, alone[0], strict=True):
        assert isinstance(found, Exception) or found == expected
    assert isinstance(vectors, Exception) or np.array_equal(vectors, alone[1])
    assert not scene.engine.driver.busy and not scene.engine.driver._mailboxes
    stream = scene.submit(1)
    scene.drain()
    assert outcome(stream) == alone[0][1]  # whatever was left behind
    return scene


# ---- Ctrl-C at every line

LOCKING = {str(FOLDER / name) for name in ("engine/driver.py", "engine/delta_stream.py", "interrupts.py")}
LOCKING.add(threading.__file__)


def in_turn(frame):
    if frame.f_code.co_filename not in FILES | LOCKING:
        return False
    while frame is not None and frame.f_code.co_name != "_turn":
        frame = frame.f_back
    return frame is not None


@pytest.fixture(scope="module")
def all_visited():
    return places(in_turn)


@pytest.fixture(scope="module")
def interruptible():
    """Ctrl-C raises `KeyboardInterrupt`, as it does in a program."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_ctrl_c_at_any_line_of_a_step_costs_nobody_anything(alone, all_visited, interruptible, data):
    place = data.draw(st.sampled_from(sorted(all_visited)))
    number = data.draw(st.integers(1, all_visited[place]))
    visits = itertools.count(1)

    def visit(*here):
        if here == place and next(visits) == number:
            signal.raise_signal(signal.SIGINT)

    scene = Scene()
    answers, vectors = traced(visit, scene.play, in_turn)
    assert answers == alone[0]
    assert np.array_equal(vectors, alone[1])
    assert scene.free_pages() == scene.runner.memory.pages.pages
    others = threading.Thread(target=scene.drain, daemon=True)  # nobody holds a lock or the batcher for ever
    others.start()
    others.join(20)
    assert not others.is_alive()


# ---- faults of the parts that a batcher works with


def fails_once(monkeypatch, owner, name, error=OSError):
    """Let the next call of ``owner.name`` fail."""
    real = getattr(owner, name)

    def fail(*args, **kwargs):
        monkeypatch.setattr(owner, name, real)
        raise error("a fault of the test")

    monkeypatch.setattr(owner, name, fail)


@pytest.mark.parametrize("name", ["open", "reserve", "has_room"])
def test_memory_that_fails_costs_one_request(alone, monkeypatch, name):
    scene = Scene()
    fails_once(monkeypatch, scene.runner.memory, name)
    answers, _ = scene.play()
    assert sum(isinstance(answer, OSError) for answer in answers) <= 1
    assert all(isinstance(found, OSError) or found == own for found, own in zip(answers, alone[0], strict=True))


def test_pages_that_cannot_be_kept_cost_nothing(alone, monkeypatch, caplog):
    scene = Scene()
    fails_once(monkeypatch, scene.runner.memory, "remember")
    assert scene.play()[0] == alone[0]
    assert "could not be kept" in caplog.text


def test_a_page_that_cannot_be_read_back_is_given_back(alone, monkeypatch):
    scene = Scene()
    scene.play()
    forget(scene.runner.memory)
    fails_once(monkeypatch, scene.runner.kv, "write_pages")
    assert isinstance(scene.play()[0][0], OSError)
    assert scene.free_pages() == scene.runner.memory.pages.pages


@pytest.mark.parametrize("first", [0, 1, 5, 14])
def test_an_interruption_while_answers_are_told_costs_no_other(alone, monkeypatch, first):
    """One answer's delta, its last one included, is lost on the way; the others never notice."""
    scene = Scene()
    streams = [scene.submit(number) for number in range(len(TEXTS))]
    told = itertools.count()
    put = DeltaStream.put

    def interrupted(stream, delta):
        if stream is streams[0] and next(told) == first:
            raise KeyboardInterrupt
        put(stream, delta)

    monkeypatch.setattr(DeltaStream, "put", interrupted)
    scene.drain()
    answers = [outcome(stream) for stream in streams]
    assert isinstance(answers[0], Unavailable)
    assert answers[1:] == alone[0][1:]


def test_an_interruption_while_pages_are_remembered_costs_nothing(alone, monkeypatch):
    scene = Scene()
    calls = itertools.count()
    remember = scene.runner.memory.remember

    def interrupted(sequence, tokens):
        remember(sequence, tokens)
        if next(calls) == 4:  # the first of an answer's end
            raise KeyboardInterrupt

    monkeypatch.setattr(scene.runner.memory, "remember", interrupted)
    streams = [scene.submit(number) for number in range(len(TEXTS))]
    scene.drain()
    assert [outcome(stream) for stream in streams] == alone[0]


def test_an_interruption_while_tidying_up_stops_nobody(monkeypatch):
    def interrupted(stream, delta):
        raise KeyboardInterrupt

    scene = Scene()
    stream = scene.submit(0)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaStream, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.cancel()
    other = scene.submit(1)
    waiting = threading.Thread(target=scene.drain, daemon=True)
    waiting.start()
    waiting.join(20)
    assert not waiting.is_alive() and outcome(other)[2] == "length"
