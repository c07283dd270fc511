"""ONNX graphs of Ascend chips: CANN's operators as they are documented give the emulated chip's float16, bit for bit."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from odd_layers import INNER, ODD, WIDTH, attention, norm, o, qkv
from odd_layers import linear as linear_of
from onnx_weights import random_weight, some_rows
from stand_in_cann import compiled, evaluated, onnx

from edge_llm.ascend.devices.emulated import EmulatedDevice
from edge_llm.ascend.export import exporter
from edge_llm.ascend.export.exporter import export_onnx
from edge_llm.ascend.export.flavours import FLAVOURS, Flavour
from edge_llm.ascend.export.graphs import product_graph
from edge_llm.ascend.export.initializers import write_products
from edge_llm.ascend.npu.chips import CHIPS
from edge_llm.cli.main import run
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.kernels.layout import unpack_tiles
from edge_llm.operations.base import HIDDEN
from edge_llm.operations.glu import GLU
from edge_llm.operations.layer import Layer
from edge_llm.paths import find_bundle
from edge_llm.schemes import BlockWeights
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.weights.resident import ResidentWeights

LENGTHS = (1, 8)
OPERATORS = {
    "310p": [("AscendQuant", "QuantBatchMatMul")],
    "310b": [("AscendQuant", "MatMul", "AscendDequant"), ("AscendQuant", "MatMul", "Add", "AscendDequant")],
    "910b": [("AscendQuant", "QuantBatchMatMul")],
}


@pytest.fixture(scope="module")
def bundle() -> Iterator[Bundle]:
    """The built-in model."""
    with open_bundle(find_bundle(None)) as bundle:
        yield bundle


@pytest.fixture(scope="module", params=CHIPS)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    return FLAVOURS[request.param]


@pytest.fixture(scope="module")
def exported(bundle: Bundle, flavour: Flavour, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / flavour.name
    return export_onnx(bundle, folder, LENGTHS, flavour=flavour).folder


def emulated(weight: Int8Weight, rows: np.ndarray) -> np.ndarray:
    """The float16 product of an emulated 310P."""
    chip = EmulatedDevice("310p", 1, route="float16").chip
    card, (columns, outputs) = chip.load(weight), chip.law.padded(weight.columns, weight.rows)
    x, out = chip.memory.upload(rows, (len(rows), columns)), chip.memory.allocate((len(rows), outputs), np.float16)
    chip.product(x, card, out)
    result = np.empty((len(rows), weight.rows), np.float16)
    chip.memory.copy_out(out, result)
    return result


def assert_same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.dtype == wanted.dtype == np.float16
    np.testing.assert_array_equal(found.view(np.int16), wanted.view(np.int16))


def index_of(folder: Path) -> dict[str, Any]:
    index: dict[str, Any] = json.loads((folder / "index.json").read_text())
    return index


def with_initializers(graph: Path, folder: Path, layer: dict[str, Any], part: str) -> Any:
    """The graph with those of ``layer`` in it, as the index says."""
    model, data = onnx.load(str(graph), load_external_data=False), (folder / layer["file"]).read_bytes()
    del model.graph.initializer[:]
    for one in layer["parts"][part]["initializers"]:
        values = np.frombuffer(data, one["type"], int(np.prod(one["shape"])), one["offset"]).reshape(one["shape"])
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, one["name"]))
    return model


# ---- the products


def test_every_layer_gives_what_the_emulated_chip_gives(exported: Path, bundle: Bundle) -> None:
    weights = ResidentWeights(bundle.with_static_scales())
    for number, layer in enumerate(index_of(exported)["layers"]):
        for part, said in layer["parts"].items():
            weight = weights.use(number).linears[part]
            assert isinstance(weight, Int8Weight)
            model = with_initializers(exported / f"{said['graph']}-8.onnx", exported, layer, part)
            rows = some_rows(8, weight.columns)
            assert_same_bits(evaluated(model, rows), emulated(weight, rows))


def written(folder: Path, flavour: Flavour, weight: Int8Weight, length: int) -> Any:
    product = write_products(folder / "weight.bin", {"part": weight}, flavour.arrays)["part"]
    graph = folder / "part.onnx"
    graph.write_bytes(product_graph(flavour, "part", (length, weight.columns), weight.rows, product, "weight.bin"))
    return onnx.load(str(graph))


@pytest.mark.parametrize("extreme", [0, 127, -127])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 17, 33), (8, 300, 16), (5, 4864, 19)])
def test_any_shape_and_any_values(m: int, k: int, n: int, bias: bool, extreme: int, flavour: Flavour, tmp_path: Path) -> None:
    weight, rows = random_weight(n, k, bias, extreme), some_rows(m, k)
    found = evaluated(written(tmp_path, flavour, weight, m), rows)
    assert_same_bits(found, emulated(weight, rows))
    product = rows @ unpack_tiles(weight.tiles, n, k).astype(np.float64).T * weight.product_scale
    exact = product + (0 if weight.bias is None else weight.bias)
    # half a step of the 11 bits of scale and result each, and half a step of the bias
    bound = (abs(product) + abs(exact)) * (2**-11 + 2**-20) + weight.product_scale
    assert (abs(found - exact) <= bound).all()


def test_what_is_beyond_float16_saturates(flavour: Flavour, tmp_path: Path) -> None:
    weight, rows = random_weight(17, 33, True, 127), some_rows(4, 33)
    large = replace(weight, weight_scale=np.full(17, 100, np.float32))
    found = evaluated(written(tmp_path, flavour, large, 4), rows)
    assert abs(found).max() == 65504 and np.isfinite(found).all()
    assert_same_bits(found, emulated(large, rows))


# ---- the files


def test_graphs_are_static_hold_no_weights_and_name_no_other_domain(exported: Path, flavour: Flavour) -> None:
    """A checker knows none of the operators: it takes them for those of a domain of their own, and checks all else."""
    found = set()
    for path in exported.glob("*.onnx"):
        model = onnx.load(str(path), load_external_data=False)
        assert [(one.domain, one.version) for one in model.opset_import] == [("", 13)] and model.ir_version == 7
        assert {node.domain for node in model.graph.node} == {""} and all(node.name for node in model.graph.node)
        assert path.stat().st_size < 1024
        assert all(one.data_location == onnx.TensorProto.EXTERNAL and not one.raw_data for one in model.graph.initializer)
        for value in (*model.graph.input, *model.graph.output):
            assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
            sizes = [one.dim_value for one in value.type.tensor_type.shape.dim]
            assert sizes[0] == int(path.stem.rpartition("-")[2]) and all(sizes)
        found.add(tuple(node.op_type for node in model.graph.node))
        for node in model.graph.node:
            node.domain = "cann"
        model.opset_import.append(onnx.helper.make_opsetid("cann", 1))
        onnx.save(model, str(exported / "checked"))
        onnx.checker.check_model(str(exported / "checked"), full_check=True)
        (exported / "checked").unlink()
    assert found <= set(OPERATORS[flavour.name])


def test_onnxruntime_refuses_them_and_runs_nothing_on_the_cpu(exported: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    with pytest.raises(Exception, match="No Op registered for AscendQuant"):
        onnxruntime.InferenceSession(str(exported / "qkv-8.onnx"), providers=["CPUExecutionProvider"])


def test_there_is_a_flavour_for_every_chip() -> None:
    assert {name: one.chip for name, one in FLAVOURS.items()} == {"check": None, **CHIPS}


# ---- the compiler


def kept_arrays(kept: Path, layer: int, graph: str) -> dict[str, np.ndarray]:
    """The initializers that the compiler found with a graph."""
    model = onnx.load(str(kept / f"layers.{layer}.{graph}" / f"{graph}.onnx"))
    return {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}


def assert_same_arrays(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array)


def test_each_graph_is_compiled_with_the_weights_of_each_layer(
    exported: Path, flavour: Flavour, bundle: Bundle, tmp_path: Path
) -> None:
    assert flavour.chip is not None
    soc, kept = flavour.chip.soc, tmp_path / "kept"
    calls = compiled(exported, kept, "0", "3")
    parts = [one.name for one in bundle.decoder.layers[0].linears]
    assert len(calls) == 2 * len(parts) * len(LENGTHS)
    shape = f"rows:8,{bundle.columns('layers.0.down')}"
    assert (
        "--framework=5 --model=om/work/layers.3/down-8.onnx --output=om/layers.3.down-8 --input_format=ND "
        f"--input_shape={shape} --soc_version={soc} --precision_mode_v2=fp16 --log=error"
    ) in calls
    weights = ResidentWeights(bundle.with_static_scales())
    for layer in (0, 3):
        for part in parts:
            weight = weights.use(layer).linears[part]
            assert isinstance(weight, Int8Weight)
            assert_same_arrays(kept_arrays(kept, layer, f"{part}-8"), dict(flavour.arrays(weight)))


def test_the_compiler_may_be_asked_for_less_and_for_another_chip(exported: Path, tmp_path: Path) -> None:
    calls = compiled(exported, tmp_path / "kept", SOC="Ascend310B1", ROWS="8 64")
    assert len(calls) == 5 * 4
    assert all("--input_shape=rows:8," in call and "--soc_version=Ascend310B1 " in call for call in calls)


def test_without_the_compiler_the_script_says_what_to_do(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to(shutil.which("sh") or "sh")
    (tmp_path / "dirname").symlink_to(shutil.which("dirname") or "dirname")
    command = [str(tmp_path / "sh"), str(exported / "atc.sh")]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert done.returncode == 1 and done.stderr == "atc is not there: source the set_env.sh of CANN's toolkit first\n"


def test_layers_of_other_shapes_are_compiled_with_their_own(
    tmp_path: Path, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same part lies elsewhere in the file of a layer whose parts before it are of other sizes."""
    wide_mlp = (
        linear_of("gate_up", 4 * INNER, WIDTH, "normed", "gate_up"),
        GLU(2 * INNER, "gate_up", "activated"),
        linear_of("down", WIDTH, 2 * INNER, "activated", HIDDEN, HIDDEN),
    )
    wide = (norm("attention_norm"), qkv(), attention(), o(), norm("mlp_norm"), *wide_mlp)
    layers = [Layer("", ODD["plain"]), Layer("", wide), Layer("", ODD["plain"])]
    weights = [{one.name: random_weight(one.rows, one.columns, one.bias) for one in layer.linears} for layer in layers]
    monkeypatch.setattr(exporter, "layer_weights", lambda _, __, index: BlockWeights(weights[index], {}))
    decoder = SimpleNamespace(layers=layers, host_alone="", beside_cards="")
    odd: Any = SimpleNamespace(folder=Path("odd"), decoder=decoder, tensors={}, read_block=lambda name: {})
    odd.with_static_scales = lambda: odd
    folder, kept = export_onnx(odd, tmp_path / "out", (4,), flavour=flavour).folder, tmp_path / "kept"
    compiled(folder, kept)
    for number, layer in enumerate(index_of(folder)["layers"]):
        for part, weight in weights[number].items():
            graph = f"{layer['parts'][part]['graph']}-4"
            assert_same_arrays(kept_arrays(kept, number, graph), dict(flavour.arrays(weight)))


# ---- the command


def test_the_command_writes_the_flavour_of_a_chip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(["export", "builtin", "--flavour", "310p", "--chunk", "8", "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["nbytes"] == sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    assert index_of(out)["flavour"] == "310p"
    readme = (out / "README.md").read_text()
    assert "Ascend310P3" in readme and "fall back to the CPU" in readme and not re.search(r"[{}]", readme)
    assert run(["export", "builtin", "--flavour", "310x", "--out", str(tmp_path / "other")]) == 2
    assert "310p" in capsys.readouterr().err
