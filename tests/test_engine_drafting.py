"""Guesses of a model's own first layers, or of a draft model, for all answers of a step: they change no token."""

from types import SimpleNamespace

import numpy as np
import pytest

from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.decoding.draft import no_draft
from edge_llm.decoding.gain import Gain
from edge_llm.engine.batcher import Batcher, Limits
from edge_llm.engine.drafters import DraftModel, OwnLayers
from edge_llm.engine.drafting import Drafting
from edge_llm.engine.generation import Generation
from edge_llm.engine.request import Delta, Request
from edge_llm.errors import OutOfMemory, StorageError, UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.load import load_engine, plan_of
from edge_llm.opening.resolve import check_own_layers
from edge_llm.opening.runner import load_int8_runner
from edge_llm.paths import builtin_bundle
from edge_llm.runner.base import Segment
from edge_llm.text.tokenizer import Tokenizer

pytestmark = pytest.mark.thorough(file=5)

CONTEXT = 256
LAYERS = 5
TEXTS = ("Once upon a time", "Who are you?", "one two three one two three one two", "a")
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.9, "seed": 3}


class Always(Gain):
    """So many guesses in every step, whatever they cost."""

    def __init__(self, count=3):
        super().__init__()
        self.count = count

    def guesses(self, answers):
        return self.count


@pytest.fixture(scope="module")
def bundle():
    return open_bundle(builtin_bundle())


@pytest.fixture(scope="module")
def tokenizer(bundle):
    return Tokenizer.from_folder(bundle.folder, bundle.config.vocab_size)


def runner_of(bundle, memory=None, kv_tokens=4 * CONTEXT, draft="none"):
    runtime = RuntimeConfig(threads=1, memory=memory, kv_tokens=kv_tokens, context=CONTEXT, draft=draft)
    return load_int8_runner(bundle, runtime, CONTEXT)


@pytest.fixture(scope="module")
def runner(bundle):
    return runner_of(bundle)


def drafter_of(kind, bundle, runner):
    return DraftModel(runner_of(bundle), bundle.config.vocab_size) if kind == "model" else OwnLayers(runner, kind)


def answers_of(runner, tokenizer, drafting=None, texts=TEXTS, limits=None, **params):
    """The tokens of answers to ``texts`` that are computed together."""
    batcher = Batcher(runner, limits or Limits(), drafting=drafting)
    made = []
    for text in texts:
        params = {"max_tokens": 24, "ignore_eos": True, **params}
        request = Request(tuple(tokenizer.encode_raw(text)), GenerationParams(**params))
        made.append(Generation(request, tokenizer, most_tokens=64, drafter=no_draft))
        batcher.add(made[-1])
    while batcher.busy:
        for _, item in batcher.step():
            assert isinstance(item, Delta), item
    return [one.known[len(one.request.prompt) :] for one in made], batcher


@pytest.fixture(scope="module")
def plain(runner, tokenizer):
    """Without guesses, by the way to sample."""
    return {way: answers_of(runner, tokenizer, **params)[0] for way, params in (("greedy", GREEDY), ("sampled", SAMPLED))}


@pytest.mark.parametrize(("way", "params"), [("greedy", GREEDY), ("sampled", SAMPLED)])
@pytest.mark.parametrize("memory", [None, "85%"])
@pytest.mark.parametrize("kind", [1, 2, "model"])
def test_guesses_change_no_token(kind, memory, way, params, bundle, tokenizer, plain):
    runner = runner_of(bundle, memory, draft="none" if kind == "model" else f"self:{kind}")
    assert bool(runner.model.weights.streamed) == bool(memory)
    drafting = Drafting(drafter_of(kind, bundle, runner), Always())
    found, batcher = answers_of(runner, tokenizer, drafting, **params)
    assert found == plain[way]
    alone = [answers_of(runner, tokenizer, drafting, [text], **params)[0][0] for text in TEXTS[:2]]
    assert alone == plain[way][:2]
    assert batcher.steps < 24 or kind in (1, 2)


@pytest.mark.parametrize("kind", [LAYERS, "model"])
def test_the_whole_model_guesses_all_of_its_tokens(kind, bundle, runner, tokenizer):
    ways = {**GREEDY, "ignore_eos": False}  # which would forbid what the drafter guesses
    plain, alone = answers_of(runner, tokenizer, **ways)
    gain = Always()
    found, batcher = answers_of(runner, tokenizer, Drafting(drafter_of(kind, bundle, runner), gain), **ways)
    assert found == plain
    assert gain._right == gain._tested > 0
    assert batcher.steps <= 1 + -(-(alone.steps - 1) // 4)  # a step of prompts, then four tokens in each
    assert runner.memory.pages.free + len(runner.memory._prefix) == runner.memory.pages.pages


def test_drafting_writes_the_bits_that_the_model_writes(runner):
    """In the pages of its own layers; and the check leaves what a run without guesses leaves in all."""
    tokens = [5, 9, 2, 7, 1, 3]

    def pages(work):
        sequence = runner.open()
        try:
            runner.forward(sequence, tokens[:3])
            work(sequence)
            return [pages.copy() for pages in read(sequence)]
        finally:
            sequence.close()

    def read(sequence):
        kv = runner.model._pages
        return [np.asarray(layer.k[sequence.table]) for layer in kv.layers] + [layer.v[sequence.table] for layer in kv.layers]

    def drafted(sequence):
        for token in tokens[3:]:
            runner.run_first(2, [Segment(sequence, [token])])

    whole, first = pages(lambda sequence: runner.forward(sequence, tokens[3:])), pages(drafted)
    same = [np.array_equal(one, other) for one, other in zip(whole, first, strict=True)]
    assert same[:2] == [True, True] == same[LAYERS : LAYERS + 2]


def test_all_answers_of_a_step_are_guessed_in_one_batch(bundle, runner, tokenizer):
    draft, sizes = runner_of(bundle), []
    run = draft.run

    def watched(segments, **more):
        sizes.append(len(segments))
        return run(segments, **more)

    draft.run = watched
    answers_of(runner, tokenizer, Drafting(DraftModel(draft, bundle.config.vocab_size), Always()), **GREEDY)
    assert sizes.count(len(TEXTS)) > 10 and set(sizes) <= {1, len(TEXTS)}
    assert draft.memory.pages.free + len(draft.memory._prefix) == draft.memory.pages.pages  # nothing stays behind


@pytest.mark.parametrize("kind", [2, "model"])
def test_with_little_memory_answers_give_way_and_stay_the_same(kind, bundle, tokenizer, plain):
    runner = runner_of(bundle, kv_tokens=CONTEXT)
    texts = [text for text in TEXTS for _ in range(4)]
    drafter = drafter_of(kind, bundle, runner)
    if kind == "model":
        drafter = DraftModel(runner_of(bundle, kv_tokens=CONTEXT), bundle.config.vocab_size)
    found, batcher = answers_of(runner, tokenizer, Drafting(drafter, Always()), texts, **GREEDY)
    assert found == [answer for answer in plain["greedy"] for _ in range(4)]
    assert batcher.preempted > 0


@pytest.mark.parametrize("error", [StorageError("the disk is gone"), OutOfMemory("no page is free"), ValueError("a bug")])
@pytest.mark.parametrize("kind", [2, "model"])
def test_a_drafter_that_fails_costs_no_answer(kind, error, bundle, tokenizer, plain):
    runner = runner_of(bundle)
    drafter = drafter_of(kind, bundle, runner)
    failing = drafter._runner
    name = "run_first" if kind == 2 else "run"
    whole, calls = getattr(failing, name), []

    def fails(*arguments, **more):
        calls.append(1)
        if len(calls) % 3 == 0:
            raise error
        return whole(*arguments, **more)

    setattr(failing, name, fails)
    found, _ = answers_of(runner, tokenizer, Drafting(drafter, Always()), **GREEDY)
    assert found == plain["greedy"] and len(calls) > 10


def test_an_answer_that_outgrows_the_draft_model_disturbs_no_other(bundle, runner, tokenizer, caplog):
    small = load_int8_runner(bundle, RuntimeConfig(threads=1, kv_tokens=CONTEXT, context=32), 32)
    texts = ["Once upon a time " * 2, "a"]
    length = len(tokenizer.encode_raw(texts[0]))
    assert length < 32 < length + 24
    drafting = Drafting(DraftModel(small, bundle.config.vocab_size), Always())
    alone, forgotten, forget = answers_of(runner, tokenizer, texts=texts), [], drafting.drafter.forget

    def watched(work):
        forgotten.append(len(work.known))
        forget(work)

    drafting.drafter.forget = watched
    assert answers_of(runner, tokenizer, drafting, texts)[0] == alone[0]
    assert caplog.text == ""
    assert min(forgotten) >= 25  # "a" is followed to its end


class Text:
    """An answer of which tokens are known."""

    def __init__(self, known):
        self.known = known


def test_what_a_draft_model_computes_again_counts_as_guessing(bundle):
    """Its layers may keep states, which go back behind a wrong guess by more than that; only prompts are not measured."""
    draft = runner_of(bundle)
    drafter, work, run = DraftModel(draft, bundle.config.vocab_size), Text([5, 9, 2, 7, 1, 3] * 4), draft.run
    drafter.begin([work])
    (first,) = drafter.guess([work], [3])
    work.known.append(first[0])
    drafter._followed[work].sequence.truncate(0)
    draft.run = None
    drafter.begin([work])
    draft.run = run
    assert drafter.guess([work], [2]) == [first[1:]]


def test_a_gain_that_is_measured_changes_no_token_either(bundle, runner, tokenizer, plain):
    drafting = Drafting(OwnLayers(runner, 2))
    for _ in range(3):
        assert answers_of(runner, tokenizer, drafting, **SAMPLED)[0] == plain["sampled"]
    assert drafting.gain.sweeps.count(len(TEXTS)) > 0


# -- through the options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["self:2", "builtin"])
def test_a_draft_is_asked_for_by_name(draft):
    params = GenerationParams(max_tokens=24, ignore_eos=True, temperature=0.0)

    def answer(draft):
        engine = load_engine("builtin", RuntimeConfig(threads=1, draft=draft))
        return engine.answer(engine.text_request("hello world", params))

    alone, drafted = answer("none"), answer(draft)
    assert drafted.tokens == alone.tokens and drafted.finish.timings.drafted_tokens > 0


def test_the_first_layers_and_the_output_matrix_stay():
    plan = plan_of("builtin", RuntimeConfig(threads=1, draft="self:2", memory="85%"))
    assert {0, 1} <= set(plan.weights.host.resident) and plan.weights.host.streamed
    assert "output" not in plan.weights.host.flash_tables


@pytest.mark.parametrize("kv_memory", ["1MiB", "7MiB"])
def test_both_models_share_the_budget_of_keys_and_values(kv_memory):
    options = RuntimeConfig(threads=1, kv_memory=kv_memory, context=64)
    alone, both = plan_of("builtin", options), plan_of("builtin", RuntimeConfig(**{**vars(options), "draft": "builtin"}))
    assert both.draft.kv_tokens == both.kv_tokens == alone.kv_tokens // 32 * 16
    assert both.memory.pages <= int(kv_memory[0]) << 20 and both.memory.pages >= 0.9 * alone.memory.pages


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"draft": "self:0"}, "self:6"),
        ({"draft": "self"}, "self:6"),
        ({"draft": "self:99"}, "self:1 to self:5"),
        ({"draft": "self:2", "device": "emulated:310p"}, "--device host"),
        ({"draft": "self:2", "float_path": True}, "leave out --float"),
        ({"draft": "self:4", "memory": "40%"}, "name fewer"),
    ],
)
def test_what_cannot_guess_is_refused_in_a_line(options, said):
    with pytest.raises(UsageError, match=said) as error:
        plan_of("builtin", RuntimeConfig(threads=1, **options))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("decoder", "said"),
    [({"is_encoder": True}, "leave --draft out"), ({"state_bytes": 64}, "use lookup or a draft model")],
)
def test_models_whose_layers_cannot_guess_are_refused_in_a_line(decoder, said):
    whole = {"layers": [None] * 4, "is_encoder": False, "state_bytes": 0, **decoder}
    bundle = SimpleNamespace(folder=SimpleNamespace(name="some"), decoder=SimpleNamespace(**whole))
    with pytest.raises(UsageError, match=said) as error:
        check_own_layers(RuntimeConfig(device="host", draft="self:2"), bundle)
    assert "`some`" in str(error.value) and "\n" not in str(error.value)
