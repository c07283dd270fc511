"""The Python face: any streams, in any threads, on one `LLM` are each its own; and the end of the process under them."""

import random
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_script import forget

from edge_llm import LLM
from edge_llm.errors import OutOfMemory, UsageError

pytestmark = pytest.mark.thorough(file=5)

PROMPTS = ("Once upon a time", "Who are you?", "one two three one two three", "What is edge-llm?", "a", "Tell me a story. " * 6)
WAYS = (
    {"max_tokens": 30, "ignore_eos": True, "temperature": 0.0},
    {"max_tokens": 30, "ignore_eos": True, "temperature": 1.5, "seed": 7},
    {"max_tokens": 9, "ignore_eos": True, "temperature": 0.9, "seed": 1, "top_k": 20},
)


@pytest.fixture(scope="module")
def llm():
    return LLM("builtin", threads=1, context=512)


@pytest.fixture(scope="module")
def asked():
    return [(prompt, way) for prompt in PROMPTS for way in WAYS]


@pytest.fixture(scope="module")
def alone(asked):
    """The pieces that each stream gives when it is the only one, and the text."""
    fresh = LLM("builtin", threads=1, context=512)
    return [list(fresh.stream(prompt, **way)) for prompt, way in asked]


def test_an_answer_between_the_pieces_of_a_stream_is_its_own(llm, asked, alone):
    (a, way_a), (b, way_b) = asked[0], asked[3]
    stream = llm.stream(a, **way_a)
    first = next(stream)
    assert llm.generate(b, **way_b) == "".join(alone[3])
    assert [first, *stream] == alone[0]


def test_streams_side_by_side_end_each_at_its_own_limit(llm, asked, alone):
    pairs = list(zip(llm.stream(asked[0][0], **asked[0][1]), llm.stream(asked[4][0], **asked[4][1]), strict=False))
    assert [list(pieces) for pieces in zip(*pairs, strict=True)] == [alone[0][: len(pairs)], alone[4][: len(pairs)]]


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_interleaving_of_streams_gives_each_its_own(llm, asked, alone, data):
    chosen = data.draw(st.lists(st.integers(0, len(asked) - 1), min_size=2, max_size=6))
    left_open = data.draw(st.sets(st.integers(0, len(chosen) - 1), max_size=2))
    streams = {place: llm.stream(asked[number][0], **asked[number][1]) for place, number in enumerate(chosen)}
    found = {place: [] for place in streams}
    while streams:
        place = data.draw(st.sampled_from(sorted(streams)))
        if place in left_open and len(found[place]) >= 3:
            streams.pop(place).close()
            continue
        piece = next(streams[place], None)
        if piece is None:
            del streams[place]
        else:
            found[place].append(piece)
    for place, number in enumerate(chosen):
        assert found[place] == (alone[number][:3] if place in left_open else alone[number])
    assert not llm.engine.driver.busy


def test_many_threads_get_each_its_own(llm, asked, alone):
    wrong = []

    def work(seed):
        pick = random.Random(seed)
        for number in pick.sample(range(len(asked)), 6):
            pieces = []
            for piece in llm.stream(asked[number][0], **asked[number][1]):
                pieces.append(piece)
                if pick.random() < 0.02:
                    break
            if pieces != alone[number][: len(pieces)]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)
    assert not llm.engine.driver.busy
    kv = llm.engine.runner.memory.pages
    assert kv.free + forget(llm.engine.runner.memory) == kv.pages


def test_a_stop_string_may_stand_alone(llm):
    free = llm.generate("Once upon a time", **WAYS[0])
    word = max(free.split(), key=len)
    assert set(word) & set(free[: free.index(word)])  # it is not taken letter by letter
    assert llm.generate("Once upon a time", **WAYS[0], stop=word) == free[: free.index(word)] != ""
    assert llm.generate("Once upon a time", **WAYS[0], stop=[word]) == free[: free.index(word)]


@pytest.mark.parametrize("stop", [5, (5,), ("a", None), {"a": 1}.items(), b"a", [["a"]]])
def test_what_is_no_stop_string_is_refused(llm, stop):
    with pytest.raises(UsageError, match="stop takes at most 16 strings"):
        llm.generate("a", stop=stop)


@pytest.mark.parametrize("messages", ["hi", ["hi"], {"role": "user", "content": "hi"}, 5])
def test_what_is_no_list_of_messages_is_refused(llm, messages):
    with pytest.raises(UsageError, match="messages.* must be .*role"):
        llm.chat(messages)


def test_tokens_that_the_model_does_not_have_are_refused(llm):
    vocabulary = llm.engine.config.vocab_size
    for bad in ({"stop_tokens": [vocabulary]}, {"logit_bias": ((-1, 1.0),)}):
        with pytest.raises(UsageError, match="tokens"):
            llm.generate("a", **bad)
    with pytest.raises(UsageError, match="min_tokens `3` cannot be kept"):
        llm.generate("a", stop_tokens=range(vocabulary), min_tokens=3)
    assert llm.generate("a", stop_tokens=range(vocabulary)) == ""


def test_an_answer_that_outgrows_the_memory_ends_by_length():
    way = {"ignore_eos": True, "temperature": 0.0, "max_tokens": 100}
    whole = LLM("builtin", threads=1, context=512).generate("one two three", **way)
    small = [LLM("builtin", threads=1, context=512, kv_tokens=64, draft=draft) for draft in ("none", "lookup")]
    texts = [llm.generate("one two three", **way) for llm in small]
    assert texts[0] == texts[1] and whole.startswith(texts[0]) and len(whole) > len(texts[0]) > 0
    for llm in small:
        assert llm.generate("one two three", **way) == texts[0]
        assert llm.engine.batcher.preempted == 0
        with pytest.raises(OutOfMemory, match="the KV cache holds `64` tokens"):
            llm.generate("a " * 100)


ENDS_UNDER_THREADS = """
import threading, time
from edge_llm import LLM

llm = LLM("builtin", threads=1)

def work():
    while True:
        llm.generate("Tell me a story. " * 60, max_tokens=4, ignore_eos=True)

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep({seconds})
"""


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.15, 0.2, 0.25])
def test_the_process_ends_well_under_answers_in_daemon_threads(seconds):
    code = ENDS_UNDER_THREADS.format(seconds=seconds)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
