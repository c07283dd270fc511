"""ONNX export: onnxruntime computes the bits of the kernels' INT8 product, and no graph holds a weight."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from odd_layers import INNER, ODD, WIDTH, attention, norm, o, qkv
from odd_layers import linear as linear_of
from onnx_weights import POOL, random_weight, some_rows

from edge_llm.ascend.export import exporter
from edge_llm.ascend.export.exporter import export_onnx
from edge_llm.ascend.export.flavours import CHECK, check_arrays
from edge_llm.ascend.export.graphs import product_graph
from edge_llm.ascend.export.initializers import write_products
from edge_llm.cli.main import run
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.kernels import linear
from edge_llm.operations.base import HIDDEN
from edge_llm.operations.glu import GLU
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear
from edge_llm.paths import find_bundle
from edge_llm.schemes import BlockWeights
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.weights.resident import ResidentWeights

pytestmark = pytest.mark.thorough(file=6)

LENGTHS = (1, 8, 32)
WHY = "the extra `onnx` is not installed"


@pytest.fixture(scope="module")
def onnx() -> Any:
    pytest.importorskip("onnxruntime", reason=WHY)
    return pytest.importorskip("onnx", reason=WHY)


@pytest.fixture(scope="module")
def session(onnx: Any) -> Callable[..., Any]:
    from onnx_product import session

    return session


@pytest.fixture(scope="module")
def bundle() -> Iterator[Bundle]:
    """The built-in model."""
    with open_bundle(find_bundle(None)) as bundle:
        yield bundle


@pytest.fixture(scope="module")
def exported(onnx: Any, bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_onnx(bundle, tmp_path_factory.mktemp("export") / "builtin-onnx", LENGTHS).folder


def index_of(folder: Path) -> dict[str, Any]:
    index: dict[str, Any] = json.loads((folder / "index.json").read_text())
    return index


def read_initializers(folder: Path, layer: dict[str, Any], part: str) -> dict[str, np.ndarray]:
    """As the index says, without any help of edge-llm."""
    data = (folder / layer["file"]).read_bytes()
    return {
        one["name"]: np.frombuffer(data, one["type"], int(np.prod(one["shape"])), one["offset"]).reshape(one["shape"]).copy()
        for one in layer["parts"][part]["initializers"]
    }


def expected(rows: np.ndarray, weight: Int8Weight) -> np.ndarray:
    return linear.linear_int8(rows, weight.tiles, weight.rows, weight.product_scale, weight.row_sum, POOL, bias=weight.bias)


def assert_same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.dtype == wanted.dtype == np.float32
    np.testing.assert_array_equal(found.view(np.int32), wanted.view(np.int32))


def test_every_layer_through_the_same_graphs(exported: Path, bundle: Bundle, session: Callable[..., Any]) -> None:
    index, weights = index_of(exported), ResidentWeights(bundle.with_static_scales())
    assert len(index["layers"]) == len(bundle.decoder.layers) and not index["on_host"]
    assert len(list(exported.glob("*.onnx"))) == len(index["graphs"]) * len(LENGTHS)
    for number, layer in enumerate(index["layers"]):
        assert list(layer["parts"]) == [one.name for one in bundle.decoder.layers[number].linears]
        for part, said in layer["parts"].items():
            weight = weights.use(number).linears[part]
            assert isinstance(weight, Int8Weight) and said["input_scale"] == weight.input_scale
            initializers = read_initializers(exported, layer, part)
            for length in LENGTHS:
                graph = exported / index["graphs"][said["graph"]]["files"][str(length)]
                rows = some_rows(length, weight.columns)
                assert_same_bits(session(graph, initializers).run(None, {"rows": rows})[0], expected(rows, weight))


def test_another_layer_has_its_own_result_whatever_is_set(exported: Path, bundle: Bundle, session: Callable[..., Any]) -> None:
    """`add_initializer` is for sessions without `session.x64quantprecision`, as the docstring of the package says."""
    layer, weights = index_of(exported)["layers"][1], ResidentWeights(bundle.with_static_scales())
    first, second = (weights.use(number).linears["down"] for number in (0, 1))
    assert isinstance(first, Int8Weight) and isinstance(second, Int8Weight)
    initializers, rows = read_initializers(exported, layer, "down"), some_rows(8, second.columns)
    graph = exported / "down-8.onnx"
    for how, x64 in (("add_external_initializers", "0"), ("add_external_initializers", "1"), ("add_initializer", "0")):
        found = session(graph, initializers, how=how, x64=x64).run(None, {"rows": rows})[0]
        assert_same_bits(found, expected(rows, second))
    alone = session(graph, {}).run(None, {"rows": rows})[0]
    assert_same_bits(alone, expected(rows, first))
    assert (alone != expected(rows, second)).any()


def test_graphs_are_valid_and_hold_no_weights(exported: Path, onnx: Any) -> None:
    operators = []
    for path in exported.glob("*.onnx"):
        onnx.checker.check_model(str(path), full_check=True)
        model = onnx.load(str(path), load_external_data=False)
        assert [(one.domain, one.version) for one in model.opset_import] == [("", 13)]
        assert path.stat().st_size < 1024
        assert all(one.data_location == onnx.TensorProto.EXTERNAL and not one.raw_data for one in model.graph.initializer)
        dimensions = [one.dim_value for one in model.graph.input[0].type.tensor_type.shape.dim]
        assert dimensions[0] == int(path.stem.rpartition("-")[2]) and all(dimensions)
        operators.append(tuple(node.op_type for node in model.graph.node))
    plain = ("MatMulInteger", "Cast", "Mul")
    assert set(operators) <= {plain, (*plain, "Add")}


def written_graph(folder: Path, weight: Int8Weight, length: int) -> Path:
    product = write_products(folder / "weight.bin", {"part": weight}, check_arrays)["part"]
    graph = folder / f"part-{length}.onnx"
    graph.write_bytes(product_graph(CHECK, "part", (length, weight.columns), weight.rows, product, "weight.bin"))
    return graph


SHAPES = [(1, 1, 1), (1, 17, 33), (5, 64, 31), (7, 63, 17), (8, 300, 16), (33, 129, 100), (3, 4863, 19), (2, 4864, 40)]
"""Rows M, input channels K, output channels N."""


@pytest.mark.parametrize("extreme", [0, 127, -127])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_any_shape_and_any_values(
    m: int, k: int, n: int, bias: bool, extreme: int, tmp_path: Path, session: Callable[..., Any]
) -> None:
    weight = random_weight(n, k, bias, extreme)
    graph, rows = written_graph(tmp_path, weight, m), some_rows(m, k)
    for x64 in "01":
        for initializers in ({}, dict(check_arrays(weight))):
            found = session(graph, initializers, x64=x64).run(None, {"rows": rows})[0]
            assert_same_bits(found, expected(rows, weight))


def test_layers_of_other_shapes_have_graphs_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: Callable[..., Any]
) -> None:
    """The same part with and without a bias, and of two widths; the third layer shares with the first."""
    wide = (norm("attention_norm"), qkv(), attention(), o(), norm("mlp_norm"), wide_gate_up(), wide_swiglu(), wide_down())
    layers = [Layer("", ODD["plain"]), Layer("", wide), Layer("", ODD["plain"])]
    weights = [{one.name: random_weight(one.rows, one.columns, one.bias) for one in layer.linears} for layer in layers]
    monkeypatch.setattr(exporter, "layer_weights", lambda _, __, index: BlockWeights(weights[index], {}))
    decoder = SimpleNamespace(layers=layers, host_alone="", beside_cards="")
    odd: Any = SimpleNamespace(folder=Path("odd"), decoder=decoder, tensors={}, read_block=lambda name: {})
    odd.with_static_scales = lambda: odd
    folder = export_onnx(odd, tmp_path / "out", (4,)).folder
    index = index_of(folder)
    used = [{part: said["graph"] for part, said in layer["parts"].items()} for layer in index["layers"]]
    alike = {"qkv": "qkv", "o": "o", "gate_up": "gate_up", "down": "down"}
    assert used == [alike, {"qkv": "qkv.2", "o": "o", "gate_up": "gate_up.2", "down": "down.2"}, alike]
    for layer, own in zip(index["layers"], weights, strict=True):
        for part, weight in own.items():
            graph, rows = folder / f"{layer['parts'][part]['graph']}-4.onnx", some_rows(4, weight.columns)
            found = session(graph, read_initializers(folder, layer, part)).run(None, {"rows": rows})[0]
            assert_same_bits(found, expected(rows, weight))


def wide_gate_up() -> Linear:
    return linear_of("gate_up", 4 * INNER, WIDTH, "normed", "gate_up")


def wide_swiglu() -> GLU:
    return GLU(2 * INNER, "gate_up", "activated")


def wide_down() -> Linear:
    return linear_of("down", WIDTH, 2 * INNER, "activated", HIDDEN, HIDDEN)


def test_the_output_matrix(bundle: Bundle, tmp_path: Path, session: Callable[..., Any]) -> None:
    """The CPU multiplies it even beside a card, but its graph would be as exact as the others."""
    weight = ResidentWeights(bundle.with_static_scales()).head.linears["output"]
    assert isinstance(weight, Int8Weight)
    rows = some_rows(4, weight.columns)
    found = session(written_graph(tmp_path, weight, 4), {}).run(None, {"rows": rows})[0]
    assert_same_bits(found, expected(rows, weight))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="VNNI is of x86-64 alone")
@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="qemu-x86_64, which has no VNNI, is not here")
@pytest.mark.usefixtures("onnx")
@pytest.mark.parametrize("extreme", [0, 127])
def test_without_vnni(extreme: int, tmp_path: Path) -> None:
    """On an emulated CPU with AVX2, on which uint8 rows are seen to saturate."""
    weight, rows = random_weight(33, 301, True, extreme), some_rows(8, 301)
    graph, arrays, result = written_graph(tmp_path, weight, 8), tmp_path / "arrays.npz", tmp_path / "result.npy"
    np.savez(arrays, rows=rows, **dict(check_arrays(weight)))
    script = Path(__file__).with_name("onnx_product.py")
    command = ["qemu-x86_64", "-cpu", "Haswell", sys.executable, script, graph, arrays, result]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode < 0 or "Illegal instruction" in done.stderr:
        pytest.skip("this qemu-x86_64 does not emulate AVX2")
    assert done.returncode == 0, done.stderr
    if done.stdout.strip() != "saturates":
        pytest.skip("this qemu-x86_64 does not emulate AVX2")
    for found in np.load(result):
        assert_same_bits(found, expected(rows, weight))


@pytest.mark.usefixtures("onnx")
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_what_the_readme_says_makes_a_fallback_visible(exported: Path) -> None:
    """Without it, a provider that is not there is replaced by the CPU's."""
    import onnxruntime

    graph, wanted = str(exported / "qkv-8.onnx"), ["CANNExecutionProvider"]
    assert onnxruntime.InferenceSession(graph, providers=wanted).get_providers()[0] == "CPUExecutionProvider"
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(Exception, match="fallback to CPU EP has been explicitly disabled"):
        onnxruntime.InferenceSession(graph, options, providers=wanted)


# ---- the command


@pytest.mark.usefixtures("onnx")
def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "folder"
    assert run(["export", "--format", "onnx", "builtin", "--out", str(out), "--chunk", "64", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["lengths"] == [1, 8, 32, 64] == index_of(out)["lengths"]
    assert said["folder"] == str(out) and said["graphs"] == len(list(out.glob("*.onnx")))
    assert said["nbytes"] == sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    assert run(["export", "builtin", "--out", str(out.with_name("other"))]) == 0
    assert capsys.readouterr().out == f"{out.with_name('other')}\n"


@pytest.mark.usefixtures("onnx")
def test_the_default_place_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["export", "builtin", "--chunk", "1"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["builtin-onnx"]
    assert "disable_cpu_ep_fallback" in (tmp_path / "builtin-onnx" / "README.md").read_text()


@pytest.mark.usefixtures("onnx")
def test_what_is_there_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "builtin", "--out", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert run(["export", "builtin", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "`onnx`, which is not installed; `pip install onnx" in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("arguments", "message"), [(["--format", "gguf"], "onnx"), (["--out", ""], "cannot be empty")])
def test_misuse(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "builtin", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_linears_that_are_not_int8_are_named(
    tmp_path: Path, tiny_model: Callable[..., Path], session: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Outliers("none", schemes=(("layers.0.down", "float16"),))
    bundle = open_bundle(import_model(str(tiny_model()), "half", outliers=kept))
    assert run(["export", "half", "--out", str(tmp_path / "out"), "--chunk", "8"]) == 0
    assert "not INT8: layers.0.down\n" in capsys.readouterr().err
    index = index_of(tmp_path / "out")
    assert index["on_host"] == ["layers.0.down"]
    assert "down" not in index["layers"][0]["parts"] and "down" in index["layers"][1]["parts"]
    down = ResidentWeights(bundle.with_static_scales()).use(1).linears["down"]
    rows = some_rows(8, bundle.columns("layers.1.down"))
    assert isinstance(down, Int8Weight)
    alone = session(tmp_path / "out" / "down-8.onnx", {}).run(None, {"rows": rows})[0]
    assert_same_bits(alone, expected(rows, down))  # the first layer that has the graph is the second of the model


@pytest.mark.usefixtures("onnx")
def test_a_model_without_int8_is_refused(
    tmp_path: Path, tiny_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    import_model(str(tiny_model()), "floats", outliers=Outliers("none", schemes=(("layers.*", "float16"),)))
    assert run(["export", "floats", "--out", str(tmp_path / "out")]) == 1
    assert "`floats` has no INT8 linear in its layers" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("onnx")
def test_a_damaged_weight_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "damaged"
    shutil.copytree(find_bundle(None), copy)
    with open_bundle(copy) as bundle:
        offset = bundle.tensors["layers.3.down.tiles"].offset
    with (copy / "weights.bin").open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
    assert run(["export", str(copy), "--out", str(tmp_path / "out")]) == 1
    assert "layers.3.down.tiles" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]
