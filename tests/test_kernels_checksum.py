"""CRC-32C against the standard's vectors and the reference, by every method of this CPU, split over threads."""

import numpy as np
import pytest

from edge_llm.kernels import ThreadPool, _native, reference
from edge_llm.kernels.checksum import crc32c

# RFC 3720, appendix B.4
VECTORS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_standard_vectors(data: bytes, expected: int) -> None:
    assert crc32c(data) == reference.crc32c(data) == expected
    assert set(_native.crc32c_methods(data).values()) == {expected}


@pytest.mark.parametrize("length", [1, 7, 8, 9, 255, 256, 257, 511, 512, 520, 3071, 3072, 3073, 49151, 49152, 52300, 100003])
def test_equal_at_every_block_boundary(length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, length + 1).astype(np.uint8)[1:]  # not aligned
    found = _native.crc32c_methods(data)
    assert "table" in found
    assert set(found.values()) == {crc32c(data)}
    if length < 60000:
        assert crc32c(data) == reference.crc32c(data)


@pytest.mark.parametrize("length", [0, 5, 1 << 20, (1 << 20) + 1, 5_000_003])
def test_threads_do_not_change_the_result(length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, length).astype(np.uint8)
    expected = crc32c(data)
    for threads in (1, 2, 4):
        assert crc32c(data, ThreadPool(threads)) == expected


def test_any_contiguous_bytes() -> None:
    floats = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert crc32c(floats) == crc32c(floats.tobytes()) == crc32c(memoryview(bytearray(floats.tobytes())))
    with pytest.raises(ValueError, match="contiguous"):
        crc32c(floats[:, ::2])
    with pytest.raises(ValueError, match="`data` must be bytes-like .*got `str`"):
        crc32c("text")  # type: ignore[arg-type]


def test_a_single_flipped_bit_is_seen() -> None:
    data = np.zeros(70000, np.uint8)
    expected = crc32c(data)
    for position in (0, 16384, 69999):
        data[position] ^= 1
        assert crc32c(data) != expected
        data[position] ^= 1
