"""A bundle from a stranger, or one that a disk has damaged: opened, verified, loaded, and asked for an answer."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
from model_files import tiny_config, write_model
from mutate import changed, changed_bytes

from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.convert.importer import Outliers, import_model
from edge_llm.errors import EdgeLLMError
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.manifest import MANIFEST, encode_manifest
from edge_llm.kernels.checksum import crc32c
from edge_llm.opening.load import load_engine

SHAPE = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
WORDS = (
    "int8", "float16", "float32", "int32", "layers.0.qkv.tiles", "embedding", "llama", "qwen3", "none", "cold", "full",
    "/etc", "../x",
    "tokenizer.json", "chat_template.jinja", "source/model.safetensors", "{{ 'a' * 10 ** 9 }}", 1e-40, 3e38, 1e300, 65536,
    2**40,
)  # fmt: skip
SIDE_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json", "chat_template.jinja")


class Target:
    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        source = write_model(self.folder / "source", tiny_config(**SHAPE), chat_template=TEMPLATE)
        text = self.folder / "text"
        text.write_text("hello world, the other world\n" * 20)
        self.place = self.folder / "bundle"
        import_model(source, "fuzz", target=self.place, calibration=text, outliers=Outliers("none"))
        self.whole = {path.name: path.read_bytes() for path in self.place.iterdir()}
        self.good = self.answer()

    def make(self, random):
        """One file is another; resealed, its checksums say that it must be so."""
        if random.random() < 0.25:
            name = random.choice(sorted(self.whole))
            return {"name": name, "content": changed_bytes(self.whole[name], random).decode("latin-1"), "resealed": False}
        name = random.choice((MANIFEST, MANIFEST, MANIFEST, "weights.bin", *SIDE_FILES))
        content = self.whole[name]
        if name.endswith(".json"):
            fields = {key: value for key, value in json.loads(content).items() if key != "checksum"}
            content = json.dumps(changed(fields, random, WORDS, random.choice((1, 1, 2, 4)))).encode()
        else:
            content = changed_bytes(content, random)
        return {"name": name, "content": content.decode("latin-1"), "resealed": True}

    def run(self, made):
        content = made["content"].encode("latin-1")
        shutil.rmtree(self.place)
        self.place.mkdir()
        files = {**self.whole, made["name"]: content}
        if made["resealed"]:
            files[MANIFEST] = resealed(files, made["name"])
        for name, data in files.items():
            (self.place / name).write_bytes(data)
        try:
            with open_bundle(self.place) as bundle:
                bundle.verify()
            answer = self.answer()
        except EdgeLLMError:
            return False
        assert made["resealed"] or content == self.whole[made["name"]], "a damaged bundle was taken"
        assert made["resealed"] or answer == self.good, "another answer than before"
        return True

    def answer(self):
        engine = load_engine(self.place, RuntimeConfig(threads=1))
        request = engine.chat_request([{"role": "user", "content": "hello"}], engine.defaults)
        engine.answer(request.__class__(request.prompt, GenerationParams(max_tokens=2)))
        return engine.answer(engine.text_request("hello world", GenerationParams(max_tokens=4))).text


def resealed(files, name):
    """The manifest whose checksums are those of ``files``, in which ``name`` is another."""
    content = files[name]
    try:
        fields = json.loads(content if name == MANIFEST else files[MANIFEST])
        fields = {key: value for key, value in fields.items() if key != "checksum"}
        if name == "weights.bin":
            for tensor in fields["tensors"]:
                data = np.frombuffer(content[tensor["offset"] : tensor["offset"] + tensor["bytes"]], np.uint8)
                tensor["crc32c"] = crc32c(data)
        for record in fields["files"]:
            if record["name"] == name:
                record |= {"bytes": len(content), "crc32c": crc32c(content)}
        return encode_manifest(fields)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return content if name == MANIFEST else files[MANIFEST]  # so odd that no writer could have made it
