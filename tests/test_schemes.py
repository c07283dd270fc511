"""Weight schemes: the fast product is the reference, whatever the batch, and what import does with the choice of one."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import tiny_config, write_model
from scheme_references import reference

from edge_llm import kernels
from edge_llm.config import RuntimeConfig
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.errors import CorruptBundle, InvalidModel, UnsupportedModel, UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.manifest import encode_manifest
from edge_llm.kernels import reference as kernel_reference
from edge_llm.kernels.activation import SILU
from edge_llm.kernels.layout import unpack_tiles
from edge_llm.kernels.program import Program
from edge_llm.kernels.types import Residual
from edge_llm.models import load_config
from edge_llm.opening.runner import load_runner
from edge_llm.operations.linear import Linear, SourceRows
from edge_llm.schemes import float16, int8, linear_tensors, neurons, scheme_of, schemes
from edge_llm.schemes.neurons import active_runs

INTEGERS = {"input_scale": 0.03, "shadow": "full"}
NEAR = {"int8": 0.02, "float16": 0.02, "neurons": 0.02}
ALONE = ("float16", "neurons")
"""Those that no card multiplies, and that keep no outliers apart."""
"""The relative error of a product, at most; of those with 4 bits:"""
NEAR_W4 = 0.1
NAMES = (*schemes(), "w4,int8", "int8,w4", "w4,w4,int8", "int8,w4,int8", "w4,int8,int8,w4")


def opened(name, rows=20, columns=36, bias=True, seed=0):
    """A linear of the scheme ``name``, its description, and the float matrix [N, K] and bias that it was made from."""
    random = np.random.default_rng(seed)
    before = [16 * (1 + source % 2) for source in range(name.count(","))]
    counts = (*before, rows - sum(before) if sum(before) < rows else rows)
    sources = tuple(SourceRows(str(source), count) for source, count in enumerate(counts))
    linear = Linear("w", sources, columns, "x", "y", bias=bias, scheme=name)
    rows, scheme = linear.rows, scheme_of(linear)
    weight, added = random.standard_normal((rows, columns), np.float32), random.standard_normal(rows).astype(np.float32)
    hot = np.array([1, columns - 1], np.int32) if name not in ALONE else np.empty(0, np.int32)
    arrays = scheme.convert(weight, hot, "w") | ({"bias": added} if bias else {})
    assert [(key, array.dtype.name, array.shape) for key, array in arrays.items()] == linear_tensors(linear, len(hot))
    facts = {} if name in ALONE else INTEGERS
    return linear, scheme.open(linear, arrays, facts), weight, added if bias else np.zeros(rows, np.float32)


@pytest.mark.parametrize("isa", kernels.isa_variants())
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bias", [False, True])
def test_the_product_is_the_reference(isa, name, bias):
    before = kernels.isa()
    kernels.use_isa(isa)
    try:
        _, weight, _, _ = opened(name, bias=bias)
        x = np.random.default_rng(1).standard_normal((130, 36), np.float32) * 3
        expected = reference(x, weight)
        for threads, rows in ((1, 7), (3, 7), (1, 1), (2, 1), (2, 130)):  # few rows meet codes as they are
            assert np.array_equal(weight.apply(x[:rows], kernels.ThreadPool(threads)), expected[:rows])
    finally:
        kernels.use_isa(before)


@pytest.mark.parametrize("name", sorted({*NAMES} - {*ALONE}))
def test_a_product_that_a_card_rounds_is_the_reference_too(name):
    _, weight, _, _ = opened(name)
    x = np.random.default_rng(1).standard_normal((7, weight.columns), np.float32) * 3
    assert np.array_equal(weight.rounded.apply(x, kernels.ThreadPool(1)), reference(x, weight.rounded))


@pytest.mark.parametrize("name", [name for name in NAMES if "w4" in name])
def test_codes_give_the_bits_of_the_int8_weight_that_they_stand_for(name):
    _, weight, _, _ = opened(name)
    x = np.random.default_rng(1).standard_normal((7, weight.columns), np.float32) * 3
    pool, rows = kernels.ThreadPool(2), weight.rows
    assert np.array_equal(weight.apply(x, pool), weight.expanded(pool).apply(x, pool))
    residual = Residual(np.array([0, 3]), np.array([0, 13, 35], np.int32), np.array([0.5, -2, 7], np.float32))
    tiles, found = weight.overflow(residual)
    wanted = unpack_tiles(weight.make_tiles(pool), rows, weight.columns)[:, residual.column]
    assert np.array_equal(unpack_tiles(tiles, rows, 4 * tiles.shape[1])[:, found.column], wanted)


def test_active_neurons_give_the_product_of_all_and_runs_are_counted():
    linear, weight, _, _ = opened("neurons", rows=600, columns=100)
    x = np.random.default_rng(1).standard_normal((9, 100), np.float32) * (np.arange(100) % 3 == 0)
    assert np.array_equal(weight.apply(x, kernels.ThreadPool(2)), reference(x, weight))
    assert not (weight.apply(0 * x, kernels.ThreadPool(2)) - weight.bias).any()
    x[:, 50:] = 0
    assert weight.run == 6 and active_runs(x[:1], linear) == 9 / 17


@pytest.mark.parametrize("record", [{"active": 2.0}, {"active": 1}, {"more": 0.5}], ids=str)
def test_neurons_name_the_fact_that_makes_no_sense(record):
    with pytest.raises(ValueError, match="share `|unknown key `more`"):
        neurons.facts(record)


@given(
    text=st.lists(st.sampled_from(["w4", "int8", "float16", "", "W4"]), max_size=4),
    counts=st.lists(st.sampled_from([1, 16, 24, 32]), min_size=1, max_size=4),
    columns=st.sampled_from([36, 38]),
)
def test_a_scheme_has_one_spelling_and_suits_its_linear(text, counts, columns):
    linear = Linear("w", tuple(SourceRows("", count) for count in counts), columns, "x", "y", scheme=",".join(text))
    whole = columns % 4 == 0
    several = whole and len(set(text)) > 1 and len(text) == len(counts) and set(text) <= {"w4", "int8"}
    panels = all(count % 16 == 0 for count in counts[:-1])
    if text in (["int8"], ["float16"]) or (text == ["w4"] and whole) or (several and panels):
        assert linear.scheme == scheme_of(linear).NAME
    else:
        with pytest.raises(ValueError, match="cannot have the scheme"):
            scheme_of(linear)


@pytest.mark.parametrize("name", NAMES)
def test_the_product_is_near_the_matrix(name):
    _, weight, matrix, bias = opened(name)
    x = np.random.default_rng(1).standard_normal((50, 36), np.float32)
    wanted = x @ matrix.T + bias
    assert np.linalg.norm(weight.apply(x, kernels.ThreadPool(1)) - wanted) < NEAR.get(name, NEAR_W4) * np.linalg.norm(wanted)


@given(name=st.sampled_from(NAMES), rows=st.integers(1, 5), norm=st.booleans(), add=st.booleans(), swiglu=st.booleans())
@settings(deadline=None, max_examples=40)
def test_norm_addition_and_swiglu_are_those_beside_it(name, rows, norm, add, swiglu):
    _, weight, _, _ = opened(name, rows=96)
    random = np.random.default_rng(rows)
    x, gain = random.standard_normal((rows, 36), np.float32), random.standard_normal(36).astype(np.float32)
    residual = random.standard_normal((rows, 96), np.float32)
    pool = kernels.ThreadPool(2)
    more = {"gain": gain, "eps": 1e-5} if norm else {}
    expected = weight.apply(kernel_reference.rms_norm(x, gain, 1e-5) if norm else x, pool)
    if swiglu:
        more, expected = more | {"gate": SILU}, kernel_reference.swiglu(expected)
    elif add:
        more, expected = more | {"add": residual}, expected + residual
    out = np.empty_like(expected)
    assert weight.apply(x, pool, **more, out=out) is out
    assert np.array_equal(out, expected)
    alone = np.concatenate([
        weight.apply(x[i : i + 1], pool, **more | ({"add": residual[i : i + 1]} if "add" in more else {})) for i in range(rows)
    ])  # fmt: skip
    assert np.array_equal(alone, out)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_is_not_finite_is_refused(name):
    _, weight, _, _ = opened(name)
    x = np.zeros((3, 36), np.float32)
    x[1, 4] = np.nan
    with pytest.raises(ValueError, match="non-finite activation"):
        weight.apply(x, kernels.ThreadPool(1))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("threads", [1, 3])
def test_out_may_be_x_or_what_is_added(name, threads):
    _, weight, _, _ = opened(name, rows=100, columns=100)
    pool = kernels.ThreadPool(threads)
    random = np.random.default_rng(1)
    x, residual = random.standard_normal((7, 100), np.float32), random.standard_normal((7, 100), np.float32)
    for more in ({}, {"gain": np.full(100, 1.5, np.float32), "eps": 1e-5}, {"add": residual}):
        expected = weight.apply(x, pool, **more)
        both = x.copy()
        assert weight.apply(both, pool, **more, out=both) is both
        assert np.array_equal(both, expected)
    added = residual.copy()
    assert np.array_equal(weight.apply(x, pool, add=added, out=added), expected)


@pytest.mark.parametrize("name", NAMES)
def test_every_scheme_refuses_what_does_not_fit(name):
    _, weight, _, _ = opened(name, rows=96)
    x, y, pool = np.zeros((5, 36), np.float32), np.zeros((5, 96), np.float32), kernels.ThreadPool(1)
    for named, wrong in {
        "x": [{"x": x.astype(np.float64)}, {"x": x[0]}, {"x": x[:, :5].copy()}, {"x": np.zeros((5, 37), np.float32)}],
        "gain": [{"gain": np.ones(3, np.float32)}, {"gain": np.ones(36)}],
        "add": [{"add": y[:2]}, {"add": y[:1]}, {"add": y.astype(np.float64)}, {"add": y[0]}],
        "out": [{"out": y[:2]}, {"out": y.astype(np.float64)}, {"gate": SILU, "out": y}],
        "gate` takes no `add": [{"gate": SILU, "add": y}],
    }.items():
        for arguments in wrong:
            with pytest.raises(ValueError, match=f"`{named}`"):
                weight.apply(**{"x": x, "pool": pool} | arguments)


def test_float16_refuses_what_it_cannot_hold():
    with pytest.raises(InvalidModel, match=r"layers\.0\.o"):
        float16.convert(np.full((2, 3), 7e4, np.float32), np.empty(0, np.int32), "layers.0.o")


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ({"input_scale": 0.0}, "input scale `0.0`"),
        ({"input_scale": 1}, "input scale `1`"),
        ({"input_scale": 1.0, "shadow": "x"}, "shadow `x`"),
        ({"input_scale": 1.0, "more": 1}, "unknown key `more`"),
    ],
)
def test_int8_names_the_fact_that_makes_no_sense(record, named):
    with pytest.raises(ValueError, match=named):
        int8.facts(record)


# ---- import ----


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("source"), tiny_config("qwen2"))


def imported(source, target, **outliers):
    return open_bundle(import_model(source, target=target, outliers=Outliers(**outliers), turn=0))


def test_patterns_choose_linears(source, tmp_path):
    bundle = imported(source, tmp_path / "m", schemes=(("*.down", "float16"), ("layers.0.q*", "float16")))
    found = [name for name, linear in bundle.decoder.linears().items() if linear.scheme == "float16"]
    assert found == ["layers.0.qkv", "layers.0.down", "layers.1.down"]
    assert {record["scheme"] for record in bundle.manifest["linears"].values()} == {"int8", "float16"}


@pytest.mark.parametrize("family, width", [("qwen2", 128), ("llama", 72)], ids=["bias", "odd"])
def test_a_step_of_float16_linears_is_one_native_call(tmp_path, monkeypatch, family, width):
    """With the logits of a prompt, whatever its chunks; also where gate and up channels are no whole panels."""
    folder = write_model(tmp_path / "source", tiny_config(family, intermediate_size=width))
    bundle = imported(folder, tmp_path / "m", schemes=(("*", "float16"),))
    assert {name.rpartition(".")[2] for name, linear in bundle.decoder.linears().items() if linear.scheme == "float16"} == {
        "qkv", "o", "gate_up", "down"
    }  # fmt: skip
    tokens = list(range(40))
    whole, step = (load_runner(bundle, RuntimeConfig(threads=2, context=64, chunk=chunk), 40)[0] for chunk in (64, 16))
    logits = whole.forward(whole.open(), tokens, wanted=40)
    sequence = step.open()
    found = [step.forward(sequence, tokens[:30], wanted=30)]
    calls = []
    for name in ("run", "run_row"):
        real = getattr(Program, name)
        monkeypatch.setattr(Program, name, lambda *given, r=real, n=name, **how: calls.append(n) or r(*given, **how))
    found += [step.forward(sequence, [token]) for token in tokens[30:]]
    assert calls == ["run"] + 9 * ["run_row"]
    assert np.array_equal(np.concatenate(found), logits)


def test_a_pattern_that_names_nothing_is_refused_before_the_work(source, tmp_path):
    said = []
    for pattern in ("layers.7.*", "output", "down"):
        with pytest.raises(UsageError, match=rf"`{pattern}`.* qkv, o, gate_up, down") as error:
            import_model(
                source, target=tmp_path / "m", outliers=Outliers(schemes=((pattern, "float16"),)),
                progress=lambda stage, done, total: said.append(stage),
            )  # fmt: skip
        assert error.value.param == "float16"
    assert not said and not list(tmp_path.iterdir())


def test_the_same_patterns_again_are_nothing_to_do(source, tmp_path):
    outliers = Outliers(schemes=(("*.o", "float16"),))
    told = []
    for chosen in (outliers, outliers):
        import_model(source, target=tmp_path / "m", outliers=chosen, notice=told.append)
    assert any("nothing to do" in line for line in told)
    with pytest.raises(UsageError, match="already called"):
        import_model(source, target=tmp_path / "m", outliers=replace(outliers, schemes=()))


# ---- manifests ----


def changed(folder, change):
    path = folder / "manifest.json"
    fields = json.loads(path.read_bytes())
    fields.pop("checksum")
    change(fields)
    path.write_bytes(encode_manifest(fields))


@pytest.fixture
def folder(source, tmp_path):
    return imported(source, tmp_path / "m", mode="full").folder


def test_an_unknown_scheme_is_one_clear_line(folder):
    changed(folder, lambda fields: fields["linears"]["layers.0.o"].update(scheme="w3"))
    with pytest.raises(UnsupportedModel, match=r"`layers\.0\.o`.*`w3`.*upgrade edge-llm"):
        open_bundle(folder)


@pytest.mark.parametrize("scheme", ["w4,w4", "w4,w4,w4", "w4,w4,w4,int8", "w4,w4,float16"])
def test_a_scheme_that_does_not_suit_its_linear_is_refused_by_its_name(folder, scheme):
    changed(folder, lambda fields: fields["linears"]["layers.0.qkv"].update(scheme=scheme))
    with pytest.raises(CorruptBundle, match=rf"`layers\.0\.qkv`.*`{scheme}`, which does not suit it"):
        open_bundle(folder)


def test_the_output_matrix_is_int8(folder):
    changed(folder, lambda fields: fields["linears"]["output"].update(scheme="float16"))
    with pytest.raises(CorruptBundle, match="output matrix"):
        open_bundle(folder)


def test_another_scheme_than_the_bytes_is_refused(folder):
    def change(fields):
        fields["linears"]["layers.0.o"] = {"rows": 64, "columns": 64, "scheme": "float16"}

    changed(folder, change)
    with pytest.raises(CorruptBundle):
        open_bundle(folder)


def test_a_bundle_of_the_version_before_names_no_schemes_and_is_read(folder):
    before = open_bundle(folder).read("layers.0.o.tiles")

    def change(fields):
        fields |= {"version": 1, "model": asdict(load_config(json.loads((folder / "config.json").read_text())))}
        del fields["head_turns"], fields["description"]
        for record in fields["linears"].values():
            del record["scheme"]

    changed(folder, change)
    with open_bundle(folder) as bundle:
        assert {linear.scheme for linear in bundle.decoder.linears().values()} == {"int8"}
        assert np.array_equal(bundle.read("layers.0.o.tiles"), before)
