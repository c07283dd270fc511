"""Steps whose program reads the streamed layers itself: the logits of resident weights, whatever comes in between."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.bench.synthetic import write_random
from edge_llm.config import LlamaConfig, RuntimeConfig
from edge_llm.devices import host_program
from edge_llm.devices.host import HostDevice
from edge_llm.devices.model import PlacedModel
from edge_llm.errors import CorruptBundle, StorageError
from edge_llm.formats import direct, layout
from edge_llm.formats.bundle import open_bundle
from edge_llm.models.rope import RopeTables
from edge_llm.runner.base import Cancelled, Segment
from edge_llm.runner.runner import Int8Runner
from edge_llm.schemes.int8_weight import Int8Product
from edge_llm.weights.memory_plan import NO_TABLES
from edge_llm.weights.plan import plan_memory
from edge_llm.weights.resident import ResidentWeights
from edge_llm.weights.sizes import EMBEDDING_ALONE, TABLES, WeightSizes
from edge_llm.weights.streamed import StreamedWeights
from edge_llm.weights.turns import RingTurns

CONFIG = LlamaConfig(
    family="llama", vocab_size=700, hidden_size=64, intermediate_size=100, num_layers=7, num_heads=4,
    num_kv_heads=2, head_dim=16, context=320, norm_eps=1e-5, rope_theta=1e4,
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def short_requests():
    """Requests of a page, so that a tiny layer takes many of them; pieces of tables that are as short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "REQUEST_BYTES", layout.BLOCK_ALIGNMENT)
        patch.setattr(layout, "PIECE_BYTES", layout.BLOCK_ALIGNMENT)
        yield


@pytest.fixture(scope="module", params=["int8", "w4"])
def folder(request, tmp_path_factory):
    """A model whose layers have this scheme."""
    path = tmp_path_factory.mktemp("model")
    write_random(path, CONFIG, seed=3, weights=request.param)
    return path


@pytest.fixture
def own_folder(folder, tmp_path):
    """A copy that a test may damage."""
    return Path(shutil.copytree(folder, tmp_path / "own"))


def plan_for(bundle, streamed, slots=2, *, tables=NO_TABLES):
    """The plan that streams so many layers, and these tables too."""
    sizes = WeightSizes.of_bundle(bundle)
    fixed = sizes.choices_of_tables[tables]
    held = sum(size.held for size in sizes.layers[: CONFIG.num_layers - streamed])
    scales = sum(size.held - size.stored for size in sizes.layers[:streamed])
    budget = fixed + held + slots * max(size.stored for size in sizes.layers) + scales
    plan = plan_memory(replace(sizes, fixed=fixed), budget, slots=slots)
    assert (len(plan.streamed), plan.slots) == (streamed, slots)
    return replace(plan, flash_tables=tables)


def runner_of(bundle, weights, watch=None):
    runtime = RuntimeConfig(chunk=32, kv_tokens=1024)
    return Int8Runner(bundle.config, weights, HostDevice(2), runtime, RopeTables(320), watch=watch)


class Programs:
    """Counts the steps that were one program, and those that were not."""

    def __init__(self, monkeypatch):
        self.taken = {True: 0, False: 0}
        real = PlacedModel.step_streamed

        def step_streamed(*given):
            done = real(*given)
            self.taken[done] += 1
            return done

        monkeypatch.setattr(PlacedModel, "step_streamed", step_streamed)

    @property
    def alone(self):
        """Whether every step since this was asked last was one program."""
        taken, self.taken = self.taken, {True: 0, False: 0}
        return taken[True] > 0 and not taken[False]


@pytest.fixture
def programs(monkeypatch):
    return Programs(monkeypatch)


def steps(runner, prompt=(5, 6, 7), count=6):
    """Logits of a prompt of a few tokens and of what is decoded after it."""
    sequence = runner.open()
    rows = [runner.forward(sequence, list(prompt))]
    rows += [runner.forward(sequence, [int(rows[-1].argmax())]) for _ in range(count)]
    return np.concatenate(rows)


def warm(runner, programs):
    """Take steps until they are programs."""
    steps(runner)
    assert programs.taken[True] > 0
    steps(runner)
    programs.taken = {True: 0, False: 0}


@pytest.mark.thorough(keep=1)
@settings(max_examples=25, deadline=None)
@given(
    shape=st.sampled_from([(3, 2), (4, 2), (4, 3), (5, 3), (7, 2), (7, 3)]),
    tables=st.sampled_from([NO_TABLES, EMBEDDING_ALONE, TABLES]),
    patience=st.sampled_from([0.0, 0.0005, 0.05]),
    python=st.booleans(),
    work=st.lists(
        st.tuples(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.booleans()), min_size=3, max_size=8
    ),
    random=st.randoms(use_true_random=False),
)
def test_streamed_is_resident(folder, shape, tables, patience, python, work, random):
    """Steps of some rows of some sequences, with the logits of all or of the last; now and then a prompt between them."""
    with open_bundle(folder) as bundle, pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_program, "LOOK_SECONDS", patience)
        if python:  # a step is many programs where a weight is multiplied between them, as one of float16 is
            patch.setattr(Int8Product, "add_to", lambda weight, *given, real=Int8Product.add_to, **how: (
                weight.rows != CONFIG.hidden_size and real(weight, *given, **how)))
        programs = Programs(patch)
        weights = StreamedWeights(bundle, plan_for(bundle, *shape, tables=tables))
        runners = runner_of(bundle, weights), runner_of(bundle, ResidentWeights(bundle))
        sequences = [[runner.open() for _ in range(3)] for runner in runners]
        for rows, every in work:
            tokens = [[random.randrange(CONFIG.vocab_size) for _ in range(count)] for count in rows]
            wanted = [count if every else 1 for count in rows]
            prompt = [random.randrange(CONFIG.vocab_size) for _ in range(40)] if random.random() < 0.2 else None
            found = []
            for runner, own in zip(runners, sequences, strict=True):
                segments = [Segment(own[i], tokens[i], wanted[i]) for i in range(len(rows))]
                found.append(runner.run(segments))
                if prompt is not None:
                    between = runner.open()
                    found[-1].append(runner.forward(between, prompt))
                    between.close()
            assert all(np.array_equal(mine, theirs) for mine, theirs in zip(*found, strict=True))
        assert programs.taken[True] >= len(work) - shape[1]
        weights.close()


def test_a_step_is_a_program_once_every_layer_was_where_it_will_be(folder, programs):
    with open_bundle(folder) as bundle:
        runner = runner_of(bundle, StreamedWeights(bundle, plan_for(bundle, 7)))
        runner.forward(runner.open(), list(range(1, 90)))
        sequence = runner.open()
        for _ in range(8):  # seven layers change their buffers from step to step
            runner.forward(sequence, [1])
        assert programs.taken == {False: 1, True: 7}


def test_a_watch_is_told_of_every_operation_of_a_streamed_step(folder, programs):
    told = []
    with open_bundle(folder) as bundle:
        weights = StreamedWeights(bundle, plan_for(bundle, 4))
        watched = runner_of(bundle, weights, lambda *run: told.append(run))
        plain = runner_of(bundle, ResidentWeights(bundle))
        warm(watched, programs)
        told.clear()
        sequence, other = watched.open(), plain.open()
        for _ in range(3):
            assert np.array_equal(watched.forward(sequence, [5]), plain.forward(other, [5]))
        assert programs.alone
    kinds = Counter(one.op.kind for ops, _, _ in told for one in ops)
    assert kinds["attention"] == kinds["rope_append"] == 3 * CONFIG.num_layers
    for ops, positions, seconds in told:
        assert len(positions) == 1
        calls = [call for one in ops for call in range(one.calls.start, one.calls.stop)]
        assert calls == sorted(set(calls))  # in order, and none is told twice: waits for layers are nobody's
        assert all(seconds[one.calls].sum() > 0 for one in ops)


def damage(path, layer, data):
    """Another byte, or a file that ends in the layer."""
    if data is None:
        os.truncate(path, layer.offset + 100)
    else:
        with path.open("r+b") as file:
            file.seek(layer.offset + 100)
            file.write(data)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("streamed", [4, 7])
def test_damage_is_told_as_the_graph_tells_it_and_a_repaired_file_works(own_folder, programs, streamed, cut):
    path = own_folder / "weights.bin"
    whole = path.read_bytes()
    with open_bundle(own_folder) as bundle:
        expected = steps(runner_of(bundle, ResidentWeights(bundle)))
        runner = runner_of(bundle, StreamedWeights(bundle, plan_for(bundle, streamed)))
        layers = [bundle.blocks[f"layers.{index}"] for index in runner.model.weights.streamed]
        warm(runner, programs)
        for layer in layers:
            damage(path, layer, None if cut else bytes([whole[layer.offset + 100] ^ 1]))
            said = []
            for traced in (None, lambda trace: None):  # a trace is of a graph
                runner.on_trace = traced
                sequence = runner.open()
                with pytest.raises(CorruptBundle) as error:
                    for _ in range(2):  # the first may find the layer in memory
                        runner.forward(sequence, [1])
                assert sequence.length <= 1
                said.append(str(error.value))
            if cut:  # at the first layer that is not in memory yet
                said = [re.sub(r"layers\.\d", "layers", each) for each in said]
            assert said[0] == said[1]
            runner.on_trace = None
            with path.open("r+b") as file:
                file.write(whole)
            assert np.array_equal(steps(runner), expected)
        steps(runner)
        assert programs.taken[True] > programs.taken[False]


def test_a_step_can_be_given_up_between_layers(folder, programs, monkeypatch):
    monkeypatch.setattr(host_program, "LOOK_SECONDS", 0.0)
    with open_bundle(folder) as bundle:
        expected = steps(runner_of(bundle, ResidentWeights(bundle)))
        runner = runner_of(bundle, StreamedWeights(bundle, plan_for(bundle, 4)))
        warm(runner, programs)
        sequence = runner.open()
        for most in range(6):
            looks = []

            def cancel(looks=looks, most=most):
                looks.append(1)
                return len(looks) > most

            if most < 5:  # before the step, and before each streamed layer
                with pytest.raises(Cancelled):
                    runner.forward(sequence, [1], cancel=cancel)
                assert (sequence.length, len(looks)) == (0, most + 1)
            else:
                runner.forward(sequence, [1], cancel=cancel)
                assert (sequence.length, len(looks)) == (1, 5)
            assert np.array_equal(steps(runner), expected)


@pytest.mark.parametrize("streamed", [4, 7])
def test_a_layer_that_was_read_and_never_used_is_right_in_a_program(folder, streamed):
    with open_bundle(folder) as bundle:
        expected = steps(runner_of(bundle, ResidentWeights(bundle)))
        for most in range(2 * streamed + 4):
            runner = runner_of(bundle, StreamedWeights(bundle, plan_for(bundle, streamed)))
            asked = iter(range(most))
            with pytest.raises(Cancelled):
                runner.forward(runner.open(), [1], cancel=lambda asked=asked: next(asked, None) is None)
            for _ in range(2):
                assert np.array_equal(steps(runner), expected)


def test_a_patient_program_comes_back_only_at_its_end(folder, programs, monkeypatch):
    monkeypatch.setattr(host_program, "LOOK_SECONDS", 3600.0)
    with open_bundle(folder) as bundle:
        weights = StreamedWeights(bundle, plan_for(bundle, 4))
        runner = runner_of(bundle, weights)
        warm(runner, programs)
        monkeypatch.setattr(weights, "wait", None)  # would fail if it were called
        assert np.array_equal(steps(runner, [3], 3), steps(runner_of(bundle, ResidentWeights(bundle)), [3], 3))
        assert programs.alone


@pytest.mark.parametrize("where", ["lend", "give_back"])
def test_an_interrupt_beside_a_program_leaves_nothing_wrong(folder, programs, monkeypatch, where):
    """What the program has read and Python was not told of must not be taken for what was there before."""
    with open_bundle(folder) as bundle:
        expected = steps(runner_of(bundle, ResidentWeights(bundle)))
        runner = runner_of(bundle, StreamedWeights(bundle, plan_for(bundle, 7)))
        warm(runner, programs)
        sequence, real = runner.open(), getattr(RingTurns, where)
        for before in (True, False):

            def interrupted(turns, *given, before=before):
                if not before:
                    real(turns, *given)
                raise KeyboardInterrupt

            monkeypatch.setattr(RingTurns, where, interrupted)
            with pytest.raises(KeyboardInterrupt):
                runner.forward(sequence, [1])
            monkeypatch.setattr(RingTurns, where, real)
            assert sequence.length == 0
            assert np.array_equal(steps(runner), expected)


def test_a_closed_file_is_an_error_as_for_the_graph(folder, programs):
    said = []
    for traced in (None, lambda trace: None):
        with open_bundle(folder) as bundle:
            runner = runner_of(bundle, StreamedWeights(bundle, plan_for(bundle, 7)))
            warm(runner, programs)
            runner.on_trace = traced
            runner.model.weights.close()  # the first layers of the next step are on their way
            with pytest.raises((StorageError, OSError, ValueError)) as error:
                runner.forward(runner.open(), [1])
            said.append((type(error.value), str(error.value)))
    assert said[0] == said[1]


def test_what_a_program_reads_keeps_nothing_alive(own_folder, programs):
    def held():
        """Descriptors of the model's files, which no other test has open."""
        return sum(os.path.realpath(each).startswith(str(own_folder)) for each in Path("/proc/self/fd").iterdir())

    with open_bundle(own_folder) as bundle:
        before = held()
        weights = StreamedWeights(bundle, plan_for(bundle, 7))
        opened = held() - before
        runner = runner_of(bundle, weights)
        warm(runner, programs)
        assert held() - before == opened + 1  # for all readings of all layers in both buffers
        del runner, weights
        assert held() == before


FORKED = """
import os, sys, warnings
import numpy as np
import test_runner_streams as streams
from edge_llm.formats import layout
from edge_llm.formats.bundle import open_bundle
from edge_llm.weights.streamed import StreamedWeights
from pathlib import Path

warnings.simplefilter("ignore")  # a fork of a process with threads, which is what is tried here
layout.PIECE_BYTES = layout.BLOCK_ALIGNMENT
with open_bundle(Path(sys.argv[1])) as bundle:
    runner = streams.runner_of(bundle, StreamedWeights(bundle, streams.plan_for(bundle, 7)))
    expected = [streams.steps(runner) for _ in range(2)][-1]
    for _ in range(5):
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(streams.steps(runner), expected) else 1)
        assert np.array_equal(streams.steps(runner), expected)
        assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_was_forked_takes_the_same_steps(folder):
    here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    ended = subprocess.run([sys.executable, "-c", FORKED, str(folder)], capture_output=True, text=True, timeout=120, env=here)
    assert (ended.returncode, ended.stderr) == (0, "")
