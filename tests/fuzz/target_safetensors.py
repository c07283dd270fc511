"""A model folder from a stranger: safetensors headers, their index, and config.json."""

import json
import shutil
import struct
import tempfile
from pathlib import Path

from model_files import raw_safetensors, tiny_config, write_model
from mutate import changed, changed_bytes

from edge_llm.errors import EdgeLLMError
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.models import describe, load_config
from edge_llm.models.weights import check_tensors

WORDS = ("F32", "F16", "BF16", "F64", "I64", "F4", "__metadata__", "model.embed_tokens.weight", "../x.safetensors", [0, 0],
[1, 2])
SHAPE = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class Target:
    def __init__(self):
        self.folders = {}
        for shards in (1, 2):
            self.folders[shards] = Path(tempfile.mkdtemp(prefix="fuzz-"))
            write_model(self.folders[shards], tiny_config(**SHAPE), shards=shards)
        self.place = Path(tempfile.mkdtemp(prefix="fuzz-"))

    def make(self, random):
        shards = random.choice((1, 1, 1, 2))
        names = sorted(path.name for path in self.folders[shards].iterdir() if "token" not in path.name)
        name = random.choice([*names, *[name for name in names if name.endswith(".safetensors")]])
        content = (self.folders[shards] / name).read_bytes()
        if random.random() < 0.3:
            content = changed_bytes(content, random)
        elif name.endswith(".safetensors"):
            content = changed_file(content, random)
        else:
            steps = random.choice((1, 1, 2, 5))
            content = json.dumps(changed(json.loads(content), random, WORDS, steps)).encode()
        return {"shards": shards, "name": name, "content": content.decode("latin-1")}

    def run(self, made):
        shutil.copytree(self.folders[made["shards"]], self.place, dirs_exist_ok=True)
        (self.place / made["name"]).write_bytes(made["content"].encode("latin-1"))
        try:
            with open_model_folder(self.place) as source:
                check_tensors(source, describe(load_config(source.config)))
                for name in source.names():
                    source.read(name)
            return True
        except EdgeLLMError:
            return False
        finally:
            shutil.rmtree(self.place)


def changed_file(content, random):
    """A safetensors file with another header, or one of very many entries, or one that says another length."""
    length = struct.unpack("<Q", content[:8])[0]
    data = content[8 + length :]
    how = random.random()
    if how < 0.1:
        return raw_safetensors(many_entries(random), data)
    header = changed(json.loads(content[8 : 8 + length]), random, WORDS, random.choice((1, 1, 2, 5)))
    text = json.dumps(header, allow_nan=True).encode()
    if how < 0.2:
        return struct.pack("<Q", random.choice((0, 1, len(text) - 1, len(text) + 1, 2**31, 2**63, 2**64 - 1))) + text + data
    return raw_safetensors(text + b" " * random.choice((0, 0, 7, 100_000)), data)


def many_entries(random):
    """A header that is all overhead: empty tensors, strings about the file, or one name without end."""
    count = random.choice((1000, 30_000, 100_000, 300_000))
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    how = random.randrange(3)
    if how == 0:
        return json.dumps({str(number): empty for number in range(min(count, 100_000))}).encode()
    if how == 1:
        return json.dumps({"__metadata__": {str(number): "x" for number in range(count)}}).encode()
    return json.dumps({"a": {**empty, "x" * (80 * count): "y"}}).encode()
