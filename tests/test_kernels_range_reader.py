"""Ranges that are read in the background: their bytes, the checksums of their pieces, and what happens when a file ends."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_llm.kernels.checksum import crc32c
from edge_llm.kernels.range_reader import RangeReader

PAGE = 4096


@pytest.fixture(scope="module")
def data() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, 41 * PAGE, np.uint8)


@pytest.fixture
def fd(data: np.ndarray, tmp_path: Path):
    (tmp_path / "data").write_bytes(data.tobytes())
    descriptor = os.open(tmp_path / "data", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("ends", [[], [0], [5, 5, 4096, 9000, 30 * PAGE], [30 * PAGE], [1, 12 * PAGE, 12 * PAGE + 1]])
def test_bytes_and_checksums(data: np.ndarray, fd: int, threads: int, ends: list[int]) -> None:
    out = np.zeros(30 * PAGE, np.uint8)
    there, crcs = RangeReader(threads, PAGE).start(fd, out, 2 * PAGE, np.array(ends, np.int64)).wait()
    expected = data[2 * PAGE : 32 * PAGE]
    assert there == len(out)
    assert np.array_equal(out, expected)
    assert crcs.tolist() == [crc32c(expected[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def test_many_ranges_at_once_and_the_file_closed_meanwhile(data: np.ndarray, fd: int) -> None:
    reader = RangeReader(3, 2 * PAGE)
    buffers = [np.zeros(7 * PAGE, np.uint8) for _ in range(30)]
    own = os.dup(fd)
    readings = [reader.start(own, out, i * PAGE, np.array([len(out)])) for i, out in enumerate(buffers)]
    os.close(own)
    for i in reversed(range(30)):
        there, crcs = readings[i].wait()
        assert readings[i].wait()[0] == there == 7 * PAGE
        assert np.array_equal(buffers[i], data[i * PAGE : (i + 7) * PAGE])
        assert crcs.tolist() == [crc32c(buffers[i])]


def test_the_end_of_the_file_and_the_next_range(data: np.ndarray, fd: int) -> None:
    reader = RangeReader(2, PAGE)
    out = np.zeros(5 * PAGE, np.uint8)
    short = reader.start(fd, out, 39 * PAGE, np.array([PAGE, 5 * PAGE]))
    assert short.wait()[0] <= 2 * PAGE
    good, _ = reader.start(fd, out, 0, np.array([], np.int64)).wait()
    assert (good, out.tobytes()) == (5 * PAGE, data[: 5 * PAGE].tobytes())


def test_a_descriptor_that_is_none(fd: int) -> None:
    out = np.zeros(PAGE, np.uint8)
    assert RangeReader(1, PAGE).start(-1, out, 0, np.array([PAGE])).wait()[0] == 0


def test_the_urgent_overtakes_what_was_asked_for_before(data: np.ndarray, fd: int) -> None:
    reader = RangeReader(1, PAGE)
    endless = os.open("/dev/zero", os.O_RDONLY)
    nothing = np.array([], np.int64)
    long = reader.start(endless, np.ones(32768 * PAGE, np.uint8), 0, nothing)  # keeps the thread busy while the others come
    shared = np.zeros(PAGE, np.uint8)  # holds what was read last
    patient = reader.start(fd, shared, 3 * PAGE, np.array([PAGE]))
    urgent = reader.start(fd, shared, 5 * PAGE, np.array([PAGE]), urgent=True)
    for reading, page in ((urgent, 5), (patient, 3)):
        there, crcs = reading.wait()
        assert (there, crcs.tolist()) == (PAGE, [crc32c(data[page * PAGE : (page + 1) * PAGE])])
    assert np.array_equal(shared, data[3 * PAGE : 4 * PAGE])
    assert long.wait()[0] == 32768 * PAGE
    os.close(endless)


def test_what_is_hurried_overtakes_and_what_is_dropped_is_never_read(data: np.ndarray, fd: int) -> None:
    reader = RangeReader(1, PAGE)
    endless = os.open("/dev/zero", os.O_RDONLY)
    nothing = np.array([], np.int64)
    long = reader.start(endless, np.ones(32768 * PAGE, np.uint8), 0, nothing, urgent=True)  # the others come meanwhile
    dropped, shared = np.zeros(2 * PAGE, np.uint8), np.zeros(PAGE, np.uint8)  # the last holds what was read last
    unwanted = [reader.start(fd, dropped, 0, np.array([PAGE]), urgent) for urgent in (False, True)]
    patient, hurried = (reader.start(fd, shared, page * PAGE, np.array([PAGE])) for page in (3, 5))
    hurried.hurry()
    for one in unwanted:
        one.drop()
        assert one.wait()[0] == 0
    for reading, page in ((hurried, 5), (patient, 3)):
        assert (reading.wait()[0], reading.wait()[1].tolist()) == (PAGE, [crc32c(data[page * PAGE : (page + 1) * PAGE])])
    assert np.array_equal(shared, data[3 * PAGE : 4 * PAGE]) and not dropped.any()
    for ended in (hurried, patient, long):  # nothing to do
        ended.hurry()
        ended.drop()
    assert long.wait()[0] == 32768 * PAGE and patient.wait()[0] == PAGE
    unwanted[0].again()
    assert unwanted[0].wait()[0] == len(dropped) and np.array_equal(dropped, data[: 2 * PAGE])
    os.close(endless)


def test_a_range_that_is_dropped_under_way_ends(data: np.ndarray, fd: int) -> None:
    reader = RangeReader(2, PAGE)
    for _ in range(200):
        out = np.zeros(30 * PAGE, np.uint8)
        reading = reader.start(fd, out, 0, np.array([PAGE, 30 * PAGE]))
        reading.drop()
        there, checksums = reading.wait()
        assert there % PAGE == 0 and np.array_equal(out[:there], data[:there])
        assert there == 0 or checksums[0] == crc32c(data[:PAGE])


def test_a_range_is_read_again_as_it_is_now_from_the_file_as_it_was_opened(data: np.ndarray, fd: int, tmp_path: Path) -> None:
    reader = RangeReader(2, PAGE)
    out, ends = np.zeros(9 * PAGE, np.uint8), np.array([7, 9 * PAGE])
    own = os.dup(fd)
    first = reader.start(own, out, PAGE, ends)
    beside = [reader.start(-1, np.zeros(PAGE, np.uint8), page * PAGE, ends[:1], beside=first) for page in range(5)]
    os.close(own)
    assert [reading.wait()[0] for reading in beside] == [PAGE] * 5
    assert first.nbytes == len(out)
    with (tmp_path / "data").open("r+b") as file:
        for value in range(5):
            file.seek(PAGE)
            file.write(bytes([value]) * 20)
            file.flush()
            first.again()
            there, crcs = first.wait()
            assert (there, out[:20].tolist()) == (len(out), [value] * 20)
            assert crcs.tolist() == [crc32c(out[:7]), crc32c(out[7:])]
    os.truncate(tmp_path / "data", 4 * PAGE)
    first.again()
    assert first.wait()[0] <= 3 * PAGE


def test_dropping_a_reading_waits_for_it(fd: int) -> None:
    reader = RangeReader(2, PAGE)
    for _ in range(100):
        reader.start(fd, np.zeros(30 * PAGE, np.uint8), 0, np.array([30 * PAGE]))
    del reader


@pytest.mark.parametrize(
    ("offset", "ends", "message"),
    [(-1, [], "`offset`"), (0, [PAGE + 1], "`ends` must ascend"), (0, [9, 3], "`ends` must ascend")],
)
def test_bad_arguments(fd: int, offset: int, ends: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RangeReader(1, PAGE).start(fd, np.zeros(PAGE, np.uint8), offset, np.array(ends, np.int64))


@pytest.mark.parametrize(("threads", "request_bytes"), [(0, PAGE), (1, 0), (1, 100), (99999, PAGE)])
def test_bad_readers(threads: int, request_bytes: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        RangeReader(threads, request_bytes)


FORKED = """
import os, sys, warnings
import numpy as np
from edge_llm.kernels.range_reader import RangeReader

warnings.simplefilter("ignore")  # a fork of a process with threads, which is what is tried here
fd, ends = os.open(sys.argv[1], os.O_RDONLY), np.array([4096])
reader = RangeReader(3, 4096)
for _ in range(20):
    under_way = [reader.start(fd, np.zeros(20 * 4096, np.uint8), 0, ends) for _ in range(10)]
    child = os.fork()
    if child == 0:
        asked = reader.start(fd, np.zeros(4096, np.uint8), 0, ends)
        right = [reading.wait()[0] for reading in (*under_way, asked)] == [0] * 11
        right = right and RangeReader(2, 4096).start(fd, np.zeros(4096, np.uint8), 0, ends).wait()[0] == 4096
        del asked, under_way, reader
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert all(reading.wait()[0] == 20 * 4096 for reading in under_way)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_was_forked_waits_for_nobody(data: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(data.tobytes())
    command = [sys.executable, "-c", FORKED, str(tmp_path / "data")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
