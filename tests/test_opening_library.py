"""The models that are here, as lists and pickers know them."""

import json
import shutil
from dataclasses import replace

from edge_llm.cli.main import run
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.library import installed_models
from edge_llm.paths import builtin_bundle, bundle_path


def test_the_built_in_model_is_always_here():
    (model,) = installed_models()
    with open_bundle(builtin_bundle()) as bundle:
        assert (model.name, model.folder) == ("builtin", builtin_bundle())
        assert (model.family, model.context, model.weights_bytes) == (bundle.config.family, bundle.config.context, bundle.size)
    assert model.nbytes > model.weights_bytes > 0
    assert model.precision == "int8" and model.problem is None


def test_precision_names_every_scheme_with_the_common_one_first(tiny_model):
    import_model(tiny_model("llama"), "mixed", outliers=Outliers("none", (("layers.0.down", "float16"),)))
    assert installed_models()[1].precision == "int8+float16"


def test_a_model_fits_with_its_weights_and_a_whole_context():
    (model,) = installed_models()
    needed = model.weights_bytes + model.kv_bytes
    assert model.kv_bytes > 0
    assert model.fits(needed) and not model.fits(needed - 1)
    assert model.fits()  # a few megabytes
    assert not replace(model, problem="damaged").fits()


def test_a_damaged_model_is_listed_with_its_problem():
    shutil.copytree(builtin_bundle(), bundle_path("mine"))
    (bundle_path("mine") / "weights.bin").write_bytes(b"")
    model = installed_models()[1]
    assert (model.name, model.folder) == ("mine", bundle_path("mine"))
    assert model.problem is not None and "is cut" in model.problem


def test_list_says_the_same(capsys):
    shutil.copytree(builtin_bundle(), bundle_path("mine"))
    assert run(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    for row, model in zip(rows, installed_models(), strict=True):
        assert row["name"] == model.name and row["path"] == str(model.folder)
        assert (row["family"], row["parameters"], row["context"]) == (model.family, model.parameters, model.context)
        assert (row["bytes"], row["weights_bytes"], row["precision"]) == (model.nbytes, model.weights_bytes, model.precision)
        assert row["fits"] is True
    assert run(["list"]) == 0
    assert "int8" in capsys.readouterr().out
