"""What weights take: every face says the same precision, bytes and bits per weight, and kinds add up to the whole."""

import json

import pytest
from model_files import tiny_config, write_model
from serving import client_of, hosted

from edge_llm.cli.main import run
from edge_llm.config import RuntimeConfig
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.sizes import float_sizes, sizes, sizes_by_kind
from edge_llm.opening.library import installed_models
from edge_llm.opening.load import load_engine
from edge_llm.paths import builtin_bundle, bundle_path
from edge_llm.progress import byte_size
from edge_llm.providers.base import Wanted
from edge_llm.providers.local import LocalCatalogue
from edge_llm.tui.screens.models import ModelPicker
from edge_llm.tui.welcome import model_line

pytestmark = pytest.mark.thorough(file=3)

PRECISIONS = {"int8": "int8", "w4": "w4+int8"}


@pytest.fixture(params=["w4", "int8"])
def weights(request):
    return request.param


@pytest.fixture(params=[{}, {"tie_word_embeddings": True}], ids=["untied", "tied"])
def bundle(request, weights, tmp_path, edge_llm_home):
    write_model(tmp_path / "source", tiny_config("llama", attention_bias=True, **request.param))
    import_model(tmp_path / "source", "mine", weights=LayerBits(weights))
    with open_bundle(bundle_path("mine")) as opened:
        yield opened


def test_kinds_are_the_whole(bundle, weights):
    whole, kinds = sizes(bundle), sizes_by_kind(bundle)
    assert list(kinds)[:5] == ["qkv", "o", "gate_up", "down", "output"]
    assert sum(kind.weights for kind in kinds.values()) == whole.weights == bundle.decoder.parameters
    assert sum(kind.nbytes for kind in kinds.values()) == whole.nbytes == sum(t.nbytes for t in bundle.tensors.values())
    assert whole.nbytes <= bundle.size
    assert whole.bits_per_weight == 8 * whole.nbytes / whole.weights
    assert {kind: dict(kinds[kind].schemes) for kind in ("qkv", "o", "gate_up", "down", "output")} == {
        **{kind: {weights: 2} for kind in ("qkv", "o", "gate_up", "down")}, "output": {"int8": 1},
    }  # fmt: skip
    assert ("embedding" in kinds) == (not bundle.decoder.tied)


def test_every_face_says_the_same(bundle, weights, capsys):
    found = sizes(bundle)
    assert found.precision == PRECISIONS[weights]
    assert [model.precision for model in installed_models() if model.name == "mine"] == [found.precision]
    assert run(["show", "mine", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["weights"]
    by_kind = {kind: one.to_fields() for kind, one in sizes_by_kind(bundle).items()}
    assert shown == found.to_fields() | {"file_bytes": bundle.size, "by_kind": by_kind}
    assert run(["show", "mine"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[:2] == ["all", weights]]
    assert f"{found.bits_per_weight:.2f}" in line
    assert run(["bench", "mine", "-p", "4", "-n", "0", "-r", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["model_type"], row["model_size"]) == (f"mine {found.precision.upper()}", bundle.size)
    assert (row["bits_per_weight"], row["type_k"]) == (found.bits_per_weight, "int8")
    assert run(["bench", "mine", "-p", "4", "-n", "0", "-r", "1", "--float", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["model_type"], row["model_size"]) == ("mine F32", 4 * bundle.decoder.parameters)
    assert row["bits_per_weight"] == 32
    with client_of(hosted(engine=load_engine("mine", RuntimeConfig(threads=1, context=64)))) as client:
        meta = client.get("/v1/models").json()["data"][0]["meta"]
    assert (meta["precision"], meta["size"], meta["bits_per_weight"]) == (
        found.precision, found.nbytes, found.bits_per_weight,
    )  # fmt: skip


@pytest.mark.thorough(keep=1)
def test_one_model_has_one_size(bundle, capsys):
    """`list`, `show`, `plan`, `bench`, F4 and the welcome of the chat say the weights' size in the same words."""
    for name, nbytes in (("mine", bundle.size), ("builtin", open_bundle(builtin_bundle()).size)):
        texts = {}
        assert run(["list", name]) == 0
        heading, row = capsys.readouterr().out.splitlines()
        at = heading.index(" WEIGHTS") + len(" WEIGHTS")
        texts["list"] = row[at - 9 : at].strip()
        assert run(["show", name]) == 0
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("weights_bytes "))
        texts["show"] = line.partition("(")[2].rstrip(")")
        assert run(["plan", name, "-t", "1"]) == 0
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("weights "))
        texts["plan"] = line.removeprefix("weights").partition(";")[0].strip()
        (picked,) = [row for row in LocalCatalogue(RuntimeConfig()).rows() if row.name == name]
        texts["F4"] = ModelPicker([picked], None, can_fetch=False)._cells(picked)[1]
        provider = LocalCatalogue(RuntimeConfig(threads=1)).open(Wanted(name), lambda *_: None)
        texts["welcome"] = model_line(provider.facts).rpartition(" · ")[2].removesuffix(" of weights")
        provider.close()
        assert set(texts.values()) == {byte_size(nbytes)}, texts
        numbers = []
        for command in (["list", name], ["show", name], ["plan", name, "-t", "1"]):
            assert run([*command, "--json"]) == 0
            found = json.loads(capsys.readouterr().out)
            numbers.append((found[0] if isinstance(found, list) else found)["weights_bytes"])
        assert numbers == [nbytes] * 3


def test_the_float_path_is_no_integer(tiny_model, capsys):
    import_model(tiny_model("llama"), "mine")
    with open_bundle(bundle_path("mine")) as bundle:
        assert float_sizes(bundle).bits_per_weight == 32
    assert load_engine("mine", RuntimeConfig(threads=1, context=64, float_path=True)).facts.precision == "float32"
    assert run(["bench", "mine", "--float", "-p", "4", "-n", "0", "-r", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["model_type"], row["bits_per_weight"], row["type_k"]) == ("mine F32", 32, "f32")


def test_mixed_schemes_of_a_kind_are_counted(tiny_model):
    outliers = Outliers("none", (("layers.0.down", "float16"),))
    import_model(tiny_model("llama"), "mine", outliers=outliers, weights=LayerBits("w4"))
    with open_bundle(bundle_path("mine")) as bundle:
        assert sizes_by_kind(bundle)["down"].schemes == (("float16", 1), ("w4", 1))
        assert sizes(bundle).precision == "w4+float16+int8"
