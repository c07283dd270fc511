"""Ways to keep keys and values: what is read back, and how many bits that takes."""

import numpy as np
import pytest

from edge_llm.errors import UsageError
from edge_llm.quant.kv import BLOCK, CHANNEL_TOKENS, FORMS, WORST, hadamard, int4, int8_with_residual, kv_schemes

DIM = 64
ROUNDED = [name for name in FORMS if name != "float32"]
SHARED = {
    "int8": (1, DIM), "int6": (1, DIM), "int8-channel": (CHANNEL_TOKENS, 1), "int4": (1, BLOCK), "int4-channel": (BLOCK, 1),
}  # fmt: skip
"""Tokens and channels that share a scale."""


@pytest.fixture
def heads():
    """[tokens, kv heads, head_dim], a channel louder than the others."""
    x = np.random.default_rng(1).standard_normal((300, 2, DIM)).astype(np.float32)
    x[:, :, 5] *= 20
    return x


@pytest.mark.parametrize("name", ROUNDED)
def test_what_is_read_back_is_near_and_of_the_same_shape(name, heads):
    found = FORMS[name].rounded(heads)
    bits = int(FORMS[name].bits(DIM))
    assert (found.shape, found.dtype) == (heads.shape, np.float32)
    assert np.abs(found - heads).max() <= 1.01 * np.abs(heads).max() * 2.0 ** (1 - min(bits, 11))


@pytest.mark.parametrize("name", [name for name in ROUNDED if name != "float16"])
def test_a_scale_moves_with_what_it_scales(name, heads):
    assert (FORMS[name].rounded(heads * 4) == FORMS[name].rounded(heads) * 4).all()


@pytest.mark.parametrize("name", ROUNDED)
def test_silence_stays_silent(name):
    assert not FORMS[name].rounded(np.zeros((40, 2, DIM), np.float32)).any()


@pytest.mark.parametrize("name", SHARED)
def test_the_bits_of_a_code_are_enough_for_what_a_scale_tells_apart(name, heads):
    tokens, channels = SHARED[name]
    found = FORMS[name].rounded(heads)
    code_bits = int(FORMS[name].bits(DIM)) if name != "int4-channel" else 4
    group = found[:tokens, 0, :channels]
    assert 2 < len(np.unique(group)) <= 2**code_bits
    assert FORMS[name].bits(DIM) == code_bits + 16 * (2 if name == "int4-channel" else 1) / (tokens * channels)


def test_a_token_does_not_feel_a_louder_one_unless_they_share_a_scale(heads):
    louder = heads.copy()
    louder[0] *= 1000
    for name in ("float16", "int8", "int6", "int4", "int4-hadamard"):
        assert (FORMS[name].rounded(louder)[1:] == FORMS[name].rounded(heads)[1:]).all()
    found, quiet = (FORMS["int8-channel"].rounded(x)[1:CHANNEL_TOKENS] for x in (louder, heads))
    assert (found != quiet).any()


def test_a_residual_is_for_the_coarsest_of_its_neighbours(heads):
    once, twice = FORMS["int8"].rounded(heads), int8_with_residual(heads)
    finer = (once != twice).any(axis=2)
    coarsest = np.abs(heads[:296]).max(axis=2).reshape(-1, WORST, 2).argmax(axis=1)
    assert (finer[:296].reshape(-1, WORST, 2).argmax(axis=1) == coarsest).all()
    assert finer[:296].reshape(-1, WORST, 2).sum(axis=1).max() == 1
    assert np.abs(twice - heads)[finer].max() <= np.abs(once - heads)[finer].max() / 7


def test_blocks_do_not_reach_over_the_end_of_a_head():
    x = np.random.default_rng(2).standard_normal((3, 2, 40)).astype(np.float32)
    assert int4(x).shape == x.shape
    assert FORMS["int4"].bits(40) == 4 + 16 / 40


@pytest.mark.parametrize("size", [8, 40, 64, 96])
def test_turning_and_turning_back_is_nothing(size):
    matrix = hadamard(size)
    assert np.abs(matrix @ matrix.T - np.eye(size)).max() < 1e-6


def test_names():
    assert [each.name for each in kv_schemes("q8_0, f16/Q4_0,fp16")] == ["int8", "float16/int4", "float16"]
    assert [each.name for each in kv_schemes("all")] == ROUNDED
    for wrong in ("", "int3", "int8/int4/int4", "int8,,int4", "all,int8"):
        with pytest.raises(UsageError, match="there are float16, int8, "):
            kv_schemes(wrong)
