"""Every runner gives exactly the rows that are wanted, and the same ones however a prompt is cut."""

import json
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.bench.synthetic import write_random
from edge_llm.config import GenerationParams, LlamaConfig, RuntimeConfig
from edge_llm.engine.batcher import Batcher, Limits
from edge_llm.engine.generation import Generation
from edge_llm.engine.request import Request
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.models import load_config
from edge_llm.models.reference import FloatModel
from edge_llm.opening.carry_out import open_runner
from edge_llm.opening.machine import this_machine
from edge_llm.opening.resolve import resolve
from edge_llm.runner.base import Cancelled, Runner, Segment
from edge_llm.runner.float_path import FloatRunner
from edge_llm.text.tokenizer import Tokenizer

CONTEXT = 96
CONFIG = LlamaConfig(
    family="qwen2", vocab_size=300, hidden_size=32, intermediate_size=64, num_layers=4, num_heads=4, num_kv_heads=2,
    head_dim=8, context=CONTEXT, norm_eps=1e-6, rope_theta=1e4, tied_embeddings=True, qkv_bias=True,
)  # fmt: skip
INT8 = {
    "host": {},
    "emulated": {"device": "emulated:310p"},
    "streamed": {"memory": "70%"},
}
RUNNERS = (*INT8, "float")
WANTED = st.sampled_from([0, 0, 1, 2, 7, 60])


@dataclass
class Subject:
    """A runner, and the logits that it gives token by token."""

    runner: Runner
    vocab: int
    same_bits: bool

    @cached_property
    def prompt(self):
        return [(7 * i + 3) % self.vocab for i in range(CONTEXT)]

    @cached_property
    def rows(self):
        """Row i is that of token i of the prompt."""
        sequence = self.runner.open()
        rows = np.concatenate([self.runner.forward(sequence, [token]) for token in self.prompt])
        sequence.close()
        return rows

    def assert_same(self, rows, expected):
        if self.same_bits:
            np.testing.assert_array_equal(rows, expected)
        else:  # a product of matrices rounds as its shape wants
            np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def subjects(tmp_path_factory, tiny_model):
    folder = tmp_path_factory.mktemp("random")
    write_random(folder, CONFIG)
    bundle = open_bundle(folder)
    made = {}
    for name, options in INT8.items():
        runtime = RuntimeConfig(threads=1, context=CONTEXT, kv_tokens=4 * CONTEXT, chunk=16, window=2, **options)
        made[name] = Subject(open_runner(resolve(runtime, this_machine(), bundle)), CONFIG.vocab_size, same_bits=True)
    model = float_model(tiny_model())
    made["float"] = Subject(FloatRunner(model, CONTEXT), model.config.vocab_size, same_bits=False)
    return made


def float_model(folder):
    with open_model_folder(folder) as opened:
        return FloatModel(opened, load_config(json.loads((folder / "config.json").read_text())))


@pytest.mark.parametrize("name", RUNNERS)
@settings(max_examples=25, deadline=None)
@given(pieces=st.lists(st.tuples(st.integers(1, 40), WANTED), min_size=1, max_size=4), chunk=st.sampled_from([1, 3, 16, 128]))
def test_a_piece_gives_the_wanted_rows_of_its_last_tokens(subjects, name, pieces, chunk):
    subject = subjects[name]
    if name == "float":
        subject.runner.chunk = chunk
    sequence = subject.runner.open()
    for count, most in pieces:
        start, end = sequence.length, min(CONTEXT, sequence.length + count)
        if start == end:
            break
        wanted = min(most, end - start)
        rows = subject.runner.forward(sequence, subject.prompt[start:end], wanted=wanted)
        assert rows.shape == (wanted, subject.vocab) and rows.dtype == np.float32
        assert sequence.length == end
        subject.assert_same(rows, subject.rows[end - wanted : end])
    sequence.close()


@pytest.mark.parametrize("name", RUNNERS)
def test_segments_of_one_step_get_their_own_rows(subjects, name):
    runner = subjects[name].runner
    segments = [Segment(runner.open(), range(1, 30), wanted) for wanted in (0, 3, 29, 0, 1)]
    rows = runner.run(segments)
    assert [len(one) for one in rows] == [0, 3, 29, 0, 1]
    subjects[name].assert_same(rows[1], rows[2][-3:])
    for segment in segments:
        segment.sequence.close()


@pytest.mark.parametrize("name", RUNNERS)
def test_a_cancelled_piece_leaves_the_sequence_as_it_was(subjects, name):
    runner = subjects[name].runner
    sequence = runner.open()
    runner.forward(sequence, [1, 2, 3])
    with pytest.raises(Cancelled):
        runner.forward(sequence, range(40), cancel=lambda: True)
    assert sequence.length == 3
    sequence.close()


@pytest.mark.parametrize("name", INT8)
def test_a_step_that_fails_leaves_sequence_and_pages_as_they_were(subjects, name):
    """A token that needs a new page: cancelled, out of range, and then as if nothing had been."""
    subject, memory = subjects[name], subjects[name].runner.memory
    sequence = subject.runner.open()
    subject.runner.forward(sequence, subject.prompt[:16])
    pages, free = sequence.table.tolist(), memory.pages.free
    for token, cancel, error in ((1, lambda: True, Cancelled), (subject.vocab, None, ValueError), (-1, None, ValueError)):
        with pytest.raises(error):
            subject.runner.forward(sequence, [token], cancel=cancel)
        assert (sequence.length, sequence.table.tolist(), memory.pages.free) == (16, pages, free)
    subject.assert_same(subject.runner.forward(sequence, [subject.prompt[16]]), subject.rows[16:17])
    sequence.close()


@pytest.mark.parametrize("step_tokens", [1, 5, 16, 40, 1024])
def test_a_float_answer_is_the_same_in_any_steps(tiny_model, step_tokens):
    folder = tiny_model()
    model = float_model(folder)
    tokenizer = Tokenizer.from_folder(folder, model.config.vocab_size)
    prompt = tuple(tokenizer.encode("hello world, the world in a line; " * 3))
    assert len(prompt) > 40

    def answer(limits):
        runner = FloatRunner(model, 256)
        runner.chunk = min(limits.step_tokens, 128)
        batcher = Batcher(runner, limits)
        request = Request(prompt, GenerationParams(max_tokens=12, ignore_eos=True, logprobs=1))
        batcher.add(Generation(request, tokenizer, most_tokens=100))
        deltas = []
        while batcher.running or batcher.waiting:
            deltas += [delta for _, delta in batcher.step()]
        return [one for delta in deltas for one in delta.logprobs]

    whole, cut = answer(Limits()), answer(replace(Limits(), step_tokens=step_tokens))
    assert [one.token for one in cut] == [one.token for one in whole]
    assert [one.logprob for one in cut] == pytest.approx([one.logprob for one in whole], abs=1e-4)
