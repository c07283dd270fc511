"""Traces of routing: round trips, and files that were cut or changed."""

import resource

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_llm.errors import StorageError, UsageError
from edge_llm.weights import routing_trace
from edge_llm.weights.routing_trace import (
    RoutedStep,
    RoutingTrace,
    TracedShape,
    TraceWriter,
    decode_trace,
    encode_head,
    encode_step,
    read_trace,
)


@st.composite
def traces(draw):
    experts = draw(st.sampled_from([1, 2, 8, 256, 257, 65_534]))
    used = draw(st.integers(1, min(experts, 4)))
    sizes = draw(st.lists(st.sampled_from([0, 1, 3_340_000, 2**40]), min_size=1, max_size=4).filter(any))
    shape = TracedShape(experts, used, tuple(sizes))
    number = st.integers(0, experts - 1)
    row = st.sets(number, min_size=used, max_size=used).map(sorted) if experts > 2 else st.just(list(range(used)))
    steps = st.builds(
        lambda layer, rows, guess: RoutedStep(layer, np.array(rows, np.int64), guess),
        st.sampled_from([layer for layer, size in enumerate(sizes) if size]),
        st.lists(row, min_size=1, max_size=2),
        st.none() | st.sets(number, max_size=3).map(lambda guess: tuple(sorted(guess))),
    )
    return RoutingTrace(shape, tuple(draw(st.lists(steps, max_size=3))))


def as_bytes(trace):
    return encode_head(trace.shape) + b"".join(encode_step(trace.shape, step) for step in trace.steps)


def same(one, other):
    return one.shape == other.shape and [(s.layer, s.experts.tolist(), s.guess) for s in one.steps] == [
        (s.layer, s.experts.tolist(), s.guess) for s in other.steps
    ]


@given(traces())
def test_what_is_written_is_read(trace):
    assert same(decode_trace(as_bytes(trace), "t"), trace)


def test_a_writer_writes_what_is_encoded(tmp_path):
    shape = TracedShape(8, 2, (0, 100))
    step = RoutedStep(1, np.array([[0, 3], [2, 3]]), (1, 7))
    with TraceWriter(tmp_path / "t", shape) as writer:
        writer.add(step)
        writer.add(RoutedStep(1, step.experts))
    trace = read_trace(tmp_path / "t")
    assert (tmp_path / "t").read_bytes() == as_bytes(trace)
    assert trace.shape == shape
    assert [one.guess for one in trace.steps] == [(1, 7), None]
    assert trace.steps[0].wanted == (0, 2, 3)


@given(traces(), st.data())
def test_a_file_that_is_cut_has_its_first_steps_or_is_refused(trace, data):
    whole = as_bytes(trace)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        found = decode_trace(cut, "t")
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert as_bytes(found) == cut
        assert same(found, RoutingTrace(trace.shape, trace.steps[: len(found.steps)]))


@given(traces(), st.data())
def test_a_changed_byte_is_found(trace, data):
    changed = bytearray(as_bytes(trace))
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(UsageError, match="^`t` is no trace of routing that can be read: .*; record it again$"):
        decode_trace(bytes(changed), "t")


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_refused(data, is_headed):
    with pytest.raises(UsageError, match="no trace of routing"):
        decode_trace((encode_head(TracedShape(8, 2, (1,))) if is_headed else b"") + data + b"\0", "t")


@pytest.mark.parametrize(
    ("layer", "experts", "guess", "said"),
    [
        (0, [[0, 1]], None, "layer 0 has no experts"),
        (2, [[0, 1]], None, "layer 2 has no experts"),
        (1, [[0]], None, "rows that go to 2"),
        (1, np.zeros((0, 2)), None, "rows that go to 2"),
        (1, [[1, 1]], None, "ascending numbers below 8"),
        (1, [[0, 8]], None, "ascending numbers below 8"),
        (1, [[0, 1]], (3, 3), "guessed experts are not ascending"),
        (1, [[0, 1]], (-1,), "guessed experts are not ascending"),
    ],
)
def test_a_step_that_cannot_be_is_not_written(layer, experts, guess, said):
    with pytest.raises(ValueError, match=said):
        encode_step(TracedShape(8, 2, (0, 5)), RoutedStep(layer, np.array(experts), guess))


@pytest.mark.parametrize("shape", [(0, 0, (1,)), (2, 3, (1,)), (70_000, 2, (1,)), (8, 2, ()), (8, 2, (0, 0)), (8, 2, (2**41,))])
def test_shapes_that_cannot_be(shape):
    with pytest.raises(ValueError, match="experts|layers|bytes"):
        TracedShape(*shape)


def test_files_that_are_none(tmp_path):
    with pytest.raises(UsageError, match="no file"):
        read_trace(tmp_path / "absent")
    with pytest.raises(UsageError, match="a folder"):
        read_trace(tmp_path)
    with pytest.raises(StorageError, match="cannot write"):
        TraceWriter(tmp_path / "no" / "such", TracedShape(8, 2, (1,)))


def test_a_disk_that_was_full_leaves_a_file_that_can_be_read(tmp_path):
    """Half a record is taken back, and the next one begins where it began."""
    shape, path = TracedShape(300, 2, (7,)), tmp_path / "t"
    step = RoutedStep(0, np.array([[0, 299], [2, 3]]), (256,))
    with TraceWriter(path, shape) as writer:
        writer.add(step)
        there = path.read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(there) + 5, limits[1]))
        try:
            for _ in range(2):
                with pytest.raises(StorageError, match=r"cannot write `.*t`: .*; make room on the disk"):
                    writer.add(step)
                assert path.read_bytes() == there
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        writer.add(step)
    assert path.read_bytes() == as_bytes(RoutingTrace(shape, (step, step)))


def test_a_trace_that_is_full_says_so_once_and_has_no_hole(tmp_path, monkeypatch):
    """Also where a smaller record than the one that was left out would find room."""
    shape, said = TracedShape(300, 2, (7,)), []
    large, small = (RoutedStep(0, np.tile(np.array([[0, 299]]), (rows, 1)), (256,)) for rows in (40, 1))
    monkeypatch.setattr(routing_trace, "MOST_BYTES", len(as_bytes(RoutingTrace(shape, (large, small, small)))))
    with TraceWriter(tmp_path / "t", shape, lambda: said.append("full")) as writer:
        for step in (large, small, large, small):
            writer.add(step)
    assert (tmp_path / "t").read_bytes() == as_bytes(RoutingTrace(shape, (large, small))) and said == ["full"]


def test_what_is_read_takes_no_memory_of_its_own(tmp_path):
    """Numbers stay as the file has them."""
    for experts in (8, 300):
        shape = TracedShape(experts, 2, (7,))
        data = as_bytes(RoutingTrace(shape, (RoutedStep(0, np.array([[0, 1], [2, 7]])),)))
        (step,) = decode_trace(data, "t").steps
        assert step.experts.dtype == shape.dtype
        assert np.shares_memory(step.experts, np.frombuffer(data, np.uint8))
