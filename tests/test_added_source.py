"""A kind of source is one file: here a NumPy archive, imported like a Hugging Face folder, with the same bundle."""

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from model_files import random_tensors, tiny_config, write_model

from edge_llm import sources
from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.manifest import WEIGHTS
from edge_llm.models import load_config
from edge_llm.opening.runner import load_runner
from edge_llm.sources.hugging_face import HuggingFaceSource
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.tokenizer import Tokenizer


class Archive:
    """One ``.npz`` file: tensors by name, and each side file as bytes."""

    kind = "archive"

    def __init__(self, source, revision=None, progress=None):
        self.path = self.place = str(Path(source).absolute())
        self._bytes = Path(source).read_bytes()
        self._arrays = dict(np.load(io.BytesIO(self._bytes)))
        self._files = {name[5:]: bytes(self._arrays.pop(name)) for name in list(self._arrays) if name.startswith("file:")}
        self.config = load_config(json.loads(self._files["config.json"]))
        self.names = lambda: list(self._arrays)
        self.shape = lambda name: self._arrays[name].shape
        self.read = lambda name: self._arrays[name].copy()
        self.side_files = lambda: self._files
        self.generation_config = lambda: json.loads(self._files.get("generation_config.json", b"{}"))
        self.digest = lambda progress=None: f"sha256:{hashlib.sha256(self._bytes).hexdigest()}"

    def tokenizer(self):
        folder = Path(self.path).with_suffix(".files")
        folder.mkdir(exist_ok=True)
        for name, data in self._files.items():
            (folder / name).write_bytes(data)
        return Tokenizer.from_folder(folder, self.config.vocab_size)

    def template(self, tokenizer):
        return ChatTemplate.default()

    check_unchanged = close = lambda self: None
    __enter__ = lambda self: self  # noqa: E731
    __exit__ = lambda self, *_: None  # noqa: E731


class Archives:
    claims = staticmethod(lambda source: source.endswith(".npz"))
    open = Archive


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    sources.add_source(Archives())
    folder, raw = tmp_path_factory.mktemp("source"), tiny_config("qwen2")
    tensors = random_tensors(raw)
    files = HuggingFaceSource("folder", "", write_model(folder / "hf", raw, tensors=tensors)).side_files()
    np.savez(folder / "m.npz", **tensors, **{f"file:{name}": np.frombuffer(data, np.uint8) for name, data in files.items()})
    return [open_bundle(import_model(folder / name, target=folder / f"b-{name}")) for name in ("hf", "m.npz")]


def test_the_bundle_is_the_same(pair):
    assert (pair[0].folder / WEIGHTS).read_bytes() == (pair[1].folder / WEIGHTS).read_bytes()
    assert [bundle.manifest["source"]["kind"] for bundle in pair] == ["folder", "archive"]


def test_the_float_path_finds_it_again(pair):
    runners = [load_runner(bundle, RuntimeConfig(float_path=True, context=32), 20)[0] for bundle in pair]
    logits = [runner.forward(runner.open(), list(range(20)), wanted=20) for runner in runners]
    assert np.array_equal(*logits)
