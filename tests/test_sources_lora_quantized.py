"""Adapters that are merged into checkpoints which somebody has quantized."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from adapter_files import merged, pairs, write_adapter
from model_files import random_tensors, tiny_config
from quantized_files import Quantized, gptq, int8, packed, write_quantized

from edge_llm.convert.importer import import_model
from edge_llm.errors import UnsupportedModel
from edge_llm.formats.bundle import open_bundle
from edge_llm.sources import open_source
from edge_llm.sources.lora_places import Wish

RAW = tiny_config("qwen2", num_hidden_layers=1)
TENSORS = random_tensors(RAW)


@pytest.mark.parametrize(
    "make",
    [lambda: gptq(TENSORS), lambda: packed(TENSORS), lambda: int8(TENSORS, inputs=None)],
    ids=["gptq", "packed", "w8a16"],
)
def test_it_is_merged_into_the_floats_that_the_checkpoint_stands_for(make: Callable[[], Quantized], tmp_path: Path) -> None:
    made, matrices = make(), pairs(TENSORS)
    folder = write_quantized(tmp_path / "in", RAW, made)
    wish = Wish(str(write_adapter(tmp_path / "a", matrices)))
    with open_source(folder, lora=[wish]) as source:
        for name, values in merged(made.floats, matrices).items():
            assert np.allclose(source.read(name), values, rtol=1e-6, atol=1e-6), name
    target = import_model(folder, target=tmp_path / "bundle", lora=[wish])
    manifest = json.loads((target / "manifest.json").read_text())
    assert manifest["source"]["from"] and manifest["source"]["lora"]
    with open_bundle(target) as bundle:
        bundle.verify()


def test_nothing_is_merged_into_int8_that_is_taken_over(tmp_path: Path) -> None:
    folder = write_quantized(tmp_path / "in", RAW, int8(TENSORS))
    adapter = write_adapter(tmp_path / "a", pairs(TENSORS))
    with pytest.raises(UnsupportedModel, match="integers that are taken over as they are, so nothing can be merged"):
        open_source(folder, lora=[Wish(str(adapter))])
