"""Turns: the float model stays what it is, every path agrees on the bits, and INT8 comes near to float."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import random_tensors, tiny_config, write_model
from odd_layers import ODD, odd, random_weights

from edge_llm.bench.lanes import beside_products, shadow_spans
from edge_llm.bench.lanes import compare as compare_lanes
from edge_llm.bench.lanes import markdown as lane_table
from edge_llm.bench.lanes import rows as lane_rows
from edge_llm.bench.quality import compare
from edge_llm.cli.main import run
from edge_llm.cli.turns import turn_report
from edge_llm.config import ROW, STATIC, GenerationParams, RuntimeConfig
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.convert.layer_folds import places
from edge_llm.convert.turns import quantizable, turn_values, with_turns
from edge_llm.devices import split
from edge_llm.errors import CorruptBundle, UnsupportedModel, UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.manifest import MANIFEST, encode_manifest
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.kernels.linear import quantize
from edge_llm.models import describe, load_config
from edge_llm.models.reference import layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.models.weights import read_layer
from edge_llm.opening.load import load_comparison, load_engine
from edge_llm.opening.runner import load_int8_runner, load_runner
from edge_llm.operations.attention import VALUES
from edge_llm.operations.base import HIDDEN, FloatLinear, HeadTurns, LayerWeights
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear
from edge_llm.quant.turning import block_of, turned, turned_back, turned_columns
from edge_llm.runner.base import Segment
from edge_llm.runner.order import POLICIES
from edge_llm.scheduler import CostModel, Policy, Span, TaskGraph, Trace, simulate
from edge_llm.subgraphs.ops import CARD_LANE, HOST_LANE, SHADOW_PART

pytestmark = pytest.mark.thorough(file=8)

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
SHAPE = {
    "hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "num_hidden_layers": 5,  # an odd number: streamed layers come into another of two buffers with every pass
}  # fmt: skip


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Per family a tiny random model whose channels can be turned; qwen2's keys have large biases."""
    folder, found = tmp_path_factory.mktemp("sources"), {}
    for family in FAMILIES:
        raw = tiny_config(family, tie_word_embeddings=family in ("llama", "qwen3"), **SHAPE)
        tensors = random_tensors(raw)
        for name in tensors:
            if name.endswith("k_proj.bias"):
                tensors[name] *= 20
        found[family] = write_model(folder / family, raw, tensors=tensors)
    return found


@pytest.fixture(scope="session")
def bundles(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    return {family: import_model(source, target=folder / family, keep_float=True) for family, source in sources.items()}


@pytest.mark.parametrize(
    ("channels", "most", "block"), [(576, 128, 64), (640, 128, 128), (172, 128, 4), (7, 128, 0), (1024, 16, 16), (96, 128, 32)]
)
def test_a_block_is_the_largest_power_of_two_that_divides_the_channels(channels: int, most: int, block: int) -> None:
    assert block_of(channels, most) == block


def test_turned_weights_meet_turned_rows() -> None:
    random = np.random.default_rng(0)
    x, weight = random.standard_normal((5, 192)), random.standard_normal((7, 192))
    x, weight = x.astype(np.float32), weight.astype(np.float32)
    np.testing.assert_allclose(turned(x, 64) @ turned_columns(weight, 64).T, x @ weight.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(turned_back(turned(x, 64), 64), x, rtol=1e-5, atol=1e-6)


def turned_forward(x: np.ndarray, layer: Layer, weights: LayerWeights) -> np.ndarray:
    """`layer_forward` in float with the matrices that would be quantized, on turned inputs."""
    weights = turn_values(weights, layer)
    with ThreadPoolExecutor(1) as pool:
        ready = quantizable(weights, layer, pool)

    def apply(linear: Linear, _: FloatLinear, rows: np.ndarray) -> np.ndarray:
        made = ready[linear.name]
        y = turned(rows, linear.turn) @ made.weight.T
        return y if made.bias is None else y + made.bias

    return layer_forward(x, layer, weights, RopeTables(16), apply=apply)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turned_layer_is_the_same_float_layer(sources: dict[str, Path], family: str) -> None:
    with open_model_folder(sources[family]) as source:
        decoder = with_turns(describe(load_config(source.config)))
        layer = decoder.layers[1]
        weights = read_layer(source, layer)
    assert layer.attention.turn == 32 and layer.attention.value_turn == 32
    assert {one.name: one.turn for one in layer.linears} == {"qkv": 32, "o": 0, "gate_up": 32, "down": 32}
    x = np.random.default_rng(1).standard_normal((9, 96)).astype(np.float32)
    wanted = layer_forward(x, layer, weights, RopeTables(16))
    np.testing.assert_allclose(turned_forward(x, layer, weights), wanted, rtol=2e-4, atol=2e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("name", ODD)
def test_a_turned_odd_layer_is_the_same_float_layer(name: str) -> None:
    """Layers of other families: whatever reads, adds and norms where it likes."""
    layer = odd(name)
    operations = []
    for operation in layer.operations:
        if isinstance(operation, Linear):
            behind = VALUES in places(layer) and operation in places(layer)[VALUES].readers
            operation = replace(operation, turn=0 if behind else block_of(operation.columns))
        operations.append(operation)
    head = block_of(layer.attention.head_dim)
    attention = replace(layer.attention, turn=head, value_turn=head if VALUES in places(layer) else 0)
    operations[operations.index(layer.attention)] = attention
    turned_layer, weights = replace(layer, operations=tuple(operations)), random_weights(layer)
    x = np.random.default_rng(2).standard_normal((6, layer.widths[HIDDEN])).astype(np.float32)
    wanted = layer_forward(x, layer, weights, RopeTables(16))
    found = turned_forward(x, turned_layer, weights)
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4 * np.abs(wanted).max())


def logits_of(folder: Path, tokens: list[int], chunks: list[int], **runtime: object) -> np.ndarray:
    """Logits of every token, which come in ``chunks``."""
    with open_bundle(folder) as bundle:
        runner, _ = load_runner(bundle, RuntimeConfig(**{"device": "host", "context": 256, **runtime}), 200)
        sequence, found, start = runner.open(), [], 0
        for length in chunks:
            found.append(runner.forward(sequence, tokens[start : start + length], wanted=length))
            start += length
        sequence.close()
    return np.concatenate(found)


def least_memory(folder: Path) -> str:
    """The least budget: layers are streamed, and change places in the buffers with every step."""
    with open_bundle(folder) as bundle, pytest.raises(UsageError, match="least that works") as error:
        load_runner(bundle, RuntimeConfig(device="host", context=256, memory="1"), 200)
    return str(error.value).partition("least that works is ")[2].partition(" ")[0]


TOKENS = np.random.default_rng(3).integers(0, 60, 90).tolist()


@pytest.mark.parametrize("activations", [ROW, STATIC])
@pytest.mark.parametrize("family", FAMILIES)
def test_turned_models_have_one_numeric(bundles: dict[str, Path], family: str, activations: str) -> None:
    whole = logits_of(bundles[family], TOKENS, [90], activations=activations, threads=1)
    for chunks, how in (
        ([1] * 90, {}),
        ([50, 40], {"threads": 3}),
        ([90], {"chunk": 16, "window": 2}),
        ([50, 10] + [1] * 30, {"memory": least_memory(bundles[family])}),
    ):
        found = logits_of(bundles[family], TOKENS, chunks, activations=activations, **how)
        np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_of_turned_rows_is_each_alone(bundles: dict[str, Path], family: str) -> None:
    with open_bundle(bundles[family]) as bundle:
        runner, _ = load_runner(bundle, RuntimeConfig(device="host", context=256, kv_tokens=1024), 200)
        sequences = [runner.open() for _ in range(3)]
        prompts = [TOKENS[:30], TOKENS[10:15], TOKENS[40:81]]
        together = runner.run([Segment(one, prompt, 1) for one, prompt in zip(sequences, prompts, strict=True)])
        for prompt, found in zip(prompts, together, strict=True):
            alone = runner.open()
            np.testing.assert_array_equal(runner.forward(alone, prompt), found)


@pytest.mark.parametrize("device", ["emulated:310p:s8gemm", "emulated:910b:int32"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_static_scales_beside_a_card_are_those_of_the_host(bundles: dict[str, Path], family: str, device: str) -> None:
    """A chip with static kernels multiplies turned rows; what overflows is exact on the CPU's lane: the host's static bits."""
    exact = logits_of(bundles[family], TOKENS, [90], device=device, placement="split", threads=2)
    np.testing.assert_array_equal(exact, logits_of(bundles[family], TOKENS, [90], activations=STATIC))


def any_task(seed: int) -> Policy:
    """A policy that starts any ready task."""
    random = np.random.default_rng(seed)
    return lambda ready, state: ready[random.integers(len(ready))]


@pytest.mark.parametrize("policy", [*POLICIES, 1, 2])
def test_in_any_order_of_tasks_the_static_bits_are_those_of_the_host(bundles: dict[str, Path], policy: str | int) -> None:
    """Overflow is a task beside the product of its linear, so the order in which chunks get theirs is up to the policy."""
    runtime = RuntimeConfig(device="emulated:310p:s8gemm", placement="split", threads=2, context=256, chunk=16, window=6)
    with open_bundle(bundles["llama"]) as bundle:
        runner = load_int8_runner(bundle, runtime, 200)
        runner.policy = any_task(policy) if isinstance(policy, int) else POLICIES[policy]
        found = runner.forward(runner.open(), TOKENS, wanted=len(TOKENS))
        assert runner.site.activations == STATIC and runner.overflow is not None and runner.overflow > 50
    np.testing.assert_array_equal(found, logits_of(bundles["llama"], TOKENS, [90], activations=STATIC))


def test_a_chip_that_rounds_its_products_adds_the_same_overflow_wherever_it_decodes(bundles: dict[str, Path]) -> None:
    how = {"device": "emulated:310p", "threads": 2, "chunk": 16}
    chunks = [60] + [1] * 30
    beside = logits_of(bundles["qwen2"], TOKENS, chunks, placement="split", **how)
    for policy, placement in (("in-order", "split"), ("c-value", "split,host")):
        found = logits_of(bundles["qwen2"], TOKENS, chunks, placement=placement, policy=policy, **how)
        np.testing.assert_array_equal(found, beside)


@pytest.fixture(scope="module")
def lanes_of_a_prompt(bundles: dict[str, Path]) -> Trace:
    """A run of six chunks of 16 tokens of a turned model on an emulated card, in order."""
    traces: list[Trace] = []
    runtime = RuntimeConfig(device="emulated:310p", placement="split", threads=2, context=256, chunk=16, window=6)
    with open_bundle(bundles["llama"]) as bundle:
        runner = load_int8_runner(bundle, replace(runtime, policy="in-order"), 200)
        runner.on_trace = traces.append
        runner.forward(runner.open(), TOKENS)
    (trace,) = traces
    return trace


def test_overflow_is_a_task_of_the_cpu_beside_the_product_that_it_belongs_to(lanes_of_a_prompt: Trace) -> None:
    trace = lanes_of_a_prompt
    spans = {span.name: span for span in trace.spans}
    shadows = [span for span in trace.spans if span.name.endswith(SHADOW_PART)]
    assert len(shadows) == 6 * SHAPE["num_hidden_layers"] * 4
    for shadow in shadows:
        product = spans[shadow.name.removesuffix(SHADOW_PART)]
        assert (shadow.lane, product.lane) == (HOST_LANE, CARD_LANE)
        assert shadow.after == product.after and all(spans[name].lane == HOST_LANE for name in shadow.after)
        (merging,) = [span for span in trace.spans if shadow.name in span.after]
        assert merging.lane == HOST_LANE and product.name in merging.after


@pytest.mark.parametrize("policy", ["feed", "c-value", "critical-path"])
def test_overflow_is_added_out_of_order_while_the_card_multiplies_other_chunks(lanes_of_a_prompt: Trace, policy: str) -> None:
    """In virtual time: a product takes 4, its overflow 2, all else of the CPU 1."""
    graph, cost = TaskGraph(), CostModel()
    for span in sorted(lanes_of_a_prompt.spans, key=lambda span: span.start):
        graph.add(span.name, span.lane, lambda: None, after=span.after, cost_key=span.cost_key)
        seconds = 4.0 if span.lane == CARD_LANE else 2.0 if span.name.endswith(SHADOW_PART) else 1.0
        cost.observe(span.cost_key, span.lane, seconds)
    program = {task.name: number for number, task in enumerate(graph)}
    in_order, found = (simulate(graph, POLICIES[name], cost) for name in ("in-order", policy))
    assert found.makespan < in_order.makespan
    order = [program[span.name] for span in found.on(HOST_LANE)]
    assert order != sorted(order) and order != [program[span.name] for span in in_order.on(HOST_LANE)]
    assert 0 == beside_other_chunks(in_order) < beside_other_chunks(found)
    assert beside_products(found, shadow_spans(found)) > 0.9 * sum(span.seconds for span in shadow_spans(found))


def beside_other_chunks(trace: Trace) -> int:
    """How often a task beside a product runs while the card multiplies for another chunk."""
    return sum(
        max(shadow.start, product.start) < min(shadow.end, product.end) and chunk_of(shadow) != chunk_of(product)
        for shadow in shadow_spans(trace)
        for product in trace.on(CARD_LANE)
    )


def chunk_of(span: Span) -> str:
    return span.name.partition(".")[0]


def test_the_share_that_overflows_is_counted_of_all_values_that_are_rounded(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []

    def counting(x: np.ndarray, *given: Any, **how: Any) -> Any:
        quantized, residual = quantize(x, *given, **how)
        seen.append((x.size, len(residual.column)))
        return quantized, residual

    monkeypatch.setattr(split, "quantize", counting)
    runtime = RuntimeConfig(device="emulated:310p", placement="split", threads=2, context=256, chunk=16, window=6)
    with open_bundle(bundles["llama"]) as bundle:
        runner = load_int8_runner(bundle, runtime, 200)
        (run,) = compare_lanes(runner, TOKENS[:80], ["feed"], 2)
    runs = 2 + 2  # first in order: to warm up, and to learn
    values, over = (sum(counts) / runs for counts in zip(*seen, strict=True))
    head = 96  # the inputs of the output matrix, of which some overflow too
    assert run.overflow is not None and over > 0
    assert over <= run.overflow * (values + head) <= over + head
    (row,) = lane_rows([run])
    assert row["overflow_share"] == run.overflow and row["shadow_ms"] > 0 and 0 <= row["shadow_beside_share"] <= 1


def test_rows_with_scales_of_their_own_overflow_nothing(bundles: dict[str, Path]) -> None:
    for activations, counted in ((ROW, False), (STATIC, True)):
        runtime = RuntimeConfig(device="host", threads=1, context=256, activations=activations)
        with open_bundle(bundles["llama"]) as bundle:
            (run,) = compare_lanes(load_int8_runner(bundle, runtime, 200), TOKENS, ["auto"], 1)
        assert (run.overflow is not None) == counted
        (row,) = lane_rows([run])
        assert row["shadow_ms"] is None and row["shadow_beside_share"] is None  # one pass does all of a linear
        assert ("overflow" in lane_table([row])) == counted and "shadow" not in lane_table([row])


def divergence(folder: Path, **runtime: object) -> float:
    """Mean KL of INT8 from float on `TOKENS`."""
    _, runner, oracle = load_comparison(folder, RuntimeConfig(**{"device": "host", "context": 256, **runtime}))
    return compare(runner, oracle, TOKENS, 90).mean_kl


@pytest.mark.parametrize("family", FAMILIES)
def test_turned_int8_is_as_near_to_float_as_with_all_shadows(
    sources: dict[str, Path], bundles: dict[str, Path], tmp_path: Path, family: str
) -> None:
    full = import_model(sources[family], target=tmp_path / "full", turn=0, outliers=Outliers("full"), keep_float=True)
    near = divergence(bundles[family])
    assert near < 1.3 * divergence(full)
    assert divergence(bundles[family], activations=STATIC) < 3 * near


def test_a_loud_channel_costs_nothing_behind_fold_and_turn(
    sources: dict[str, Path], bundles: dict[str, Path], tmp_path: Path
) -> None:
    """The float model is the same; INT8 with scales of rows alone is ruined."""
    raw = tiny_config("llama", tie_word_embeddings=True, **SHAPE)
    tensors = random_tensors(raw)
    for layer in range(5):
        tensors[f"model.layers.{layer}.post_attention_layernorm.weight"][5] *= 300
        for name in ("gate_proj", "up_proj"):
            tensors[f"model.layers.{layer}.mlp.{name}.weight"][:, 5] /= 300
    source = write_model(tmp_path / "loud", raw, tensors=tensors)
    loud = divergence(import_model(source, target=tmp_path / "bundle", keep_float=True))
    assert loud < 1.5 * divergence(bundles["llama"])
    bare = import_model(source, target=tmp_path / "bare", turn=0, fold=False, outliers=Outliers("naive"), keep_float=True)
    assert divergence(bare) > 10 * loud


@pytest.mark.parametrize("weights", [LayerBits("w4", head="w4"), LayerBits(fit=True)])
def test_turned_weights_are_fitted_to_turned_inputs(
    sources: dict[str, Path], bundles: dict[str, Path], tmp_path: Path, weights: LayerBits
) -> None:
    """Steps give the bits of a prompt, and what is fitted is about as near to float as it can be."""
    bundle = import_model(sources["llama"], target=tmp_path / "fitted", weights=weights, keep_float=True)
    whole = logits_of(bundle, TOKENS, [90])
    np.testing.assert_array_equal(logits_of(bundle, TOKENS, [40] + 50 * [1]), whole)
    assert divergence(bundle) < (300 if weights.kind == "w4" else 1.3) * divergence(bundles["llama"])


def changed(folder: Path, target: Path, change: object) -> Path:
    """A copy of the bundle in ``folder`` whose manifest is changed and signed again."""
    import shutil

    shutil.copytree(folder, target)
    fields = json.loads((target / MANIFEST).read_bytes())
    del fields["checksum"]
    change(fields)
    (target / MANIFEST).write_bytes(encode_manifest(fields))
    return target


@pytest.mark.parametrize("turn", [256, 3, -2, "64", 1])
def test_a_turn_that_this_version_does_not_do_is_refused(bundles: dict[str, Path], tmp_path: Path, turn: object) -> None:
    def change(fields: dict) -> None:
        fields["linears"]["layers.0.down"]["turn"] = turn

    with pytest.raises(UnsupportedModel, match="upgrade edge-llm"):
        open_bundle(changed(bundles["llama"], tmp_path / "odd", change))


@pytest.mark.parametrize("turn", [64, 128])
def test_a_turn_that_does_not_divide_the_channels_is_refused(bundles: dict[str, Path], tmp_path: Path, turn: int) -> None:
    def change(fields: dict) -> None:
        fields["linears"]["layers.0.qkv"]["turn"] = turn

    with pytest.raises(CorruptBundle, match="does not suit it"):
        open_bundle(changed(bundles["llama"], tmp_path / "odd", change))


@pytest.mark.parametrize("heads", [{"keys": 64}, {"keys": 256}, {"queries": 2}, []])
def test_turns_of_heads_that_do_not_fit_are_refused(bundles: dict[str, Path], tmp_path: Path, heads: object) -> None:
    def change(fields: dict) -> None:
        fields["head_turns"] = heads

    with pytest.raises((CorruptBundle, UnsupportedModel)):
        open_bundle(changed(bundles["llama"], tmp_path / "odd", change))


@pytest.mark.parametrize("activations", ["column", 3, None])
def test_activations_that_nobody_knows_are_refused(bundles: dict[str, Path], tmp_path: Path, activations: object) -> None:
    def change(fields: dict) -> None:
        fields["linears"]["layers.0.qkv"]["activations"] = activations

    with pytest.raises(CorruptBundle, match="activations"):
        open_bundle(changed(bundles["llama"], tmp_path / "odd", change))


def test_scales_that_a_bundle_or_a_device_lacks_are_refused(
    sources: dict[str, Path], bundles: dict[str, Path], tmp_path: Path
) -> None:
    plain = import_model(sources["llama"], target=tmp_path / "plain", turn=0)
    with pytest.raises(UsageError, match="imported for static scales"):
        logits_of(plain, TOKENS, [9], activations=ROW)
    with pytest.raises(UsageError, match="has static scales"):
        logits_of(bundles["llama"], TOKENS, [9], device="emulated:310p", activations=ROW)
    with pytest.raises(UsageError, match="no activations `token`"):
        logits_of(bundles["llama"], TOKENS, [9], activations="token")


@pytest.mark.parametrize("turn", [1, 3, 256, -4])
def test_import_refuses_other_blocks(sources: dict[str, Path], tmp_path: Path, turn: int) -> None:
    with pytest.raises(UsageError, match="a turn has blocks"):
        import_model(sources["llama"], target=tmp_path / "none", turn=turn)
    assert not (tmp_path / "none").exists()


def test_hot_shadows_and_turns_exclude_each_other(sources: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--turn 0"):
        import_model(sources["llama"], target=tmp_path / "none", outliers=Outliers("full"), turn=64)


def test_without_turns_a_model_is_imported_as_before(sources: dict[str, Path], tmp_path: Path) -> None:
    with open_bundle(import_model(sources["llama"], target=tmp_path / "plain", turn=0)) as bundle:
        assert bundle.activations == STATIC
        assert not any(one.turn for one in bundle.decoder.linears().values())
        assert bundle.decoder.attentions[0].turn == 0


def test_float16_linears_are_not_turned(sources: dict[str, Path], tmp_path: Path) -> None:
    outliers = Outliers(schemes=(("*.down", "float16"),))
    with open_bundle(import_model(sources["llama"], target=tmp_path / "some", outliers=outliers)) as bundle:
        turns = {name: (one.scheme, one.turn) for name, one in bundle.decoder.linears().items()}
        assert turns["layers.0.down"] == ("float16", 0)
        assert turns["layers.0.qkv"] == ("int8", 32)
        assert bundle.decoder.with_turns({}, HeadTurns()).attentions[0].turn == 0


def test_show_has_a_row_for_linears_that_are_alike(
    sources: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors were measured of INT8: of 4-bit and float16 linears none is shown."""
    some = import_model(
        sources["llama"], target=tmp_path / "some", outliers=Outliers(schemes=(("layers.0.down", "float16"),))
    )
    coded = import_model(sources["llama"], target=tmp_path / "w4", weights=LayerBits("w4"))
    for folder, wanted in ((some, [("float16", 1, 0, False), ("int8", 4, 32, True)]), (coded, [("w4", 5, 32, False)])):
        assert run(["show", str(folder), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)["turns"]
        down = [one for one in report["linears"] if one["kind"] == "down"]
        assert [(one["scheme"], one["count"], one["turn"], one["error"] is not None) for one in down] == wanted
        assert run(["show", str(folder)]) == 0
        assert "every row has a scale of its own" in capsys.readouterr().out


def test_what_is_clipped_is_shown_so(sources: dict[str, Path], tmp_path: Path) -> None:
    with open_bundle(import_model(sources["llama"], target=tmp_path / "none", outliers=Outliers("none"))) as bundle:
        profile = bundle.manifest["profile"]["linears"]["output"]
        (head,) = (one for one in turn_report(bundle)["linears"] if one["kind"] == "output")
        assert head["error_static"] == profile["error_without_shadow"] >= profile["error_full"]


def older(folder: Path) -> Path:
    """The import in ``folder`` as an edge-llm without turns would have made it."""

    def change(fields: dict) -> None:
        fields |= {"version": 2, "model": asdict(load_config(json.loads((folder / "config.json").read_text())))}
        del fields["head_turns"], fields["description"], fields["source"]["turns"]

    return changed(folder, folder.with_name(f"{folder.name}-older"), change)


@pytest.mark.parametrize(
    ("made", "asked", "stays"),
    [
        ({}, {}, True),
        ({}, {"weights": LayerBits(fit=True)}, True),
        ({}, {"turn": 0}, True),
        ({"outliers": Outliers("full")}, {"outliers": Outliers("full")}, True),
        ({}, {"turn": 16}, False),
        ({}, {"calibration": "self"}, False),
        ({}, {"weights": LayerBits("w4")}, False),
        ({}, {"outliers": Outliers("none")}, False),
        ({"weights": LayerBits("w4")}, {}, False),
    ],
    ids=str,
)
def test_an_older_import_stays_unless_something_else_is_asked_for(
    sources: dict[str, Path], tmp_path: Path, made: dict, asked: dict, stays: bool
) -> None:
    target = older(import_model(sources["llama"], target=tmp_path / "m", **{"turn": 0, **made}))
    before = (target / "manifest.json").read_bytes()
    if stays:
        assert import_model(sources["llama"], target=target, **asked) == target
    else:
        with pytest.raises(UsageError, match="--overwrite"):
            import_model(sources["llama"], target=target, **asked)
    assert (target / "manifest.json").read_bytes() == before
    import_model(sources["llama"], target=target, overwrite=True)
    with open_bundle(target) as bundle:
        assert bundle.activations == ROW


def test_a_draft_model_has_scales_of_its_own(sources: dict[str, Path], bundles: dict[str, Path], tmp_path: Path) -> None:
    """One that was imported without turns guesses for one whose rows have scales of their own."""
    plain = import_model(sources["llama"], target=tmp_path / "plain", turn=0)
    runtime = RuntimeConfig(device="host", context=256, activations=ROW, draft=str(plain))
    engine = load_engine(bundles["llama"], runtime)
    params = GenerationParams(temperature=0, max_tokens=8)
    found = engine.answer(engine.text_request("hello world", params))
    alone = load_engine(bundles["llama"], replace(runtime, draft="none"))
    assert found.tokens == alone.answer(alone.text_request("hello world", params)).tokens
