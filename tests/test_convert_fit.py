"""INT8 weights that import fits to the calibration text: another import, in the same scheme, nearer to float."""

import numpy as np
import pytest
from model_files import tiny_config, write_model

from edge_llm.config import INT8, W4, RuntimeConfig
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.runner import load_runner

pytestmark = pytest.mark.thorough(file=1)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit") / "source"
    write_model(folder, tiny_config("llama", num_hidden_layers=4))
    return folder


def logits(folder, **runtime):
    runner, _ = load_runner(open_bundle(folder), RuntimeConfig(**{"threads": 2, "context": 64, **runtime}), 40)
    return runner.forward(runner.open(), list(range(40)), wanted=40)


def test_the_bundle_has_other_weights_under_the_same_scales(source, tmp_path):
    said = []
    full = Outliers("full")
    plain = import_model(source, target=tmp_path / "plain", outliers=full)
    weights = LayerBits(fit=True)
    fitted = import_model(source, target=tmp_path / "fitted", outliers=full, weights=weights, notice=said.append)
    assert any("linears are fitted" in line for line in said)
    one, other = open_bundle(plain), open_bundle(fitted)
    assert {linear.scheme for linear in other.decoder.linears().values()} == {INT8}
    assert [(t.name, t.shape) for t in other.tensors.values()] == [(t.name, t.shape) for t in one.tensors.values()]
    changed = {name for name in one.tensors if not np.array_equal(one.read(name), other.read(name))}
    assert changed and {name.rpartition(".")[2] for name in changed} <= {"tiles", "row_sum", "hot_weight"}
    assert not any(name.startswith(("embedding", "output")) for name in changed)
    assert np.linalg.norm(logits(fitted) - logits(plain)) < 0.2 * np.linalg.norm(logits(plain))
    for way in ({"chunk": 8}, {"memory": "80%"}, {"device": "emulated:910b", "placement": "split"}):
        assert np.isfinite(logits(fitted, **way)).all()


def test_it_is_another_import_and_the_same_again_is_nothing_to_do(source, tmp_path):
    import_model(source, target=tmp_path / "b", weights=LayerBits(fit=True))
    assert open_bundle(tmp_path / "b").manifest["source"]["weights"] == "int8, fitted"
    said = []
    import_model(source, target=tmp_path / "b", weights=LayerBits(fit=True), notice=said.append)
    assert any("already imported" in line for line in said)
    with pytest.raises(UsageError, match="--overwrite"):
        import_model(source, target=tmp_path / "b")


def test_what_stays_int8_beside_codes_is_fitted_too(source, tmp_path):
    weights = LayerBits(W4, fixed={"layers.0.o": INT8})
    said = []
    folder = import_model(source, target=tmp_path / "b", weights=weights, notice=said.append)
    assert any("16 linears are fitted" in line or ", 0 rounded" in line for line in said)
    assert np.isfinite(logits(folder)).all()
