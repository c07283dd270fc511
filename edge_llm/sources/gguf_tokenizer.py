"""The tokenizer that a GGUF file describes, as the tokenizer.json that says the same.

Byte-level BPE (``gpt2``) is split by expressions that ``tokenizer.ggml.pre`` names; SentencePiece's BPE (``llama``) has scores
and no merges, so every split of a piece into two pieces is one, the best piece first; Unigram (``t5``) has scores alone.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from edge_llm.errors import InvalidTokenizer, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.gguf import GgufArray, GgufModel
from edge_llm.text.tokenizer import MAX_ADDED_TOKEN

SPACE = "\u2581"
MAX_SPLITS = 8 << 20
"""Of all pieces of a SentencePiece vocabulary; Gemma's has 1.7 million."""
MAX_MERGES = 1 << 20
"""Of a byte-level vocabulary, which has fewer of them than tokens."""

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6

_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_QWEN35 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_WORDS = [rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"]
_GPT4O = "|".join([f"{word}{_ENDINGS}?" for word in _WORDS] + [r"\p{N}{1,3}", _REST])
_TEKKEN = "|".join([*_WORDS, r"\p{N}", _REST])
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
)
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")

_SPLITS: dict[str, tuple[str, ...]] = {
    name: splits
    for names, splits in {
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe chatglm-bpe glm4": (_LLAMA3,),
        "qwen2 stablelm2 deepseek-r1-qwen kormo megrez hunyuan solar-open grok-2": (_QWEN2,),
        "qwen35": (_QWEN35,),
        "gpt-2 phi-2 mpt olmo jais trillion gigachat exaone4 a.x-4.0 granite-docling": (_GPT2,),
        "smollm starcoder refact command-r codeshell exaone minerva-7b": (r"\p{N}", _GPT2),
        "gpt-4o llama4 kanana2": (_GPT4O,),
        "tekken": (_TEKKEN,),
        "deepseek-v3 hunyuan-dense joyai-llm": _DEEPSEEK3,
        "falcon": _FALCON,
    }.items()
    for name in names.split()
}
"""By ``tokenizer.ggml.pre``: expressions that are applied one after the other to what those before left whole."""
_BEGUN = frozenset(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"))
"""A text begins with the bos token unless the file says otherwise."""
_WHOLE_WORDS = _BEGUN | {"glm4"}
"""A word that the vocabulary has is taken without merges."""
_UNSTRIPPED = frozenset(("<unk>", "<s>", "<|endoftext|>"))
"""Tokens of Phi-3 that leave the spaces behind them."""
_COMPOSED = frozenset(("qwen2", "qwen35", "deepseek-r1-qwen"))
"""Their texts are in NFC, which the file does not say."""


def tokenizer_json(model: GgufModel, rows: int) -> dict[str, Any]:
    """The tokenizer.json of ``model``, whose embedding has ``rows``.

    Raises `InvalidTokenizer`, `InvalidModel`, or `UnsupportedModel` for another kind or an unknown ``pre``.
    """
    words = _Words(model, rows)
    kind = model.text("tokenizer.ggml.model")
    make = {"gpt2": _byte_level, "llama": _sentence_piece, "t5": _unigram, "bert": _word_pieces}.get(kind)
    if make is None:
        raise UnsupportedModel(
            f"{model.where} has a tokenizer of the kind `{shown(kind)}`; gpt2 (BPE), llama (SentencePiece), t5 (Unigram) and "
            "bert (WordPiece) run here: import the model's Hugging Face repository"
        )
    strips = kind == "llama" and model.text("general.architecture", "") == "phi3"
    added = words.added(kind, strips=strips)
    rest = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "post_processor": None}
    return rest | make(model, words) | ({"post_processor": _framed(model, words, kind)} if _pools(model) else {})


def adds_bos(model: GgufModel) -> bool:
    """Whether a text begins with the bos token."""
    kind = model.text("tokenizer.ggml.model")
    usual = kind == "llama" or (kind == "gpt2" and model.text("tokenizer.ggml.pre", "") in _BEGUN)
    return model.flag("tokenizer.ggml.add_bos_token", usual)


def token_texts(model: GgufModel) -> list[str]:
    """The vocabulary by id, as tokenizer.json has it."""
    found = model.strings("tokenizer.ggml.tokens")
    return [_word_piece(text) for text in found] if model.text("tokenizer.ggml.model", "") == "bert" else found


class _Words:
    """The vocabulary: texts by id, what kind each is, and their scores where there are any."""

    def __init__(self, model: GgufModel, rows: int) -> None:
        self.where = model.where
        self.texts = token_texts(model)
        if not self.texts:
            raise InvalidTokenizer(f"{model.where} has no `tokenizer.ggml.tokens`; take a file with a tokenizer")
        if len(self.texts) > rows:
            raise InvalidTokenizer(f"{model.where} has {len(self.texts)} tokens and an embedding of {rows}; convert it again")
        count = len(self.texts)
        kinds = model.numbers("tokenizer.ggml.token_type")
        self.kinds = np.full(count, _NORMAL) if kinds is None else kinds
        self.scores = model.numbers("tokenizer.ggml.scores")
        for what, found in (("token_type", self.kinds), ("scores", self.scores)):
            if found is not None and len(found) != count:
                raise InvalidTokenizer(
                    f"{model.where} has {count} tokens and {len(found)} `tokenizer.ggml.{what}`; they must be as many"
                )
        self.ids = {text: number for number, text in enumerate(self.texts)}
        if len(self.ids) != count:
            twice = next(text for number, text in enumerate(self.texts) if self.ids[text] != number)
            raise InvalidTokenizer(f"{model.where} has the token `{shown(twice, 40)}` twice; convert the model again")

    def of(self, *kinds: int) -> list[int]:
        return [int(number) for number in np.flatnonzero(np.isin(self.kinds, kinds))]

    def added(self, model: str, *, strips: bool) -> list[dict[str, Any]]:
        """Tokens that are found before a text is split; those of a SentencePiece vocabulary are written with its spaces.

        ``strips``: they take the spaces behind them, as Phi-3's do, which a file does not say.
        """
        found = []
        kinds = (_CONTROL, _USER_DEFINED) if model == "gpt2" else (_CONTROL, _USER_DEFINED, _UNKNOWN)
        for number in self.of(*kinds):
            text, is_user_defined = self.texts[number], self.kinds[number] == _USER_DEFINED
            if not 0 < len(text) <= MAX_ADDED_TOKEN:
                raise InvalidTokenizer(
                    f"{self.where}: the token {number} has {len(text)} characters; 1 to {MAX_ADDED_TOKEN} are possible"
                )
            flags = {"single_word": False, "lstrip": False, "rstrip": strips and text not in _UNSTRIPPED, "normalized": False}
            found.append({"id": number, "content": text, **flags, "special": not is_user_defined})
        return found

    def check_lengths(self, numbers: Sequence[int]) -> None:
        """Raise `InvalidTokenizer` where one of the pieces is too long."""
        for number in numbers:
            if len(self.texts[number]) > MAX_ADDED_TOKEN:
                raise InvalidTokenizer(
                    f"{self.where}: the token {number} has {len(self.texts[number])} characters; up to {MAX_ADDED_TOKEN} are "
                    "possible"
                )

    def numbers_of_scores(self) -> np.ndarray:
        if self.scores is None or not np.isfinite(self.scores).all():
            raise InvalidTokenizer(f"{self.where} has no `tokenizer.ggml.scores` for its tokens; convert the model again")
        return np.asarray(self.scores, np.float64)


def _bpe(vocab: dict[str, int], merges: Sequence[tuple[str, str]], **changes: Any) -> dict[str, Any]:
    """The model section; merges are written as texts, which load in two thirds of the time, unless a token has a space."""
    has_space = any(" " in text for text in vocab)
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": [list(merge) for merge in merges] if has_space else [f"{left} {right}" for left, right in merges],
    } | changes


def _byte_level(model: GgufModel, words: _Words) -> dict[str, Any]:
    pre = model.text("tokenizer.ggml.pre", "")
    splits = _SPLITS.get(pre)
    if splits is None:
        raise UnsupportedModel(
            f"{model.where} splits text by `{shown(pre) or 'nothing that it names'}` (tokenizer.ggml.pre), which is not known "
            "here: import the model's Hugging Face repository"
        )
    merges: dict[tuple[str, str], None] = {}
    array = model.pairs.get("tokenizer.ggml.merges")
    if isinstance(array, GgufArray) and array.count > MAX_MERGES:  # before they take memory
        raise InvalidTokenizer(f"{model.where} has {array.count} merges; {MAX_MERGES} are read")
    for merge in model.strings("tokenizer.ggml.merges"):
        at = merge.find(" ", 1)
        left, right = merge[:at], merge[at + 1 :]
        if at < 0 or left not in words.ids or right not in words.ids or left + right not in words.ids:
            raise InvalidTokenizer(f"{model.where} has the merge `{shown(merge, 40)}` of tokens that it does not have")
        if (left, right) in merges:
            raise InvalidTokenizer(f"{model.where} has the merge `{shown(merge, 40)}` twice; convert the model again")
        merges[left, right] = None
    split = [
        {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False} for expression in splits
    ]
    plain = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "normalizer": {"type": "NFC"} if pre in _COMPOSED else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*split, plain]},
        "decoder": plain,
        "model": _bpe(words.ids, list(merges), ignore_merges=pre in _WHOLE_WORDS),
    }


def _sentence_piece(model: GgufModel, words: _Words) -> dict[str, Any]:
    scores, normal = words.numbers_of_scores(), words.of(_NORMAL)
    if len(normal) > 1 and len(set(scores[normal])) == 1:
        raise UnsupportedModel(
            f"{model.where} has the same score for every token, so their order is lost: import the model's Hugging Face folder"
        )
    prefixed = model.flag("tokenizer.ggml.add_space_prefix", True)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []
    unknown = words.of(_UNKNOWN)
    return {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*([{"type": "Prepend", "prepend": SPACE}] if prefixed else []), replace],
        },
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": _bpe(
            words.ids,
            _splits(words, normal, scores),
            unk_token=words.texts[unknown[0]] if unknown else None,
            fuse_unk=True,
            byte_fallback=True,
        ),
    }


def _splits(words: _Words, normal: list[int], scores: np.ndarray) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others: best score first, then by id."""
    ids, texts = words.ids, words.texts
    words.check_lengths(normal)  # the time to split one grows with its square
    if sum(len(texts[number]) for number in normal) > MAX_SPLITS:
        raise InvalidTokenizer(f"{words.where} has more than {MAX_SPLITS} characters in its tokens; convert the model again")
    found = []
    for number in normal:
        text = texts[number]
        for at in range(1, len(text)):
            left = ids.get(text[:at])
            if left is not None and (right := ids.get(text[at:])) is not None:
                found.append((number, left, right))
    whole, left_ids, _ = columns = np.array(found, np.int64).reshape(-1, 3).T
    order = np.lexsort((left_ids, whole, -scores[whole]))
    return [(texts[left], texts[right]) for _, left, right in columns.T[order].tolist()]


def _unigram(model: GgufModel, words: _Words) -> dict[str, Any]:
    scores = words.numbers_of_scores()
    unknown = words.of(_UNKNOWN)
    if not unknown:
        raise InvalidTokenizer(f"{model.where} has no token for what is unknown; convert the model again")
    words.check_lengths(range(len(words.texts)))  # the library's tree of pieces is as deep as the longest
    scores[words.of(_USER_DEFINED)] = 0
    charsmap = model.numbers("tokenizer.ggml.precompiled_charsmap")
    normalizers: list[dict[str, Any]] = []
    if charsmap is not None:
        coded = base64.b64encode(charsmap.tobytes()).decode()
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": coded})
    is_prefixed = model.flag("tokenizer.ggml.add_space_prefix", True)
    if model.flag("tokenizer.ggml.remove_extra_whitespaces", False):
        is_prefixed = True  # every word has one space before it, the first one too
        normalizers += [_replace(r"\A +| +\z", ""), _replace(" {2,}", " ")]
    if is_prefixed:
        normalizers.append(_replace(r"\A(?= *[^ ])", " "))  # where there is a word
    scheme = "always" if is_prefixed else "never"
    spaces, back = (
        {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": one, "split": False} for one in ("never", scheme)
    )  # tokens span words
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        "pre_tokenizer": spaces,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, back]},
        "model": {
            "type": "Unigram",
            "unk_id": unknown[0],
            "vocab": [[text, float(score)] for text, score in zip(words.texts, scores, strict=True)],
            "byte_fallback": bool(words.of(_BYTE)),
        },
    }


def _word_pieces(model: GgufModel, words: _Words) -> dict[str, Any]:
    """BERT's."""
    unknown = model.integer("tokenizer.ggml.unknown_token_id", 0, len(words.texts) - 1, min(100, len(words.texts) - 1))
    lower, accents = (model.flag(f"tokenizer.ggml.normalizer.{one}", True) for one in ("lowercase", "strip_accents"))
    return {
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": accents,
            "lowercase": lower,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": words.texts[unknown], "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": words.ids,
        },
    }  # fmt: skip


def _word_piece(text: str) -> str:
    """What begins a word is marked in the file, and in tokenizer.json what does not."""
    if text.startswith("[") and text.endswith("]"):  # a control token
        return text
    return text[len(SPACE) :] if text.startswith(SPACE) else f"##{text}"


def _pools(model: GgufModel) -> bool:
    """Whether it is a model that makes vectors of texts, which it was trained to see between control tokens."""
    name = model.text("general.architecture", "")
    return f"{name}.pooling_type" in model.pairs or not model.flag(f"{name}.attention.causal", True)


def _framed(model: GgufModel, words: _Words, kind: str) -> dict[str, Any] | None:
    """The post-processor that puts the control tokens around a text and a pair of texts; None: there are none."""
    is_bert, count = kind == "bert", len(words.texts)
    begins = model.flag("tokenizer.ggml.add_bos_token", is_bert or adds_bos(model))
    ends = model.flag("tokenizer.ggml.add_eos_token", is_bert or kind == "t5")
    ends = ends or model.flag("tokenizer.ggml.add_sep_token", False)
    usual = {"bos": 101 if is_bert else 1, "end": 102 if is_bert else 1 if kind == "t5" else 2}
    first = model.integer("tokenizer.ggml.bos_token_id", 0, count - 1, min(usual["bos"], count - 1))
    key = "seperator" if "tokenizer.ggml.seperator_token_id" in model.pairs and is_bert else "eos"
    last = model.integer(f"tokenizer.ggml.{key}_token_id", 0, count - 1, min(usual["end"], count - 1))
    if not begins and not ends:
        return None

    def special(number: int, of: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": words.texts[number], "type_id": of}}

    one, other = ({"Sequence": {"id": name, "type_id": of if is_bert else 0}} for of, name in enumerate("AB"))
    head, tail = ([special(first, 0)] if begins else []), ([special(last, 0)] if ends else [])
    behind = [special(last, 1 if is_bert else 0)] if ends else []
    doubled = tail if not is_bert and model.text("general.architecture", "") == "bert" else []  # RoBERTa's pairs
    named = {words.texts[at]: {"id": words.texts[at], "ids": [at], "tokens": [words.texts[at]]} for at in (first, last)}
    return {
        "type": "TemplateProcessing", "single": [*head, one, *tail], "pair": [*head, one, *tail, *doubled, other, *behind],
        "special_tokens": named,
    }  # fmt: skip


def _replace(expression: str, text: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": expression}, "content": text}
