"""Bundles that somebody made up: every checksum is right, and the contents are what no import writes."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import tiny_config, write_model

from edge_llm.bench.synthetic import write_random
from edge_llm.config import INT8, W4, LlamaConfig, RuntimeConfig
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.decoding.sampler import greedy
from edge_llm.errors import CorruptBundle, NumericError
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.manifest import MANIFEST, WEIGHTS, encode_manifest
from edge_llm.kernels.checksum import crc32c
from edge_llm.kernels.linear import Int8Linear
from edge_llm.kernels.types import TILE_CHANNELS
from edge_llm.kernels.w4 import GROUP, steps_fit
from edge_llm.opening.runner import load_runner
from edge_llm.weights.plan import plan_memory
from edge_llm.weights.pools import Budget
from edge_llm.weights.sizes import TABLES, WeightSizes
from edge_llm.weights.streamed import StreamedWeights

CONFIG = LlamaConfig(
    family="qwen2", vocab_size=130, hidden_size=72, intermediate_size=76, num_layers=4, num_heads=3,
    num_kv_heads=1, head_dim=24, context=640, norm_eps=1e-6, rope_theta=1e6, qkv_bias=True,
)  # fmt: skip
TOKENS = list(range(40))
WAYS: list[dict[str, Any]] = [{}, {"memory": "70%"}, {"device": "emulated:910b", "placement": "card"}]
LARGE = 1e4
"""Products of finite values above it may leave float32."""


PARTS = {"layers.0.qkv": "w4,w4,int8", "layers.2.qkv": "int8,w4,w4", "layers.3.gate_up": "w4,int8"}


@pytest.fixture(
    scope="module", params=[(INT8, False), (W4, False), (W4, True), None], ids=["int8", "w4", "w4 tied", "in parts"]
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forged") / "whole"
    if request.param is None:
        source = write_model(path.parent / "source", tiny_config("llama", num_hidden_layers=4))
        return Path(import_model(source, target=path, outliers=Outliers("full"), weights=LayerBits(W4, fixed=PARTS)))
    weights, tied = request.param
    path.mkdir()
    write_random(path, dataclasses.replace(CONFIG, tied_embeddings=tied), weights=weights, head=weights)
    return path


def forge(folder: Path, name: str, array: np.ndarray) -> Path:
    """A copy of the bundle in ``folder`` whose tensor ``name`` is ``array``, with its checksums."""
    copy = folder.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    fields = json.loads((copy / MANIFEST).read_text())
    record = next(record for record in fields["tensors"] if record["name"] == name)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    assert (array.dtype.name, list(array.shape)) == (record["dtype"], record["shape"])
    with (copy / WEIGHTS).open("r+b") as file:
        file.seek(record["offset"])
        file.write(data.tobytes())
    record["crc32c"] = crc32c(data)
    if "pieces" in record:
        with open_bundle(folder) as bundle:
            nbytes = bundle.tensors[name].piece_bytes
        record["pieces"] = [crc32c(data[start : start + nbytes]) for start in range(0, len(data), nbytes)]
    (copy / MANIFEST).write_bytes(encode_manifest({key: value for key, value in fields.items() if key != "checksum"}))
    return copy


def read(folder: Path, name: str) -> np.ndarray:
    with open_bundle(folder) as bundle:
        return bundle.read(name).copy()


def names(folder: Path) -> list[str]:
    """All tensors but tiles: the vectors, and the codes, which begin with parameters."""
    with open_bundle(folder) as bundle:
        return [name for name in bundle.tensors if not name.rpartition(".")[2].startswith("tiles")]


def logits(folder: Path, way: dict[str, Any]) -> np.ndarray:
    with open_bundle(folder) as bundle:
        runner, _ = load_runner(bundle, RuntimeConfig(**{"threads": 1, "context": 64, **way}), len(TOKENS))
        return runner.forward(runner.open(), TOKENS, wanted=len(TOKENS))


def logits_of_flash(folder: Path) -> None:
    """Look rows up and multiply the head, both on flash."""
    with open_bundle(folder) as bundle:
        plan = plan_memory(WeightSizes.of_bundle(bundle), 1 << 30)
        weights = StreamedWeights(bundle, dataclasses.replace(plan, flash_tables=TABLES), budget=Budget(2**30))
        weights.embedding_rows(np.array(TOKENS))
        for _, head in weights.head_blocks():
            assert head.linears["output"].native.rows
        weights.close()


@st.composite
def changed(draw: st.DrawFn, array: np.ndarray) -> np.ndarray:
    """``array`` with some of its values replaced: by bits, or by what is odd for the type."""
    kind = array.dtype
    odd: list[Any] = [0, 1]
    if kind.kind == "f":
        odd += [-1, np.nan, np.inf, -np.inf, np.finfo(kind).max, np.finfo(kind).smallest_subnormal]
    else:
        odd += [np.iinfo(kind).max, np.iinfo(kind).min]
    value = st.sampled_from(odd).map(lambda one: np.array(one).astype(kind))
    bits = st.binary(min_size=kind.itemsize, max_size=kind.itemsize).map(lambda one: np.frombuffer(one, kind)[0])
    found = array.reshape(-1).copy()
    for place in draw(st.lists(st.integers(0, len(found) - 1), min_size=1, max_size=4)):
        found[place] = draw(value | bits)
    return found.reshape(array.shape)


@pytest.mark.thorough(keep=1)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_forged_tensor_computes_or_is_refused_by_its_name(folder: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(names(folder)), label="name")
    before = read(folder, name)
    if not before.size:
        return
    array = data.draw(changed(before), label="array")
    copy = forge(folder, name, array)
    flash = data.draw(st.booleans(), label="flash")
    try:
        if flash:
            logits_of_flash(copy)
        else:
            for row in logits(copy, data.draw(st.sampled_from(WAYS), label="way")):
                greedy(row)
    except CorruptBundle as error:
        assert f"`{name}`" in str(error) and "import the model again" in str(error)
    except NumericError:  # the tensor is one that a model can have, if not a model that works
        assert array.dtype.kind == "f" and LARGE < np.abs(array).max() < np.inf


def impossible(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """Changes of a tensor that are always refused, by what is wrong."""
    kind = name.rpartition(".")[2]
    changes: dict[str, Any] = {}
    if array.dtype.kind == "f":
        changes = {"nan": np.nan, "infinite": np.inf} | ({"negative": -1e-3} if kind == "scale" else {})
    elif kind == "hot_index":
        changes = {"below": -1, "beyond": 100}
    elif kind == "row_sum":
        changes = {"sum": 2**31 - 1, "negative sum": -(2**31)}
    elif kind.startswith("codes"):
        changes = {"multiplier": 15 << 4 | 13, "shift": 2 << 4 | 1, "weight": 3 << 4 | 12}
    found = {}
    for what, value in changes.items() if array.size else ():
        found[what] = array.copy()
        found[what].reshape(-1)[0] = value
    return found


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("way", [*WAYS, None], ids=["memory", "streamed", "card", "flash"])
def test_what_cannot_be_is_refused_wherever_the_tensor_lies(folder: Path, way: dict[str, Any] | None) -> None:
    tried = 0
    for name in names(folder):
        if name.startswith("layers") and (way is None or not name.startswith("layers.2.")):
            continue
        for array in impossible(name, read(folder, name)).values():
            copy = forge(folder, name, array)
            with pytest.raises(CorruptBundle, match=f"`{name}` .*import the model again"):
                logits_of_flash(copy) if way is None else logits(copy, way)
            tried += 1
    assert tried > 10


def test_the_steps_that_a_bundle_may_have_are_those_that_a_product_takes() -> None:
    vectors = (np.ones(16, np.float32), np.zeros(16, np.int32), np.empty(0, np.int32), np.empty((0, 16), np.float16))
    for byte in range(256):
        codes = np.zeros((1, 64 + TILE_CHANNELS * GROUP // 2), np.uint8)
        codes[0, 3] = byte
        if steps_fit(np.array(byte & 15), np.array(byte >> 4)):
            Int8Linear.of_codes(codes, 16, GROUP, 1.0, *vectors, None)
        else:
            with pytest.raises(ValueError, match="multiplier and shift"):
                Int8Linear.of_codes(codes, 16, GROUP, 1.0, *vectors, None)
