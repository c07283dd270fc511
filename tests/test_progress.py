"""Estimates of how long a download and an import take together, and how far they are in words."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_llm.progress import IMPORT_SECONDS, Journey, Step, byte_count, clock_time, import_seconds, rough_time

GB = 10**9
INT8_STAGES = ("digest", "calibration", "layers", "output")
MIXED_STAGES = ("digest", "calibration", "costs of 4 bits", "layers", "output")
MEASURED = {
    "SmolLM2-135M": (0.27 * GB, "int8", INT8_STAGES, (1, 30, 30, 1), (2.4, 13.1, 40.2, 2.9)),
    "Qwen2.5-0.5B": (0.99 * GB, "int8", INT8_STAGES, (1, 24, 24, 1), (8.3, 80.2, 365.8, 30.7)),
    "SmolLM2-135M, rounded": (0.27 * GB, "fast", INT8_STAGES, (1, 30, 30, 1), (0.7, 22.5, 12.6, 2.1)),
    "SmolLM2-135M, 4 bits": (0.27 * GB, "w4", INT8_STAGES, (1, 30, 30, 1), (0.3, 17.6, 65.9, 2.6)),
    "SmolLM2-135M, mixed": (0.27 * GB, "auto", MIXED_STAGES, (1, 30, 60, 30, 1), (0.6, 13.2, 37.8, 95.7, 5.8)),
}
"""Imports on two cores beside other work: bytes of the source, how, stages, and the units and seconds of each."""


def told(stages, size, slower, jitter, first=0.0):
    """(second, stage, done, total) of an import whose stages took so long, on a machine that is ``slower`` by a factor."""
    now = first
    for stage, (units, seconds) in stages.items():
        weights = [jitter.uniform(0.6, 1.4) for _ in range(units)]
        total = int(size) if stage == "digest" else units
        yield now, stage, 0, total
        for at, weight in enumerate(weights):
            now += slower * seconds * weight / sum(weights)
            yield now, stage, total * (at + 1) // units, total


@pytest.mark.parametrize("name", MEASURED)
@given(slower=st.floats(0.05, 20), seed=st.integers(0, 1000), cores=st.sampled_from([1, 2, 4, 16]))
def test_an_import_is_told_within_a_third_from_its_first_third(name, slower, seed, cores):
    size, kind, stages, units, seconds = MEASURED[name]
    steps = list(told(dict(zip(stages, zip(units, seconds, strict=True), strict=True)), size, slower, random.Random(seed)))
    end, journey = steps[-1][0], Journey(kind, cores)
    for now, stage, done, total in steps:
        left = journey.told(stage, done, total, now).seconds_left_in_all
        assert left is not None and left >= 0
        if now >= end / 3:
            assert abs(now + left - end) <= 0.3 * end
    assert left == 0


@given(rate=st.floats(1e6, 1e9), size=st.integers(10**8, 10**10))
def test_download_and_import_are_one_estimate(rate, size):
    """On a machine that imports as fast as expected."""
    expected, journey = import_seconds(size, "int8", 4), Journey("int8", 4)
    end = size / rate + sum(expected.values())
    steps = [(at / 50 * size / rate, "download", at * size // 50, size) for at in range(51)]
    steps += list(told({stage: (20, seconds) for stage, seconds in expected.items()}, size, 1.0, random.Random(0), size / rate))
    for now, stage, done, total in steps:
        left = journey.told(stage, done, total, now).seconds_left_in_all
        assert left is not None
        if now >= end / 3:
            assert abs(now + left - end) <= 0.3 * end + 1


@given(slower=st.floats(0.5, 20), share=st.floats(0.2, 0.9))
def test_an_import_is_expected_by_the_machines_pace_and_by_its_weights_not_its_file(slower, share):
    """The file of a quantized model is smaller than its weights; the digest, which is told in weights, corrects that."""
    asked: list[int] = []
    journey = Journey("int8", 2, lambda parameters: asked.append(parameters) or slower)
    journey.told("download", 0, round(share * GB), 0.0)
    first = journey.told("digest", 0, GB, 100.0).seconds_left_in_all
    assert asked == [GB // 2]
    assert first == pytest.approx(sum(import_seconds(GB, "int8", 2, slower).values()), rel=0.05)
    journey.told("digest", GB, GB, 101.0)
    assert len(asked) == 1


def test_an_import_that_goes_on_is_told_what_is_left_of_it():
    journey = Journey("int8", 1)
    journey.told("digest", 0, GB, 0.0)
    journey.told("digest", GB, GB, 1.0)
    expected = import_seconds(GB, "int8", 1)
    begun = journey.told("layers", 20, 24, 1.0).seconds_left_in_all
    assert begun == pytest.approx(expected["layers"] / 6 + expected["output"], rel=0.1)
    later = journey.told("layers", 22, 24, 1.0 + expected["layers"] / 12).seconds_left_in_all
    assert later == pytest.approx(expected["layers"] / 12 + expected["output"], rel=0.1)


def test_the_rate_of_a_download_is_that_of_its_last_seconds():
    journey = Journey()
    assert journey.told("download", 0, 1000, 0.0).per_second is None
    for second in range(1, 100):
        step = journey.told("download", 10 * second, 10_000, float(second))
    assert step.per_second == 10.0 and step.seconds_left == (10_000 - 990) / 10 and step.seconds_left_in_all is None
    for second in range(100, 120):
        step = journey.told("download", 990 + 100 * (second - 99), 10_000, float(second))
    assert step.per_second == 100.0
    assert journey.told("download", 10, 10_000, 130.0).per_second is None  # another file


STAGES = st.sampled_from(["download", "digest", "load", "layers", "output", "x"])


@pytest.mark.parametrize("kind", [None, "int8"])
@given(st.lists(st.tuples(STAGES, st.integers(0, 100), st.integers(0, 100), st.floats(0, 9)), max_size=30))
def test_whatever_is_told_is_put_in_words(kind, calls):
    journey, now = Journey(kind, 2), 0.0
    for stage, done, total, seconds in calls:
        now += seconds
        step = journey.told(stage, min(done, total), total, now)
        assert str(step).startswith(stage) and "-" not in str(step) and "nan" not in str(step) and step.begun
        assert str(step.after(5.0)) and "left" not in str(step.over())
        read = Step.from_json(step.to_json())
        assert (read.stage, read.done, read.total) == (step.stage, step.done, step.total)


@given(st.text(max_size=80))
def test_any_other_line_is_no_step(line):
    assert Step.from_json(line) is None
    assert Step.from_json("{" + line) is None


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (Step("download", 141_300_000, 257_000_000, 5.0, 125.0, 24e6), "download 141 of 257 MB, 24 MB/s, 2:05 left in all"),
        (Step("download", 700_000_000, 1_503_300_328, 33.0, None, 24e6), "download 0.7 of 1.5 GB, 24 MB/s, 0:33 left"),
        (Step("layers", 3, 30, 20.0, 3725.0), "layers 3 of 30, 1:02:05 left in all"),
        (Step("digest", 1, 4, None, 12.0), "digest 25%, 0:12 left in all"),
    ],
)
def test_how_far_it_is_in_words(step, said):
    assert str(step) == said


def test_numbers_as_people_read_them():
    assert [byte_count(count) for count in (0, 999, 1500, 12_345, 999_999, 257e6, 1_503_300_328)] == [
        "0 B", "999 B", "1.5 kB", "12 kB", "1.0 MB", "257 MB", "1.5 GB",
    ]  # fmt: skip
    assert [clock_time(seconds) for seconds in (-1, 6.4, 130, 3730)] == ["0:00", "0:06", "2:10", "1:02:10"]
    assert [rough_time(seconds) for seconds in (0, 22, 59, 61, 119, 4000, 6000)] == [
        "5 s", "20 s", "60 s", "1 min", "2 min", "67 min", "1 h 40 min",
    ]  # fmt: skip


def test_every_way_to_import_has_its_stages():
    assert all(next(iter(stages)) == "digest" and list(stages)[-1] == "output" for stages in IMPORT_SECONDS.values())
