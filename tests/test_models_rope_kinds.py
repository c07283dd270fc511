"""Kinds of rotary embedding: the frequencies and factors of transformers, and the same bits whatever computes them."""

from __future__ import annotations

import hashlib
import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.models.rope import rope_tables
from edge_llm.operations.attention import QueryGrowth, Rope
from edge_llm.operations.rope_kinds import (
    Alpha,
    Dynamic,
    Llama3,
    LongRope,
    Plain,
    Proportional,
    RopeKind,
    Stretched,
    Yarn,
    check_waves,
    yarn_scale,
)

SHORT, LONG = (tuple(base + 0.25 * i for i in range(8)) for base in (1.0, 3.0))
CASES: dict[str, tuple[RopeKind, float, int]] = {
    "plain": (Plain(), 10_000.0, 16),
    "linear": (Stretched(8.0), 1e6, 16),
    "dynamic, short": (Dynamic(2.0, 2048, 1024), 10_000.0, 16),
    "dynamic, long": (Dynamic(2.0, 2048, 8192), 10_000.0, 16),
    "alpha": (Alpha(1000.0), 10_000.0, 16),
    "proportional": (Proportional(0.25), 1e6, 16),
    "llama3": (Llama3(8.0, 1.0, 4.0, 8192), 500_000.0, 16),
    "yarn": (Yarn(4.0, 32_768), 1e6, 16),
    "yarn of Ministral 3": (Yarn(16.0, 16_384, mscale=1.0, mscale_all_dim=1.0), 1e6, 16),
    "yarn of gpt-oss": (Yarn(32.0, 4096, truncate=False), 150_000.0, 16),
    "yarn, its own factor": (Yarn(8.0, 4096, 16.0, 2.0, attention_factor=1.25), 10_000.0, 16),
    "longrope, short": (LongRope(SHORT, LONG, 4096, 131_072, 4096), 10_000.0, 16),
    "longrope, long": (LongRope(SHORT, LONG, 4096, 131_072, 4097), 10_000.0, 16),
    "longrope, its own factor": (LongRope(SHORT, LONG, 4096, 131_072, 4097, attention_factor=1.5), 10_000.0, 16),
}
FOUND: dict[str, tuple[list[float], float]] = {
    "plain": ([1, 0.31622776, 0.1, 0.031622779, 0.0099999998, 0.0031622779, 0.001, 0.00031622779], 1.0),
    "linear": (
        [0.125, 0.022228492, 0.0039528473, 0.00070292666, 0.00012500001, 2.2228493e-05, 3.9528468e-06, 7.0292668e-07],
        1.0,
    ),
    "dynamic, short": ([1, 0.31622776, 0.1, 0.031622779, 0.0099999998, 0.0031622779, 0.001, 0.00031622779], 1.0),
    "dynamic, long": (
        [1, 0.23948137, 0.057351321, 0.013734572, 0.0032891738, 0.00078769587, 0.00018863847, 4.5175395e-05],
        1.0,
    ),
    "alpha": ([1, 0.11787686, 0.013894955, 0.0016378937, 0.00019306978, 2.2758459e-05, 2.6826958e-06, 3.1622776e-07], 1.0),
    "proportional": ([1, 0.17782794, 0, 0, 0, 0, 0, 0], 1.0),
    "llama3": ([1, 0.19392276, 0.037606031, 0.0072926651, 0.00052484602, 3.4281024e-05, 6.6478697e-06, 1.2891732e-06], 1.0),
    "yarn": (
        [1, 0.17782794, 0.031622779, 0.0042175599, 0.00050000002, 4.4456985e-05, 7.9056936e-06, 1.4058534e-06],
        1.138629436111989,
    ),
    "yarn of Ministral 3": (
        [1, 0.17782794, 0.031622779, 0.0038660965, 0.000375, 1.1114246e-05, 1.9764234e-06, 3.5146334e-07],
        1.0,
    ),
    "yarn of gpt-oss": (
        [1, 0.225418, 0.050813273, 0.0067949593, 0.00045648392, 1.8188337e-05, 4.0999785e-06, 9.2420896e-07],
        1.3465735902799727,
    ),
    "yarn, its own factor": ([1, 0.31622776, 0.1, 0.031622779, 0.0070833326, 0.0013176157, 0.00012500001, 3.9528473e-05], 1.25),
    "longrope, short": (
        [1, 0.25298223, 0.06666667, 0.018070158, 0.0049999999, 0.0014054568, 0.00039999999, 0.00011499191],
        1.1902380714238083,
    ),
    "longrope, long": (
        [0.33333334, 0.09730085, 0.028571429, 0.0084327403, 0.0024999999, 0.00074406539, 0.00022222222, 6.657427e-05],
        1.1902380714238083,
    ),
    "longrope, its own factor": (
        [0.33333334, 0.09730085, 0.028571429, 0.0084327403, 0.0024999999, 0.00074406539, 0.00022222222, 6.657427e-05],
        1.5,
    ),
}
"""What transformers 5.24 gives for `CASES`, in float32: the frequencies and the factor."""


def of_transformers(kind: RopeKind, theta: float, dim: int) -> tuple[list[float], float]:
    """The same by transformers."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    length = getattr(kind, "length", None) or None
    parameters: dict[str, Any] = {"rope_theta": theta}
    most = 4096
    match kind:
        case Plain():
            parameters |= {"rope_type": "linear", "factor": 1.0}
        case Stretched(stretch):
            parameters |= {"rope_type": "linear", "factor": stretch}
        case Dynamic(stretch, most, _):
            parameters |= {"rope_type": "dynamic", "factor": stretch}
        case Proportional(part, stretch):
            parameters |= {"rope_type": "proportional", "partial_rotary_factor": part, "factor": stretch}
        case Llama3(stretch, low, high, original):
            parameters |= {"rope_type": "llama3", "factor": stretch, "low_freq_factor": low, "high_freq_factor": high,
                           "original_max_position_embeddings": original}  # fmt: skip
        case Yarn():
            parameters |= {"rope_type": "yarn", "factor": kind.stretch, "truncate": kind.truncate, "beta_fast": kind.beta_fast,
                           "beta_slow": kind.beta_slow, "original_max_position_embeddings": kind.original_context}  # fmt: skip
            given = {name: getattr(kind, name) for name in ("attention_factor", "mscale", "mscale_all_dim")}
            parameters |= {name: value for name, value in given.items() if value is not None}
        case LongRope():
            most = kind.context
            parameters |= {"rope_type": "longrope", "short_factor": list(kind.short), "long_factor": list(kind.long),
                           "original_max_position_embeddings": kind.original_context,
                           "factor": kind.context / kind.original_context}  # fmt: skip
            if kind.attention_factor is not None:
                parameters["attention_factor"] = kind.attention_factor
        case Alpha(alpha):
            parameters |= {"rope_type": "linear", "factor": 1.0}
            parameters["rope_theta"] = theta * alpha ** (dim / (dim - 2))
    config = LlamaConfig(head_dim=dim, hidden_size=2 * dim, num_attention_heads=2, max_position_embeddings=most)
    config.rope_parameters = parameters
    frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=length)
    return frequencies.tolist(), float(factor)


@pytest.mark.parametrize("case", CASES)
def test_frequencies_and_factors_are_those_of_transformers(case: str) -> None:
    kind, theta, dim = CASES[case]
    frequencies, factor = FOUND[case]
    np.testing.assert_allclose(kind.frequencies(theta, dim), frequencies, rtol=2e-6)
    assert math.isclose(kind.factor, factor, rel_tol=1e-12)


KINDS = st.one_of(
    st.just(Plain()),
    st.builds(Stretched, st.floats(1, 64)),
    st.builds(Dynamic, st.floats(1, 16), st.integers(512, 32_768), st.integers(1, 200_000)),
    st.builds(Alpha, st.floats(1, 2000)),
    st.builds(Proportional, st.floats(0, 1), st.floats(1, 16)),
    st.builds(Llama3, st.floats(1, 32), st.floats(0.5, 2), st.floats(3, 8), st.integers(512, 32_768)),
    st.builds(
        Yarn, st.floats(1, 64), st.integers(512, 65_536), st.floats(8, 64), st.floats(0.5, 4), st.booleans(),
        st.none() | st.floats(0.5, 2), st.none() | st.floats(0.1, 2), st.none() | st.floats(0.1, 2),
    ),
    st.builds(
        lambda length, own: LongRope(SHORT, LONG, 4096, 131_072, length, own),
        st.integers(1, 131_072), st.none() | st.floats(1, 2),
    ),
)  # fmt: skip


@given(kind=KINDS, theta=st.floats(500, 5e6))
@settings(max_examples=60)
def test_any_kind_is_that_of_transformers_where_it_is_there(kind: RopeKind, theta: float) -> None:
    pytest.importorskip("transformers")
    frequencies, factor = of_transformers(kind, theta, 16)
    found = kind.frequencies(theta, 16)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, frequencies, rtol=5e-5, atol=1e-12)  # theirs are powers in float32
    assert math.isclose(kind.factor, factor, rel_tol=1e-9)


def test_the_bits_are_the_same_everywhere() -> None:
    """Also those of tables that stored keys were turned by."""
    digest = hashlib.sha256()
    for kind, theta, dim in CASES.values():
        digest.update(kind.frequencies(theta, dim).tobytes())
    assert digest.hexdigest()[:16] == "2aace2f24adb93d0"


@pytest.mark.parametrize("case", CASES)
def test_tables_are_cosines_and_sines_times_the_factor(case: str) -> None:
    kind, theta, dim = CASES[case]
    cos, sin = rope_tables(Rope(dim, theta, kind), 1000)
    angle = np.arange(1000)[:, None] * kind.frequencies(theta, dim)
    np.testing.assert_allclose(cos, kind.factor * np.cos(angle), atol=2e-7)
    np.testing.assert_allclose(sin, kind.factor * np.sin(angle), atol=2e-7)


def test_no_channel_may_turn() -> None:
    cos, sin = rope_tables(Rope(0, 10_000.0), 5)
    assert cos.shape == sin.shape == (5, 0)


@pytest.mark.parametrize(
    "kind",
    [Stretched(0.0), Llama3(0.0, 1.0, 4.0, 32), Yarn(0.0, 32), LongRope((1.0,) * 8, (0.0,) * 8, 32, 64)],
    ids=str,
)
def test_waves_of_no_length_are_refused_without_a_warning(kind: RopeKind) -> None:
    """Of the divisors for long texts too, which a short context does not use."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="has no waves"):
            check_waves(kind, 1e4, 16)


def test_longrope_refuses_another_number_of_divisors() -> None:
    with pytest.raises(ValueError, match="32 rotated channels have 16 waves; got 8 divisors"):
        LongRope(SHORT, LONG, 4096, 131_072).frequencies(10_000.0, 32)


def test_the_sets_of_longrope_may_have_their_own_factors() -> None:
    for length, expected in ((4096, 1.1), (4097, 1.3)):
        assert LongRope(SHORT, LONG, 4096, 131_072, length, short_scale=1.1, long_scale=1.3).factor == expected


def test_query_factors_grow_by_the_context() -> None:
    factors = QueryGrowth(0.1, 100).factors(np.arange(1001))
    exact = [1 + 0.1 * math.log(1 + p // 100) for p in range(1001)]
    np.testing.assert_allclose(factors, exact, rtol=1e-7)
    assert factors.dtype == np.float32
    assert (factors[:100] == 1).all()


def test_the_scale_of_yarn() -> None:
    assert yarn_scale(0.5) == 1.0
    assert math.isclose(yarn_scale(40, 0.707), 0.1 * 0.707 * math.log(40) + 1)
