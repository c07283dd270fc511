"""Continuous batching: whatever runs beside a request, its tokens are those it gets alone."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_script import forget

from edge_llm.ascend.devices.emulated import EmulatedDevice
from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.decoding.draft import no_draft, prompt_lookup
from edge_llm.devices import open_device
from edge_llm.devices.base import DeviceOptions
from edge_llm.devices.host import HostDevice
from edge_llm.engine.batcher import Batcher, Limits
from edge_llm.engine.generation import Generation
from edge_llm.engine.request import Delta, Request
from edge_llm.errors import NumericError, OutOfMemory
from edge_llm.formats.bundle import open_bundle
from edge_llm.models.rope import RopeTables
from edge_llm.paths import builtin_bundle
from edge_llm.runner.runner import Int8Runner
from edge_llm.text.tokenizer import Tokenizer
from edge_llm.weights.resident import ResidentWeights

pytestmark = pytest.mark.thorough(file=6)

CONTEXT = 512
TEXTS = (
    "Once upon a time", "Who are you?", "one two three one two three one two", "What is edge-llm?", "a",
    "Tell me a story. " * 12,
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def operators_emulated():
    """Of an Ascend card."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGE_LLM_NPU_OPS", "emulated")
        yield


@pytest.fixture(scope="module")
def bundle():
    return open_bundle(builtin_bundle())


@pytest.fixture(scope="module")
def tokenizer(bundle):
    return Tokenizer.from_folder(bundle.folder, bundle.config.vocab_size)


@pytest.fixture(scope="module")
def weights(bundle):
    return ResidentWeights(bundle)


def ascend(placement):
    return lambda: open_device("ascend", DeviceOptions(2, placement=placement))


DEVICES = {
    "host": lambda: HostDevice(2),
    "a card that rounds prompts": lambda: EmulatedDevice("310p", 2, route="float16", placement="split,host"),
    "ascend, prompts": ascend("split,host"),
    "ascend, the whole model": ascend("card"),
}


SMALL_PAGES = [name for name in DEVICES if name != "ascend, the whole model"]  # those hold 16 tokens, and not 128


@pytest.fixture(scope="module", params=DEVICES)
def make_runner(request, bundle, weights):
    def make(**runtime):
        runtime = RuntimeConfig(**{"context": CONTEXT, "chunk": 64, **runtime})
        return Int8Runner(bundle.config, weights, DEVICES[request.param](), runtime, RopeTables(CONTEXT))

    return make


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return [tuple(tokenizer.encode(text)) for text in TEXTS]


def batcher(runner, most_running=32, step_tokens=256, mixed_tokens=64):
    return Batcher(runner, Limits(step_tokens, mixed_tokens, most_running=most_running))


def generation(tokenizer, prompt, drafter=no_draft, cancelled=lambda: False, **params):
    request = Request(prompt, GenerationParams(**{"max_tokens": 40, "ignore_eos": True, **params}), continues=True)
    return Generation(request, tokenizer, most_tokens=CONTEXT - len(prompt), drafter=drafter, cancelled=cancelled)


def drain(batch, generations):
    """Run until nothing is left: (tokens, text, finish reason or error) of every generation."""
    out = {id(one): ([], [], []) for one in generations}
    while batch.running or batch.waiting:
        for one, delta in batch.step():
            tokens, text, ends = out[id(one)]
            if isinstance(delta, Delta):
                tokens.extend(delta.tokens)
                text.append(delta.text)
                ends.extend([delta.finish.reason] if delta.finish else [])
            else:
                ends.append(delta)
    return [(tokens, "".join(text), ends) for tokens, text, ends in out.values()]


def run(runner, generations, **options):
    batch = batcher(runner, **options)
    for one in generations:
        batch.add(one)
    return drain(batch, generations)


@pytest.fixture(scope="module")
def alone(make_runner, tokenizer, prompts):
    """What every prompt gets when it is the only one, on a fresh runner."""
    return [run(make_runner(), [generation(tokenizer, prompt)])[0] for prompt in prompts]


def test_each_alone_ends_by_its_limit(alone):
    assert [(len(tokens), ends) for tokens, _, ends in alone] == [(40, ["length"])] * len(TEXTS)


@pytest.mark.thorough(keep=4)
@pytest.mark.parametrize("count", [2, 6, 12, 32])
def test_a_batch_is_each_alone(make_runner, tokenizer, prompts, alone, count):
    order = [number % len(prompts) for number in range(count)]
    results = run(make_runner(kv_tokens=32 * CONTEXT), [generation(tokenizer, prompts[number]) for number in order])
    assert results == [alone[number] for number in order]


@pytest.mark.thorough(keep=1)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), step=st.integers(8, 200), mixed=st.integers(1, 64), running=st.integers(1, 8))
def test_any_budget_and_any_arrival_is_each_alone(make_runner, tokenizer, prompts, alone, seed, step, mixed, running):
    """The first tokens are those of a longer answer, which are known."""
    pick, most = random.Random(seed), 16
    order = [pick.randrange(len(prompts)) for _ in range(8)]
    drafters = [pick.choice([no_draft, prompt_lookup(length=1)]) for _ in order]
    made = [generation(tokenizer, prompts[n], one, max_tokens=most) for n, one in zip(order, drafters, strict=True)]
    batch = batcher(make_runner(kv_tokens=4 * CONTEXT), running, max(step, running), mixed)
    waiting = [*made]
    results = {id(one): [] for one in made}
    while waiting or batch.running or batch.waiting:
        for _ in range(pick.randrange(3)):
            if waiting:
                batch.add(waiting.pop(0))
        for one, delta in batch.step():
            results[id(one)] += delta.tokens
    assert list(results.values()) == [alone[n][0][:most] for n in order]


def test_preempted_is_each_alone(make_runner, tokenizer, prompts, alone):
    runner = make_runner(kv_tokens=CONTEXT // 2)  # six answers of up to 100 tokens do not fit into 256
    batch = batcher(runner)
    made = [generation(tokenizer, prompt) for prompt in prompts]
    for one in made:
        batch.add(one)
    assert drain(batch, made) == alone
    assert batch.preempted > 0
    assert runner.memory.has_room(CONTEXT // 2)


@pytest.mark.parametrize("make_runner", SMALL_PAGES, indirect=True)
def test_a_second_run_takes_the_pages_of_the_first(make_runner, tokenizer, prompts, alone):
    runner = make_runner()
    long = prompts[-1]
    assert run(runner, [generation(tokenizer, long)]) == [alone[-1]]
    again = generation(tokenizer, long)
    assert run(runner, [again]) == [alone[-1]]
    finish = again.end("stop").finish
    assert finish.usage.cached_tokens == (len(long) - 1) // 16 * 16


def test_guesses_that_are_right_save_steps(make_runner, tokenizer, prompts, alone):
    tokens = alone[2][0]
    text = [*prompts[2], *tokens]

    def oracle(known, most):
        return text[len(known) : len(known) + min(most, 3)]

    steps = 0
    one = generation(tokenizer, prompts[2], oracle)
    batch = batcher(make_runner())
    batch.add(one)
    found = []
    while batch.running or batch.waiting:
        steps += 1
        found += [token for _, delta in batch.step() for token in delta.tokens]
    # The prompt gives the first token; then a step gives its own and 2, 3, 3, ... guessed ones, until there are 40.
    assert (found, steps) == (tokens, 11)
    timings = one.end("length").finish.timings
    assert timings.drafted_tokens == timings.accepted_tokens == 29


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("seed", range(4))
def test_a_drafter_changes_no_sample(make_runner, tokenizer, prompts, seed):
    def sampled(drafter):
        return run(make_runner(), [generation(tokenizer, prompts[2], drafter, temperature=1.5, seed=seed, max_tokens=120)])

    def wild(known, most):
        return [seed, *known[-3:]][:most]

    assert sampled(prompt_lookup(length=1)) == sampled(wild) == sampled(no_draft)


def test_a_prompt_gets_on_however_many_answers_wait(make_runner, tokenizer, prompts):
    batch = batcher(make_runner(kv_tokens=8 * CONTEXT), mixed_tokens=4)
    answers = [generation(tokenizer, prompts[n]) for n in range(5)]
    for one in answers:
        batch.add(one)
    while not all(one.decoding for one in answers):
        list(batch.step())
    late = generation(tokenizer, prompts[5], max_tokens=2)
    batch.add(late)
    while not late.generated:
        list(batch.step())
        assert not any(one.finished for one in answers)


def test_no_more_answers_run_than_are_allowed(make_runner, tokenizer, prompts):
    batch, most = batcher(make_runner(kv_tokens=30 * CONTEXT), most_running=7), 0
    for n in range(20):
        batch.add(generation(tokenizer, prompts[n % 6], max_tokens=n + 1))
    while batch.running or batch.waiting:
        list(batch.step())
        most = max(most, batch.running)
    assert most == batch.most_running == 7


def test_cancelled_ends_once_and_gives_everything_back(make_runner, tokenizer, prompts, alone):
    runner = make_runner(kv_tokens=4 * CONTEXT)
    free = runner.memory.pages.free
    stop = set()
    made = [generation(tokenizer, prompts[n % 6], cancelled=lambda n=n: n in stop) for n in range(30)]
    batch = batcher(runner, most_running=8)
    for one in made:
        batch.add(one)
    ended = {id(one): [] for one in made}
    pick = random.Random(1)
    while batch.running or batch.waiting:
        stop.add(pick.randrange(60))
        for one, delta in batch.step():
            ended[id(one)] += [delta.finish.reason] if delta.finish else []
    assert {len(reasons) for reasons in ended.values()} == {1}
    assert {reason for reasons in ended.values() for reason in reasons} == {"cancelled", "length"}
    assert runner.memory.pages.free + forget(runner.memory) == free


@pytest.mark.parametrize("make_runner", SMALL_PAGES, indirect=True)
def test_what_cannot_fit_is_refused_at_once(make_runner, tokenizer, prompts):
    batch = batcher(make_runner(kv_tokens=64))
    with pytest.raises(OutOfMemory, match="the KV cache holds `64` tokens and the request needs"):
        batch.add(generation(tokenizer, prompts[-1]))
    assert batch.waiting == 0


@pytest.mark.parametrize("make_runner", SMALL_PAGES, indirect=True)
@pytest.mark.parametrize("drafter", [no_draft, prompt_lookup(length=1)])
def test_an_answer_that_outgrows_the_memory_alone_ends_by_length(make_runner, tokenizer, prompts, alone, drafter):
    prompt, (tokens, _, _) = prompts[0], alone[0]
    room = 32 - len(prompt)
    made = generation(tokenizer, prompt, drafter)
    batch = batcher(make_runner(kv_tokens=32))
    batch.add(made)
    assert drain(batch, [made])[0][::2] == (tokens[: room + 1], ["length"])  # the last token needs no room
    assert batch.preempted == 0


@pytest.mark.thorough(keep=1)
def test_answers_that_outgrow_the_memory_together_are_each_as_long_as_alone(make_runner, tokenizer, prompts):
    def made():
        return [generation(tokenizer, prompt, max_tokens=200) for prompt in prompts[:4]]

    each = [run(make_runner(kv_tokens=64), [one])[0] for one in made()]
    assert run(make_runner(kv_tokens=64), made()) == each
    assert all(ends == ["length"] and len(tokens) < 200 for tokens, _, ends in each)


def test_an_error_ends_those_to_blame_only(make_runner, tokenizer, prompts, alone):
    class Broken:
        """A runner on which one prompt cannot be computed."""

        def __init__(self, runner):
            self.memory, self._runner = runner.memory, runner

        def run(self, segments, *, cancel=None):
            if any(prompts[1][-1] == segment.tokens[-1] for segment in segments if len(segment.tokens) == len(prompts[1])):
                raise NumericError("not a number")
            return self._runner.run(segments, cancel=cancel)

    results = run(Broken(make_runner(kv_tokens=4 * CONTEXT)), [generation(tokenizer, prompt) for prompt in prompts])
    assert [str(error) for error in results[1][2]] == ["not a number"]
    assert [*results[:1], *results[2:]] == [*alone[:1], *alone[2:]]


def test_a_cancelled_request_in_a_failed_step_costs_the_others_nothing(make_runner, tokenizer, prompts, alone):
    stop = []

    class Fails:
        """A runner whose first step fails as a whole; somebody leaves while its segments run alone."""

        def __init__(self, runner):
            self.memory, self._runner = runner.memory, runner

        def run(self, segments, *, cancel=None):
            if len(segments) > 1 and not stop:
                stop.append("soon")
                raise NumericError("not a number")
            logits = self._runner.run(segments, cancel=cancel)
            stop.append("now")
            return logits

    made = [generation(tokenizer, prompt) for prompt in prompts[:2]]
    made.append(generation(tokenizer, prompts[-1], cancelled=lambda: "now" in stop))
    results = run(Fails(make_runner(kv_tokens=4 * CONTEXT)), made)
    assert results[:2] == alone[:2]
    assert results[2][2] == ["cancelled"]


def test_prompt_lookup_goes_on_as_the_text_did_after_the_same_tokens():
    draft = prompt_lookup(length=2)
    assert draft([2, 3, 9, 2, 3, 7, 7, 0, 2, 3], 2) == [7, 7]
    assert draft([2, 3, 9, 2, 3, 7, 7, 0, 2, 3, 7], 9) == [7, 0, 2, 3, 7]
    assert draft([2, 3, 9, 2, 3, 7, 7, 0, 2, 3, 7, 5], 9) == []
    assert prompt_lookup(length=3)([1, 2], 9) == []
