"""`--kv-memory`: what keys and values take where they lie, on every device, is what was asked for and not more."""

from pathlib import Path

import pytest
from test_ascend import SHAPES

from edge_llm.bench.synthetic import write_random
from edge_llm.config import RuntimeConfig
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.runner import load_runner

WAYS = {
    "host": {"device": "host"},
    "emulated split": {"device": "emulated:310p", "placement": "split"},
    "emulated card": {"device": "emulated:310p", "placement": "card"},
    "card, float16": {"device": "ascend", "placement": "card", "keys": "float16"},
    "card, int8": {"device": "ascend", "placement": "card", "keys": "int8"},
    "split": {"device": "ascend", "placement": "split"},
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("bundle")
    write_random(folder, SHAPES["qk norms"], seed=3)
    return open_bundle(folder)


def held(bundle, kv_memory, **options):
    """Bytes that keys and values take, and tokens that there is room for."""
    runner = load_runner(bundle, RuntimeConfig(threads=2, context=128, kv_memory=str(kv_memory), **options), 20)[0]
    pages = runner.memory.pages
    return runner.model.kv.nbytes, pages.pages * pages.page_tokens


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asked", [1_000_000, 3_333_333])
def test_as_many_bytes_are_kept_as_were_asked_for(bundle, way, asked, monkeypatch):
    if "ascend" in WAYS[way].values():
        pytest.importorskip("torch")
        monkeypatch.setenv("EDGE_LLM_NPU_OPS", "emulated")
    nbytes, tokens = held(bundle, asked, **WAYS[way])
    assert nbytes <= asked
    per_token = nbytes / tokens
    assert asked - nbytes <= per_token * 2 * 128, "another block of the card would have fitted"


def test_a_card_that_keeps_float16_has_room_for_half_the_tokens(bundle, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("EDGE_LLM_NPU_OPS", "emulated")
    (_, wide), (_, narrow) = (held(bundle, 4_000_000, **WAYS[f"card, {keys}"]) for keys in ("float16", "int8"))
    assert abs(2 * wide - narrow) <= 2 * 128


def test_one_context_always_fits(bundle, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("EDGE_LLM_NPU_OPS", "emulated")
    for way in ("host", "card, float16"):
        assert held(bundle, 20_000, **WAYS[way])[1] >= 128
