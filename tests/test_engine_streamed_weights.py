"""Weights on flash that go bad under a loaded model: the request fails with a typed error, and nothing else does."""

import shutil
import subprocess
import sys

import pytest

from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.engine.engine import collect
from edge_llm.errors import CorruptBundle
from edge_llm.opening.load import load_engine
from edge_llm.paths import builtin_bundle


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(builtin_bundle(), tmp_path / "model")


@pytest.fixture
def engine(folder):
    return load_engine(folder, RuntimeConfig(threads=2, memory="60%", draft="none"))


def ask(engine, tokens=12):
    request = engine.text_request("Once upon a time", GenerationParams(max_tokens=tokens, ignore_eos=True))
    return collect(engine.stream(request)).tokens


def flip_a_byte(path, layer):
    data = bytearray(path.read_bytes())
    data[layer.offset + 100] ^= 1
    path.write_bytes(data)


def cut(path, layer):
    with path.open("r+b") as file:
        file.truncate(layer.offset + 100)


@pytest.mark.parametrize("damage", [flip_a_byte, cut])
def test_damage_fails_the_request_and_the_next_one_is_right_again(engine, folder, damage):
    whole = (folder / "weights.bin").read_bytes()
    expected = ask(engine)
    assert expected == ask(load_engine(folder, RuntimeConfig(threads=2, draft="none")))
    streamed = engine.runner.model.weights.streamed
    assert streamed
    damage(folder / "weights.bin", engine.runner.model.weights._bundle.blocks[f"layers.{streamed[-1]}"])
    with pytest.raises(CorruptBundle, match=r"weights\.bin"):
        ask(engine)
    assert engine.batcher.running == engine.batcher.waiting == 0
    with (folder / "weights.bin").open("r+b") as file:  # the same file, repaired
        file.write(whole)
    assert ask(engine) == expected


def test_damage_in_the_middle_of_an_answer_ends_it_there(engine, folder):
    path = folder / "weights.bin"
    layer = engine.runner.model.weights._bundle.blocks[f"layers.{engine.runner.model.weights.streamed[0]}"]
    expected = ask(engine, 40)
    stream = engine.stream(engine.text_request("Once upon a time", GenerationParams(max_tokens=40, ignore_eos=True)))
    found = [*next(stream).tokens, *next(stream).tokens]
    data = bytearray(path.read_bytes())
    data[layer.offset + 100] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    with pytest.raises(CorruptBundle):
        for delta in stream:
            found += delta.tokens
    assert 2 <= len(found) < 40 and tuple(found) == expected[: len(found)]


def test_a_script_that_keeps_its_model_ends():
    """The next sweep's first layers are on their way when the interpreter takes the model apart."""
    script = "from edge_llm import LLM; llm = LLM(threads=2, memory='60%'); print(llm.generate('Once', max_tokens=4))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "") and ended.stdout.strip()
