"""What a person calls a model: short names of the shipped table, pages of the hub, files of a folder, adapters, GGUF files."""

import json
import os
import shutil
import string
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_files import tiny_config, write_json

from edge_llm.convert.importer import import_model
from edge_llm.errors import EdgeLLMError, ModelNotFound, UnsupportedModel, UsageError
from edge_llm.models import describe, families, known
from edge_llm.models.known import find_known, known_models, names_like, refuse_family
from edge_llm.opening.made_from import is_made_from
from edge_llm.paths import find_bundle, safe_name
from edge_llm.progress import byte_count
from edge_llm.sources.hub_files import is_repository
from edge_llm.sources.names import default_name
from edge_llm.sources.place import named_place, place_of

PUBLISHED = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "mistralai/Mistral-7B-Instruct-v0.3": 7_248_023_552,
}
"""Parameters, as their authors count them (with biases)."""


def test_no_name_stands_for_two_models():
    names = [name for model in known_models() for name in model.names]
    assert len({name.casefold().replace(":", "-") for name in names}) == len(names)
    assert len({model.repository for model in known_models()}) == len(known_models())


@pytest.mark.parametrize("model", known_models(), ids=lambda model: model.name)
def test_a_shipped_model_runs_here_and_its_sizes_are_right(model):
    assert model.config.family in families() and is_repository(model.repository)
    parameters = describe(model.config).parameters
    said = model.name.partition(":")[2]
    assert parameters == pytest.approx(float(said[:-1]) * {"m": 1e6, "b": 1e9}[said[-1]], rel=0.5)  # some round down
    head = model.config.vocab_size * model.config.hidden_size  # some publish a tied one twice
    experts = [one for one in describe(model.config).linears().values() if "experts" in one.name]
    saved = (2 - 17 / 32) * (model.config.family == "gpt_oss")  # published in blocks of 17 bytes for 32 weights
    packed = saved * sum(one.rows * one.columns for one in experts)
    assert any(model.download == pytest.approx(2 * count - packed, rel=0.01) for count in (parameters, parameters + head))
    assert parameters == pytest.approx(PUBLISHED.get(model.repository, parameters), rel=1e-3)
    assert model.gated == model.repository.startswith(("google/", "meta-llama/", "mistralai/"))
    for name in model.names:
        assert find_known(name) is find_known(f"{name}:latest".replace("b:latest", "b")) is model
    assert find_known(model.repository.upper()) is find_known(model.repository.partition("/")[2]) is model
    assert default_name(model.name) == default_name(model.repository) == safe_name(model.repository.partition("/")[2])


def test_the_document_lists_the_names_with_their_sizes():
    page = (Path(__file__).resolve().parents[1] / "docs" / "chat.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for model in known_models():
        (row,) = [row for row in rows if f"`{model.name}` {byte_count(model.download)}" in row]
        assert ("gated" in row) is model.gated and f"| `{model.name.partition(':')[0]}` |" in row
        if ":" not in model.names[0]:  # a name without a size
            family = [one for one in known_models() if one.name.partition(":")[0] == model.names[0]]
            assert next(one for one in family if describe(one.config).parameters > 4.9e8) is model


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("qwen3:15b", ["qwen3:0.6b", "qwen3:1.7b", "qwen3:4b", "qwen3:8b", "qwen3:14b", "qwen3:30b-a3b"]),
        ("qwen", ["qwen3", "qwen3-2507", "qwen2.5", "qwen2.5-coder"]),
        ("tinylama", ["tinyllama"]),
        ("mistrall", ["mistral"]),
        ("zzz", []),
        ("", []),
    ],
)
def test_names_that_are_nearly_right_are_told(word, meant):
    assert names_like(word) == meant


PAGES = {
    "https://huggingface.co/Qwen/Qwen2.5-0.5B-Instruct": ("Qwen/Qwen2.5-0.5B-Instruct", None),
    "http://www.huggingface.co/org/x/": ("org/x", None),
    "https://hf.co/org/x?library=transformers": ("org/x", None),
    "huggingface.co/org/x/tree/main": ("org/x", None),
    "hf.co/org/x:latest": ("org/x", None),
    "https://huggingface.co/org/x/tree/v1.0/": ("org/x", "v1.0"),
    "https://huggingface.co/org/x/tree/refs%2Fpr%2F3": ("org/x", "refs/pr/3"),
    "https://huggingface.co/org/x/tree/refs/pr/3": ("org/x", "refs/pr/3"),
    "https://huggingface.co/org/x/blob/main/config.json#L3": ("org/x", None),
    "https://huggingface.co/org/x/resolve/main/model.safetensors?download=true": ("org/x", None),
    "https://huggingface.co/org/x/discussions/7": ("org/x", None),
    "  https://huggingface.co/org/x\n": ("org/x", None),
}


@pytest.mark.parametrize(
    ("word", "is_refused"),
    [("falcon", True), ("falcon:40b", True), ("falcon3:10b", False), ("qwen3-vl:2b", False), ("qwen3.5", False),
     ("gemma3", False), ("gemma:2b", True),
     ("qwen3:15b", False), ("llama4", True), ("llama3.3", False), ("qwen3-next:80b", False)],
)  # fmt: skip
def test_a_family_that_runs_is_not_refused_with_others_that_begin_so(word, is_refused):
    assert (refuse_family(word) is not None) is is_refused


def test_what_does_not_run_has_words():
    with (Path(known.__file__).parent / "small_models.toml").open("rb") as file:
        table = tomllib.load(file)["not_yet"]
    assert all(isinstance(what, str) for what in table.values()), "a key with a dot needs quotes"


def test_to_know_a_name_loads_no_family():
    code = "import sys; from edge_llm.models.known import find_known; find_known('qwen3'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {f"edge_llm.models.{family}" for family in families()} & set(loaded)


@pytest.mark.parametrize("address", PAGES)
def test_the_page_of_a_model_names_it(address):
    place = place_of(address)
    assert (place.repository, place.revision) == PAGES[address] and place.folder is None


@pytest.mark.parametrize(
    "address",
    [
        "https://huggingface.co/datasets/org/x", "https://huggingface.co/spaces/org/x", "https://huggingface.co/org",
        "https://huggingface.co/", "https://example.com/org/x", "ftp://huggingface.co/org/x", "hf.co/a/b--c", "https://[",
    ],
)  # fmt: skip
def test_the_page_of_something_else_is_refused_in_a_line(address):
    with pytest.raises(EdgeLLMError) as refused:
        place_of(address)
    assert "\n" not in str(refused.value) and isinstance(refused.value, UsageError)


def test_a_page_of_the_mirror_is_one_of_the_hub(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "https://mirror.example:8443")
    assert place_of("https://mirror.example:8443/org/x/tree/main").repository == "org/x"


@given(st.text(string.printable, max_size=60))
def test_whatever_is_typed_is_a_place_or_one_of_our_errors(text):
    try:
        place = named_place(text)
    except EdgeLLMError as error:
        assert "\n" not in str(error)
        return
    assert place is None or (is_repository(place.repository) or "--" in text or ".." in text)


@given(
    st.from_regex(r"org[A-Za-z0-9]{1,9}/[A-Za-z0-9][A-Za-z0-9_]{0,9}\.?[A-Za-z0-9]", fullmatch=True),
    st.sampled_from(["", "/", "/tree/main", "?a=b", "#x", "/blob/main/config.json"]),
)
def test_the_address_of_any_hub_id_leads_back_to_it(repository, behind):
    assert named_place(f"https://huggingface.co/{repository}{behind}").repository == repository


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_file_of_a_model_stands_for_its_folder(tiny_model, file):
    folder = tiny_model()
    assert place_of(str(folder / file)).folder == folder == place_of(folder).folder
    assert default_name(folder / file) == default_name(folder)


def test_a_shard_stands_for_all_of_them(tiny_model):
    folder = tiny_model(shards=2)
    assert place_of(next(folder.glob("model-00001-of-*.safetensors"))).folder == folder


@pytest.mark.parametrize("base", ["HuggingFaceTB/SmolLM2-135M-Instruct", None, 7])
def test_an_adapter_is_told_with_the_model_that_it_is_for(tmp_path, base):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base} if base else {}))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    for source in (tmp_path, tmp_path / "adapter_model.safetensors"):
        with pytest.raises(UnsupportedModel, match="not a whole model: `edge-llm import .* --lora ") as refused:
            place_of(str(source))
        assert (f"is an adapter (LoRA) of `{base}`" in str(refused.value)) is isinstance(base, str)


def test_an_adapter_beside_a_config_is_told_too(tmp_path):
    write_json(tmp_path / "config.json", tiny_config())
    write_json(tmp_path / "adapter_config.json", {"base_model_name_or_path": "org/base"})
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(UnsupportedModel, match=r"is an adapter \(LoRA\) of `org/base`"):
        import_model(tmp_path, "m")


def test_a_gguf_file_is_a_model_by_itself(tmp_path):
    path = tmp_path / "x.GGUF"
    path.write_bytes(b"GGUF")
    assert place_of(str(path)).folder == path
    with pytest.raises(ModelNotFound, match=r"not imported yet; run `edge-llm import .*x\.GGUF` first"):
        find_bundle(str(path))
    with pytest.raises(ModelNotFound, match="no file"):
        place_of(str(tmp_path / "none.gguf"))


def test_a_folder_is_one_whatever_its_name_ends_in(tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model(), tmp_path / "x.gguf")
    assert place_of(str(folder)).folder == folder and place_of(str(folder / "config.json")).folder == folder
    bundle = import_model(folder)
    assert bundle.name == "x.gguf" and is_made_from(place_of(folder), bundle)


@pytest.mark.parametrize("name", ["other.gguf", "notes.txt", "config.json", "model.safetensors"])
def test_a_model_is_older_than_its_files_and_not_than_what_lies_beside_them(name, tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model(), tmp_path / "hf")
    bundle = import_model(folder, "m")
    later = (bundle / "manifest.json").stat().st_mtime_ns + 10**9
    (folder / name).touch()
    os.utime(folder / name, ns=(later, later))
    assert is_made_from(place_of(folder), bundle) is not (name in ("config.json", "model.safetensors"))


def test_a_gguf_file_is_named_by_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound, match=r"write `\./x\.gguf` to mean it"):
        find_bundle("x.gguf")
