"""Checkpoints that see images: their text part alone is imported, whatever form config.json and names of tensors have."""

import json

import numpy as np
import pytest
from families import SEEING, family_folder, logits_of
from model_files import VOCAB_SIZE
from safetensors.numpy import load_file, save_file
from stub_hub import COMMIT, Stub, serving
from test_convert_hub import run_pull

from edge_llm.convert.importer import import_model
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.models import load_config
from edge_llm.models.reference import FloatModel
from edge_llm.models.text_part import NOTICE

TOKENS = np.random.default_rng(1).integers(0, VOCAB_SIZE, 60).tolist()
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a checkpoint and its logits by transformers; it is not to be changed."""
    found = {}

    def make(name):
        if name not in found:
            folder, model = family_folder(tmp_path_factory.mktemp("seeing") / "model", name)
            found[name] = folder, logits_of(model, TOKENS)
        return found[name]

    return make


def raw_of(folder):
    return json.loads((folder / "config.json").read_text())


def logits(folder):
    with open_model_folder(folder) as source:
        return FloatModel(source, load_config(source.config)).forward(TOKENS)


def copied(folder, target, *, config=None, rename=lambda name: name):
    """``folder`` with another config.json, and other names of tensors; those renamed to None are left out."""
    target.mkdir(exist_ok=True)
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            (target / file.name).write_bytes(file.read_bytes())
    (target / "config.json").write_text(json.dumps(raw_of(folder) if config is None else config))
    tensors = {rename(name): value for name, value in load_file(folder / "model.safetensors").items()}
    save_file({name: value for name, value in tensors.items() if name is not None}, target / "model.safetensors")
    return target


def is_of_text(name):
    return "vision" not in name and "visual" not in name and "projector" not in name


def in_shards(folder, target):
    """``folder`` with the tensors of the text part in the first shard, and the others in the second, which is not there."""
    target.mkdir()
    for file in folder.iterdir():
        if file.name != "model.safetensors":
            (target / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    shards = {name: f"model-0000{1 if is_of_text(name) else 2}-of-00002.safetensors" for name in tensors}
    (target / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    save_file({name: tensors[name] for name in tensors if is_of_text(name)}, target / "model-00001-of-00002.safetensors")
    return target


LAYOUTS = {"today's": "model.language_model.", "first": "language_model.model."}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["gemma3", "qwen2_5_vl", "mistral3"])
def test_names_of_every_layout_are_one_model(made, tmp_path, family, layout):
    folder, _ = made(family)

    def renamed(name):
        if not is_of_text(name) or name == "lm_head.weight":
            return name if layout == "today's" or name != "lm_head.weight" else "language_model.lm_head.weight"
        inner = next(name[len(one) :] for one in (*LAYOUTS.values(), "model.") if name.startswith(one))
        return LAYOUTS[layout] + inner

    assert np.array_equal(logits(copied(folder, tmp_path / "other", rename=renamed)), logits(folder))


def test_settings_beside_those_of_images_are_of_the_text(made, tmp_path):
    """As Qwen2-VL was published: no text_config, and a rotation in sections."""
    folder, theirs = made("qwen2_vl")
    raw = raw_of(folder)
    text = {key: value for key, value in raw["text_config"].items() if key not in ("model_type", "rope_parameters")}
    rope = {"rope_theta": 1e4, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    kept = {key: value for key, value in raw.items() if key != "text_config"}
    assert np.array_equal(logits(copied(folder, tmp_path / "older", config=text | kept | rope)), logits(folder))
    assert np.abs(logits(folder) - theirs).max() < 2e-5 * np.abs(theirs).max()


@pytest.mark.parametrize(
    ("family", "left_out", "sections"),
    [
        ("gemma3", ["num_key_value_heads", "tie_word_embeddings"], None),
        ("qwen2_vl", ["rms_norm_eps", "max_position_embeddings"], [2, 3, 3]),
        ("qwen3_vl", ["rms_norm_eps", "max_position_embeddings"], [2, 3, 3]),
        ("glm4v", ["rms_norm_eps"], [2, 3, 3]),
    ],
)
def test_what_is_not_said_means_what_it_means_to_transformers(made, tmp_path, family, left_out, sections):
    """``sections``: all that is said of the rotation."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder, _ = made(family)
    raw = raw_of(folder)
    raw["text_config"] = {key: value for key, value in raw["text_config"].items() if key not in left_out}
    if sections is not None:
        raw["text_config"]["rope_parameters"] = {"rope_type": "default", "mrope_section": sections}
    raw = {key: value for key, value in raw.items() if key not in left_out}
    heads = {"k_proj", "v_proj"} if "num_key_value_heads" in left_out else set()
    other = copied(folder, tmp_path / "less", config=raw)
    if heads:
        tensors = load_file(other / "model.safetensors")
        grown = {name for name in tensors if is_of_text(name) and name.split(".")[-2] in heads}
        twice = {name: np.concatenate([tensors[name]] * 2) for name in grown}
        save_file(tensors | twice, other / "model.safetensors")
    auto = transformers.AutoModelForImageTextToText
    model = auto.from_pretrained(other, dtype=torch.float32, attn_implementation="eager").eval()
    theirs = logits_of(model, TOKENS)
    assert np.abs(logits(other) - theirs).max() < 5e-5 * np.abs(theirs).max()


def test_tensors_of_images_are_not_read(made, tmp_path):
    """The shard that has them is not even there; the bundle and its float copy are those of a text model."""
    folder, theirs = made("gemma3")
    told = []
    source = in_shards(folder, tmp_path / "source")
    with open_bundle(import_model(source, target=tmp_path / "bundle", keep_float=True, notice=told.append)) as bundle:
        assert told.count(NOTICE) == 1 and not [line for line in told if "not part of" in line]
        raw = json.loads((bundle.folder / "config.json").read_text())
        assert (bundle.config.family, raw["model_type"]) == ("gemma3_text", "gemma3_text") and "vision_config" not in raw
        copy = logits(bundle.folder / "source")
    assert np.abs(copy - theirs).max() < 5e-3 * np.abs(theirs).max()
    whole = import_model(folder, target=tmp_path / "whole", keep_float=True)
    weights = [file.relative_to(whole) for file in whole.rglob("*") if file.suffix in (".bin", ".safetensors")]
    assert weights and all((whole / file).read_bytes() == (tmp_path / "bundle" / file).read_bytes() for file in weights)


def test_a_missing_shard_of_the_text_part_is_told(made, tmp_path):
    source = in_shards(made("gemma3")[0], tmp_path / "source")
    (source / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(InvalidModel, match="model-00001-of-00002.safetensors`, which is missing"):
        open_model_folder(source)


def test_shards_of_images_are_not_downloaded(made, tmp_path):
    source = in_shards(made("gemma3")[0], tmp_path / "source")
    files = {file.name: file.read_bytes() for file in source.iterdir()}
    unwanted = {"model-00002-of-00002.safetensors": b"\0" * 100, "preprocessor_config.json": b"{}"}
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    with serving(Stub(files | unwanted, large=shards)) as hub:
        result = run_pull(tmp_path / "home", hub.endpoint)
        assert result.code == 0, result.out + result.err
        assert result.folder.name == COMMIT and not {file.name for file in result.folder.iterdir()} & set(unwanted)
        assert not hub.asked("GET", shards[1])
        assert run_pull(tmp_path / "home", "http://127.0.0.1:1", HF_HUB_OFFLINE="1").folder == result.folder
    assert np.array_equal(logits(result.folder), logits(source))


@pytest.mark.parametrize(
    ("of_all", "of_text", "head", "tied"),
    [
        (True, False, False, True),  # as transformers saves Mistral 3
        (True, False, True, False),
        (None, None, True, False),  # as Mistral Small 3.1 was published
        (None, None, False, True),
        (None, True, False, True),
        (False, None, True, False),
    ],
)
def test_the_output_matrix_is_what_tensors_say(made, tmp_path, of_all, of_text, head, tied):
    folder, _ = made("mistral3, mistral")
    raw = {**raw_of(folder), "tie_word_embeddings": of_all}
    raw["text_config"] = {**raw["text_config"], "tie_word_embeddings": of_text}
    other = copied(folder, tmp_path / "other", config=raw, rename=lambda name: None if "lm_head" in name else name)
    if head:
        tensors = load_file(other / "model.safetensors")
        table = tensors["language_model.model.embed_tokens.weight"]
        save_file(tensors | {"language_model.lm_head.weight": table[::-1].copy()}, other / "model.safetensors")
    with open_model_folder(other) as source:
        assert load_config(source.config).tied_embeddings == tied
        FloatModel(source, load_config(source.config))


def test_a_lost_output_matrix_is_no_tied_one(made, tmp_path):
    folder, _ = made("qwen2_vl")
    raw = {**raw_of(folder), "tie_word_embeddings": False}
    other = copied(folder, tmp_path / "other", config=raw, rename=lambda name: None if "lm_head" in name else name)
    with open_model_folder(other) as source, pytest.raises(InvalidModel, match=r"lm_head\.weight"):
        FloatModel(source, load_config(source.config))


@pytest.mark.parametrize(
    ("change", "error", "what"),
    [
        ({"model_type": "siglip_vision_model"}, UnsupportedModel, "a text part of the type `siglip_vision_model`"),
        ({"model_type": ["x"]}, UnsupportedModel, "a text part of the type"),
        ({"num_hidden_layers": "many"}, InvalidModel, "num_hidden_layers"),
        ({"hidden_act": "mish", "hidden_activation": "mish"}, UnsupportedModel, "activation"),
    ],
)
def test_an_odd_text_part_is_refused_in_a_line(made, change, error, what):
    raw = raw_of(made("gemma3")[0])
    with pytest.raises(error, match=what) as refused:
        load_config({**raw, "text_config": raw["text_config"] | change})
    assert "\n" not in str(refused.value)


def test_a_text_config_is_an_object(made):
    with pytest.raises(InvalidModel, match="text_config must be an object"):
        load_config({**raw_of(made("gemma3")[0]), "text_config": [1]})


def test_every_family_that_sees_is_tried():
    from edge_llm.models import _family, families

    assert {name for name in families() if hasattr(_family(name), "text")} == {name.partition(",")[0] for name in SEEING}
