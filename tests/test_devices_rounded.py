"""A card that ends its products in float16, and a host that computes the same bits: one numeric, whoever multiplies."""

import math
import re

import numpy as np
import pytest
from scheme_references import reference

from edge_llm.ascend.devices.card_weights import CardWeights, load_products
from edge_llm.ascend.devices.emulated import EmulatedDevice
from edge_llm.bench.synthetic import write_random
from edge_llm.config import LlamaConfig, RuntimeConfig
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.layout import pack_tiles, row_sums
from edge_llm.opening.runner import load_runner
from edge_llm.runner.base import Segment
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.weights.resident import ResidentWeights
from edge_llm.weights.sizes import WeightSizes

pytestmark = pytest.mark.thorough(file=6)

DEVICE = "emulated:310p:float16"
SHAPES = {
    "tied": LlamaConfig(
        family="llama", vocab_size=97, hidden_size=64, intermediate_size=96, num_layers=4, num_heads=4,
        num_kv_heads=2, head_dim=16, context=640, norm_eps=1e-5, rope_theta=1e4, tied_embeddings=True,
    ),
    "biases, odd sizes": LlamaConfig(
        family="qwen2", vocab_size=130, hidden_size=72, intermediate_size=75, num_layers=4, num_heads=3,
        num_kv_heads=1, head_dim=24, context=640, norm_eps=1e-6, rope_theta=1e6, qkv_bias=True,
    ),
    "query and key norms": LlamaConfig(
        family="qwen3", vocab_size=64, hidden_size=48, intermediate_size=96, num_layers=4, num_heads=2,
        num_kv_heads=2, head_dim=40, context=640, norm_eps=1e-6, rope_theta=1e6, qk_norm=True,
    ),
    "heads of 8": LlamaConfig(
        family="llama", vocab_size=80, hidden_size=40, intermediate_size=64, num_layers=4, num_heads=5,
        num_kv_heads=5, head_dim=8, context=640, norm_eps=1e-5, rope_theta=1e4, tied_embeddings=True,
    ),
}  # fmt: skip
PROMPT = 150


@pytest.fixture(scope="module", params=SHAPES)
def bundle(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    write_random(folder, SHAPES[request.param], seed=3)
    return open_bundle(folder)


def runner_of(bundle, placement, **options):
    given = {"threads": 2, "context": 512, "chunk": 256, "window": 1, "kv_tokens": 2048, "device": DEVICE, **options}
    return load_runner(bundle, RuntimeConfig(placement=placement, **given), 300)[0]


@pytest.fixture(scope="module")
def tokens(bundle):
    return np.random.default_rng(5).integers(0, bundle.config.vocab_size, PROMPT).tolist()


@pytest.fixture(scope="module")
def whole(bundle, tokens):
    """Logits of every position of a prompt in one chunk, all of it multiplied by the card."""
    runner = runner_of(bundle, "split")
    return runner.forward(runner.open(), tokens, wanted=PROMPT)


# ---- a model ----


def test_what_the_card_rounds_is_not_what_the_host_alone_computes(bundle, tokens, whole):
    host = runner_of(bundle, "auto", device="host")
    exact = host.forward(host.open(), tokens, wanted=PROMPT)
    assert (whole != exact).any(axis=1).all()
    assert np.linalg.norm(whole - exact) < 0.1 * np.linalg.norm(exact)


@pytest.mark.parametrize("options", [{}, {"threads": 1}, {"threads": 4}])
def test_token_by_token_on_the_host_is_the_prompt_on_the_card(bundle, tokens, whole, options):
    runner = runner_of(bundle, "split,host", **options)
    sequence = runner.open()
    assert np.array_equal(np.concatenate([runner.forward(sequence, [token]) for token in tokens]), whole)


@pytest.mark.parametrize("sizes", [(100, 1, 20, 29), (1, 149), (33, 1, 1, 115), (40, 2, 33, 7, 68)])
def test_prompts_and_steps_may_take_turns(bundle, tokens, whole, sizes):
    """A continued prompt, guesses behind a token, and what is computed again after its pages were taken away."""
    runner = runner_of(bundle, "split,host")
    sequence = runner.open()
    ends = np.cumsum(sizes)
    found = [runner.forward(sequence, tokens[end - n : end], wanted=n) for end, n in zip(ends, sizes, strict=True)]
    assert np.array_equal(np.concatenate(found), whole)
    for kept in (90, 16, 0):
        sequence.truncate(kept)
        assert np.array_equal(runner.forward(sequence, tokens[kept:], wanted=PROMPT - kept), whole[kept:])


@pytest.mark.parametrize(("chunk", "window"), [(16, 3), (33, 2), (7, 1), (64, 4)])
@pytest.mark.parametrize("policy", ["in-order", "c-value"])
def test_any_chunking_is_the_whole(bundle, tokens, whole, chunk, window, policy):
    runner = runner_of(bundle, "split,host", chunk=chunk, window=window, policy=policy)
    assert np.array_equal(runner.forward(runner.open(), tokens, wanted=PROMPT), whole)


def test_a_batch_is_each_alone(bundle, tokens, whole):
    runner = runner_of(bundle, "split,host")
    lengths = [120, 17, 16, 1, 90]
    sequences = [runner.open() for _ in lengths]
    for sequence, length in zip(sequences, lengths, strict=True):
        runner.forward(sequence, tokens[:length])
    for step in range(3):
        rows = runner.run([Segment(one, [tokens[n + step]]) for one, n in zip(sequences, lengths, strict=True)])
        assert np.array_equal(np.concatenate(rows), whole[[n + step for n in lengths]])


def test_without_outliers_both_placements_agree(bundle, tokens):
    prompt = runner_of(bundle, "split", shadow=False)
    steps = runner_of(bundle, "split,host", shadow=False)
    sequence = steps.open()
    found = np.concatenate([steps.forward(sequence, [token]) for token in tokens[:80]])
    assert np.array_equal(found, prompt.forward(prompt.open(), tokens[:80], wanted=80))


@pytest.mark.parametrize("small", ["card", "host", "both"])
def test_layers_may_be_streamed_to_either(bundle, tokens, whole, small):
    options = {}
    if small != "host":
        options["card_memory"] = least_card_memory(bundle, "split,host")
    if small != "card":
        options["memory"] = str(WeightSizes.of_bundle(bundle).total - 1)
    runner = runner_of(bundle, "split,host", **options)
    sequence = runner.open()
    rows = [runner.forward(sequence, tokens[:60], wanted=60)]
    rows += [runner.forward(sequence, [token]) for token in tokens[60:80]]
    assert runner.model.weights.streamed
    assert np.array_equal(np.concatenate(rows), whole[:80])


def least_card_memory(bundle, placement):
    with pytest.raises(UsageError) as error:
        runner_of(bundle, placement, card_memory="1000")
    return re.search(r"works is (\d+) bytes", str(error.value))[1]


def test_the_output_matrix_is_the_hosts_own_and_exact(bundle):
    for placement in ("split", "split,host"):
        runner = runner_of(bundle, placement)
        [(_, head)] = runner.model.weights.head_blocks()
        assert not head.linears["output"].rounds
        layer = runner.model.weights.use(0)
        assert all(linear.rounds for linear in layer.linears.values())


# ---- a linear ----


def make_linear(weight, weight_scale, bias=None):
    rows, columns = weight.shape
    tiles = pack_tiles(weight)
    return Int8Weight(
        tiles=tiles, rows=rows, columns=columns, input_scale=1.0, weight_scale=weight_scale, row_sum=row_sums(tiles, rows),
        hot_index=np.empty(0, np.int32), hot_weight=np.empty((0, rows), np.float16), bias=bias,
    )  # fmt: skip


def random_linear(rows=40, columns=70, bias=True):
    random = np.random.default_rng([rows, columns])
    weight = random.integers(-127, 128, (rows, columns)).astype(np.int8)
    scale = random.uniform(1e-4, 1e-3, rows).astype(np.float32)
    return make_linear(weight, scale, random.normal(size=rows).astype(np.float32) if bias else None)


def on_card(linear, q):
    """The product of ``q`` by a card of the float16 route: float16 [M, N]."""
    chip = EmulatedDevice("310p", 1, route="float16").chip
    card = chip.load(linear)
    columns, outputs = chip.law.padded(linear.columns, linear.rows)
    out = chip.memory.allocate((len(q), outputs), np.float16)
    chip.product(chip.memory.upload(q, (len(q), columns)), card, out)
    result = np.empty((len(q), linear.rows), np.float16)
    chip.memory.copy_out(out, result)
    return result


@pytest.mark.parametrize("bias", [False, True])
def test_a_rounded_weight_multiplies_as_the_card_and_as_the_reference(bias):
    linear = random_linear(bias=bias)
    q = np.random.default_rng(1).integers(-127, 128, (9, 70)).astype(np.int8)
    x = q.astype(np.float32)  # the input scale is 1
    found = linear.rounded.apply(x, ThreadPool(2))
    np.testing.assert_array_equal(found, on_card(linear, q).astype(np.float32))
    np.testing.assert_array_equal(found, reference(x, linear.rounded))
    assert (found != linear.apply(x, ThreadPool(2))).any()


def test_accumulator_and_bias_are_added_as_integers():
    """Each has more bits than a float32 keeps, and their sum is small."""
    random = np.random.default_rng(0)
    weight = np.where(random.random((40, 2047)) < 0.02, 1, 127).astype(np.int8)
    q = np.full((1, 2047), 127, np.int8)
    dot = 127 * weight.sum(axis=1, dtype=np.int64)
    scale = (random.integers(1, 1024, 40) / 1024).astype(np.float32)  # of 19 bits as they are
    linear = make_linear(weight, scale, (-dot * scale).astype(np.float32))
    total = dot + linear.rounding.bias
    assert (dot > 2**24).all() and (dot % 2).any() and (np.abs(total) < 2**10).all()
    found = on_card(linear, q)
    np.testing.assert_array_equal(found[0], (total.astype(np.float32) * linear.rounding.scale).astype(np.float16))


def test_a_rounding_is_scales_of_19_bits_and_biases_in_their_steps():
    linear = random_linear(rows=500)
    scale, bias = linear.rounding
    assert not (scale.view(np.uint32) & 0x1FFF).any()
    for one, exact in zip(scale.tolist(), linear.product_scale.tolist(), strict=True):
        step = math.ldexp(1.0, math.frexp(exact)[1] - 11)  # of 11 significant bits
        assert abs(one - exact) <= step / 2
    np.testing.assert_array_equal(bias, np.rint(linear.bias / scale.astype(np.float64)))
    assert random_linear(bias=False).rounding.bias is None


def test_a_bias_beyond_int32_leaves_room_for_the_product():
    """Of a channel whose weights are next to nothing: nothing wraps, whatever the activations, on the host and on a card."""
    weight = np.full((4, 70), 127, np.int8)
    scale, bias = np.full(4, 1e-9, np.float32), np.array([3, -3, 1e30, -1e30], np.float32)
    linear = make_linear(weight, scale, bias)
    q = np.array([np.full(70, 127), np.full(70, -127)], np.int8)
    found = on_card(linear, q)
    assert (np.sign(found) == np.sign(bias)).all() and (np.abs(found) > 2).all()
    np.testing.assert_array_equal(linear.rounded.apply(q.astype(np.float32), ThreadPool(1)), found.astype(np.float32))
    nothing = make_linear(np.zeros((4, 70), np.int8), np.zeros(4, np.float32), bias)
    assert not nothing.rounding.bias.any()


# ---- who says so ----


def test_the_hosts_linears_round_where_the_card_does(bundle):
    for route in ("s8gemm", "float16"):
        chip = EmulatedDevice("310p", 1, route=route).chip
        resident = ResidentWeights(bundle)
        weights = CardWeights(resident, load_products(chip), len(bundle.decoder.layers))
        for name, linear in weights.use(0).linears.items():
            assert linear.rounds == (route == "float16")
            assert linear.tiles is resident.use(0).linears[name].tiles
            assert not resident.use(0).linears[name].rounds
