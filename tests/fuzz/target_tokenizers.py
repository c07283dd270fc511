"""A tokenizer.json from a stranger: loaded, and asked for tokens and text."""

import json
import tempfile
from pathlib import Path

from model_files import VOCAB_SIZE, byte_level_tokenizer, write_tokenizer
from mutate import changed, changed_bytes, changed_text

from edge_llm.errors import EdgeLLMError
from edge_llm.text.tokenizer import Tokenizer

NORMALIZERS = (
    {"type": "NFC"}, {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "StripAccents"}, {"type": "Nmt"}, {"type": "Prepend", "prepend": "▁"}, {"type": "Prepend",
    "prepend": "x" * 20_000},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, {"type": "Replace", "pattern": {"String": ""},
    "content": "ab"},
    {"type": "Replace", "pattern": {"Regex": "."}, "content": "x" * 300}, {"type": "Replace", "pattern": {"Regex": "(a+)+$"},
    "content": ""},
    {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaa"}, {"type": "ByteLevel"},
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
)  # fmt: skip
PRE_TOKENIZERS = (
    {"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"},
    {"type": "BertPreTokenizer"},
    {"type": "Digits", "individual_digits": True}, {"type": "UnicodeScripts"}, {"type": "CharDelimiterSplit", "delimiter": "a"},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "Split", "pattern": {"Regex": "(a|a?)+$"}, "behavior": "Isolated", "invert": False},
    {"type": "Split", "pattern": {"Regex": "(?=x)*?"}, "behavior": "MergedWithNext", "invert": True},
    {"type": "Split", "pattern": {"String": ""}, "behavior": "Removed", "invert": False},
    {"type": "FixedLength", "length": 0},
)  # fmt: skip
DECODERS = (
    {"type": "ByteLevel"}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Replace", "pattern": {"Regex": ""},
    "content": "x" * 500},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}, {"type": "WordPiece", "prefix": "##",
    "cleanup": True},
    {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}, {"type": "BPEDecoder",
    "suffix": "</w>"},
)  # fmt: skip
PARTS = {"normalizer": NORMALIZERS, "pre_tokenizer": PRE_TOKENIZERS, "decoder": DECODERS}
LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
POST = (
    {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A",
    "type_id": 0}}],
     "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
     "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [270], "tokens": ["<|bos|>"]}}},
    {"type": "RobertaProcessing", "sep": ["<|eos|>", 271], "cls": ["<|bos|>", 270], "trim_offsets": True,
    "add_prefix_space": True},
)  # fmt: skip
MODELS = (
    {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
    "vocab": {"a": 0}},
    {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}},
    {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["▁a", -1e308]], "byte_fallback": True},
    {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], "unk_token": "a", "byte_fallback": True,
    "dropout": 0.5},
)  # fmt: skip
WORDS = (*NORMALIZERS[:8], *PRE_TOKENIZERS[:6], *DECODERS[:4], *POST, *MODELS, "▁", "<unk>", "<0x0A>", 4_000_000_000, 269, 275)
TEXTS = (
    "hello world", "", " ", "\n\n\t", "<|bos|>hello<|eos|>", "日本語 и 🙂 e\u0301", "a" * 3000, "a " * 3000, "\0\x02",
    "ﷺ" * 500, "<|im_start|>" * 200, "0123456789" * 100,
)  # fmt: skip


class Target:
    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        write_tokenizer(self.folder)
        self.whole = {path.name: path.read_text() for path in self.folder.iterdir()}

    def make(self, random):
        made = {"name": "tokenizer.json", "text": random.choice(TEXTS)}
        if random.random() < 0.15:
            made["name"] = random.choice(sorted(self.whole))
            value = changed(json.loads(self.whole[made["name"]]), random, WORDS, random.choice((1, 2, 4)))
        else:
            value = tokenizer(random)
        content = json.dumps(value)
        if random.random() < 0.05:
            content = changed_bytes(content.encode(), random).decode("latin-1")
        if random.random() < 0.3:
            made["text"] = changed_text(made["text"], random, TEXTS)
        return {**made, "content": content}

    def run(self, made):
        for name, content in self.whole.items():
            (self.folder / name).write_text(content)
        (self.folder / made["name"]).write_bytes(made["content"].encode("latin-1", "replace"))
        try:
            tokenizer = Tokenizer.from_folder(self.folder, VOCAB_SIZE)
            ids = tokenizer.encode(made["text"])
            assert all(0 <= token < VOCAB_SIZE for token in ids), "a token that the model does not have"
            assert isinstance(tokenizer.decode(ids[:2000]), str)
            return True
        except EdgeLLMError:
            return False


def tokenizer(random):
    """A tokenizer of parts that somebody put together badly."""
    value = byte_level_tokenizer()
    if random.random() < 0.25:
        value["model"] = changed(random.choice(MODELS), random, WORDS, random.choice((0, 1)))
        value["added_tokens"] = []
    if random.random() < 0.1:
        value["post_processor"] = random.choice(POST)
    for part, choices in PARTS.items():
        count = random.choice((0, 0, 1, 2, 4, 12)) if random.random() < 0.6 else 0
        if count == 1:
            value[part] = random.choice(choices)
        elif count:
            value[part] = {"type": "Sequence", LISTS[part]: [random.choice(choices) for _ in range(count)]}
    if random.random() < 0.5:
        lonely = {key: value[key] for key in ("normalizer", "pre_tokenizer", "decoder", "post_processor", "added_tokens")}
        parts = changed(lonely, random, WORDS, random.choice((1, 1, 2)))
        value = {**value, **parts} if isinstance(parts, dict) else parts
    return value

