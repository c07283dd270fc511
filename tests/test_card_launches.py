"""What a card is given for a layer: how many operators, in which form, and what they leave out; operators emulated."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from card_reference import logits_of
from onnx_weights import random_weight
from test_ascend import BOUND, GAP, logits, runner_of
from test_devices_card import tokens_of
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from edge_llm.ascend.devices.card import layers as layers_module
from edge_llm.ascend.devices.card.layers import COUNTED, Layers
from edge_llm.ascend.devices.card.whole import Input, around_product
from edge_llm.ascend.devices.card_cost import launches
from edge_llm.ascend.npu import calls as calls_module
from edge_llm.ascend.npu.calls import Calls
from edge_llm.ascend.npu.chips import CHIPS, PRODUCTS, chip_law
from edge_llm.ascend.npu.emulated_ops import npu_trans_quant_param
from edge_llm.bench.synthetic import write_random
from edge_llm.config import LlamaConfig, RuntimeConfig
from edge_llm.devices import open_device
from edge_llm.devices.base import DeviceOptions
from edge_llm.errors import DeviceError
from edge_llm.formats.bundle import open_bundle
from edge_llm.kernels.layout import unpack_tiles
from edge_llm.opening.defaults import fill_defaults
from edge_llm.opening.machine import this_machine
from edge_llm.runner.base import Segment

FREE = {"empty", "empty_like"}
"""Neither views nor operators of the card."""
SHAPES = {
    name: LlamaConfig(
        family=family, vocab_size=97, hidden_size=128, intermediate_size=192, num_layers=3, num_heads=4, num_kv_heads=2,
        head_dim=64, context=640, norm_eps=1e-5, rope_theta=1e4, qk_norm=family == "qwen3",
    )
    for name, family in (("plain", "llama"), ("qk norms", "qwen3"))
}  # fmt: skip
"""Heads that the chip rotates itself, and widths that its products take as they are."""
MOST = 24
"""Launches of a layer in a step of a model that was imported with turned channels."""


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setenv("EDGE_LLM_NPU_OPS", "emulated")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """By shape, and whether its channels are turned and its rows have scales; else some channels are hot."""
    found = {}
    for name in SHAPES:
        for turned in (True, False):
            folder = tmp_path_factory.mktemp("bundle")
            write_random(folder, SHAPES[name], seed=3, turned=turned)
            found[name, turned] = open_bundle(folder)
    return found


def storages(values):
    """Where the arrays among ``values`` lie."""
    return {one.untyped_storage().data_ptr() for one in pytree.tree_leaves(values) if isinstance(one, torch.Tensor)}


def launched(monkeypatch, bundle, rows, **options):
    """The operators that the second layer of a step of ``rows`` rows is given, and how often each."""
    found, run = Counter(), Layers.run

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result, name = function(*args, **(kwargs or {})), function.overloadpacket.__name__
            if name not in FREE and (function._schema.is_mutable or not storages(result) <= storages(args)):
                found[name] += 1
            return result

    def watched(layers, layer, weights, hidden, keys, tokens):
        if keys.index != 1:
            return run(layers, layer, weights, hidden, keys, tokens)
        found.clear()
        with Watch():
            return run(layers, layer, weights, hidden, keys, tokens)

    monkeypatch.setattr(Layers, "run", watched)
    runner = runner_of(bundle, placement="card", **options)
    runner.run([Segment(runner.open(), [token], 1) for token in range(rows)])
    return found


# ---- launches ----


@pytest.mark.parametrize(
    ("name", "turned", "options", "rows", "most"),
    [
        ("plain", True, {}, 1, MOST - 1),
        ("plain", True, {}, 4, MOST),  # queries, keys and values of several rows have to be parted
        ("qk norms", True, {}, 1, MOST + 1),
        ("qk norms", True, {}, 4, MOST + 2),
        ("qk norms", True, {"activations": "static"}, 1, MOST - 1),
        ("qk norms", True, {"device": "ascend:910b"}, 4, MOST),
        ("plain", False, {}, 1, 28),  # of models with hot channels four gathers, casts, products and sums: see docs/ascend.md
        ("qk norms", False, {}, 4, 31),
    ],
)
def test_a_layer_of_a_step_takes_few_launches(monkeypatch, bundles, name, turned, options, rows, most):
    found = launched(monkeypatch, bundles[name, turned], rows, **options)
    print(f"{name} turned={turned} {options} {rows} rows: {found.total()} launches {dict(found)}")
    assert found["npu_add_rms_norm"] == 2 and found["npu_rms_norm"] == (2 if name == "qk norms" else 0)
    assert found.total() == most


@pytest.mark.parametrize(("name", "turned"), [("plain", True), ("qk norms", True)])
def test_the_plan_reckons_with_the_launches_that_are_made(monkeypatch, bundles, name, turned):
    bundle, law = bundles[name, turned], chip_law("310p")
    made = launched(monkeypatch, bundle, 4).total()
    assert launches(law, law.route("float16"), bundle.decoder.layers[1]) == made


# ---- what products are given ----


def watched(monkeypatch):
    """Every call that passes the law from now on: operator, operands, settings."""
    seen, check = [], calls_module.check_call

    def passed(law, operator, operands, **settings):
        seen.append((operator, operands, settings))
        check(law, operator, operands, **settings)

    monkeypatch.setattr(calls_module, "check_call", passed)
    return seen


@pytest.mark.parametrize("placement", ["split", "card"])
@pytest.mark.parametrize(("chip", "given"), [("310p", True), ("910b", False)])
def test_a_310p_is_given_zeros_where_a_product_has_no_bias(monkeypatch, bundles, placement, chip, given):
    seen = watched(monkeypatch)
    tokens = tokens_of(bundles["plain", False], 40)
    logits(runner_of(bundles["plain", False], device=f"ascend:{chip}", placement=placement), tokens)
    biases = [operands["bias"] is not None for operator, operands, _ in seen if operator == "npu_quant_matmul"]
    assert biases and set(biases) == {given}


@pytest.mark.parametrize("chip", ["310p", "910b"])
def test_float16_weights_lie_in_fractals_where_a_chip_multiplies_those(monkeypatch, bundles, chip):
    seen = watched(monkeypatch)
    for turned in (True, False):
        bundle = bundles["plain", turned]
        logits(runner_of(bundle, device=f"ascend:{chip}", placement="card"), tokens_of(bundle, 40))
    weights = [operands["mat2"] for operator, operands, _ in seen if operator == "mm"]
    assert weights and {one.nz for one in weights} == {chip == "310p"}
    if chip == "310p":
        assert all(size % 16 == 0 for one in weights for size in one.shape)


@pytest.mark.parametrize(("activations", "scale"), [("static", "int64"), ("row", "float32")])
def test_a_910b_packs_its_scales_once_or_gets_those_of_rows(monkeypatch, bundles, activations, scale):
    seen = watched(monkeypatch)
    bundle = bundles["plain", True]
    logits(runner_of(bundle, device="ascend:910b", placement="card", activations=activations), tokens_of(bundle, 40))
    products = [operands for operator, operands, _ in seen if operator == "npu_quant_matmul"]
    assert {one["scale"].dtype for one in products} == {scale}
    assert {one["pertoken_scale"] is not None for one in products} == {activations == "row"}
    packed = sum(operator == "npu_trans_quant_param" for operator, *_ in seen)
    assert packed == (len(list(bundle.decoder.linears())) if activations == "static" else 0)


def test_a_scale_that_is_too_long_to_be_packed_stays_as_it_is():
    calls = Calls(chip_law("910b"))
    assert calls.pack_scale(torch.ones(65536)).dtype == torch.float32
    assert calls.pack_scale(torch.ones(65535 - 15)).dtype == torch.int64


# ---- nothing is cut off ----


@pytest.mark.parametrize("name", list(SHAPES))
@pytest.mark.parametrize("options", [{}, {"activations": "static"}], ids=str)
def test_a_turned_model_is_close_to_the_reference(bundles, name, options):
    bundle = bundles[name, True]
    given = bundle.with_static_scales() if options else bundle
    tokens = tokens_of(bundle, 90)
    want, got = logits_of(given, tokens), logits(runner_of(bundle, placement="card", **options), tokens)
    largest = np.abs(want).max()
    assert np.abs(got - want).max() <= BOUND * largest
    best = np.sort(want, axis=1)
    differ = got.argmax(1) != want.argmax(1)
    assert not (differ & (best[:, -1] - best[:, -2] > GAP * largest)).any()


def error(bundle, tokens, **options):
    """Of the largest logit of the host: how far a card is from it, in the mean."""
    host = logits(runner_of(bundle, device="host"), tokens)
    card = logits(runner_of(bundle, placement="card", **options), tokens)
    return np.abs(card - host).mean() / np.abs(host).max()


def test_scales_of_rows_are_nearer_to_the_host_and_on_a_910b_nothing_is_cut_off(bundles):
    bundle = bundles["plain", True]
    tokens = tokens_of(bundle, 120)
    static, rows = (error(bundle, tokens, activations=one) for one in ("static", "row"))
    every = runner_of(bundle, device="ascend:910b", placement="card")
    far = error(bundle, tokens, device="ascend:910b")
    logits(every, tokens)
    print(f"static {static:.5f}, by rows {rows:.5f}, on a 910B {far:.5f}")
    assert max(far, rows) < static and every.model.clipped == 0


@pytest.mark.parametrize("value", [0.0, 3e4])
def test_a_row_of_zeros_or_of_large_numbers_has_a_scale_too(bundles, value):
    """0 / 0 makes no number of a product, and what fills up a static length harms no other row."""
    bundle = bundles["plain", True]
    runner = runner_of(bundle, placement="card")
    weight = runner.model.weights.use(0).traffic.layer.linears["down"]
    x = torch.zeros(3, bundle.decoder.layers[0].linear("down").columns, dtype=torch.float16)
    x[1] = torch.linspace(-1, 1, x.shape[1])
    x[2, 0] = value
    alone = runner.model._layers.product(weight, x[1:2], wide=True)
    y = runner.model._layers.product(weight, x, wide=True)
    assert weight.by_rows and torch.equal(y[1:2], alone)
    assert torch.isfinite(y).all() and not y[0].any() and bool(y[2].any()) is bool(value)


def test_which_rows_have_scales_is_the_chips_and_kept_keys_are_told_apart(monkeypatch, bundles):
    bundle = bundles["plain", True]
    options = DeviceOptions(1, decoder=bundle.decoder)
    first = open_device("ascend:310p", options)
    runner = runner_of(bundle, placement="card")
    linears = runner.model.weights.use(0).traffic.layer.linears
    assert {name for name, one in linears.items() if one.by_rows} == set(linears)
    assert not runner.model._whole.output.by_rows, "runs of its rows would have steps of their own"
    monkeypatch.setitem(CHIPS, "310p", replace(chip_law("310p"), row_scaled=PRODUCTS))
    linears = runner_of(bundle, placement="card").model.weights.use(0).traffic.layer.linears
    assert {name for name, one in linears.items() if one.by_rows} == {"down"}
    assert open_device("ascend:310p", options).numerics != first.numerics


def test_a_card_that_finds_no_scales_of_rows_has_one_for_all_and_says_so(monkeypatch, bundles, caplog):
    """The documents of torch_npu and of CANN do not agree about it."""
    bundle = bundles["plain", True]
    tokens = tokens_of(bundle, 40)
    want = logits(runner_of(bundle, placement="card", activations="static"), tokens)

    def refused(calls, x):
        raise RuntimeError("aclnnDynamicQuantV2 failed, error code is 161002")

    monkeypatch.setattr(Calls, "quantize_rows", refused)
    runner = runner_of(bundle, placement="card")
    assert "the card finds no scales of rows" in caplog.text and "161002" in caplog.text
    assert not any(one.by_rows for one in runner.model.weights.use(0).traffic.layer.linears.values())
    assert np.array_equal(logits(runner, tokens), want)


@pytest.mark.parametrize(
    ("error", "words"),
    [(RuntimeError("error code is 507015"), "507015"), (DeviceError("the card has no memory left"), "no memory left")],
    ids=["lost", "full"],
)
def test_a_card_that_fails_when_asked_for_scales_of_rows_is_not_said_to_have_none(monkeypatch, bundles, caplog, error, words):
    def refused(calls, x):
        raise error

    monkeypatch.setattr(Calls, "quantize_rows", refused)
    with pytest.raises(DeviceError, match=words):
        runner_of(bundles["plain", True], placement="card")
    assert "scales of rows" not in caplog.text


@pytest.mark.parametrize("scale", [1e-4, 0.1, 3.0])
def test_products_of_rows_with_scales_stay_in_float16_whatever_the_weight(scale):
    """The largest product is that of a row which has the signs of the weight's; what is multiplied again is a power of two."""
    columns = 96
    weight = replace(random_weight(32, columns, bias=False), row_scales=True, weight_scale=np.full(32, scale, np.float32))
    given, arrays = around_product(weight, Input(True, True), Calls(chip_law("310p")))
    sums = np.abs(unpack_tiles(weight.tiles, 32, columns).astype(int)).sum(1) * 127
    step = float(arrays["row_step"][0]) if "row_step" in arrays else 1.0
    largest = (sums * given.weight_scale.astype(float)).max()
    assert largest < 65504 and np.array_equal(given.weight_scale * np.float32(step), weight.weight_scale)
    assert step == 1 or (largest > 65504 / 2 and step == 2 ** round(np.log2(step)))
    assert (step > 1) is (scale > 0.01)


# ---- chunks, counts, pages ----


def test_prompts_come_in_chunks_that_the_chip_likes(bundles):

    def chunk_of(**options):
        return fill_defaults(RuntimeConfig(**options), bundles["plain", True].config, this_machine())[0].chunk

    found = {name: chunk_of(device=name) for name in ("host", "ascend", "ascend:910b")}
    assert found == {"host": 256, "ascend": chip_law("310p").chunk, "ascend:910b": chip_law("910b").chunk}
    assert chip_law("310p").chunk >= chip_law("310p").fast_rows == 1024
    assert chunk_of(device="ascend", chunk=64) == 64


@pytest.mark.parametrize(("device", "counted"), [("ascend", True), ("ascend:910b", False)])
def test_what_float16_has_no_number_for_is_counted_where_the_chip_shows_no_infinity(bundles, device, counted):
    """Inside of a layer, where the last hidden states need not show it: queries, keys and values that are too large."""
    bundle = bundles["plain", True]
    runner = runner_of(bundle, placement="card", device=device)
    scale = runner.model.weights.use(1).traffic.layer.linears["qkv"].product.scale
    large = torch.full((8,), 1e3)
    with torch.inference_mode():
        scale[-8:] = large if scale.dtype == torch.float32 else npu_trans_quant_param(large)
    logits(runner, tokens_of(bundle, 40))
    assert (runner.model.clipped > 40) is counted


def test_what_is_cut_off_is_counted_in_some_chunks(monkeypatch, bundles):
    monkeypatch.setattr(layers_module, "LARGEST", 20.0)  # of 127: as if the scale were a sixth
    counted = []
    add = layers_module.Clipped.add
    monkeypatch.setattr(layers_module.Clipped, "add", lambda self, x, r: (counted.append(len(x)), add(self, x, r)))
    bundle = bundles["plain", False]
    runner = runner_of(bundle, placement="card", chunk=8)
    tokens = tokens_of(bundle, 8 * 2 * COUNTED)
    runner.forward(runner.open(), tokens)
    linears = len(bundle.decoder.layers) * 4
    assert counted == [8] * 2 * linears
    inputs = len(tokens) * sum(linear.columns for layer in bundle.decoder.layers for linear in layer.linears)
    assert 0 < runner.model.clipped < inputs and runner.model.clipped % COUNTED == 0

