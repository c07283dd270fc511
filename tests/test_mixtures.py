"""Families with experts: the float path is transformers', and every way gives one result."""

import json
import shutil

import numpy as np
import pytest
from block_files import NUMBERS, random_blocks
from families import MIXTURES, TOKENS, assert_described, assert_float_path, family_folder, float_model, logits_of, of_each
from gguf_families import family_gguf, family_pairs, family_tensors
from gguf_files import gguf_bytes, tokenizer_pairs
from safetensors.numpy import load_file, save_file
from test_devices_card import EXACT

from edge_llm.ascend.export.exporter import export_onnx
from edge_llm.config import RuntimeConfig
from edge_llm.convert import coding
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.gradient import layer_gradient
from edge_llm.convert.importer import import_model
from edge_llm.devices.base import WatchedOp
from edge_llm.errors import NumericError, UnsupportedModel, UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.layout import BLOCK_ALIGNMENT, group_units
from edge_llm.kernels.blocks import KINDS
from edge_llm.models import describe
from edge_llm.models.reference import FloatModel, layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.models.weights import check_tensors
from edge_llm.opening.machine import this_machine
from edge_llm.opening.resolve import resolve
from edge_llm.opening.runner import load_runner
from edge_llm.operations.base import NUMPY, Gain
from edge_llm.operations.experts import Experts
from edge_llm.operations.router import Router
from edge_llm.runner.base import Segment
from edge_llm.runner.work import work_of
from edge_llm.sources import open_source

family, bundle = of_each(MIXTURES, every=4)


def test_the_float_path_is_that_of_transformers(family):
    assert_float_path(*family, TOKENS)


def test_a_bundle_carries_its_description(family, bundle):
    folder, _ = family
    assert_described(folder, bundle)


def test_gradients_are_differences(family):
    """Along directions in which no row changes its experts."""
    folder, _ = family
    model, random = float_model(folder), np.random.default_rng(3)
    tables = RopeTables(64)
    for layer, weights in zip(model.decoder.layers[:2], model.layers, strict=False):
        x, seen, step = (random.standard_normal((40, model.decoder.hidden_size), np.float32) for _ in range(3))
        step *= np.float32(5e-4)
        ahead, behind = (layer_forward(x + sign * step, layer, weights, tables) for sign in (1, -1))
        same = np.abs(ahead - behind).max(axis=1) < 0.05
        seen[~same] = 0
        wanted = float(((ahead - behind).astype(np.float64) * seen).sum() / 2)
        found = float((layer_gradient(x, layer, weights, tables, seen, lambda *_: None).astype(np.float64) * step).sum())
        assert same.mean() > 0.8 and found == pytest.approx(wanted, rel=2e-2, abs=2e-3)


def logits(bundle, **runtime):
    runner, _ = load_runner(bundle, RuntimeConfig(**{"threads": 2, "context": 128, **runtime}), 100)
    return runner.forward(runner.open(), TOKENS, wanted=len(TOKENS))


def divergence(exact, found):
    shares = [np.exp(x - x.max(axis=1, keepdims=True)) for x in (exact, found)]
    p, q = (x / x.sum(axis=1, keepdims=True) for x in shares)
    return float((p * np.log(p / q)).sum(axis=1).mean())


def test_int8_is_near_float(bundle):
    assert divergence(logits(bundle, float_path=True), logits(bundle)) < 0.05


@pytest.mark.parametrize("way", [{"chunk": 16, "window": 2}, {"memory": "85%"}, {"threads": 1, "chunk": 7}])
def test_every_way_gives_the_same(bundle, way):
    assert np.array_equal(logits(bundle, **way), logits(bundle))


def test_a_batch_is_each_alone(bundle):
    runner, _ = load_runner(bundle, RuntimeConfig(threads=2, context=128, kv_tokens=512), 100)
    texts = [TOKENS[:70], TOKENS[20:61], TOKENS[5:6]]
    alone = [runner.forward(runner.open(), text, wanted=len(text)) for text in texts]
    together = runner.run([Segment(runner.open(), text, len(text)) for text in texts])
    assert all(map(np.array_equal, together, alone))


def test_steps_are_the_prompt(bundle):
    runner, _ = load_runner(bundle, RuntimeConfig(threads=2, context=128), 100)
    whole, sequence = logits(bundle), runner.open()
    steps = [runner.forward(sequence, TOKENS[:40], wanted=1), *(runner.forward(sequence, [token]) for token in TOKENS[40:])]
    assert np.array_equal(np.concatenate(steps), whole[39:])


def only(names):
    return pytest.mark.parametrize("family", names, indirect=True, scope="module")


@only(["qwen3_moe"])
def test_an_expert_lies_in_one_piece(bundle):
    for index, layer in enumerate(bundle.decoder.layers):
        units = group_units(bundle.blocks[f"layers.{index}"])
        mixture = next((one for one in layer.operations if isinstance(one, Experts)), None)
        assert list(units) == [f"layers.{index}.experts.{one}" for one in range(mixture.count if mixture else 0)]
        for name, unit in units.items():
            assert unit.offset % BLOCK_ALIGNMENT == unit.nbytes % BLOCK_ALIGNMENT == 0
            assert {one.name.removeprefix(f"{name}.").partition(".")[0] for one in unit.tensors} == {"gate_up", "down"}


@only(["qwen3_moe"])
@pytest.mark.parametrize("how", [{"weights": LayerBits("auto", bits=6)}, {"turn": 0}])
def test_other_weights_are_near_float_and_the_same_every_way(family, how, tmp_path):
    told = []
    with open_bundle(import_model(family[0], target=tmp_path / "bundle", notice=told.append, **how)) as opened:
        found = logits(opened)
        assert divergence(family[1], found) < 0.3
        assert np.array_equal(found, logits(opened, chunk=16, threads=1))
    if "weights" in how:
        assert any("are fitted to the calibration text" in line for line in told)


@only(["qwen3_moe"])
def test_an_import_holds_the_energies_of_some_experts_at_a_time(family, tmp_path, monkeypatch):
    """The text goes through a layer more often then, and the weights are the same bytes."""
    groups, within = [], coding._within_memory
    monkeypatch.setattr(coding, "_within_memory", lambda *given: groups.append(within(*given)) or groups[-1])
    made = []
    for energies in (coding._EXPERT_ENERGIES, 4 * 3 * 64**2):
        monkeypatch.setattr(coding, "_EXPERT_ENERGIES", energies)
        folder = import_model(family[0], target=tmp_path / str(energies), weights=LayerBits("auto", bits=6))
        made.append((folder / "weights.bin").read_bytes())
    assert made[0] == made[1]
    once, often = groups[: len(groups) // 2], groups[len(groups) // 2 :]
    assert all(len(one) == 1 for one in once) and any(len(one) > 2 for one in often)


@only(["olmoe"])
def test_an_export_for_a_card_refuses_it(bundle, tmp_path):
    with pytest.raises(UnsupportedModel, match="has a mixture of experts in its layers"):
        export_onnx(bundle, tmp_path / "out", (16,))


@only(["olmoe", "glm4_moe", "gpt_oss"])
@pytest.mark.parametrize("memory", [None, "70%"])
def test_beside_a_card_the_host_does_the_experts_with_the_bits_of_the_host_alone(bundle, memory):
    """A chip whose products are exact; attention and shared experts are its own, and experts may come from flash."""
    static = {"activations": "static", "chunk": 16}
    runner = load_runner(bundle, RuntimeConfig(device=EXACT["310p"], memory=memory, threads=2, context=128, **static), 100)[0]
    site = runner.site
    assert (site.placement, site.placement_reason) == (
        "split,host", "the host does a mixture of experts, and steps as a whole, beside the card"
    )  # fmt: skip
    on_card = {name for layer in range(len(bundle.decoder.layers)) for name in runner.model.weights.use(layer).card}
    assert {"qkv", "o"} <= on_card and not any(name.startswith("experts.") for name in on_card)
    assert (runner.model.weights.experts is not None) == (memory is not None)
    on_host = load_runner(bundle, RuntimeConfig(threads=2, context=128, **static), 100)[0]
    assert np.array_equal(answered(runner), answered(on_host))


@only(["olmoe"])
def test_a_card_with_its_own_operators_gives_the_bits_of_the_emulated_chip(bundle, monkeypatch):
    monkeypatch.setenv("EDGE_LLM_NPU_OPS", "emulated")
    same = {"threads": 2, "context": 128, "chunk": 16}
    found = [answered(load_runner(bundle, RuntimeConfig(device=one, **same), 100)[0]) for one in ("ascend", "emulated:310p")]
    assert np.array_equal(*found)


@only(["olmoe"])
@pytest.mark.parametrize("placement", ["card", "split"])
def test_a_placement_with_experts_on_the_card_is_refused_with_the_reason(bundle, placement):
    with pytest.raises(UsageError, match=f"--placement `{placement}`: the host does a mixture of experts.*does: split,host"):
        resolve(RuntimeConfig(device="emulated:310p", placement=placement, context=128), this_machine(), bundle)


def answered(runner):
    """Logits of a prompt and of three steps."""
    sequence = runner.open()
    prompt = runner.forward(sequence, TOKENS[:40], wanted=40)
    return np.concatenate([prompt, *(runner.forward(sequence, [token]) for token in TOKENS[40:43])])


@only(["olmoe"])
def test_a_row_that_is_no_number_ends_its_request_alone(bundle):
    runner, _ = load_runner(bundle, RuntimeConfig(threads=2, context=128, kv_tokens=512), 100)
    good = runner.forward(runner.open(), TOKENS[:5])
    gains = runner.model.weights.use(0).gains
    before = gains["router"].copy()
    gains["router"][0] = np.nan
    with pytest.raises(NumericError, match="router"):
        runner.forward(runner.open(), TOKENS[:5])
    gains["router"][:] = before
    assert np.array_equal(runner.forward(runner.open(), TOKENS[:5]), good)


def router(**more):
    return Router(Gain("router", "gate.weight", 4, rows=6), **{"used": 2, **more})


ONE_ROW = np.array([[1, 0, 0, 0]], np.float32)


def weighed(products, **more):
    """The experts that one row goes to and what they weigh, where its products are these."""
    matrix = np.zeros((6, 4), np.float32)
    matrix[:, 0] = products
    gains = {"router": matrix, **more.pop("biases", {})}
    found = router(**more).routes(ONE_ROW, gains, NUMPY)
    return dict(zip(found.experts[0].tolist(), found.weights[0].tolist(), strict=True))


def test_of_equal_scores_the_lower_number_is_chosen():
    assert list(weighed([0, 1, 2, 2, 2, 0])) == [2, 3]
    assert list(weighed([1, 1, 1, 1, 1, 1], scores="sigmoid")) == [0, 1]


def test_scores_are_those_of_the_families():
    products = np.array([0.3, -1, 2, 0.5, 1, 0])
    shares = np.exp(products) / np.exp(products).sum()
    assert weighed(products) == pytest.approx({2: shares[2], 4: shares[4]})
    best = {2: shares[2] / (shares[2] + shares[4]), 4: shares[4] / (shares[2] + shares[4])}
    assert weighed(products, normalised=True) == pytest.approx(best)
    assert weighed(products, scores="softmax_of_chosen", factor=2.0) == pytest.approx({one: 2 * best[one] for one in best})
    alone = 1 / (1 + np.exp(-products))
    bias = np.array([0, 5, 0, 0, 0, 0], np.float32)
    chosen = weighed(products, scores="sigmoid", choice_bias=Gain("choice", "bias", 6), biases={"choice": bias})
    assert chosen == pytest.approx({1: alone[1], 2: alone[2]})


def test_experts_come_from_the_best_groups():
    """Of three groups of two the last is best; its second expert beats the best of another group."""
    assert list(weighed([3, -9, 1, 0, 2, 1.5], groups=3, groups_used=1, scores="sigmoid")) == [4, 5]


@pytest.mark.parametrize("products", [np.nan, np.inf])
def test_products_that_are_no_numbers_choose_nobody(products):
    with pytest.raises(ValueError, match="non-finite"):
        weighed([0, products, 0, 0, 0, 0])


@pytest.mark.parametrize("wrong", [{"used": 7}, {"scores": "best"}, {"groups": 4}, {"groups": 3, "used": 3}])
def test_a_router_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="router"):
        router(**wrong)


KINDS_OF_EXPERTS = {"gate": "q4_0", "up": "q4_0", "down": "q5_1"}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A GGUF file whose experts are stacks of blocks."""
    folder, _ = family_folder(tmp_path_factory.mktemp("blocks") / "hf", "olmoe")
    raw = json.loads((folder / "config.json").read_text())
    tensors = []
    for seed, (name, number, shape, data) in enumerate(family_tensors(raw, load_file(folder / "model.safetensors"))):
        if len(shape) == 3:
            kind = KINDS_OF_EXPERTS[name.split("_")[1]]
            blocks = random_blocks(KINDS[kind], shape[0] * shape[1], shape[2], seed, shape[2] ** -0.5)
            number, data = NUMBERS[kind], blocks.tobytes()
        tensors.append((name, number, shape, data))
    file = folder.parent / "m.gguf"
    file.write_bytes(gguf_bytes(family_pairs(raw) | tokenizer_pairs(), tensors))
    return file


def test_experts_keep_the_blocks_of_a_file(file, tmp_path):
    with open_source(file) as source:
        exact = FloatModel(source, source.config).forward(TOKENS)
    with open_bundle(import_model(file, target=tmp_path / "bundle", weights=LayerBits("blocks"))) as opened:
        linears = opened.decoder.linears()
        assert {linears[f"layers.1.experts.7.{name}"].scheme for name in ("gate_up", "down")} == {"q4_0", "q5_1"}
        found = logits(opened)
        assert divergence(exact, found) < 0.02
        assert np.array_equal(found, logits(opened, chunk=16, threads=1))


@pytest.mark.parametrize("name", ["granite"])
def test_a_mixture_of_another_architecture_is_refused(name, tmp_path):
    folder, _ = family_folder(tmp_path / "hf", name)
    (tmp_path / "m.gguf").write_bytes(family_gguf(folder, granite__expert_count=8))
    with pytest.raises(UnsupportedModel, match="a mixture of `8` experts of the architecture `granite`.*olmoe"):
        open_source(tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["granitemoe", "gpt_oss"])
def test_a_file_that_has_gate_and_up_apart_is_the_same_model(name, tmp_path):
    folder, _ = family_folder(tmp_path / "hf", name)
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "swiglu_limit": 7.0}))
    (tmp_path / "m.gguf").write_bytes(family_gguf(folder))
    with open_source(tmp_path / "m.gguf") as mine, open_source(folder) as theirs:
        assert not check_tensors(mine, describe(mine.config))
        found, wanted = (FloatModel(one, one.config).forward(TOKENS) for one in (mine, theirs))
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
    with open_bundle(import_model(tmp_path / "m.gguf", target=tmp_path / "bundle", weights=LayerBits("blocks"))) as opened:
        assert divergence(wanted, logits(opened)) < 0.02


def mxfp4(weights, random):
    """Random codes and scales of MXFP4 in the shape [E, rows, columns] of ``weights``, and what they stand for."""
    experts, rows, columns = weights
    codes = random.integers(0, 16, (experts, rows, columns), np.uint8)
    scales = random.integers(122, 126, (experts, rows, columns // 32), np.uint8)
    signs, sizes = codes >> 3, np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)[codes & 7]
    values = np.where(signs, -sizes, sizes) * np.repeat(np.exp2(scales.astype(np.float32) - 127), 32, axis=2)
    blocks = (codes[..., ::2] | codes[..., 1::2] << 4).reshape(experts, rows, columns // 32, 16)
    return blocks, scales, values.astype(np.float32)


def test_experts_in_mxfp4_are_the_floats_that_they_stand_for(tmp_path):
    """As gpt-oss is published, beside the same model in floats."""
    folder, _ = family_folder(tmp_path / "floats", "gpt_oss")
    random, tensors, packed = np.random.default_rng(5), load_file(folder / "model.safetensors"), {}
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, columns, rows = tensors[name].shape
        packed[f"{name}_blocks"], packed[f"{name}_scales"], values = mxfp4((experts, rows, columns), random)
        tensors[name] = np.ascontiguousarray(values.swapaxes(1, 2))
    save_file(tensors, folder / "model.safetensors")
    other = tmp_path / "packed"
    shutil.copytree(folder, other)
    unpacked = {name: values for name, values in tensors.items() if f"{name}_blocks" not in packed}
    save_file(unpacked | packed, other / "model.safetensors")
    raw = json.loads((folder / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(raw | {"quantization_config": {"quant_method": "mxfp4"}}))
    with open_source(other) as mine, open_source(folder) as theirs:
        assert mine.quantization == "MXFP4, groups of 32" and sorted(mine.names()) == sorted(theirs.names())
        assert all(np.array_equal(mine.read(name), theirs.read(name)) for name in theirs.names())
    with open_bundle(import_model(other, target=tmp_path / "bundle")) as opened:
        assert "quantization_config" not in json.loads(opened.read_file("config.json"))


def test_stacks_of_experts_with_their_rows_first_are_the_same_model(tmp_path):
    """As Qwen3.5's are published: gate and up of all experts in one tensor."""
    folder, model = family_folder(tmp_path / "apart", "qwen3_5_moe_text")
    apart = load_file(folder / "model.safetensors")
    mixtures = {name.split(".experts.")[0] for name in apart if ".experts." in name}
    tensors = {name: values for name, values in apart.items() if ".experts." not in name}
    for mixture in mixtures:
        gate, up, down = (
            np.stack([apart[f"{mixture}.experts.{expert}.{name}_proj.weight"] for expert in range(4)])
            for name in ("gate", "up", "down")
        )
        tensors[f"{mixture}.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        tensors[f"{mixture}.experts.down_proj"] = down
    save_file(tensors, folder / "model.safetensors")
    assert_float_path(folder, logits_of(model, TOKENS), TOKENS)


@only(["olmoe"])
def test_work_is_that_of_the_experts_that_rows_need(bundle):
    runner, _ = load_runner(bundle, RuntimeConfig(threads=2, context=128), 100)
    layer, weights = bundle.decoder.layers[0], runner.model.weights.use(0)
    mixture = layer.operations[-1]
    ((part, op),) = mixture.host_parts(layer, None)
    watched = WatchedOp(part, op, weights, None, slice(0, 1))
    each = sum(weights.linears[f"experts.0.{name}"].nbytes for name in ("gate_up", "down"))
    for rows in (1, 2, 90):
        operations, nbytes = work_of(watched, np.zeros(rows, np.int32))
        assert operations == rows * mixture.used * 2 * 3 * mixture.columns * mixture.width
        assert nbytes == min(rows * mixture.used, mixture.count) * each
