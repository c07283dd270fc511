"""INT8 of a checkpoint is taken over as its family reads it: slices of a module, rotation pairs and factors of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import FAMILIES, family_folder
from quantized_files import Quantized, int8, write_quantized

from edge_llm.convert.importer import import_model
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.kernels.layout import unpack_tiles
from edge_llm.models.weights import read_layer
from edge_llm.sources import open_source
from edge_llm.weights.resident import layer_weights

STATIC = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False, "symmetric": True}


class Floats:
    """The floats that a checkpoint stands for."""

    def __init__(self, made: Quantized) -> None:
        self._tensors = made.floats

    def read(self, name: str) -> np.ndarray:
        return self._tensors[name].astype(np.float32)


def checkpoint(tmp_path: Path, family: str, **settings: Any) -> tuple[Path, Quantized]:
    folder, _ = family_folder(tmp_path / "floats", family)
    with open_source(folder) as source:
        tensors = {name: source.read(name) for name in source.names()}
    ends = ("_proj.weight", "c_fc.weight", "fc1.weight", "fc2.weight")
    made = int8(tensors, chosen=lambda name: name.endswith(ends), **settings)
    raw = json.loads((folder / "config.json").read_text())
    return write_quantized(tmp_path / "int8", raw, made), made


def check(bundle: Bundle, made: Quantized) -> None:
    for index, layer in enumerate(bundle.decoder.layers):
        wanted = read_layer(Floats(made), layer).linears  # type: ignore[arg-type]
        found = layer_weights(bundle, bundle.read_block(f"layers.{index}"), index).linears
        for linear in layer.linears:
            weight = found[linear.name]
            integers = unpack_tiles(weight.tiles, weight.rows, weight.columns)
            steps = weight.weight_scale[:, None]
            apart = np.abs(integers * steps - wanted[linear.name].weight)
            clamped = (integers == -127) * steps  # was -128
            assert (apart <= 1e-6 * np.abs(wanted[linear.name].weight) + 1.01 * clamped).all(), (index, linear.name)
            if linear.bias:
                np.testing.assert_allclose(weight.bias, wanted[linear.name].bias, rtol=1e-6)


@pytest.mark.parametrize("family", [name for name in FAMILIES if "," not in name])
def test_the_weights_are_those_that_the_checkpoint_stands_for(family: str, tmp_path: Path) -> None:
    folder, made = checkpoint(tmp_path, family)
    with open_bundle(import_model(folder, target=tmp_path / "bundle")) as bundle:
        check(bundle, made)


@pytest.mark.parametrize("family", ["phi3", "granite, untied, with biases"])
def test_so_they_are_with_static_scales_of_inputs(family: str, tmp_path: Path) -> None:
    folder, made = checkpoint(tmp_path, family, inputs=STATIC, input_scale=lambda module: 0.05)
    with open_bundle(import_model(folder, target=tmp_path / "bundle")) as bundle:
        check(bundle, made)
