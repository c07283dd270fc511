"""A weight scheme is one file: its weights are imported, stored, streamed and multiplied like all others."""

from dataclasses import dataclass

import numpy as np
import pytest
from model_files import tiny_config, write_model
from scheme_references import reference

from edge_llm import schemes
from edge_llm.config import RuntimeConfig
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.formats.bundle import open_bundle
from edge_llm.kernels import ThreadPool
from edge_llm.opening.runner import load_runner
from edge_llm.operations.linear import Linear, SourceRows
from edge_llm.schemes import float16

NO_HOT = np.empty(0, np.int32)


class Halves:
    """Every weight as two float16 that are added up: float32 to 22 bits."""

    NAME = "halves"

    def tensors(self, linear, hot):
        return [("high", "float16", (linear.columns, linear.rows)), ("low", "float16", (linear.columns, linear.rows))]

    facts = staticmethod(lambda record: record)
    facts_of = staticmethod(lambda treatment: {"parts": 2})
    def convert(self, weight, hot, name):
        high = np.ascontiguousarray(weight.T, np.float16)
        return {"high": high, "low": (weight.T - high.astype(np.float32)).astype(np.float16)}

    def open(self, linear, arrays, facts):
        bias = arrays.get("bias")
        return HalvesWeight(float16.Float16Weight(arrays["high"], bias), float16.Float16Weight(arrays["low"]))

    check = staticmethod(lambda linear, name, array: None)
    cost = staticmethod(lambda linear: 2 * float16.cost(linear))


@dataclass(frozen=True)
class HalvesWeight:
    high: float16.Float16Weight
    low: float16.Float16Weight

    rows = property(lambda self: self.high.rows)
    columns = property(lambda self: self.high.columns)
    nbytes = property(lambda self: self.high.nbytes + self.low.nbytes)
    in_experts = None

    def add_to(self, program, x, **how):
        return False

    def prepare(self, first):
        pass

    def apply(self, x, pool, *, add=None, shadow=True, gain=None, eps=0.0, gate=None, out=None):
        assert gate is None  # nobody asks it of o
        low = self.low.apply(x, pool, add=add, gain=gain, eps=eps)
        return self.high.apply(x, pool, add=low, gain=gain, eps=eps, out=out)


@pytest.fixture(scope="module", params=[{}, {"attention_bias": True}], ids=["plain", "bias"])
def bundle(request, tmp_path_factory):
    schemes.add_scheme(Halves())
    folder = tmp_path_factory.mktemp("scheme")
    write_model(folder / "source", tiny_config("llama", num_hidden_layers=4, **request.param))
    outliers = Outliers(schemes=tuple((f"layers.{index}.o", Halves.NAME) for index in (0, 2, 3)))
    return open_bundle(import_model(folder / "source", target=folder / "bundle", outliers=outliers))


def test_the_product_is_the_reference():
    x, weight = (np.random.default_rng(1).standard_normal((9, 40), np.float32) for _ in range(2))
    linear = Linear("w", (SourceRows("w", 9),), 40, "x", "y", scheme=Halves.NAME)
    opened = Halves().open(linear, Halves().convert(weight, NO_HOT, "w"), {})
    assert np.array_equal(opened.apply(x, ThreadPool(2)), reference(x, opened.high) + reference(x, opened.low))


def logits(bundle, **runtime):
    runner, _ = load_runner(bundle, RuntimeConfig(**{"threads": 2, "context": 64, "activations": "static", **runtime}), 40)
    return runner.forward(runner.open(), list(range(40)), wanted=40)


def test_the_manifest_names_it(bundle):
    assert bundle.manifest["linears"]["layers.0.o"] == {"rows": 64, "columns": 64, "scheme": Halves.NAME, "parts": 2}
    assert [linear.scheme for linear in bundle.decoder.linears().values()].count(Halves.NAME) == 3


@pytest.mark.parametrize("way", [
    {"chunk": 16}, {"memory": "300KiB"}, {"device": "emulated:910b"}, {"device": "emulated:910b", "placement": "card"},
])  # fmt: skip
def test_every_way_gives_the_same(bundle, way):
    assert np.array_equal(logits(bundle, **way), logits(bundle))
