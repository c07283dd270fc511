"""A bundle with codes answers as the INT8 bundle that it stands for, bit for bit, wherever and however it runs."""

import dataclasses

import numpy as np
import pytest
from int8_twin import int8_twin
from model_files import random_tensors, tiny_config, write_model
from test_engine_drafting import Always

from edge_llm.ascend.export.exporter import export_onnx
from edge_llm.bench.synthetic import write_random
from edge_llm.config import INT8, W4, GenerationParams, LlamaConfig, RuntimeConfig
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.errors import EdgeLLMError
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.load import load_engine
from edge_llm.opening.machine import this_machine
from edge_llm.opening.resolve import resolve
from edge_llm.opening.runner import load_runner
from edge_llm.runner.base import Segment

ODD = LlamaConfig(
    family="qwen2", vocab_size=130, hidden_size=72, intermediate_size=76, num_layers=4, num_heads=3,
    num_kv_heads=1, head_dim=24, context=640, norm_eps=1e-6, rope_theta=1e6, qkv_bias=True,
)  # fmt: skip
TOKENS = np.random.default_rng(3).integers(0, 130, 150).tolist()
HOST = [{}, {"chunk": 16}, {"chunk": 33, "window": 3}, {"memory": "70%"}, {"memory": "70%", "chunk": 16}, {"threads": 1}]
CARDS = [
    {"device": device, "placement": placement}
    for device in ("emulated:310p", "emulated:910b")
    for placement in ("split", "split,host", "card")
] + [{"device": "onnx", "placement": placement} for placement in ("split", "split,host")]


PARTS = {
    "layers.0.qkv": "w4,w4,int8", "layers.1.qkv": "int8,w4,w4", "layers.2.qkv": "w4,int8,w4", "layers.2.o": "int8",
    "layers.0.gate_up": "w4,int8", "layers.3.gate_up": "int8,w4",
}  # fmt: skip


@pytest.fixture(
    scope="module", params=["imported", "imported with its head", "imported in parts", "odd sizes", "head too", "tied head too"]
)
def bundles(request, tmp_path_factory):
    """A W4 bundle and its INT8 twin."""
    folder = tmp_path_factory.mktemp("w4")
    if request.param.startswith("imported"):
        head = W4 if "head" in request.param else INT8
        fixed = PARTS if "parts" in request.param else {}
        write_model(folder / "source", tiny_config("llama", num_hidden_layers=4, intermediate_size=128, attention_bias=True))
        weights = LayerBits(W4, head=head, fixed=fixed)
        import_model(folder / "source", target=folder / "w4", outliers=Outliers("full"), weights=weights)
    else:
        (folder / "w4").mkdir()
        config = dataclasses.replace(ODD, tied_embeddings=request.param == "tied head too")
        write_random(folder / "w4", config, seed=1, weights=W4, head=W4 if "head too" in request.param else INT8)
    bundle = open_bundle(folder / "w4")
    return bundle, int8_twin(bundle, folder / "int8")


def runner_of(bundle, **runtime):
    runtime = {"threads": 2, "context": 224, "activations": "static", **runtime}
    return load_runner(bundle, RuntimeConfig(**runtime), len(TOKENS))[0]


def logits(bundle, **runtime):
    runner = runner_of(bundle, **runtime)
    return runner.forward(runner.open(), TOKENS, wanted=len(TOKENS))


def steps(bundle, **runtime):
    """Logits of the first prompt rows, and then of steps of one token."""
    runner = runner_of(bundle, **runtime)
    sequence = runner.open()
    return np.concatenate([runner.forward(sequence, TOKENS[:50]), *(runner.forward(sequence, [one]) for one in TOKENS[50:60])])


def test_the_layers_have_codes(bundles):
    schemes = {name: linear.scheme for name, linear in bundles[0].decoder.linears().items()}
    assert schemes.pop("output") in ("int8", "w4")
    assert {name: scheme for name, scheme in schemes.items() if scheme != "w4"} in ({}, PARTS)
    assert {linear.scheme for linear in bundles[1].decoder.linears().values()} == {"int8"}


@pytest.mark.parametrize("way", HOST, ids=str)
def test_every_way_on_the_host_is_the_int8_weight(bundles, way):
    assert np.array_equal(logits(bundles[0], **way), logits(bundles[1]))


def test_streamed_layers_are_half_as_large(bundles):
    streamed = [runner_of(bundle, memory="70%").model.weights.streamed_bytes for bundle in bundles]
    assert 0 < streamed[0] < 0.9 * streamed[1]  # tiny layers have long vectors beside their codes


def test_a_batch_is_each_alone(bundles):
    whole = logits(bundles[1])
    for lengths in ([50, 17, 1], [5] * 7 + [90]):
        runner = runner_of(bundles[0])
        runner_sequences = [runner.open() for _ in lengths]
        for sequence, length in zip(runner_sequences, lengths, strict=True):
            runner.forward(sequence, TOKENS[:length])
        found = runner.run([Segment(s, [TOKENS[n]]) for s, n in zip(runner_sequences, lengths, strict=True)])
        assert np.array_equal(np.concatenate(found), whole[lengths])


@pytest.mark.thorough(keep=4)
@pytest.mark.parametrize("way", CARDS, ids=lambda way: " ".join(way.values()))
def test_every_device_is_the_int8_weight(bundles, way):
    pytest.importorskip("onnxruntime") if way["device"] == "onnx" else None
    assert np.array_equal(logits(bundles[0], **way), logits(bundles[1], **way))
    assert np.array_equal(steps(bundles[0], **way), steps(bundles[1], **way))


@pytest.mark.parametrize("placement", ["split", "card"])
@pytest.mark.parametrize("chip", ["310p", "910b"])
def test_layers_that_are_streamed_to_a_card_are_the_int8_weight(bundles, chip, placement):
    """A card has INT8 tiles, so it has the same needs; a host's buffers hold codes."""
    way = {"device": f"emulated:{chip}", "placement": placement}
    plan = resolve(RuntimeConfig(**{"threads": 2, "context": 224, **way}), this_machine(), bundles[0])
    needs = [plan.device.needs(bundle.decoder, bundle.tensors, plan.room) for bundle in bundles]
    in_two_passes = any("," in one.scheme for name, one in bundles[0].decoder.linears().items() if name.endswith("gate_up"))
    assert (needs[0].fixed > needs[1].fixed) == in_two_passes  # room for gate and up channels that meet in a second pass
    assert needs[0] == dataclasses.replace(needs[1], fixed=needs[0].fixed)
    rooms = [str(need.held((0, 1, 2))) for need in needs]
    runners = [runner_of(bundle, **way, card_memory=room) for bundle, room in zip(bundles, rooms, strict=True)]
    assert [bool(runner.model.weights.streamed) for runner in runners] == [True, True]
    found, wanted = (runner.forward(runner.open(), TOKENS, wanted=len(TOKENS)) for runner in runners)
    assert np.array_equal(found, wanted)


def test_what_overflows_beside_a_card_is_read_from_the_codes(bundles):
    runner = runner_of(bundles[0], device="emulated:910b", placement="split")
    assert np.array_equal(runner.forward(runner.open(), TOKENS, wanted=len(TOKENS)), logits(bundles[1]))
    assert runner.model.weights._host._cold.read > 0


@pytest.mark.thorough(keep=5)
@pytest.mark.parametrize("placement", ["split", "split,host", "card"])
def test_an_ascend_card_is_the_int8_weight(bundles, monkeypatch, placement):
    monkeypatch.setenv("EDGE_LLM_NPU_OPS", "emulated")
    if placement == "card":  # its attention refuses the odd heads
        fitting = [one for one in bundles if one.decoder.attentions[0].head_dim % 16 == 0]
        bundles = fitting or pytest.skip("the card refuses the heads")
    way = {"device": "ascend", "placement": placement}
    assert np.array_equal(*(logits(bundle, **way) for bundle in bundles))
    assert np.array_equal(*(steps(bundle, **way) for bundle in bundles))


def test_an_export_has_the_initializers_of_the_int8_weights(bundles, tmp_path):
    pytest.importorskip("onnx")
    folders = [export_onnx(bundle, tmp_path / name, (4,)) for bundle, name in zip(bundles, ("w4", "int8"), strict=True)]
    assert not folders[0].on_host
    for index in range(4):
        files = [one.folder / "initializers" / f"layers.{index}.bin" for one in folders]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("source") / "source", tiny_config("llama", num_hidden_layers=4))


@pytest.fixture(scope="module")
def folders(source, tmp_path_factory):
    """A W4 bundle with words, and its INT8 twin."""
    folder = tmp_path_factory.mktemp("words")
    import_model(source, target=folder / "w4", outliers=Outliers("full"), weights=LayerBits(W4))
    int8_twin(open_bundle(folder / "w4"), folder / "int8")
    return folder / "w4", folder / "int8"


def answer(folder, text="hello world in the hell", **runtime):
    engine = load_engine(folder, RuntimeConfig(threads=2, context=224, **runtime))
    engine.batcher.drafting.gain = Always()  # the tiny models' guesses would not pay
    request = engine.text_request(text, GenerationParams(max_tokens=24, ignore_eos=True))
    found = engine.answer(request)
    if runtime.get("prefix_cache"):
        engine.runner.memory._disk.close()  # writes what it has
    return found


@pytest.mark.parametrize("target", ["w4", "int8"])
def test_a_draft_in_codes_guesses_like_the_int8_weight(folders, target):
    folder = folders[target == "int8"]
    alone = answer(folder, draft="none")
    drafted = [answer(folder, draft=str(draft)) for draft in folders]
    assert {tuple(one.tokens) for one in (alone, *drafted)} == {tuple(alone.tokens)}
    assert all(one.finish.timings.accepted_tokens == one.finish.timings.drafted_tokens > 0 for one in drafted)


def test_pages_on_disk_are_found_again(folders):
    text = "the world " * 30
    first, again = (answer(folders[0], text, prefix_cache="64MiB") for _ in range(2))
    assert first.tokens == again.tokens == answer(folders[1], text).tokens
    assert first.finish.usage.cached_tokens == 0 < again.finish.usage.cached_tokens


@pytest.mark.thorough
def test_an_interrupted_import_shows_nothing_and_goes_on(source, tmp_path):
    seen = []
    import_model(source, target=tmp_path / "whole", weights=LayerBits(W4), progress=lambda *at: seen.append(at))
    stages = {stage: at for stage, *at in seen}
    assert {"digest", "layers", "output"} <= set(stages)
    for stage, at in stages.items():

        def interrupt(*now, stop=(stage, *at)):
            if now == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            import_model(source, target=tmp_path / "cut", weights=LayerBits(W4), progress=interrupt)
        assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["whole"]
    import_model(source, target=tmp_path / "cut", weights=LayerBits(W4))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut", "whole"]
    assert (tmp_path / "cut" / "weights.bin").read_bytes() == (tmp_path / "whole" / "weights.bin").read_bytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e38])
def test_weights_that_no_code_can_stand_for_are_named(tmp_path, bad):
    raw = tiny_config("llama")
    tensors = random_tensors(raw)
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = bad
    write_model(tmp_path / "source", raw, tensors=tensors)
    with pytest.raises(EdgeLLMError, match="down"):
        import_model(tmp_path / "source", target=tmp_path / "bundle", weights=LayerBits(W4))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
