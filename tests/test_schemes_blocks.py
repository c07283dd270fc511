"""Weights in the blocks of GGUF files: they run as their values say, and one numeric holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from block_files import config, mixed, random_blocks, write_blocks

from edge_llm import kernels
from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.engine.engine import collect
from edge_llm.errors import CorruptBundle, DeviceError
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.gguf_blocks import TYPES, decode
from edge_llm.formats.manifest import encode_manifest
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.activation import SILU
from edge_llm.kernels.blocks import KINDS, lay_out
from edge_llm.kernels.checksum import crc32c
from edge_llm.kernels.pointwise import gated
from edge_llm.kernels.reference import blocks as slow
from edge_llm.opening.load import load_engine
from edge_llm.opening.runner import load_runner
from edge_llm.operations.linear import Linear, SourceRows
from edge_llm.runner.base import Segment
from edge_llm.schemes import check_tensor, linear_tensors, scheme_of
from edge_llm.schemes.blocks import check_scales, panels_of_rows, rows_in_panels
from edge_llm.weights.plan import plan_memory
from edge_llm.weights.pools import Budget
from edge_llm.weights.sizes import TABLES, WeightSizes
from edge_llm.weights.streamed import StreamedWeights

POOL = ThreadPool(2)
TOKENS = [5, 100, 250, 7, 7, 31, 64, 200, 2, 90, 13, 255, 77, 140, 9, 5, 100, 41, 3, 199]


@pytest.fixture(scope="module", params=[*KINDS, "mixed", "tied"])
def bundle(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("blocks")
    raw = config(tie_word_embeddings=request.param == "tied", num_hidden_layers=4)
    name_of = mixed if request.param in ("mixed", "tied") else lambda name: request.param
    return open_bundle(import_model(write_blocks(folder / "m.gguf", name_of, raw), target=folder / "bundle"))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    raw = config(num_hidden_layers=6)
    return open_bundle(import_model(write_blocks(folder / "m.gguf", mixed, raw), target=folder / "bundle"))


def logits(bundle, tokens=TOKENS, **runtime):
    runner, _ = load_runner(bundle, RuntimeConfig(**{"threads": 2, "context": 64, **runtime}), len(tokens))
    return runner.forward(runner.open(), list(tokens), wanted=len(tokens))


def test_it_runs_as_the_values_of_its_blocks_say(bundle):
    found, exact = logits(bundle), logits(bundle, float_path=True)
    error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    one, other = (values - np.log(np.exp(values).sum(axis=1, keepdims=True)) for values in (exact, found))
    divergence = (np.exp(one) * (one - other)).sum(axis=1).mean()
    assert error < 0.03 and divergence < 2e-3


@pytest.mark.parametrize("way", [{"chunk": 16}, {"chunk": 1}, {"threads": 1}, {"threads": 3}, {"memory": "80%"}])
def test_every_way_gives_the_same_bits(bundle, way):
    assert np.array_equal(logits(bundle, **way), logits(bundle))


def test_every_instruction_set_gives_the_same_bits(mixture):
    before, found = kernels.isa(), []
    try:
        for isa in kernels.isa_variants():
            kernels.use_isa(isa)
            found.append(logits(mixture))
    finally:
        kernels.use_isa(before)
    assert len(found) >= 2 and all(np.array_equal(one, found[0]) for one in found)


def test_tokens_alone_are_tokens_in_a_prompt(bundle):
    runner, _ = load_runner(bundle, RuntimeConfig(threads=2, context=64), len(TOKENS))
    sequence = runner.open()
    steps = [runner.forward(sequence, [token], wanted=1)[0] for token in TOKENS]
    assert np.array_equal(np.stack(steps), logits(bundle))


def test_a_batch_is_each_alone(bundle):
    runner, _ = load_runner(bundle, RuntimeConfig(threads=2, context=64, kv_tokens=512), len(TOKENS))
    whole, lengths = logits(bundle), [12, 1, 5, 17, 2]
    sequences = [runner.open() for _ in lengths]
    for sequence, length in zip(sequences, lengths, strict=True):
        runner.forward(sequence, TOKENS[:length])
    for step in range(3):
        at = [length + step for length in lengths]
        found = runner.run([Segment(one, [TOKENS[place]]) for one, place in zip(sequences, at, strict=True)])
        assert np.array_equal(np.concatenate(found), whole[at])


@pytest.mark.parametrize("budget", ["45%", "60%", "90%"])
def test_streamed_weights_are_the_weights(mixture, budget):
    assert np.array_equal(logits(mixture, memory=budget), logits(mixture))


def test_tables_on_flash_give_rows_and_runs_of_panels(bundle):
    sizes = WeightSizes.of_bundle(bundle)
    plan = replace(plan_memory(sizes, sizes.total), flash_tables=TABLES)
    weights = StreamedWeights(bundle, plan, budget=Budget(2**30))
    whole = bundle.read_all()
    name = "embedding.blocks"
    kind = KINDS[bundle.decoder.table.scheme]
    tokens = np.array([279, 0, 17, 17, 100, 3, 16, 31], np.int64)
    table, places = weights.embedding_rows(tokens)
    (panels,) = table.integers.values()
    columns = bundle.decoder.hidden_size
    expected = slow.rows_of(whole[name], kind, columns, tokens)
    assert np.array_equal(slow.rows_of(panels, kind, columns, places), expected)
    x = np.random.default_rng(0).standard_normal((3, columns), np.float32)
    output = "embedding" if bundle.decoder.tied else "output"
    parts = [(rows, block.linears["output"].apply(x, POOL)) for rows, block in weights.head_blocks()]
    last = KINDS[bundle.decoder.output.scheme]
    assert np.array_equal(np.concatenate([y for _, y in parts], axis=1), slow.product(x, whole[f"{output}.blocks"], last, 280))
    assert [rows.start for rows, _ in parts] == [0, *(rows.stop for rows, _ in parts[:-1])]
    weights.close()


def answer(engine, prompt):
    params = GenerationParams(max_tokens=12, ignore_eos=True)
    return collect(engine.stream(engine.text_request(prompt, params))).tokens


def test_a_prefix_that_was_kept_and_guesses_change_nothing(mixture, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGE_LLM_HOME", str(tmp_path))
    prompt = "a b c d e f g h " * 6
    plain = answer(load_engine(mixture.folder, RuntimeConfig(threads=2, draft="none")), prompt)
    for _ in range(2):  # the second start finds what the first one kept
        engine = load_engine(mixture.folder, RuntimeConfig(threads=2, prefix_cache="64MiB"))
        assert answer(engine, prompt) == answer(engine, prompt) == plain


def test_it_is_the_reference(mixture):
    linear = mixture.decoder.layers[0].linear("qkv")
    assert linear.scheme == "q4_k,q4_k,q6_k"
    rng = np.random.default_rng(3)
    arrays = {
        name: lay_out(random_blocks(KINDS[kind], count, 256, seed).reshape(-1), KINDS[kind], count, 256, POOL)
        for seed, (name, kind, count) in enumerate((("blocks0", "q4_k", 96), ("blocks1", "q6_k", 32)))
    }
    assert [(name, array.shape) for name, array in arrays.items()] == [
        (name, shape) for name, _, shape in linear_tensors(linear, 0)
    ] or linear.rows != 128
    joint = Linear("w", (SourceRows("a", 96), SourceRows("b", 32)), 256, "x", "y", scheme="q4_k,q6_k")
    weight = scheme_of(joint).open(joint, arrays | {"bias": rng.standard_normal(128, np.float32)}, {})
    x, gain = rng.standard_normal((5, 256), np.float32), rng.standard_normal(256, np.float32)
    parts = [(arrays["blocks0"], KINDS["q4_k"], 96), (arrays["blocks1"], KINDS["q6_k"], 32)]
    expected = slow.block_linear(x, parts, bias=weight.bias, gain=gain, eps=1e-5)
    assert np.array_equal(weight.apply(x, POOL, gain=gain, eps=1e-5), expected)
    assert np.array_equal(weight.apply(x, POOL, gain=gain, eps=1e-5, gate=SILU), gated(expected, SILU, POOL))
    assert weight.nbytes == sum(array.nbytes for array in arrays.values()) + 512


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_rows_are_taken_out_of_panels_and_put_into_others(kind):
    raw = random_blocks(kind, 37, 512)
    panels = lay_out(raw.reshape(-1), kind, 37, 512, POOL)
    numbers = np.array([36, 0, 15, 16, 16, 5] * 4, np.int64)
    others = panels_of_rows(rows_in_panels(panels, kind, 512, numbers), kind, 512)
    assert np.array_equal(others, lay_out(np.ascontiguousarray(raw[numbers]).reshape(-1), kind, len(numbers), 512, POOL))


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_scales_that_are_not_finite_are_found(kind):
    raw = random_blocks(kind, 20, 512)
    check_scales(lay_out(raw.reshape(-1), kind, 20, 512, POOL), kind, 512)
    at = [0] if kind.name == "mxfp4" else [209] if kind.name == "q6_k" else [1, 3] if kind.has_least else [1]
    for row, place in ((0, at[0]), (19, kind.nbytes + at[-1])):
        bad = raw.copy()
        bad[row, place] = 0xFF if kind.name == "mxfp4" else 0x7C
        panels = lay_out(bad.reshape(-1), kind, 20, 512, POOL)
        with pytest.raises(ValueError, match="not finite"):
            check_scales(panels, kind, 512)
        linear = Linear("w", (SourceRows("w", 20),), 512, "x", "y", scheme=kind.name)
        with pytest.raises(ValueError, match="not finite"):
            check_tensor(linear, "blocks", panels)


@pytest.mark.parametrize(("scheme", "columns", "counts"), [
    ("q4_k", 96, [16]), ("q4_0,q4_0", 64, [16, 16]), ("q4_0,q8_0", 64, [8, 16]), ("q4_0,int8", 64, [16, 16]),
    ("q4_0,q8_0", 64, [16]), ("q4_0", 48, [16]), ("q9", 64, [16]),
])  # fmt: skip
def test_a_scheme_that_does_not_suit_a_linear_is_refused(scheme, columns, counts):
    linear = Linear("w", tuple(SourceRows(str(n), count) for n, count in enumerate(counts)), columns, "x", "y", scheme=scheme)
    with pytest.raises(ValueError, match="cannot have the scheme"):
        scheme_of(linear)


def forged(bundle, folder, change):
    """A copy of ``bundle`` whose manifest was changed and signed again."""
    folder.mkdir()
    for path in bundle.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    fields = {key: value for key, value in bundle.manifest.items() if key != "checksum"}
    fields["linears"] = {name: dict(record) for name, record in fields["linears"].items()}
    fields["tensors"] = [dict(record) for record in fields["tensors"]]
    change(fields, folder)
    (folder / "manifest.json").write_bytes(encode_manifest(fields))
    return folder


def with_an_infinite_scale(fields, folder):
    record = next(one for one in fields["tensors"] if one["name"] == "layers.0.o.blocks")
    data = bytearray((folder / "weights.bin").read_bytes())
    data[record["offset"] + 1] = 0x7C
    record["crc32c"] = crc32c(bytes(data[record["offset"] : record["offset"] + record["bytes"]]))
    (folder / "weights.bin").write_bytes(data)


@pytest.mark.parametrize("change", [
    lambda fields, folder: fields["linears"]["layers.0.o"].update(scheme="q5_k"),
    lambda fields, folder: fields["linears"]["layers.0.o"].update(input_scale=1.0),
    lambda fields, folder: fields["linears"]["embedding"].update(scheme="int8"),
    lambda fields, folder: fields["linears"]["embedding"].update(turn=16),
    lambda fields, folder: fields["linears"].pop("embedding"),
    lambda fields, folder: fields["linears"]["output"].update(turn=16),
    with_an_infinite_scale,
])  # fmt: skip
def test_a_forged_bundle_is_refused(mixture, tmp_path, change):
    folder = forged(mixture, tmp_path / "forged", change)
    with pytest.raises(CorruptBundle), open_bundle(folder) as found:
        found.read_all()


def test_a_bundle_opened_again_is_the_same_and_says_what_it_has(bundle):
    again = open_bundle(bundle.folder)
    assert again.decoder == bundle.decoder and again.manifest["version"] == 5
    again.verify()
    whole = again.read_all()
    assert all(np.array_equal(array, again.read(name)) for name, array in whole.items())


@pytest.mark.parametrize("device", ["emulated:910b", "emulated:310p", "onnx", "om:nowhere"])
def test_a_card_refuses_it_with_a_way_out(mixture, device):
    with pytest.raises(DeviceError, match="--weights int8"):
        load_runner(mixture, RuntimeConfig(device=device, context=64), 8)


def test_values_are_those_of_ggml():
    for kind in KINDS.values():
        raw = random_blocks(kind, 20, 256)
        panels = lay_out(raw.reshape(-1), kind, 20, 256, POOL)
        values = decode(TYPES[kind.ggml], raw).reshape(20, 256)
        assert np.array_equal(slow.rows_of(panels, kind, 256, np.arange(20)), values)
