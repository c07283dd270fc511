"""`--device onnx`: onnxruntime multiplies what a card would, and every logit is the host's, bit for bit."""

from __future__ import annotations

import io
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import tiny_config, write_model
from onnx_weights import POOL, random_weight, some_rows

from edge_llm.ascend.devices import onnx as onnx_device
from edge_llm.ascend.devices import onnx_product
from edge_llm.ascend.devices.onnx_product import Session, onnx_package, operands_of, unsigned
from edge_llm.bench.synthetic import write_random
from edge_llm.cli.main import run
from edge_llm.config import LlamaConfig, RuntimeConfig
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.devices import open_device, split
from edge_llm.devices.base import DeviceOptions
from edge_llm.errors import DeviceError, UsageError
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.kernels.linear import linear_int8
from edge_llm.opening.runner import load_runner
from edge_llm.runner.base import Segment
from edge_llm.schemes.int8_weight import Int8Weight

pytestmark = pytest.mark.thorough(file=6)

PLACEMENTS = ("split,host", "split")
SHAPES = {
    "tied": LlamaConfig(
        family="llama", vocab_size=97, hidden_size=64, intermediate_size=96, num_layers=6, num_heads=8,
        num_kv_heads=2, head_dim=8, context=640, norm_eps=1e-5, rope_theta=1e4, tied_embeddings=True,
    ),
    "odd": LlamaConfig(
        family="qwen2", vocab_size=130, hidden_size=71, intermediate_size=75, num_layers=4, num_heads=3,
        num_kv_heads=1, head_dim=24, context=640, norm_eps=1e-6, rope_theta=1e6, qkv_bias=True,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def packages() -> None:
    for name in ("onnx", "onnxruntime"):
        pytest.importorskip(name, reason="the extra `onnx` is not installed")


@pytest.fixture(scope="module", params=SHAPES, ids=list(SHAPES))
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    folder = tmp_path_factory.mktemp("bundle")
    write_random(folder, SHAPES[request.param], seed=3)
    with open_bundle(folder) as bundle:
        yield bundle


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    """Really imported: outliers, and layers some of whose linears are not INT8."""
    folder = tmp_path_factory.mktemp("mixed")
    write_model(folder / "source", tiny_config("qwen2", num_hidden_layers=5, max_position_embeddings=1024))
    outliers = Outliers(schemes=tuple((name, "float16") for name in ("layers.1.qkv", "layers.1.down", "layers.4.o")))
    with open_bundle(import_model(folder / "source", target=folder / "bundle", outliers=outliers)) as bundle:
        yield bundle


def runner_of(bundle: Bundle, **options: Any) -> Any:
    runtime = {"activations": "static", "threads": 2, "context": 512, "chunk": 64, "kv_tokens": 2048, **options}
    return load_runner(bundle, RuntimeConfig(**runtime), 300)[0]


def answers(runner: Any, tokens: list[int], steps: int = 4) -> np.ndarray:
    """Logits of all ``tokens``, of ``steps`` steps after them, and of two sequences in one batch."""
    sequence = runner.open()
    rows = [runner.forward(sequence, tokens, wanted=len(tokens))]
    rows += [runner.forward(sequence, [7 * step % 90]) for step in range(steps)]
    sequence.close()
    others = [runner.open(), runner.open()]
    rows += runner.run([Segment(others[0], tokens[:41], 5, states=True), Segment(others[1], tokens[3:], 9)])
    for other in others:
        other.close()
    return np.concatenate([row.ravel() for row in rows])


def tokens_of(bundle: Bundle, count: int = 150) -> list[int]:
    return np.random.default_rng(5).integers(0, bundle.config.vocab_size, count).tolist()


# ---- the same numbers


WAYS = [
    {},
    {"chunk": 16, "window": 3},
    {"chunk": 33},
    {"chunk": 256},
    {"threads": 1},
    {"threads": 5},
    {"shadow": False},
    {"policy": "in-order"},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_logits_are_the_hosts_bit_for_bit(bundle: Bundle, way: dict[str, Any]) -> None:
    tokens = tokens_of(bundle)
    expected = answers(runner_of(bundle, shadow=way.get("shadow", True)), tokens)
    assert np.array_equal(answers(runner_of(bundle, device="onnx", **way), tokens), expected)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_in_either_placement(bundle: Bundle, mixed: Bundle, placement: str) -> None:
    for model in (bundle, mixed):
        tokens = tokens_of(model)
        runner = runner_of(model, device="onnx", placement=placement)
        assert np.array_equal(answers(runner, tokens), answers(runner_of(model), tokens))


def test_what_overflows_is_among_it(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hot channels and overflow are there in these models, and the CPU's lane adds them."""
    seen = {"hot": 0, "overflow": 0}

    def quantize(x: np.ndarray, scale: float, hot: np.ndarray, *given: Any, **more: Any) -> Any:
        quantized, residual = real(x, scale, hot, *given, **more)
        seen["hot"] += len(hot)
        seen["overflow"] += len(residual.value)
        return quantized, residual

    real = split.quantize
    monkeypatch.setattr(split, "quantize", quantize)
    answers(runner_of(bundle, device="onnx"), tokens_of(bundle))
    assert min(seen.values()) > 0


def least(bundle: Bundle, option: str, **given: Any) -> str:
    """The smallest budget that ``option`` may give."""
    with pytest.raises(UsageError, match="least that works") as error:
        runner_of(bundle, **given, **{option: "1"})
    return str(error.value).partition("least that works is ")[2].partition(" ")[0]


BUDGETS = [("split,host", "memory"), ("split,host", "card_memory"), ("split", "card_memory")]


@pytest.mark.parametrize(("placement", "option"), BUDGETS)
def test_streamed_weights_are_multiplied_as_resident_ones(bundle: Bundle, mixed: Bundle, placement: str, option: str) -> None:
    """Of the host's memory, or of onnxruntime's copy; also where layers of other shapes take turns in the same slots."""
    for model in (bundle, mixed):
        tokens, given = tokens_of(model), {"device": "onnx", "placement": placement}
        expected, enough = answers(runner_of(model), tokens), least(model, option, **given)
        runner = runner_of(model, **given, **{option: enough})
        assert len(runner.model.weights.streamed) >= 3
        for _ in range(2):
            assert np.array_equal(answers(runner, tokens), expected)
        with pytest.raises(UsageError, match="too little"):
            runner_of(model, **given, **{option: str(int(enough) - 1)})


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("option", ["memory", "card_memory"])
def test_enough_memory_streams_nothing(bundle: Bundle, placement: str, option: str) -> None:
    runner = runner_of(bundle, device="onnx", placement=placement, **{option: "1GiB" if option == "card_memory" else "100%"})
    assert not runner.model.weights.streamed
    assert np.array_equal(answers(runner, tokens_of(bundle)), answers(runner_of(bundle), tokens_of(bundle)))


def test_layers_and_chunks_share_static_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []

    class Counted(Session):
        def __init__(self, *shape: int, with_bias: bool, cores: Any) -> None:
            made.append(shape)
            super().__init__(*shape, with_bias=with_bias, cores=cores)

    monkeypatch.setattr(onnx_device, "Session", Counted)
    write_random(tmp_path, SHAPES["tied"], seed=3)
    with open_bundle(tmp_path) as bundle:
        answers(runner_of(bundle, device="onnx"), tokens_of(bundle))
    linears = {(one.columns, one.rows) for one in bundle.decoder.layers[0].linears}
    assert len(made) == len(set(made)) and {shape[1:] for shape in made} == linears
    assert {shape[0] for shape in made} <= {1, 8, 32, 64}


# ---- one product


def product_of(weight: Int8Weight, rows: np.ndarray, threads: int = 1) -> np.ndarray:
    bias = weight.bias is not None
    session = Session(len(rows), weight.columns, weight.rows, with_bias=bias, cores=list(range(threads)))
    return session.run(unsigned(rows, np.empty(rows.shape, np.uint8)), operands_of(weight))


def expected_of(weight: Int8Weight, rows: np.ndarray) -> np.ndarray:
    scale = weight.product_scale
    return linear_int8(rows, weight.tiles, weight.rows, scale, weight.row_sum, POOL, bias=weight.bias)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 200), st.integers(1, 70), st.booleans(), st.sampled_from([0, 127, -127]))
def test_any_product(m: int, k: int, n: int, bias: bool, extreme: int) -> None:
    weight, rows = random_weight(n, k, bias, extreme), some_rows(m, k)
    assert np.array_equal(product_of(weight, rows).view(np.int32), expected_of(weight, rows).view(np.int32))


@pytest.mark.parametrize("extreme", [127, -127])
def test_sums_of_unsigned_rows_beyond_int32_are_exact_as_well(extreme: int) -> None:
    """255 * 255 * 40,000 is more than an int32 holds; 127 * 127 * 40,000 is not."""
    weight, rows = random_weight(19, 40_000, True, extreme), np.full((3, 40_000), 127, np.int8)
    assert np.array_equal(product_of(weight, rows), expected_of(weight, rows))


def test_on_several_threads() -> None:
    weight, rows = random_weight(300, 500, True), some_rows(64, 500)
    assert np.array_equal(product_of(weight, rows, threads=3), expected_of(weight, rows))


def test_a_copy_goes_over_one_of_the_same_shape() -> None:
    first, second, other = (random_weight(n, 33, False, extreme) for n, extreme in ((17, 0), (17, 127), (18, 0)))
    linears = onnx_device.OnnxLinears()
    loaded = linears.load(first)
    again = linears.reload(second, loaded)
    assert again["weight"] is loaded["weight"]
    assert np.array_equal(again["weight"], operands_of(second)["weight"])
    assert np.array_equal(linears.reload(other, again)["weight"], operands_of(other)["weight"])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="VNNI is of x86-64 alone")
@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="qemu-x86_64, which has no VNNI, is not here")
@pytest.mark.parametrize("extreme", [0, 127, -127])
def test_without_vnni(extreme: int, tmp_path: Path) -> None:
    """On an emulated CPU with AVX2, on which uint8 rows and int8 weights are seen to saturate."""
    weight, rows = random_weight(33, 301, True, extreme), some_rows(8, 301)
    graph, arrays, result = tmp_path / "product.onnx", tmp_path / "arrays.npz", tmp_path / "result.npy"
    graph.write_bytes(onnx_product._graph(8, 301, 33, with_bias=True))
    np.savez(arrays, rows=unsigned(rows, np.empty(rows.shape, np.uint8)), **operands_of(weight))
    script = Path(__file__).with_name("onnx_product.py")
    command = ["qemu-x86_64", "-cpu", "Haswell", sys.executable, script, graph, arrays, result]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode < 0 or "Illegal instruction" in done.stderr:
        pytest.skip("this qemu-x86_64 does not emulate AVX2")
    assert done.returncode == 0, done.stderr
    if done.stdout.strip() != "saturates":
        pytest.skip("this qemu-x86_64 does not emulate AVX2")
    for found in np.load(result):
        assert np.array_equal(found, expected_of(weight, rows))


# ---- the command, and what is refused


@pytest.fixture
def no_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))


@pytest.mark.usefixtures("no_stdin")
def test_the_built_in_model_says_what_it_says_on_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for device in ("host", "onnx"):
        assert run(["run", "builtin", "Tell me a short story", "--device", device, "-n", "40", "--json"]) == 0
        said.append(json.loads(capsys.readouterr().out)["text"])
    assert said[0] and said[0] == said[1]


def test_a_plan_says_where_its_speed_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "builtin", "--device", "onnx", "--ctx", "256"]) == 0
    assert "in a layer of this model, measured on the host\n" in capsys.readouterr().out


@pytest.mark.usefixtures("no_stdin")
@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_a_package_it_says_how_to_get_it(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DeviceError, match=rf"`{package}`, which is not installed.*`pip install '\.\[onnx\]'` in the folder of"):
        open_device("onnx", DeviceOptions(1))
    assert run(["run", "builtin", "Hi", "--device", "onnx"]) == 1
    error = capsys.readouterr().err
    assert f"`{package}`, which is not installed" in error and error.count("\n") == 1


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(UsageError, match="no device `onnx:cann`; onnxruntime's CPU provider is called `onnx`"):
        open_device("onnx:cann", DeviceOptions(1))
    with pytest.raises(UsageError, match="`card`: the device `onnx` does not do it"):
        open_device("onnx", replace(DeviceOptions(1), placement="card"))


def test_a_product_that_onnxruntime_refuses_is_a_device_error() -> None:
    weight = random_weight(17, 33, False)
    session = Session(4, 33, 17, with_bias=False, cores=[0])
    with pytest.raises(DeviceError, match=r"refused the product \[4, 33\] @ \[33, 17\]: .*rows"):
        session.run(np.zeros((5, 33), np.uint8), operands_of(weight))


def test_the_device_file_loads_neither_package() -> None:
    code = "import edge_llm.ascend.devices.onnx, sys; print({'onnx', 'onnxruntime'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    assert onnx_package("onnxruntime").__name__ == "onnxruntime"
