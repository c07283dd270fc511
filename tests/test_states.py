"""Families that keep a fixed shape of a sequence: however rows come and go, the tokens are those of one text alone."""

import random

import numpy as np
import pytest
from families import STATEFUL, TOKENS, assert_described, assert_float_path, float_model, of_each
from model_files import VOCAB_SIZE

from edge_llm.config import W4, GenerationParams, RuntimeConfig
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.gradient import layer_gradient
from edge_llm.convert.importer import import_model
from edge_llm.decoding.draft import no_draft
from edge_llm.engine.batcher import Batcher, Limits
from edge_llm.engine.generation import Generation
from edge_llm.engine.request import Request
from edge_llm.errors import DeviceError, OutOfMemory, UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.kv.pages import PageAllocator, page_bytes
from edge_llm.kv.sequence import SequencePages
from edge_llm.kv.states import SequenceStates, StateIndex, StateSlots
from edge_llm.models.reference import layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.opening.machine import this_machine
from edge_llm.opening.resolve import resolve
from edge_llm.opening.runner import load_runner
from edge_llm.operations.keeps import NOTHING_YET
from edge_llm.runner.base import Cancelled, Segment
from edge_llm.text.tokenizer import Tokenizer

family, bundle = of_each(STATEFUL)


def runner_of(bundle, **runtime):
    return load_runner(bundle, RuntimeConfig(**{"threads": 2, "context": 128, "kv_tokens": 512, **runtime}), 100)[0]


def logits(bundle, **runtime):
    runner = runner_of(bundle, **runtime)
    return runner.forward(runner.open(), TOKENS, wanted=len(TOKENS))


# ---- the model ----


def test_the_float_path_is_that_of_transformers(family):
    assert_float_path(*family, TOKENS)


def test_pieces_are_the_text_in_float_too(family):
    model = float_model(family[0])
    cache, whole = model.open_cache(), model.forward(TOKENS)
    pieces = [model.forward(TOKENS[first : first + 7], cache) for first in range(0, len(TOKENS), 7)]
    assert np.abs(np.concatenate(pieces) - whole).max() < 1e-4 * np.abs(whole).max()
    cache.checkpoint()
    model.forward(TOKENS[:5], cache)
    cache.truncate(len(TOKENS) + 2)
    assert cache.length == len(TOKENS)  # where it was kept
    cache.truncate(50)
    assert cache.length == 0


def test_a_bundle_carries_its_description(family, bundle):
    assert_described(family[0], bundle)


def test_gradients_are_differences(family):
    model, draw, double = float_model(family[0]), np.random.default_rng(3), {}
    tables = RopeTables(64)
    for layer, weights in zip(model.decoder.layers, model.layers, strict=True):
        if layer.operations in double:
            continue
        double[layer.operations] = True
        x, seen, step = (draw.standard_normal((40, model.decoder.hidden_size), np.float32) for _ in range(3))
        step *= np.float32(2e-3)
        ahead, behind = (layer_forward(x + sign * step, layer, weights, tables) for sign in (1, -1))
        wanted = float(((ahead - behind).astype(np.float64) * seen).sum() / 2)
        found = float((layer_gradient(x, layer, weights, tables, seen, lambda *_: None).astype(np.float64) * step).sum())
        assert found == pytest.approx(wanted, rel=2e-2, abs=2e-3)


def test_int8_is_near_float(bundle):
    exact, found = logits(bundle, float_path=True), logits(bundle)
    assert np.linalg.norm(found - exact) < 0.2 * np.linalg.norm(exact)


@pytest.mark.thorough
def test_four_bits_are_near_float(family):
    target = family[0].parent / "w4"
    with open_bundle(import_model(family[0], target=target, weights=LayerBits(W4))) as opened:
        exact, found = logits(opened, float_path=True), logits(opened)
    assert np.linalg.norm(found - exact) < 0.8 * np.linalg.norm(exact)


def test_no_card_does_it(bundle):
    with pytest.raises(DeviceError, match="use --device host"):
        runner_of(bundle, device="emulated:310p:s8gemm")


# ---- one result ----


@pytest.mark.parametrize("way", [{"chunk": 16, "window": 2}, {"memory": "85%"}, {"threads": 1, "chunk": 7}])
def test_every_way_gives_the_same(bundle, way):
    assert np.array_equal(logits(bundle, **way), logits(bundle))


def test_a_batch_is_each_alone(bundle):
    runner = runner_of(bundle, chunk=32)
    texts = [TOKENS[:70], TOKENS[20:61], TOKENS[5:6]]
    alone = [runner.forward(runner.open(), text, wanted=len(text)) for text in texts]
    together = runner.run([Segment(runner.open(), text, len(text)) for text in texts])
    assert all(map(np.array_equal, together, alone))


@pytest.mark.parametrize("memory", [None, "85%"])
def test_steps_are_the_prompt(bundle, memory):
    runner = runner_of(bundle, memory=memory)
    assert bool(runner.model.weights.streamed) == bool(memory)
    whole, sequence = logits(bundle), runner.open()
    steps = [runner.forward(sequence, TOKENS[:40], wanted=1), *(runner.forward(sequence, [token]) for token in TOKENS[40:])]
    assert np.array_equal(np.concatenate(steps), whole[39:])


@pytest.mark.parametrize("slots", ["many", "few"])
@pytest.mark.parametrize("right", range(4))
def test_a_rejected_draft_leaves_nothing(bundle, right, slots):
    """It goes back to the rows that were right, or where there is no slot for them, to before the draft."""
    runner = runner_of(bundle, parallel=64 if slots == "many" else 1)
    others = [runner.open() for _ in range(runner.memory.state()["states"] - 5 if slots == "few" else 0)]
    for other in others:
        runner.forward(other, TOKENS[:1])
    whole, sequence = logits(bundle), runner.open()
    runner.forward(sequence, TOKENS[:40])
    wrong = [(token + 1) % VOCAB_SIZE for token in TOKENS[40 + right : 43]]
    runner.forward(sequence, [*TOKENS[40 : 40 + right], *wrong, 7], wanted=4)
    sequence.truncate(40 + right)
    assert sequence.length == (40 + right if slots == "many" else 40)
    rest = TOKENS[sequence.length :]
    assert np.array_equal(runner.forward(sequence, rest, wanted=len(rest)), whole[-len(rest) :])


def test_what_is_cancelled_is_computed_again(bundle):
    runner, asked = runner_of(bundle, chunk=16, window=1), iter([False, False, True])
    whole, sequence = logits(bundle), runner.open()
    runner.forward(sequence, TOKENS[:20])
    with pytest.raises(Cancelled):
        runner.forward(sequence, TOKENS[20:], cancel=lambda: next(asked, True))
    assert sequence.length == 20
    assert np.array_equal(runner.forward(sequence, TOKENS[20:], wanted=70), whole[20:])


def test_a_known_beginning_is_the_text_itself(bundle):
    runner = runner_of(bundle)
    whole, sequence = logits(bundle), runner.open()
    runner.forward(sequence, TOKENS[:70])
    runner.memory.remember(sequence, TOKENS[:70])
    for text, known in ((TOKENS, 64), (TOKENS[:65], 64), (TOKENS[:64], 0), ([*TOKENS[:40], 1, *TOKENS[40:]], 0)):
        again = runner.memory.open(text)
        assert again.length == known
        rows = runner.forward(again, text[known:], wanted=len(text) - known)
        if text == TOKENS[: len(text)]:
            assert np.array_equal(rows, whole[known : len(text)])
        again.close()
    sequence.truncate(64)
    assert np.array_equal(runner.forward(sequence, TOKENS[sequence.length :], wanted=1), whole[-1:])


# ---- answers ----


def answers(bundle, prompts, drafter=lambda prompt: no_draft, most_running=8, **runtime):
    """Tokens of an answer to each of ``prompts``, and the batcher."""
    tokenizer = Tokenizer.from_folder(bundle.folder, bundle.config.vocab_size)
    batch = Batcher(runner_of(bundle, chunk=16, **runtime), Limits(48, 16, most_running=most_running))
    out = {}
    for number, prompt in enumerate(prompts):
        request = Request(tuple(prompt), GenerationParams(max_tokens=24, ignore_eos=True), continues=True)
        work = Generation(request, tokenizer, most_tokens=100 - len(prompt), drafter=drafter(number))
        out[id(work)] = []
        batch.add(work)
    while batch.running or batch.waiting:
        for work, delta in batch.step():
            assert not isinstance(delta, Exception), delta
            out[id(work)] += delta.tokens
    return list(out.values()), batch


PROMPTS = [TOKENS[:40], TOKENS[:40], [*TOKENS[:32], *TOKENS[60:70]], TOKENS[3:9], TOKENS[50:51], TOKENS[:40]]


@pytest.fixture(scope="module")
def alone(bundle):
    return [answers(bundle, [prompt])[0][0] for prompt in PROMPTS]


@pytest.mark.parametrize(
    "way",
    [{}, {"most_running": 1}, {"kv_tokens": 128}, {"parallel": 1}, {"parallel": 1, "kv_tokens": 128}],
    ids=["all", "one by one", "few pages", "few states", "few of both"],
)
def test_company_and_memory_change_no_answer(bundle, alone, way):
    found, batch = answers(bundle, PROMPTS, **way)
    assert found == alone
    state = batch.runner.memory.state()
    assert state["states_free"] + state["checkpoints"] == state["states"] - 1  # nobody holds another


@pytest.mark.parametrize("parallel", [64, 1])
def test_drafts_change_no_answer(bundle, alone, parallel):
    """Every draft has two right guesses and two wrong ones."""

    def drafter(number):
        text = [*PROMPTS[number], *alone[number]]

        def draft(known, room):
            ahead = text[len(known) : len(known) + 4]
            return [token if place < 2 else (token + 1) % VOCAB_SIZE for place, token in enumerate(ahead)][:room]

        return draft

    found, batch = answers(bundle, PROMPTS, drafter=drafter, parallel=parallel)
    assert found == alone and batch.steps < sum(map(len, alone))


# ---- slots ----


@pytest.mark.parametrize(("times", "states"), [(1, 9), (40, 20), (4000, 31)])
def test_kv_memory_is_for_states_and_pages(bundle, times, states):
    """Half of it at most is for states, and what these leave for pages; the fewest of them are there, or it is refused."""
    decoder, state = bundle.decoder, bundle.decoder.state_bytes
    options = {"context": 16, "parallel": 10, "threads": 1, "device": "host"}
    least = 9 * state + page_bytes(decoder.attentions)
    budget = max(times * state, least)
    plan = resolve(RuntimeConfig(kv_memory=f"{budget}", **options), this_machine(), bundle)
    assert plan.room.states == states == plan.memory.states // state
    held = plan.memory.states + plan.memory.pages
    assert held <= budget < held + page_bytes(decoder.attentions)
    with pytest.raises(UsageError, match=f"beside 9 states of sequences; the least is {least} bytes"):
        resolve(RuntimeConfig(kv_memory=f"{least - 1}", **options), this_machine(), bundle)
    runner = runner_of(bundle, kv_memory=f"{budget}", **options | {"kv_tokens": None, "context": 100})
    assert runner.memory.state()["states"] == states and runner.model.kv.slot_bytes == state


def test_without_slots_there_is_a_way_out():
    slots = StateSlots(3)
    one, other = SequenceStates(slots, 16, 64), SequenceStates(slots, 16, 64)
    one.reserve()
    other.reserve()
    with pytest.raises(OutOfMemory, match="all `3` states of running sequences are in use"):
        SequenceStates(slots, 16, 64).reserve()
    one.close()
    other.close()
    assert slots.free == 2


@pytest.mark.parametrize("seed", range(20))
def test_a_slot_holds_what_its_holder_left_there(seed):
    """Sequences of random steps, cancelled, cut and remembered: the state before a step is always that of their tokens."""
    draw = random.Random(seed)
    slots, pages = StateSlots(draw.choice([6, 12, 40])), PageAllocator(1000, 4)
    index, held, known = StateIndex(slots), {NOTHING_YET: ()}, {}
    running = []

    def step(sequence, text):
        count = draw.choice([1, 1, 3, 9])
        try:
            sequence.states.reserve()
        except OutOfMemory:
            if not index.evict():
                running.remove((sequence, text))
                sequence.close()
            return
        sequence.reserve(sequence.length + count)
        tokens = [draw.randrange(3) for _ in range(count)]
        at = text[: sequence.length]
        for span in sequence.spans(count, draw.choice([1, count])):
            assert span.writes != NOTHING_YET and held[span.reads] == tuple(at[: sequence.length + span.first])
            at = [*text[: sequence.length], *tokens[: span.end]]
            held[span.writes] = tuple(at)
        assert span.end == count
        if draw.random() < 0.2:
            sequence.truncate(sequence.length)  # cancelled
            return
        text[sequence.length :] = tokens
        sequence.advance(count)

    for _ in range(300):
        if draw.random() < 0.1 and slots.free > 2:
            sequence, text = SequencePages(pages, SequenceStates(slots, 4, 8)), []
            if known and draw.random() < 0.7:
                text = list(draw.choice([*known]))
                keys = [repr(text[:end]).encode() for end in range(4, len(text) + 1, 4)]
                count, slot = index.longest(keys)
                sequence.reserve(4 * count)
                sequence.states.adopt(4 * count, slot)
                sequence.length = 4 * count
                del text[4 * count :]
            running.append((sequence, text))
        if not running:
            continue
        sequence, text = draw.choice(running)
        what = draw.random()
        if what < 0.7:
            step(sequence, text)
        elif what < 0.8:
            sequence.truncate(draw.randrange(sequence.length + 1))
            del text[sequence.length :]
        elif what < 0.9:
            for length, slot in sequence.states.checkpoints.items():
                assert held[slot] == tuple(text[:length])
                index.insert(repr(text[:length]).encode(), slot)
                known[tuple(text[:length])] = True
            sequence.states.drop_checkpoints()
        else:
            running.remove((sequence, text))
            sequence.close()
    for sequence, _ in running:
        sequence.close()
    assert slots.free + len(index) == slots.count - 1
