"""One numeric: the logits of a token are bit-identical however they are computed (design: One numeric)."""

from dataclasses import replace

import numpy as np
import pytest

from edge_llm.bench.synthetic import write_random
from edge_llm.config import LlamaConfig, RuntimeConfig
from edge_llm.devices import model
from edge_llm.devices.host import HostDevice
from edge_llm.errors import ContextOverflow, NumericError, OutOfMemory
from edge_llm.formats.bundle import open_bundle
from edge_llm.kernels import program
from edge_llm.kernels.program import Program
from edge_llm.models.rope import RopeTables
from edge_llm.runner.base import Cancelled, Segment
from edge_llm.runner.rows import split
from edge_llm.runner.runner import Int8Runner
from edge_llm.weights.resident import ResidentWeights

SHAPES = {
    "grouped heads, tied": LlamaConfig(
        family="llama", vocab_size=97, hidden_size=64, intermediate_size=100, num_layers=2, num_heads=4,
        num_kv_heads=2, head_dim=16, context=640, norm_eps=1e-5, rope_theta=1e4, tied_embeddings=True,
    ),
    "biases, odd sizes": LlamaConfig(
        family="qwen2", vocab_size=130, hidden_size=72, intermediate_size=75, num_layers=2, num_heads=3,
        num_kv_heads=1, head_dim=24, context=640, norm_eps=1e-6, rope_theta=1e6, qkv_bias=True,
    ),
    "query and key norms": LlamaConfig(
        family="qwen3", vocab_size=64, hidden_size=48, intermediate_size=96, num_layers=3, num_heads=2,
        num_kv_heads=2, head_dim=40, context=640, norm_eps=1e-6, rope_theta=1e6, qk_norm=True,
    ),
}  # fmt: skip
PROMPT = 330  # more than one 256-token attention segment


@pytest.fixture(scope="module", params=[(shape, turned) for shape in SHAPES for turned in (False, True)], ids=str)
def bundle(request, tmp_path_factory):
    """Static scales with hot channels, and turned rows with scales of their own."""
    folder = tmp_path_factory.mktemp("bundle")
    shape, turned = request.param
    write_random(folder, SHAPES[shape], seed=1, turned=turned)
    return open_bundle(folder)


def make_runner(bundle, threads=2, watch=None, **runtime):
    runtime = RuntimeConfig(**{"context": 640, **runtime})
    tables = RopeTables(640)
    return Int8Runner(
        bundle.config, ResidentWeights(bundle), HostDevice(threads), runtime, tables, decoder=bundle.decoder, watch=watch
    )


@pytest.fixture(scope="module")
def tokens(bundle):
    return np.random.default_rng(5).integers(0, bundle.config.vocab_size, PROMPT).tolist()


@pytest.fixture(scope="module")
def whole(bundle, tokens):
    """Logits of every position, the prompt computed as one chunk."""
    runner = make_runner(bundle, threads=1, chunk=512, window=1)
    return runner.forward(runner.open(), tokens, wanted=len(tokens))


@pytest.mark.parametrize(("chunk", "window"), [(256, 1), (64, 2), (64, 4), (33, 3), (7, 64)])
def test_any_chunking_and_any_window_is_the_whole(bundle, tokens, whole, chunk, window):
    runner = make_runner(bundle, chunk=chunk, window=window)
    assert np.array_equal(runner.forward(runner.open(), tokens, wanted=len(tokens)), whole)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_any_number_of_threads_is_the_same(bundle, tokens, whole, threads):
    runner = make_runner(bundle, threads=threads)
    assert np.array_equal(runner.forward(runner.open(), tokens, wanted=len(tokens)), whole)


def test_token_by_token_is_the_whole(bundle, tokens, whole):
    runner = make_runner(bundle)
    sequence = runner.open()
    assert np.array_equal(np.concatenate([runner.forward(sequence, [token]) for token in tokens]), whole)


def test_several_calls_are_one(bundle, tokens, whole):
    runner = make_runner(bundle, chunk=64)
    sequence = runner.open()
    parts = [tokens[:100], tokens[100:101], tokens[101:260], tokens[260:]]
    assert np.array_equal(np.concatenate([runner.forward(sequence, p, wanted=len(p)) for p in parts]), whole)


def test_a_batch_is_each_alone(bundle, tokens, whole):
    runner = make_runner(bundle)
    lengths = [260, 17, 16, 1, 200]
    sequences = []
    for length in lengths:
        sequences.append(runner.open())
        runner.forward(sequences[-1], tokens[:length])
    for step in range(3):
        logits = np.concatenate(runner.run([Segment(s, [tokens[n + step]]) for s, n in zip(sequences, lengths, strict=True)]))
        assert np.array_equal(logits, whole[[length + step for length in lengths]])


def test_scattered_pages_are_contiguous_pages(bundle, tokens, whole):
    runner = make_runner(bundle, chunk=64)
    holders = [runner.open() for _ in range(16)]
    for holder in holders:
        holder.reserve(16)
    for holder in holders[::2]:
        holder.close()
    sequence = runner.open()
    logits = runner.forward(sequence, tokens, wanted=len(tokens))
    assert (np.diff(sequence.table) != 1).any()
    assert np.array_equal(logits, whole)


def test_pages_with_an_old_sequence_are_fresh_pages(bundle, tokens, whole):
    runner = make_runner(bundle)
    old = runner.open()
    runner.forward(old, tokens[::-1])
    old.close()
    assert np.array_equal(runner.forward(runner.open(), tokens, wanted=len(tokens)), whole)


def test_a_shortened_sequence_goes_on_as_if_never_longer(bundle, tokens, whole):
    runner = make_runner(bundle)
    sequence = runner.open()
    runner.forward(sequence, tokens[:90] + tokens[:90])
    sequence.truncate(90)
    assert np.array_equal(runner.forward(sequence, tokens[90:], wanted=PROMPT - 90), whole[90:])


def test_only_the_wanted_logits_come_back(bundle, tokens, whole):
    runner = make_runner(bundle, chunk=64, window=2)
    for wanted in (1, 10, 11, 75, 200):
        sequence = runner.open()
        assert np.array_equal(runner.forward(sequence, tokens, wanted=wanted), whole[-wanted:])
        sequence.close()


def test_what_is_built_for_a_prompt_serves_the_next_one(bundle, tokens, monkeypatch):
    runner = make_runner(bundle, chunk=64)
    fused, fuse = [], runner.model._fuse
    monkeypatch.setattr(runner.model, "_fuse", lambda bound: fused.append(bound) or fuse(bound))
    for _ in range(2):
        runner.forward(runner.open(), tokens[:128])
        assert runner.model.sharing.built == 1  # the head, for some of the rows
        assert len(fused) == 2 * 2  # the embedding and all layers, which are small, for two chunks of a window
    sequence = runner.open()
    for wanted in (3, 1, 2):
        runner.forward(sequence, tokens[:wanted], wanted=wanted)
    assert len(fused) == 2 * 2 + 1  # a whole step, whatever its rows
    runner.forward(sequence, tokens[:3], wanted=1)
    assert len(fused) == 2 * 2 + 2  # the same without the head


@pytest.mark.parametrize("watched", [False, True])
def test_a_step_is_one_native_call(bundle, tokens, whole, monkeypatch, watched):
    """Watched too: a breakdown times the call that an unwatched step makes."""
    told, calls = [], []
    runner = make_runner(bundle, chunk=64, watch=(lambda *run: told.append(run)) if watched else None)
    for name in ("run", "run_row"):
        real = getattr(Program, name)
        monkeypatch.setattr(Program, name, lambda *given, r=real, n=name, **how: calls.append(n) or r(*given, **how))
    first, second = runner.open(), runner.open()
    runner.forward(first, tokens[:70])
    runner.forward(second, tokens[:90])
    for segments in ([Segment(first, tokens[70:71])], [Segment(first, tokens[71:75], 4), Segment(second, tokens[90:91])]):
        calls.clear()
        told.clear()
        start = first.length
        logits = runner.run(segments)
        assert calls == ["run"]  # whatever its rows
        assert np.array_equal(logits[0], whole[start : start + len(segments[0].tokens)])
    calls.clear()
    logits = runner.forward(first, tokens[75:76])
    assert calls == ["run_row"]  # one row alone, from now on
    assert np.array_equal(logits, whole[75:76])
    if watched:
        (ops, positions, _), (same_ops, position, seconds) = told  # of the last `run`, and of `run_row`
        assert (positions.tolist(), position.tolist()) == ([71, 72, 73, 74, 90], [75])
        assert [(one.part, one.op, one.calls) for one in same_ops] == [(one.part, one.op, one.calls) for one in ops]
        assert (seconds > 0).all()


@pytest.mark.parametrize("most", [0, 10**5, 10**6, 10**12])
def test_a_prompt_goes_through_a_few_layers_at_a_time(bundle, tokens, whole, monkeypatch, most):
    monkeypatch.setattr(model, "STRETCH", most)
    runner, asked, traces = make_runner(bundle, chunk=64, window=2), [], []
    runner.on_trace = traces.append
    logits = runner.run([Segment(runner.open(), tokens, len(tokens))], cancel=lambda: asked.append(True))[0]
    assert np.array_equal(logits, whole)
    assert len(asked) == sum(len(trace.spans) for trace in traces)  # before every task
    layers, windows = bundle.decoder.layers, list(split(0, PROMPT, 2 * 64))
    for trace, (first, end) in zip(traces, windows, strict=True):
        linears = 64 * sum(one.rows * one.columns for one in layers[0].linears)
        attention = 2 * bundle.decoder.attentions[0].q_size * max(sum(range(a + 1, b + 1)) for a, b in split(first, end, 64))
        at_once = max(1, min(len(layers), most // (linears + attention)))
        chunks = len(list(split(first, end, 64)))
        assert len(trace.spans) == chunks * (1 + -(-len(layers) // at_once))  # of every chunk: the embedding, and layers


def test_a_task_of_a_deep_prompt_has_fewer_layers(bundle, tokens, whole, monkeypatch):
    """Attention grows with the tokens before; what no task may exceed, for it cannot be cancelled, does not."""
    layers, keys = bundle.decoder.layers, sum(range(1, 64 + 1))
    of_a_layer = 64 * sum(one.rows * one.columns for one in layers[0].linears) + 2 * bundle.decoder.attentions[0].q_size * keys
    monkeypatch.setattr(model, "STRETCH", len(layers) * of_a_layer)
    runner, traces = make_runner(bundle, chunk=64), []
    runner.on_trace = traces.append
    sequence = runner.open()
    for start in (0, 64):
        logits = runner.forward(sequence, tokens[start : start + 64])
        assert np.array_equal(logits, whole[start + 63 : start + 64])
    assert len(traces[0].spans) == 2 < len(traces[1].spans)


def test_programs_hold_no_activations_of_their_own(bundle, tokens, whole, monkeypatch):
    """There is a program for every run of layers and chunk of a window; what they work in is the model's, and counted there."""
    monkeypatch.setattr(program, "np", None)
    runner = make_runner(bundle, chunk=64, window=4)
    assert np.array_equal(runner.forward(runner.open(), tokens, wanted=len(tokens)), whole)


def test_a_prompt_longer_than_the_context_is_refused_and_changes_nothing(bundle, tokens):
    runner = make_runner(bundle, context=100)
    sequence = runner.open()
    runner.forward(sequence, tokens[:40])
    with pytest.raises(ContextOverflow, match="maximum context length is 100 tokens, but the prompt has 101"):
        runner.forward(sequence, tokens[:61])
    assert sequence.length == 40
    with pytest.raises(OutOfMemory):
        runner.forward(runner.open(), tokens[:99])
    assert runner.memory.pages.free == 4


def test_cancelling_leaves_the_sequence_as_it_was(bundle, tokens, whole):
    runner = make_runner(bundle, chunk=8, window=2)
    sequence = runner.open()
    runner.forward(sequence, tokens[:20])
    asked = iter([False] * 30 + [True] * 1000)
    with pytest.raises(Cancelled):
        runner.forward(sequence, tokens[20:], cancel=lambda: next(asked))
    assert (sequence.length, len(sequence.table)) == (20, 2)
    assert np.array_equal(runner.forward(sequence, tokens[20:], wanted=PROMPT - 20), whole[20:])


def test_activations_that_are_no_numbers_are_an_error(bundle, tokens):
    runner = make_runner(bundle)
    resident = runner.model.weights
    weights = resident.use(0)
    gain = np.full_like(weights.gains["attention_norm"], np.inf)
    broken = replace(weights, gains={**weights.gains, "attention_norm": gain})
    resident._layers = (broken, *resident._layers[1:])
    for prompt in (tokens[:20], tokens[:1]):
        with pytest.raises(NumericError):
            runner.forward(runner.open(), prompt)
