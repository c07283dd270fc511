"""Programs: what runs as one call gives the bits of its calls one after the other, which the reference defines."""

import copy
import os
import time
from dataclasses import dataclass

import numpy as np
import pytest

from edge_llm import kernels
from edge_llm.kernels import layout, linear, reference
from edge_llm.kernels.activation import GELU_TANH, RELU_SQUARED, clamped_silu
from edge_llm.kernels.checksum import crc32c
from edge_llm.kernels.program import Program
from edge_llm.kernels.range_reader import RangeReader

HIDDEN, HEADS, KV_HEADS, DIM, MOST, PAGES, POSITIONS, VOCABULARY = 48, 4, 2, 16, 20, 9, 64, 70
WIDTHS = (48, 40)
"""Of SwiGLU: in one pass with its linear, and apart from it."""
EPS = 1e-5


def weight_of(random, n, k, hot):
    """A weight as the arguments of `reference.linear` behind x."""
    weight = random.integers(-127, 128, (n, k)).astype(np.int8)
    hot_index = np.sort(random.choice(k, hot, replace=False)).astype(np.int32)
    weight[:, hot_index] = 0
    tiles = layout.pack_tiles(weight)
    scale = (random.random(n) * 1e-3).astype(np.float32)
    hot_weight = random.standard_normal((hot, n)).astype(np.float16) / 8
    return tiles, n, 0.03, scale, layout.row_sums(tiles, n), hot_index, hot_weight


def native(weight, k):
    tiles, n, input_scale, scale, row_sum, hot, hot_weight = weight
    return linear.Int8Linear(tiles, n, k, input_scale, scale, row_sum, hot, hot_weight, None)


def in_parts(weight, k):
    """The same with its first channels apart."""
    tiles, n, input_scale, *vectors = weight
    return linear.Int8Linear.of_parts([tiles[:1], tiles[1:]], [16, n - 16], k, input_scale, *vectors, None)


@dataclass
class Layer:
    """The arrays and weights of a layer, and of a table of tokens; a copy has the same contents elsewhere."""

    hidden: np.ndarray
    qkv: np.ndarray
    attended: np.ndarray
    gate_up: np.ndarray
    normed: np.ndarray
    pages: tuple[np.ndarray, ...]
    weights: dict
    gains: dict
    met: np.ndarray | None = None

    def fill(self, program, weight):
        """Add all calls to ``program``, with weights as ``weight`` makes them; the last writes to the output of a run."""
        cos, sin, norm = self.gains["cos"], self.gains["sin"], self.gains["norm"]
        tiles, _, _, scale, _, hot, hot_weight = self.weights["table"]
        program.embedding(tiles, HIDDEN, scale, hot, hot_weight, out=self.hidden)
        program.linear(self.hidden, weight("qkv", HIDDEN), gain=norm, eps=EPS, out=self.qkv)
        program.rope_append(
            self.qkv, HEADS, KV_HEADS, DIM, cos, sin, self.gains["q"], None, EPS, self.gains["offset"], *self.pages
        )
        q = self.qkv[:, : HEADS * DIM].reshape(-1, HEADS, DIM)
        program.paged_attention(q, *self.pages, DIM**-0.5, out=self.attended.reshape(-1, HEADS, DIM))
        program.linear(self.attended, weight("o", HEADS * DIM), add=self.hidden, out=self.hidden)
        program.linear(self.hidden, weight("gate_up", HIDDEN), gain=norm, swiglu=True, shadow=False, out=self.gate_up)
        program.linear(self.gate_up, weight("down", self.gate_up.shape[1]), add=self.hidden, out=self.hidden)
        program.rms_norm(self.hidden, norm, EPS, out=self.normed)
        program.linear(self.normed, weight("table", HIDDEN), out=None)

    @property
    def arrays(self):
        return self.hidden, self.qkv, self.attended, self.gate_up, self.normed, *self.pages


def layer_of(seed):
    random, width = np.random.default_rng(seed), WIDTHS[seed % 2]
    sizes = {"qkv": ((HEADS + 2 * KV_HEADS) * DIM, HIDDEN), "o": (HIDDEN, HEADS * DIM), "gate_up": (2 * width, HIDDEN),
             "down": (HIDDEN, width), "table": (VOCABULARY, HIDDEN)}  # fmt: skip
    shape = (PAGES, KV_HEADS, 16, DIM)
    angle = random.random((POSITIONS, DIM // 2))
    return Layer(
        hidden=random.standard_normal((MOST, HIDDEN)).astype(np.float32),
        qkv=np.zeros((MOST, sizes["qkv"][0]), np.float32),
        attended=np.zeros((MOST, HEADS * DIM), np.float32),
        gate_up=np.zeros((MOST, width), np.float32),
        normed=np.zeros((MOST, HIDDEN), np.float32),
        pages=(
            random.integers(-127, 128, shape).astype(np.int8), random.random(shape[:3]).astype(np.float16),
            random.integers(-127, 128, shape).astype(np.int8), random.random(shape[:3]).astype(np.float16),
        ),
        weights={name: weight_of(random, *size, hot=seed % 3) for name, size in sizes.items()},
        gains={
            "norm": random.random(HIDDEN).astype(np.float32), "q": random.random(DIM).astype(np.float32),
            "offset": random.standard_normal((KV_HEADS, DIM)).astype(np.float32),
            "cos": np.cos(angle).astype(np.float32), "sin": np.sin(angle).astype(np.float32),
        },
    )  # fmt: skip


def rows_of(random, count):
    """Rows of up to two sequences: tokens, positions, slots, sequences, page table."""
    first = count // 2 if random.random() < 0.5 else count
    starts = random.integers(0, 30, 2)
    positions = np.concatenate([starts[0] + np.arange(first), starts[1] + np.arange(count - first)]).astype(np.int32)
    sequence = np.repeat(np.arange(2, dtype=np.int32), (first, count - first))
    table = random.permutation(PAGES)[:8].reshape(2, 4).astype(np.int32)
    slots = table[sequence, positions // 16].astype(np.int64) * 16 + positions % 16
    tokens = random.integers(0, VOCABULARY, count)
    return tokens, positions, slots, sequence, table


@pytest.mark.thorough(keep=4)
@pytest.mark.parametrize("seed", range(4))
def test_a_program_gives_the_bits_of_the_reference(isa, pools, seed):
    for pool in pools:
        theirs = layer_of(seed)
        ours = copy.deepcopy(theirs)
        program, walked = Program(), reference.Program()
        made = in_parts if seed > 1 else native
        ours.fill(program, lambda name, k, layer=ours, made=made: made(layer.weights[name], k))
        theirs.fill(walked, lambda name, k, layer=theirs: layer.weights[name])
        random = np.random.default_rng([seed, 1])
        for count in (1, 3, MOST, 1):
            rows = rows_of(random, count)
            logits, expected = logits_of(count), logits_of(count)
            program.run(*rows, pool, logits)
            walked.run(*rows, expected)
            for mine, other in zip((*ours.arrays, logits), (*theirs.arrays, expected), strict=True):
                np.testing.assert_array_equal(mine[:].view(np.uint8), other[:].view(np.uint8))


def fill_as_families_do(layer, program, weight):
    """Norms behind a sublayer, norms of all queries, gates, windows, caps, sinks: what `Layer.fill` does not take."""
    gains, norm = layer.gains, layer.gains["norm"]
    cos, sin = (np.ascontiguousarray(gains[name][:, : DIM // 4]) for name in ("cos", "sin"))
    program.layer_norm(layer.hidden, norm, norm, EPS, out=layer.normed)
    program.linear(layer.normed, weight("qkv", HIDDEN), out=layer.qkv)
    queries = layer.qkv[:, : HEADS * DIM]
    program.rms_norm(queries, gains["queries"], EPS, out=queries)
    program.rope_append(
        layer.qkv, HEADS, KV_HEADS, DIM, cos, sin, gains["q"], gains["q"], EPS, gains["offset"], *layer.pages,
        v_gain=gains["q"], norm_last=True, q_scale=gains["factor"],
    )  # fmt: skip
    how = {"window": 5, "cap": 4.0, "sinks": gains["sinks"]}
    attended = layer.attended.reshape(-1, HEADS, DIM)
    program.paged_attention(queries.reshape(-1, HEADS, DIM), *layer.pages, DIM**-0.5, out=attended, **how)
    program.linear(layer.attended, weight("o", HEADS * DIM), out=layer.normed)
    program.rms_norm(layer.normed, norm, EPS, out=layer.hidden, add=layer.hidden)
    program.linear(layer.hidden, weight("gate_up", HIDDEN), gain=norm, gate=GELU_TANH, out=layer.gate_up)
    program.activate(layer.gate_up, RELU_SQUARED, out=layer.gate_up)
    program.linear(layer.gate_up, weight("down", layer.gate_up.shape[1]), out=layer.normed)
    program.gated(layer.qkv, clamped_silu(2.0), out=layer.met)
    program.layer_norm(layer.normed, norm, None, EPS, out=layer.hidden, add=layer.hidden)
    program.linear(layer.hidden, weight("table", HIDDEN), out=None)


@pytest.mark.parametrize("seed", range(4))
def test_a_program_of_what_families_need_gives_the_bits_of_the_reference(isa, pools, seed):
    theirs, random = layer_of(seed), np.random.default_rng([seed, 3])
    more = {"queries": HEADS * DIM, "factor": POSITIONS, "sinks": HEADS}
    theirs.gains |= {name: random.standard_normal(size).astype(np.float32) for name, size in more.items()}
    theirs.met = np.zeros((MOST, theirs.qkv.shape[1] // 2), np.float32)
    ours = copy.deepcopy(theirs)
    program, walked = Program(), reference.Program()
    fill_as_families_do(ours, program, lambda name, k: native(ours.weights[name], k))
    fill_as_families_do(theirs, walked, lambda name, k: theirs.weights[name])
    for count in (1, 3, MOST, 1):
        rows = rows_of(random, count)
        logits, expected = logits_of(count), logits_of(count)
        program.run(*rows, pools[seed], logits)
        walked.run(*rows, expected)
        for mine, other in zip((*ours.arrays, ours.met, logits), (*theirs.arrays, theirs.met, expected), strict=True):
            np.testing.assert_array_equal(mine[:].view(np.uint8), other[:].view(np.uint8))


def test_pages_before_the_widest_window_of_a_program_may_be_gone(pools):
    random, layer = np.random.default_rng(0), layer_of(0)
    q, out = layer.qkv[:, : HEADS * DIM].reshape(-1, HEADS, DIM), layer.attended.reshape(-1, HEADS, DIM)
    layer.qkv[:] = random.standard_normal(layer.qkv.shape)
    table = np.array([[-1, 3, 5, 2]], np.int32)
    rows = np.zeros(1, np.int64), np.array([40], np.int32), np.array([-1]), np.zeros(1, np.int32)
    windowed = Program()
    for window in (4, 25):
        windowed.paged_attention(q, *layer.pages, 1.0, out=out, window=window)
    windowed.linear(layer.hidden, native(layer.weights["table"], HIDDEN), out=None)
    windowed.run(*rows, table, pools[0], logits_of(1))
    attended = layer.attended[0].copy()
    layer.attended[:] = 0
    windowed.run_row(0, 40, table[0], pools[0])
    np.testing.assert_array_equal(layer.attended[0], attended)
    windowed.paged_attention(q, *layer.pages, 1.0, out=out)
    with pytest.raises(ValueError, match="`page_table`"):
        windowed.run(*rows, table, pools[0], logits_of(1))
    with pytest.raises(ValueError, match="`page_table`"):
        windowed.run_row(0, 40, table[0], pools[0])


@pytest.mark.parametrize("seed", range(4))
def test_a_row_alone_gives_the_bits_of_a_run_of_one_row(isa, pools, seed):
    """Many positions of one sequence, native and as the reference walks them."""
    layers = [layer_of(seed) for _ in range(3)]
    program, alone, walked = whole_program(layers[0]), whole_program(layers[1]), reference.Program()
    layers[2].fill(walked, lambda name, k: layers[2].weights[name])
    random = np.random.default_rng([seed, 2])
    pages = random.permutation(PAGES)[:4].astype(np.int32)
    for position in range(0, 64, 7):
        token, slot = int(random.integers(VOCABULARY)), pages[position // 16] * 16 + position % 16
        pool, logits = pools[position % len(pools)], logits_of(1)
        one = np.array([position], np.int32), np.array([slot], np.int64), np.zeros(1, np.int32), pages[None]
        program.run(np.array([token]), *one, pool, logits)
        for found in (alone.run_row(token, position, pages, pool), walked.run_row(token, position, pages)):
            np.testing.assert_array_equal(found.view(np.uint8), logits.view(np.uint8))
        for arrays in zip(*(layer.arrays for layer in layers), strict=True):
            first, *others = [array[:1] if len(array) == MOST else array for array in arrays]
            for other in others:
                np.testing.assert_array_equal(first.view(np.uint8), other.view(np.uint8))


WRONG_ROW = {
    "a token beyond the table": (VOCABULARY, 0, np.arange(4, dtype=np.int32), "tokens"),
    "a negative token": (-1, 0, np.arange(4, dtype=np.int32), "tokens"),
    "a position beyond the pages": (0, 32, np.arange(2, dtype=np.int32), "position"),
    "a position beyond the tables": (0, POSITIONS, np.arange(8, dtype=np.int32), "position"),
    "a negative position": (0, -1, np.arange(4, dtype=np.int32), "position"),
    "no pages": (0, 0, np.arange(0, dtype=np.int32), "position"),
    "a page that there is not": (0, 20, np.array([0, PAGES], np.int32), "page_table"),
    "a negative page": (0, 0, np.array([-1], np.int32), "page_table"),
    "pages of another type": (0, 0, np.arange(4), "pages"),
    "pages in rows": (0, 0, np.zeros((1, 4), np.int32), "pages"),
}


@pytest.mark.parametrize("wrong", WRONG_ROW)
def test_a_row_out_of_range_is_refused_before_anything_is_computed(pools, wrong):
    layer = layer_of(0)
    before = [array.copy() for array in layer.arrays]
    token, position, pages, name = WRONG_ROW[wrong]
    with pytest.raises(ValueError, match=name):
        whole_program(layer).run_row(token, position, pages, pools[0])
    for array, was in zip(layer.arrays, before, strict=True):
        np.testing.assert_array_equal(array, was)


def test_a_row_alone_needs_an_output_and_no_readings(tmp_path, pools):
    with pytest.raises(ValueError, match="`run`"):
        Program().run_row(0, 0, np.zeros(1, np.int32), pools[0])
    _, program, _ = streams(tmp_path)[0]
    with pytest.raises(ValueError, match="`run`"):
        program.run_row(0, 0, np.zeros(1, np.int32), pools[0])


def test_a_row_alone_that_is_not_finite_is_told(pools):
    layer = layer_of(1)
    layer.weights["table"][3][5] = np.nan
    with pytest.raises(ValueError, match="non-finite activation"):
        whole_program(layer).run_row(5, 0, np.zeros(1, np.int32), pools[1])


def test_seconds_are_added_up_for_every_call_that_ran(pools):
    plain, timed, rows = layer_of(0), layer_of(0), rows_of(np.random.default_rng(0), MOST)
    program, seconds = whole_program(timed), np.zeros(len(whole_program(timed)))
    expected, logits = logits_of(MOST), logits_of(MOST)
    whole_program(plain).run(*rows, pools[1], expected)
    started = time.perf_counter()
    program.run(*rows, pools[1], logits, seconds=seconds)
    assert 0 < seconds.sum() <= time.perf_counter() - started
    assert (seconds > 0).all()
    first = seconds.copy()
    program.run(*rows, pools[1], logits, start=3, seconds=seconds)
    assert ((seconds > first) == (np.arange(len(program)) >= 3)).all()
    program.run(*rows, pools[1], logits)
    np.testing.assert_array_equal(logits.view(np.uint8), expected.view(np.uint8))
    row, first = (3, 2, np.arange(4, dtype=np.int32), pools[1]), seconds.copy()
    np.testing.assert_array_equal(program.run_row(*row, seconds=seconds), whole_program(plain).run_row(*row))
    assert (seconds > first).all()


@pytest.mark.parametrize("seconds", [np.zeros(3), np.zeros(10, np.float32), np.zeros(20)[::2]])
def test_seconds_must_be_one_for_each_call(pools, seconds):
    program = whole_program(layer_of(1))
    assert len(program) == 10  # SwiGLU is a call of its own there
    with pytest.raises(ValueError, match="`seconds`"):
        program.run(*rows_of(np.random.default_rng(0), 4), pools[0], logits_of(4), seconds=seconds)
    with pytest.raises(ValueError, match="`seconds`"):
        program.run_row(0, 0, np.arange(4, dtype=np.int32), pools[0], seconds=seconds)


def logits_of(count):
    return np.full((count, VOCABULARY), np.nan, np.float32)


def whole_program(layer):
    program = Program()
    layer.fill(program, lambda name, k: native(layer.weights[name], k))
    return program


WRONG = {
    "a token beyond the table": (lambda rows: rows[0].__setitem__(0, VOCABULARY), "tokens"),
    "a negative token": (lambda rows: rows[0].__setitem__(0, -1), "tokens"),
    "a position beyond the tables": (lambda rows: rows[1].__setitem__(0, POSITIONS), "positions"),
    "a negative position": (lambda rows: rows[1].__setitem__(0, -2), "positions"),
    "a slot beyond the pages": (lambda rows: rows[2].__setitem__(0, PAGES * 16), "slots"),
    "a sequence that there is not": (lambda rows: rows[3].__setitem__(0, 2), "row_sequence"),
    "a page that there is not": (lambda rows: rows[4].fill(PAGES), "page_table"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_rows_out_of_range_are_refused_before_anything_is_computed(pools, wrong):
    layer = layer_of(0)
    before = [array.copy() for array in layer.arrays]
    spoil, name = WRONG[wrong]
    rows = rows_of(np.random.default_rng(0), 4)
    spoil(rows)
    with pytest.raises(ValueError, match=name):
        whole_program(layer).run(*rows, pools[0], logits_of(4))
    for array, was in zip(layer.arrays, before, strict=True):
        np.testing.assert_array_equal(array, was)


def test_more_rows_than_the_arrays_have_are_refused(pools):
    with pytest.raises(ValueError, match="at most `20` rows"):
        whole_program(layer_of(0)).run(*rows_of(np.random.default_rng(0), MOST + 1), pools[0], logits_of(MOST + 1))


@pytest.mark.parametrize("at", range(5))
def test_arrays_of_rows_must_agree(pools, at):
    rows = [*rows_of(np.random.default_rng(0), 4)]
    rows[at] = rows[at][:-1] if at < 4 else rows[at].astype(np.int64)
    with pytest.raises(ValueError, match="tokens|slots|row_sequence|page_table"):
        whole_program(layer_of(0)).run(*rows, pools[0], logits_of(4))


@pytest.mark.parametrize("out", [None, logits_of(3), logits_of(4)[:, 1:], logits_of(4).astype(np.float64), logits_of(8)[::2]])
def test_the_output_of_a_run_must_fit(pools, out):
    with pytest.raises(ValueError, match="`out`"):
        whole_program(layer_of(0)).run(*rows_of(np.random.default_rng(0), 4), pools[0], out)


def test_one_linear_writes_to_the_output_of_a_run():
    layer = layer_of(0)
    with pytest.raises(ValueError, match="`out`"):
        whole_program(layer).linear(layer.hidden, native(layer.weights["table"], HIDDEN), out=None)


def test_a_value_that_is_not_finite_is_told_and_the_program_goes_on_to_work(pools):
    layer = layer_of(1)
    program, rows = whole_program(layer), rows_of(np.random.default_rng(0), 2)
    scale = layer.weights["table"][3]
    kept = scale.copy()
    scale[rows[0][1]] = np.nan
    with pytest.raises(ValueError, match="non-finite activation"):
        program.run(*rows, pools[1], logits_of(2))
    scale[:] = kept
    program.run(*rows, pools[1], logits_of(2))
    assert np.isfinite(layer.hidden).all()


def test_a_program_keeps_its_arrays(pools):
    layer = layer_of(2)
    program, hidden, rows = whole_program(layer), layer.hidden, rows_of(np.random.default_rng(0), 2)
    expected = copy.deepcopy(layer)
    whole_program(expected).run(*rows, pools[0], logits_of(2))
    del layer
    junk = [np.full((MOST, HIDDEN), np.nan, np.float32) for _ in range(100)]
    program.run(*rows, pools[0], logits_of(2))
    np.testing.assert_array_equal(hidden, expected.hidden)
    assert junk


@pytest.mark.parametrize("name", ["x", "out", "gain"])
def test_a_wrong_array_is_named_when_it_is_added(name):
    layer = layer_of(0)
    arrays = {"x": layer.hidden, "out": layer.qkv, "gain": layer.gains["norm"]}
    arrays[name] = arrays[name].astype(np.float64)
    with pytest.raises(ValueError, match=f"`{name}`"):
        Program().linear(arrays["x"], native(layer.weights["qkv"], HIDDEN), gain=arrays["gain"], out=arrays["out"])


def test_an_empty_program_does_nothing_for_any_rows(pools):
    Program().run(*rows_of(np.random.default_rng(0), 4), pools[0])
    none, nobody = np.empty(0, np.int64), np.empty(0, np.int32)
    Program().run(none, nobody, none, nobody, np.zeros((1, 1), np.int32), pools[0])


class Streamed:
    """Two weights in a file, which take turns in one buffer, and a program that reads and multiplies them."""

    def __init__(self, folder, seed=0):
        random = np.random.default_rng(seed)
        self.weights = [weight_of(random, 64, 64, hot=2) for _ in range(2)]
        self.path = folder / "weights"
        self.path.write_bytes(b"".join(weight[0].tobytes() for weight in self.weights))
        self.buffer, self.x = np.zeros(4096, np.uint8), random.standard_normal((MOST, 64)).astype(np.float32)
        self.out = [np.zeros((MOST, 64), np.float32) for _ in self.weights]
        reader, descriptor, ends = RangeReader(2, 4096), os.open(self.path, os.O_RDONLY), np.array([100, 4096])
        first = reader.start(descriptor, self.buffer, 0, ends)
        first.wait()
        other = reader.start(descriptor, self.buffer, 4096, ends, beside=first)
        other.wait()
        os.close(descriptor)
        self.readings = [first, other]
        self.checksums = [np.array([crc32c(part) for part in np.split(weight[0].reshape(-1).view(np.uint8), [100])], np.uint32)
                          for weight in self.weights]  # fmt: skip

    def fill(self, program, weight):
        """The numbers of the waits of ``program``."""
        tiles = self.buffer.view(np.int8).reshape(self.weights[0][0].shape)
        waits, x = [], self.x
        for own, reading, checksums, out in zip(self.weights, self.readings, self.checksums, self.out, strict=True):
            program.request(reading)
            waits.append(program.wait(reading, checksums))
            program.linear(x, weight((tiles, *own[1:])), out=out)
            x = out
        return waits

    def expected(self):
        first, last = (np.zeros_like(out) for out in self.out)
        program = Program()
        program.linear(self.x, native(self.weights[0], 64), out=first)
        program.linear(first, native(self.weights[1], 64), out=last)
        return program, last


def streams(tmp_path):
    """The same program twice: native, and as the reference walks it; and what runs each."""
    found = []
    for name, program, weight in (
        ("native", Program(), lambda arguments: native(arguments, 64)),
        ("reference", reference.Program(), lambda arguments: arguments),
    ):
        (tmp_path / name).mkdir()
        streamed = Streamed(tmp_path / name)
        found.append((streamed, program, streamed.fill(program, weight)))
    return found


def run(program, rows, pool, **how):
    return program.run(*rows, pool, **how) if isinstance(program, Program) else program.run(*rows, **how)


def test_a_program_reads_its_weights_on_the_way(tmp_path, pools):
    rows = rows_of(np.random.default_rng(0), 5)
    for streamed, program, waits in streams(tmp_path):
        resident, expected = streamed.expected()
        resident.run(*rows, pools[2])
        for pool in pools:
            streamed.out[-1][:] = 0
            assert run(program, rows, pool) == waits[-1] + 2
            np.testing.assert_array_equal(streamed.out[-1], expected)
        stopped = [run(program, rows, pools[0], patience=0.0)]  # at every wait, if it has no patience
        streamed.readings[0].wait()
        streamed.out[-1][:] = 0
        stopped.append(run(program, rows, pools[0], start=stopped[-1] + 1, patience=0.0))
        streamed.readings[1].wait()
        assert stopped == waits
        assert run(program, rows, pools[0], start=stopped[-1] + 1, patience=0.0) == waits[-1] + 2
        np.testing.assert_array_equal(streamed.out[-1], expected)


@pytest.mark.parametrize("damage", ["byte", "end"])
def test_a_program_stops_where_a_read_does_not_come_whole(tmp_path, pools, damage):
    rows = rows_of(np.random.default_rng(0), 5)
    for streamed, program, waits in streams(tmp_path):
        resident, expected = streamed.expected()
        resident.run(*rows, pools[2])
        whole = streamed.path.read_bytes()
        for place in (1, 0):
            damaged = bytearray(whole if damage == "byte" else whole[: 4096 * place + 1000])
            damaged[4096 * place + 300] ^= 4
            with streamed.path.open("r+b") as file:
                file.write(damaged)
                file.truncate()
            before = streamed.out[place].copy()
            assert [run(program, rows, pools[2]) for _ in range(2)] == [waits[place]] * 2
            np.testing.assert_array_equal(streamed.out[place], before)
            with streamed.path.open("r+b") as file:
                file.write(whole)
            assert run(program, rows, pools[2]) == waits[-1] + 2
            np.testing.assert_array_equal(streamed.out[-1], expected)


def test_wrong_waits_and_starts_are_refused(tmp_path, pools):
    (streamed, program, _), _ = streams(tmp_path)
    with pytest.raises(ValueError, match="`checksums`"):
        program.wait(streamed.readings[0], streamed.checksums[0][:1])
    for start in (-1, 7):
        with pytest.raises(ValueError, match=r"`start` must be in 0\.\.6"):
            run(program, rows_of(np.random.default_rng(0), 1), pools[0], start=start)


def test_all_instruction_sets_share_one_program(pools):
    chosen = kernels.isa()
    layers = [layer_of(3) for _ in kernels.isa_variants()]
    rows = rows_of(np.random.default_rng(3), 5)
    try:
        for name, layer in zip(kernels.isa_variants(), layers, strict=True):
            program = whole_program(layer)
            kernels.use_isa(name)
            program.run(*rows, pools[2], logits_of(5))
    finally:
        kernels.use_isa(chosen)
    for layer in layers[1:]:
        np.testing.assert_array_equal(layer.hidden, layers[0].hidden)
