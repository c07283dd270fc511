"""A card that fails in the middle: the requests of that step end with a typed error, all others are answered by the host."""

import weakref

import pytest
from failing_device import FAILURE, NAME, add_failing_device
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import tiny_config, write_model
from paged_script import forget

from edge_llm.cli.main import run
from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.engine.batcher import Limits
from edge_llm.engine.embedding import EmbeddingJob
from edge_llm.engine.engine import collect
from edge_llm.errors import DeviceError, DeviceLost
from edge_llm.opening import carry_out as opening
from edge_llm.opening import defaults, resolve
from edge_llm.opening.load import load_engine

pytestmark = pytest.mark.thorough(file=2)

PLACEMENTS = ("split", "card")
PROMPTS = ([1, 2, 3, 4, 5], [*range(60)], [7, 8, 9] * 20, [9], [*range(100, 145)])
PARAMS = GenerationParams(max_tokens=5, ignore_eos=True)
LIMITS = Limits(step_tokens=48, mixed_tokens=24, background_tokens=8, most_running=3)
SAID = f"the device `{NAME}` failed: {FAILURE}"


@pytest.fixture(scope="module")
def fuse():
    return add_failing_device()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lost")
    write_model(folder / "source", tiny_config("llama"))
    return import_model(folder / "source", target=folder / "bundle")


def engine_of(folder, **runtime):
    return load_engine(folder, RuntimeConfig(**{"threads": 1, "context": 128, "chunk": 32, "kv_tokens": 512, **runtime}))


def answer(engine, prompt):
    return engine.answer(engine.token_request(prompt, PARAMS)).tokens


@pytest.fixture(scope="module")
def host(folder):
    """The host's answers."""
    engine = engine_of(folder, device="host")
    return [answer(engine, prompt) for prompt in PROMPTS]


def is_by_both(engine, prompt, found, by_card):
    """Whether ``found`` begins as the card's answer (with nothing, or all of it) and goes on as the host, ``engine``."""
    begun = next((n for n, pair in enumerate(zip(found, by_card, strict=True)) if pair[0] != pair[1]), len(found))
    return any(
        found[known:] == answer(engine, [*prompt, *found[:known]])[: len(found) - known] for known in range(begun + 1)
    )


class Scene:
    """Three answers that begin at once and two that wait, and a text to embed, on a card that may fail."""

    def __init__(self, folder, placement, kv_tokens=512):
        self.engine = engine_of(folder, device=NAME, placement=placement, kv_tokens=kv_tokens)
        self.engine.batcher._limits = LIMITS
        self.memories = [self.engine.runner.memory]

    def play(self):
        """The answers, or their errors."""
        streams = []
        for prompt in PROMPTS:
            generation, stream = self.engine.prepare(self.engine.token_request(prompt, PARAMS))
            self.engine.driver.add(generation, stream)
            streams.append(stream)
        self.job = EmbeddingJob([[*range(40)]])
        self.engine.driver.add_job(self.job)
        self.engine.driver.run_until(lambda: not self.engine.driver.busy)
        self.memories.append(self.engine.runner.memory)
        return [outcome(stream) for stream in streams]

    def pages_that_are_gone(self):
        return [memory.pages.pages - memory.pages.free - forget(memory) for memory in self.memories]


def outcome(stream):
    """The tokens, or the error; fails if the stream has no end, or more than one."""
    deltas = []
    while stream.ready:
        try:
            deltas.append(stream.poll())
        except DeviceLost as error:
            assert not stream.ready
            return error
    return collect(deltas).tokens


@pytest.fixture(scope="module")
def card(folder, fuse):
    """By placement: the answers where nothing fails, and how many launches they take."""
    fuse.set(None)
    played = {}
    for placement in PLACEMENTS:
        scene = Scene(folder, placement)
        before = fuse.launches
        played[placement] = scene.play(), fuse.launches - before
    return played


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("placement", PLACEMENTS)
@settings(max_examples=12, deadline=None)
@given(data=st.data(), kv_tokens=st.sampled_from([512, 128]), late=st.booleans())
def test_wherever_it_fails_others_are_answered_and_all_pages_return(folder, fuse, host, card, placement, data, kv_tokens, late):
    undisturbed, launches = card[placement]
    fuse.set(data.draw(st.integers(0, launches - 1), "launches"), late)
    scene = Scene(folder, placement, kv_tokens)
    answers = scene.play()
    errors = [found for found in answers if isinstance(found, DeviceLost)]
    assert errors or isinstance(scene.job.future.exception(), DeviceLost)
    assert {str(error).partition(";")[0] for error in errors} <= {SAID}
    for prompt, found, by_card in zip(PROMPTS, answers, undisturbed, strict=True):
        assert isinstance(found, DeviceLost) or is_by_both(scene.engine, prompt, found, by_card)
    assert scene.engine.runner.site.device == "host"
    assert scene.pages_that_are_gone() == [0, 0]
    assert [answer(scene.engine, prompt) for prompt in PROMPTS] == host
    assert scene.pages_that_are_gone() == [0, 0]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_answers_of_a_step_fail_and_those_that_wait_do_not(folder, fuse, host, placement, caplog):
    fuse.set(0)
    answers = Scene(folder, placement).play()
    assert [isinstance(found, DeviceLost) for found in answers] == [True, True, False, False, False]  # 48 tokens a step
    assert answers[2:] == host[2:]
    assert caplog.text.count("failed") == 1 and f"{SAID}; the host answers from now on" in caplog.text


def test_pages_that_the_card_left_on_disk_are_not_taken_by_the_host(folder, fuse, host):
    fuse.set(None)
    served = {"context": 128, "prefix_cache": "64MiB"}
    engine = engine_of(folder, device=NAME, placement="card", **served)
    by_card = [answer(engine, prompt) for prompt in PROMPTS]
    engine.runner.memory._disk.close()
    engine = engine_of(folder, device=NAME, placement="card", **served)
    assert [answer(engine, prompt) for prompt in PROMPTS] == by_card
    assert engine.runner.memory.state()["prefix_disk_pages_read"] > 0
    fuse.set(0)
    with pytest.raises(DeviceLost):
        answer(engine, PROMPTS[0])
    assert [answer(engine, prompt) for prompt in PROMPTS] == host
    assert engine.runner.memory.state()["prefix_disk_pages_read"] == 0
    engine.runner.memory._disk.close()


@pytest.mark.parametrize(("chosen", "steps"), [(None, [16, 16, 16, 12]), (48, [48, 12])])
def test_the_host_takes_steps_of_its_own_length(folder, fuse, monkeypatch, chosen, steps):
    """A card's chunk is longer than the host's; one that the user chose stays."""
    for place in (defaults, resolve):
        monkeypatch.setattr(place, "longest_chunk", lambda device: 16 if device == "host" else 64)
    fuse.set(0)
    engine = engine_of(folder, device=NAME, placement="card", chunk=chosen, window=1)
    with pytest.raises(DeviceLost):
        answer(engine, PROMPTS[1])
    engine.driver.run_until(lambda: not engine.driver.busy)
    runner, seen = engine.runner, []

    def counted(segments, **how):
        seen.append(sum(len(segment.tokens) for segment in segments))
        return type(runner).run(runner, segments, **how)

    monkeypatch.setattr(runner, "run", counted)
    answer(engine, PROMPTS[1])
    assert runner.site.device == "host"
    assert seen[: len(steps)] == steps


def test_every_one_gets_an_error_of_its_own(folder, fuse):
    """One that is shared would gather the tracebacks of all who raise it."""
    fuse.set(0)
    first, second = Scene(folder, "split").play()[:2]
    assert first is not second and str(first) == str(second)


@pytest.mark.parametrize("name", ["open", "remember", "reserve"])
def test_a_card_that_fails_while_pages_move_costs_at_most_that_request(folder, fuse, host, card, name, monkeypatch):
    fuse.set(None)
    scene = Scene(folder, "card")

    def fail(*_):
        fuse.set(0)
        raise DeviceLost(NAME, FAILURE)

    monkeypatch.setattr(scene.engine.runner.memory, name, fail)
    answers = scene.play()
    assert sum(isinstance(found, DeviceLost) for found in answers) == (name != "remember")
    assert scene.engine.runner.site.device == "host"
    assert scene.pages_that_are_gone() == [0, 0]
    assert [answer(scene.engine, prompt) for prompt in PROMPTS] == host


def test_what_the_card_held_is_free_before_the_host_loads(folder, fuse, monkeypatch):
    fuse.set(3)
    scene = Scene(folder, "card")
    scene.memories.clear()
    lost = weakref.ref(scene.engine.runner)
    seen = []

    def make_runner(*given):
        seen.append(lost())
        return real(*given)

    real = opening.make_runner
    monkeypatch.setattr(opening, "make_runner", make_runner)
    scene.play()
    assert seen == [None]


def test_an_interruption_while_the_host_loads_loses_nobody(folder, fuse, host, monkeypatch):
    fuse.set(0)
    engine = engine_of(folder, device=NAME)
    with pytest.raises(DeviceLost):
        answer(engine, PROMPTS[0])
    real = opening.make_runner

    def interrupted(*given):
        monkeypatch.setattr(opening, "make_runner", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(opening, "make_runner", interrupted)
    with pytest.raises(KeyboardInterrupt):
        answer(engine, PROMPTS[0])
    assert answer(engine, PROMPTS[0]) == host[0]


def test_a_host_without_memory_refuses_by_name_and_lives(folder, fuse, monkeypatch, caplog):
    monkeypatch.setattr(opening, "free_memory", lambda: 1000)
    fuse.set(0)
    scene = Scene(folder, "split")
    streams = []
    for prompt in PROMPTS:
        generation, stream = scene.engine.prepare(scene.engine.token_request(prompt, PARAMS))
        scene.engine.driver.add(generation, stream)
        streams.append(stream)
    scene.engine.driver.run_until(lambda: not scene.engine.driver.busy)
    errors = []
    for stream in streams:
        with pytest.raises(DeviceError) as raised:
            stream.poll()
        errors.append(raised.value)
    assert [type(error) for error in errors] == [DeviceLost, DeviceLost, DeviceError, DeviceError, DeviceError]
    with pytest.raises(DeviceError, match=f"{SAID}; nothing takes its place: the weights take .* the host has 1000 B free"):
        answer(scene.engine, PROMPTS[0])
    assert caplog.text.count("nothing takes its place") == 1


# ---- one answer


def test_a_command_says_it_in_a_line_with_the_way_out(folder, fuse, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    fuse.set(0)
    command = ["run", str(folder), "hello", "-n", "3", "--ctx", "64", "--json", "--device", NAME]
    assert run(command) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: {SAID}; ask again, or do without it: --device host\n")
