"""`--device om:FOLDER`: compiled products multiply prompts, and every bit is the emulated chip's; pyACL is a stand-in."""

from __future__ import annotations

import gc
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import tiny_config, write_model
from stand_in_cann import PyAcl, compiled

from edge_llm.ascend.devices import om
from edge_llm.ascend.export.exporter import export_onnx
from edge_llm.ascend.export.flavours import FLAVOURS
from edge_llm.ascend.npu import om_models
from edge_llm.ascend.npu.chips import CHIPS
from edge_llm.bench.synthetic import write_random
from edge_llm.cli.main import run
from edge_llm.config import GenerationParams, LlamaConfig, RuntimeConfig
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.devices import open_device
from edge_llm.devices.base import DeviceOptions
from edge_llm.errors import DeviceError, DeviceLost, UsageError
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.opening.load import load_engine
from edge_llm.opening.runner import load_runner
from edge_llm.paths import find_bundle
from edge_llm.runner.base import Segment

pytestmark = pytest.mark.thorough(file=7)

LENGTHS = (1, 8, 16)
SHAPES = {
    "tied": LlamaConfig(
        family="llama", vocab_size=97, hidden_size=64, intermediate_size=96, num_layers=5, num_heads=8,
        num_kv_heads=2, head_dim=8, context=640, norm_eps=1e-5, rope_theta=1e4, tied_embeddings=True,
    ),
    "odd": LlamaConfig(
        family="qwen2", vocab_size=130, hidden_size=71, intermediate_size=75, num_layers=3, num_heads=3,
        num_kv_heads=1, head_dim=24, context=640, norm_eps=1e-6, rope_theta=1e6, qkv_bias=True,
    ),
}  # fmt: skip


def export(bundle: Bundle, folder: Path, chip: str = "310b", lengths: tuple[int, ...] = LENGTHS) -> Path:
    return export_onnx(bundle, folder, lengths, flavour=FLAVOURS[chip]).folder


@pytest.fixture(scope="module", params=SHAPES, ids=list(SHAPES))
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    folder = tmp_path_factory.mktemp("bundle")
    write_random(folder, SHAPES[request.param], seed=3)
    with open_bundle(folder) as bundle:
        yield bundle


@pytest.fixture(scope="module")
def folder(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its export for a 310B, compiled; not to be changed."""
    folder = tmp_path_factory.mktemp("export")
    exported = export(bundle, folder / "om")
    compiled(exported, folder / "kept")
    return exported


@pytest.fixture
def changed(folder: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(folder, tmp_path / "changed"))


@pytest.fixture(autouse=True)
def pyacl(monkeypatch: pytest.MonkeyPatch) -> Iterator[PyAcl]:
    """Nothing may be held when a test ends."""
    pyacl = PyAcl()
    monkeypatch.setitem(sys.modules, "acl", pyacl)
    yield pyacl
    gc.collect()
    om_models.open_chip.cache_clear()
    assert not pyacl.in_use


def runner_of(bundle: Bundle, **options: Any) -> Any:
    runtime = {"threads": 2, "context": 512, "chunk": 16, "kv_tokens": 1024, "activations": "static", **options}
    return load_runner(bundle, RuntimeConfig(**runtime), 100)[0]


def answers(runner: Any, tokens: list[int], steps: int = 3) -> np.ndarray:
    """Logits of all ``tokens``, of ``steps`` steps after them, and of two sequences in one batch."""
    sequence = runner.open()
    rows = [runner.forward(sequence, tokens, wanted=len(tokens))]
    rows += [runner.forward(sequence, [7 * step % 90]) for step in range(steps)]
    sequence.close()
    others = [runner.open(), runner.open()]
    rows += runner.run([Segment(others[0], tokens[:21], 5, states=True), Segment(others[1], tokens[3:], 9)])
    for other in others:
        other.close()
    return np.concatenate([row.ravel() for row in rows])


def tokens_of(bundle: Bundle, count: int = 53) -> list[int]:
    return np.random.default_rng(5).integers(0, bundle.config.vocab_size, count).tolist()


def emulated(bundle: Bundle, chip: str = "310b", **options: Any) -> np.ndarray:
    runner = runner_of(bundle, device=f"emulated:{chip}:float16", placement="split,host", **options)
    return answers(runner, tokens_of(bundle))


# ---- the same numbers


WAYS = [{}, {"chunk": 8, "window": 3}, {"chunk": 11}, {"shadow": False}, {"policy": "in-order"}]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_logits_are_the_emulated_chips_bit_for_bit(bundle: Bundle, folder: Path, pyacl: PyAcl, way: dict[str, Any]) -> None:
    runner = runner_of(bundle, device=f"om:{folder}", **way)
    asked = len(pyacl.executed)
    found = answers(runner, tokens_of(bundle))
    assert len(pyacl.executed) > asked
    assert np.array_equal(found, emulated(bundle, **way))
    assert np.array_equal(found, emulated(bundle, "310p", **way))


def test_steps_run_on_the_host_with_the_chips_rounding(bundle: Bundle, folder: Path, pyacl: PyAcl) -> None:
    runner = runner_of(bundle, device=f"om:{folder}")
    assert runner.site.placement == "split,host"
    sequence = runner.open()
    asked = len(pyacl.executed)
    runner.forward(sequence, [5])
    runner.forward(sequence, [6])
    assert len(pyacl.executed) == asked
    sequence.close()


@pytest.mark.thorough(keep=1)
def test_another_chip_has_the_same_bits(bundle: Bundle, tmp_path: Path, pyacl: PyAcl) -> None:
    exported = export(bundle, tmp_path / "om", "310p", (16,))
    compiled(exported, tmp_path / "kept")
    pyacl.soc = "Ascend310P3"
    found = answers(runner_of(bundle, device=f"om:{exported}"), tokens_of(bundle))
    assert np.array_equal(found, emulated(bundle))


@pytest.mark.thorough(keep=1)
def test_chunks_take_the_fewest_compiled_rows(bundle: Bundle, folder: Path, tmp_path: Path, pyacl: PyAcl) -> None:
    """The fewest that hold them.  So one compiled length is enough, and no more are loaded than chunks need."""
    exported = export(bundle, tmp_path / "om")
    compiled(exported, tmp_path / "kept", ROWS="16")
    expected = emulated(bundle)
    loaded = {}
    for name, one in (("one", exported), ("all", folder)):
        runner = runner_of(bundle, device=f"om:{one}")
        assert np.array_equal(answers(runner, tokens_of(bundle)), expected)
        loaded[name] = sum(isinstance(value, dict) for value in pyacl.held.values())
        del runner
        gc.collect()
    products = sum(len(layer.linears) for layer in bundle.decoder.layers)
    assert loaded == {"one": products, "all": len(LENGTHS) * products}
    runner_of(bundle, device=f"om:{folder}", chunk=8)
    assert {path for path in pyacl.executed if path.endswith("-16.om")}  # of the runners before
    assert not [path for path in pyacl.executed[-2 * products :] if path.endswith("-16.om")]


@pytest.mark.thorough(keep=1)
def test_layers_that_stay_on_flash_are_multiplied_as_resident_ones(bundle: Bundle, folder: Path) -> None:
    device = {"device": f"om:{folder}"}
    with pytest.raises(UsageError, match="least that works") as error:
        runner_of(bundle, memory="1", **device)
    least = str(error.value).partition("least that works is ")[2].partition(" ")[0]
    runner = runner_of(bundle, memory=least, **device)
    assert len(runner.model.weights.streamed) > 1
    expected = emulated(bundle)
    for _ in range(2):
        assert np.array_equal(answers(runner, tokens_of(bundle)), expected)


def test_linears_that_are_not_int8_stay_with_the_host(tmp_path: Path) -> None:
    write_model(tmp_path / "source", tiny_config("qwen2", num_hidden_layers=3))
    outliers = Outliers(schemes=(("layers.1.qkv", "float16"), ("layers.2.down", "float16")))
    with open_bundle(import_model(tmp_path / "source", target=tmp_path / "bundle", outliers=outliers)) as bundle:
        exported = export(bundle, tmp_path / "om", lengths=(16,))
        compiled(exported, tmp_path / "kept")
        given = {"context": 128, "kv_tokens": 256}
        found = answers(runner_of(bundle, device=f"om:{exported}", **given), tokens_of(bundle))
        assert np.array_equal(found, emulated(bundle, **given))


@pytest.mark.thorough(keep=1)
def test_every_product_passes_the_law_of_its_chip(bundle: Bundle, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = []
    monkeypatch.setattr(om, "check_product", lambda law, route, *sizes, bias: passed.append((law.name, route.operator, sizes)))
    runner_of(bundle, device=f"om:{folder}")
    wanted = {
        ("310b", "LinearOperation", (length, *CHIPS["310b"].padded(linear.columns, linear.rows)))
        for length in LENGTHS
        for linear in bundle.decoder.layers[0].linears
    }
    assert set(passed) == wanted


# ---- memory, and a chip that fails


@pytest.mark.thorough(keep=1)
def test_all_is_given_back_when_the_model_is_closed(bundle: Bundle, folder: Path, pyacl: PyAcl) -> None:
    for _ in range(2):
        runner = runner_of(bundle, device=f"om:{folder}")
        answers(runner, tokens_of(bundle))
        assert pyacl.in_use
        del runner
        gc.collect()
        assert pyacl.in_use == 0
    assert pyacl.starts == 1


@pytest.mark.thorough(keep=1)
def test_what_was_loaded_before_a_failure_is_given_back(bundle: Bundle, changed: Path, pyacl: PyAcl) -> None:
    last = changed / "om" / f"layers.{len(bundle.decoder.layers) - 1}.down-16.om"
    last.write_text(last.read_text().replace("Ascend310B4", "Ascend310B1"))
    with pytest.raises(DeviceError) as error:
        runner_of(bundle, device=f"om:{changed}")
    assert f"Ascend310B4 does not load `{last}`: pyACL's code 145011, EE1001" in str(error.value)
    assert "`SOC=Ascend310B4 sh atc.sh` compiles for this one" in str(error.value)
    del error
    gc.collect()
    assert pyacl.in_use == 0


@pytest.mark.thorough
def test_a_chip_that_fails_ends_its_requests_and_the_host_answers_the_others(
    tmp_path: Path, pyacl: PyAcl, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path / "source", tiny_config("llama"))
    model = import_model(tmp_path / "source", target=tmp_path / "bundle")
    with open_bundle(model) as bundle:
        exported = export(bundle, tmp_path / "om", lengths=(32,))
        compiled(exported, tmp_path / "kept")

    def engine_of(device: str) -> Any:
        return load_engine(model, RuntimeConfig(
            threads=1, context=128, chunk=32, kv_tokens=512, device=device, activations="static"
        ))

    def answer(engine: Any, prompt: list[int]) -> Any:
        return engine.answer(engine.token_request(prompt, GenerationParams(max_tokens=5, ignore_eos=True))).tokens

    prompts = ([*range(60)], [1, 2, 3], [7, 8, 9] * 20)
    engine = engine_of(f"om:{exported}")
    asked = len(pyacl.executed)
    answer(engine, prompts[0])
    assert len(pyacl.executed) > asked
    pyacl.fails_after = len(pyacl.executed) + 3
    with pytest.raises(DeviceLost, match=r"`om:310b` failed: acl.mdl.execute of `layers.*om` failed with .* 507011, EZ9999"):
        answer(engine, prompts[2])
    host = engine_of("host")
    assert [answer(engine, prompt) for prompt in prompts] == [answer(host, prompt) for prompt in prompts]
    assert engine.runner.site.device == "host" and "the host answers from now on" in caplog.text
    gc.collect()
    assert pyacl.in_use == 0


@pytest.mark.thorough(keep=1)
def test_too_little_memory_is_refused_before_anything_is_loaded(bundle: Bundle, folder: Path, pyacl: PyAcl) -> None:
    message = r"the OM files of 1, 8, 16 rows take \d+ bytes, and only 1000 may be taken; .* fewer numbers"
    with pytest.raises(DeviceError, match=message) as error:
        runner_of(bundle, device=f"om:{folder}", card_memory="1000")
    taken = int(str(error.value).partition("take ")[2].partition(" ")[0])
    assert not pyacl.in_use
    runner_of(bundle, device=f"om:{folder}", card_memory=str(taken))


# ---- what is refused, by name, before any product


def refused(bundle: Bundle, folder: Path, pyacl: PyAcl, **options: Any) -> str:
    with pytest.raises(DeviceError) as error:
        runner_of(bundle, device=f"om:{folder}", **options)
    assert not pyacl.executed
    return str(error.value)


def test_missing_files(bundle: Bundle, changed: Path, pyacl: PyAcl) -> None:
    missing = changed / "om" / "layers.1.down-16.om"
    missing.unlink()
    said = f"`{missing}` is missing; on a machine with CANN's toolkit `ROWS=16 sh {changed / 'atc.sh'}` makes it"
    assert refused(bundle, changed, pyacl) == said
    shutil.rmtree(changed / "om")
    assert "is missing; on a machine with CANN's toolkit `ROWS=8 sh" in refused(bundle, changed, pyacl, chunk=8)


def test_longer_chunks_than_were_exported(bundle: Bundle, folder: Path, pyacl: PyAcl) -> None:
    said = refused(bundle, folder, pyacl, chunk=64)
    assert "has graphs of at most 16 rows, and chunks have up to 64: use --chunk 16, or export" in said
    assert "`edge-llm export --format onnx --flavour 310b --chunk 64 MODEL`" in said


def test_another_model_of_the_same_shapes(bundle: Bundle, folder: Path, tmp_path: Path, pyacl: PyAcl) -> None:
    write_random(tmp_path, bundle.config, seed=4)
    with open_bundle(tmp_path) as other:
        said = refused(other, folder, pyacl)
    assert f"`{folder}` is an export of `{bundle.folder.name}` with other weights than this model's" in said


@pytest.mark.parametrize("change", ["layer", "part", "columns"])
def test_an_index_that_was_changed(bundle: Bundle, changed: Path, pyacl: PyAcl, change: str) -> None:
    """Rows of other sizes would be copied past the chip's memory."""
    index = json.loads((changed / "index.json").read_text())
    if change == "layer":
        index["layers"].pop()
    elif change == "part":
        index["layers"][1]["parts"].pop("qkv")
    else:
        index["graphs"]["qkv"]["columns"] -= 1
    (changed / "index.json").write_text(json.dumps(index))
    assert "with other weights than this model's" in refused(bundle, changed, pyacl)


def test_another_chip(bundle: Bundle, folder: Path, pyacl: PyAcl) -> None:
    pyacl.soc = "Ascend310P3"
    assert "is compiled for Ascend310B4, and the chip here is Ascend310P3" in refused(bundle, folder, pyacl)


def test_without_pyacl(bundle: Bundle, folder: Path, pyacl: PyAcl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "acl", None)
    said = refused(bundle, folder, pyacl)
    assert "need pyACL, the package `acl`" in said and "`source /usr/local/Ascend/cann/set_env.sh`" in said


@pytest.mark.thorough(keep=1)
def test_a_chip_that_cannot_be_used(bundle: Bundle, folder: Path, pyacl: PyAcl) -> None:
    pyacl.rt.set_device = lambda device: 507033
    assert "acl.rt.set_device failed with pyACL's code 507033" in refused(bundle, folder, pyacl)
    pyacl.rt.set_device = lambda device: 0
    runner_of(bundle, device=f"om:{folder}")  # pyACL says that it has been started, and that is no failure


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("nonsense", "index.json"),
        ("{}", "index.json is not as it was written"),
        ({"version": 1}, "version 1"),
        ({"flavour": "check"}, "its graphs are of the flavour check, which no chip compiles"),
        ({"layers": []}, "it has no graph"),
        ({"layers": 7}, "not as it was written"),
        ({"graphs": {}}, "not as it was written"),
    ],
    ids=str,
)
def test_a_folder_that_is_no_export_for_a_chip(
    bundle: Bundle, changed: Path, pyacl: PyAcl, index: str | dict[str, Any], reason: str
) -> None:
    text = index if isinstance(index, str) else json.dumps(json.loads((changed / "index.json").read_text()) | index)
    (changed / "index.json").write_text(text)
    said = refused(bundle, changed, pyacl)
    assert f"`{changed}` is no export that can be run: " in said and reason in said and "--flavour 310b" in said


def test_other_names_and_options(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="compiled products are called `om:FOLDER`"):
        open_device("om", DeviceOptions(1))
    with pytest.raises(UsageError, match="is no folder; `edge-llm export"):
        open_device(f"om:{tmp_path / 'nothing'}", DeviceOptions(1))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DeviceError, match="is no export that can be run: .*index.json"):
        open_device(f"om:{tmp_path / 'empty'}", DeviceOptions(1))
    with pytest.raises(UsageError, match="`card`: the device `om:310b` does not do it"):
        open_device(f"om:{folder}", DeviceOptions(1, placement="card"))
    with pytest.raises(UsageError, match="--kv `float16`"):
        open_device(f"om:{folder}", DeviceOptions(1, keys="float16"))


# ---- files that are not what their names say, which a product shows


def test_files_of_another_layer_and_of_another_size(bundle: Bundle, changed: Path) -> None:
    one, other = (changed / "om" / f"layers.{layer}.o-16.om" for layer in (0, 1))
    text = one.read_text()
    one.write_text(other.read_text())
    with pytest.raises(DeviceError, match=r"layers.0.o-16.om` gives other values than float16.* differ, such as .* for "):
        runner_of(bundle, device=f"om:{changed}")
    one.write_text(text.replace("o-16.onnx", "o-8.onnx").replace("layers.0.o-16", "layers.0.o-8"))
    with pytest.raises(DeviceError, match=r"layers.0.o-16.om` takes \d+ bytes and gives \d+, and the export's graph takes \d+"):
        runner_of(bundle, device=f"om:{changed}")


# ---- the command


@pytest.mark.thorough
def test_the_command_says_what_the_emulated_chip_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with open_bundle(find_bundle(None)) as builtin:
        exported = export(builtin, tmp_path / "om", lengths=(8,))
    compiled(exported, tmp_path / "kept")
    said = []
    for device in (f"om:{exported}", "emulated:310b"):
        command = ["run", "builtin", "Tell me a short story", "--device", device, "--placement", "split,host"]
        assert run([*command, "--chunk", "8", "-n", "12", "--json"]) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert said[0]["text"] and said[0]["text"] == said[1]["text"]
    assert said[0]["device"] == f"om:{exported}" and said[0]["placement"] == "split,host"
    assert run(["plan", "builtin", "--device", f"om:{exported}", "--ctx", "8", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["card_times"] and 0 < planned["card_bytes"] < planned["card_memory_bytes"]


def test_the_device_file_loads_no_pyacl() -> None:
    code = "import edge_llm.ascend.devices.om, sys; print('acl' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
