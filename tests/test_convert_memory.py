"""What an import takes of memory and disk does not grow beyond what was planned."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from model_files import tiny_config, write_model

from edge_llm.config import INT8, W4
from edge_llm.convert import importer
from edge_llm.convert.allocate import AUTO, LayerBits
from edge_llm.convert.coding import QUANTIZERS, InputTally, quantized
from edge_llm.convert.importer import import_model
from edge_llm.convert.target import space_needed
from edge_llm.files import folder_bytes
from edge_llm.models import describe
from edge_llm.paths import models_folder
from edge_llm.quant.channels import NO_CHANNELS
from edge_llm.sources import open_source

pytestmark = pytest.mark.thorough(file=2)

WAYS = [LayerBits(), LayerBits(fit=True), LayerBits(W4, head=W4), LayerBits(AUTO, bits=7)]


@contextmanager
def at_most(limit: Callable[[], float]) -> Iterator[None]:
    """What is allocated inside takes no more than ``limit`` bytes at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("scheme", [INT8, W4])
def test_of_a_wide_linear_the_energy_is_there_once_and_once_as_panels(scheme: str) -> None:
    columns, rows = 2048, 64
    square = 4 * columns * columns
    random = np.random.default_rng(0)
    x = random.standard_normal((256, columns)).astype(np.float32)
    weight = random.standard_normal((rows, columns)).astype(np.float32)
    with at_most(lambda: 2.4 * square):
        tally = InputTally(columns)
        tally.add(x)
        tally.add(x[::-1])
        quantized(tally.inputs(), QUANTIZERS[scheme], weight, NO_CHANNELS, "w")


def test_of_rows_that_are_held_out_no_others_are_kept() -> None:
    rows, columns, times = 4096, 64, 16
    with at_most(lambda: 4 * rows * columns * (times / 8 + 4)):
        tally = InputTally(columns)
        for _ in range(times):
            tally.add(np.ones((rows, columns), np.float32))


def test_inputs_are_the_mean_energy_however_the_rows_come() -> None:
    x = np.random.default_rng(1).standard_normal((400, 96)).astype(np.float32)
    tally = InputTally(96)
    for start in range(0, 400, 80):
        tally.add(x[start : start + 80])
    found = tally.inputs()
    fitting = np.delete(x, np.s_[::8], axis=0)  # 80 is a multiple of 8
    plain = fitting.astype(np.float64).T @ fitting / len(fitting)
    off = found.energy - plain
    np.testing.assert_allclose(off - np.diag(np.diag(off)), 0, atol=1e-5)
    np.testing.assert_allclose(np.diag(off), 0.1 * np.diag(plain).mean(), rtol=1e-3)
    np.testing.assert_array_equal(found.energy, found.energy.T)
    assert found.tokens == len(fitting) and len(found.held_out) == len(x) - len(fitting)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("weights", WAYS, ids=str)
def test_more_layers_take_no_more_memory_than_their_states(tmp_path: Path, weights: LayerBits) -> None:
    peaks = []
    for layers in (3, 9):
        raw = tiny_config("llama", hidden_size=256, intermediate_size=1024, num_hidden_layers=layers)
        folder = write_model(tmp_path / str(layers), raw, dtype="BF16")
        tracemalloc.start()
        import_model(folder, target=tmp_path / f"bundle {layers}", weights=weights)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    layer = 4 * (4 * 256 * 256 + 3 * 256 * 1024)
    states = 4 * 256 * 2048
    assert peaks[1] - peaks[0] < 6 * states + 0.5 * layer  # six layers alone are 25 MB


@pytest.mark.parametrize("keep_float", [False, True])
@pytest.mark.parametrize("weights", WAYS, ids=str)
def test_no_more_disk_is_used_than_was_asked_for(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, weights: LayerBits, keep_float: bool
) -> None:
    used, asked = [0], []

    def check(folder: Path, decoder: object, weights: int | None, **facts: object) -> None:
        asked.append(space_needed(decoder, **facts))  # type: ignore[arg-type]

    monkeypatch.setattr(importer, "check_space", check)
    source = tiny_model()
    import_model(
        source, "m", weights=weights, keep_float=keep_float, progress=lambda *_: used.append(folder_bytes(models_folder()))
    )
    with open_source(source) as opened:
        parameters = describe(opened.config).parameters
    assert parameters / 2 < max(used) <= asked[0]
