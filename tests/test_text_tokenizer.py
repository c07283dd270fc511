"""Tokens and text: decoding a piece at a time equals decoding at once, and hostile files and texts are refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from bad_models import TOKENIZERS, BadTokenizer, charsmap, split_by
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import MERGES, SPECIALS, VOCAB_SIZE, byte_level_tokenizer, write_json, write_tokenizer

from edge_llm.errors import ContextOverflow, EdgeLLMError, InvalidTokenizer, ModelNotFound, UsageError
from edge_llm.text.growth import text_growth, window_for
from edge_llm.text.tokenizer import IncrementalDecoder, SpecialTokens, Tokenizer
from edge_llm.text.windows import window_ids

pytestmark = pytest.mark.thorough(file=12)

BOS, EOS, IM_START, IM_END = (256 + len(MERGES) + i for i in range(4))
TEXTS = (
    "", " ", "Hello world", "  two  spaces ", "naïve café", "日本語のテキスト", "🙂👩‍👩‍👧‍👦🇩🇪", "a\nb\tc\r\n", "\x00\x7f",
    "e\u0301", "\ufeffbom", "\ufffd", "𝔘𝔫𝔦", "ends with space ", "العربية", "x" * 300,
)  # fmt: skip


def loads(data: dict[str, Any], vocab_size: int = VOCAB_SIZE, special: SpecialTokens | None = None) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(data)), vocab_size, special)


def sentencepiece_style(strip: bool = True) -> dict[str, Any]:
    """tokenizer.json of the Llama 2 kind: metaspaces, byte fallback, one leading space dropped."""
    words = ["▁", "a", "b", "c", "▁a", "▁b", "▁▁", "▁▁▁", "ab", "é", "日", "本", "🙂", "▁the"]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocab |= {word: 259 + i for i, word in enumerate(words)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    ]  # fmt: skip
    steps += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strip else []
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": text, **flags} for i, text in enumerate(("<unk>", "<s>", "</s>"))],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": vocab,
                  "merges": [["▁", "a"], ["▁", "b"], ["▁", "▁"], ["▁▁", "▁"], ["a", "b"]]},
    }  # fmt: skip


def metaspace_style() -> dict[str, Any]:
    raw = sentencepiece_style()
    raw["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return raw


def spaced(scheme: str) -> dict[str, Any]:
    """The Metaspace kind, which splits a text into words; only ``scheme`` = first looks where in the text a piece is."""
    raw = metaspace_style()
    step = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}
    return raw | {"normalizer": None, "pre_tokenizer": step, "decoder": step}


def regex_style() -> dict[str, Any]:
    """The Llama 3 kind: words by a regular expression."""
    words = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+")  # fmt: skip
    return json.loads(split_by(words)) | {"normalizer": {"type": "NFC"}}


BYTE_LEVEL = loads(byte_level_tokenizer())
SENTENCEPIECE = loads(sentencepiece_style())
KINDS = {"byte-level": BYTE_LEVEL, "sentencepiece": SENTENCEPIECE, "no-strip": loads(sentencepiece_style(strip=False)),
         "metaspace": loads(metaspace_style())}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS)
ids_of = st.lists(st.integers(0, 272), max_size=40)


def pieces(tokenizer: Tokenizer, ids: Sequence[int], **options: bool) -> list[str]:
    decoder = IncrementalDecoder(tokenizer, **options)
    return [*(decoder.push(token) for token in ids), decoder.finish()]


# ---- decoding


@every_kind
@settings(max_examples=300, deadline=None)
@given(ids=ids_of)
def test_piece_by_piece_is_the_whole(kind: str, ids: list[int]) -> None:
    for skip in (True, False):
        whole = KINDS[kind].decode(ids, skip_special=skip)
        assert "".join(pieces(KINDS[kind], ids, skip_special=skip)) == whole


@settings(max_examples=500, deadline=None)
@given(ids=ids_of)
def test_byte_level_decodes_like_the_package(ids: list[int]) -> None:
    for skip in (True, False):
        theirs = BYTE_LEVEL._backend.decode(ids, skip_special_tokens=skip)
        assert BYTE_LEVEL.decode(ids, skip_special=skip) == theirs


@pytest.mark.parametrize("kind", ["sentencepiece", "no-strip", "metaspace"])
@settings(max_examples=500, deadline=None)
@given(ids=st.lists(st.one_of(st.integers(0, 2), st.integers(35, 130), st.integers(259, 272)), max_size=30))
def test_sentencepiece_decodes_like_the_package(kind: str, ids: list[int]) -> None:
    if kind == "metaspace":  # its decoder knows no bytes
        ids = [token for token in ids if not 3 <= token < 259]
    for skip in (True, False):
        theirs = KINDS[kind]._backend.decode(ids, skip_special_tokens=skip)
        assert KINDS[kind].decode(ids, skip_special=skip) == theirs


@settings(max_examples=300, deadline=None)
@given(ids=ids_of)
def test_wrong_bytes_spoil_only_themselves(ids: list[int]) -> None:
    theirs = SENTENCEPIECE._backend.decode(ids)
    ours = SENTENCEPIECE.decode(ids)
    if "\ufffd" in ours:
        assert len(ours) <= len(theirs)
    else:
        assert ours == theirs


@every_kind
@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_a_round_trip_without_broken_pieces(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    if kind == "metaspace" and not text.isascii():
        return
    ids = tokenizer.encode(text)
    out = pieces(tokenizer, ids)
    if kind in ("byte-level", "sentencepiece"):
        assert "".join(out) == text
    assert "\ufffd" in text or "\ufffd" not in "".join(out)
    assert all(piece.encode() is not None for piece in out)  # no half of anything


def test_real_tokenizer_decodes_like_the_package(stories_folder: Path, shared_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(stories_folder, 512)
    text = (shared_folder / "text" / "tinystories-sample.txt").read_text()[:20000]
    ids = tokenizer.encode(text)
    assert ids == tokenizer._backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == text == "".join(pieces(tokenizer, ids))

    @settings(max_examples=300, deadline=None)
    @given(st.lists(st.integers(0, 511), max_size=60))
    def check(ids: list[int]) -> None:
        whole = tokenizer.decode(ids)
        assert "".join(pieces(tokenizer, ids)) == whole
        theirs = tokenizer._backend.decode(ids)
        assert whole == theirs or "\ufffd" in theirs

    check()


def test_d12_a_character_appears_when_its_last_byte_does() -> None:
    for tokenizer, first in ((BYTE_LEVEL, 0), (SENTENCEPIECE, 3)):
        smile = [first + byte for byte in "🙂".encode()]
        word = 97 if tokenizer is BYTE_LEVEL else 260
        assert pieces(tokenizer, smile) == ["", "", "", "🙂", ""]
        assert pieces(tokenizer, [*smile[:2], word]) == ["", "", "\ufffda", ""]
        assert pieces(tokenizer, smile[:3]) == ["", "", "", "\ufffd"]
        assert pieces(tokenizer, [*smile, *smile[:1]]) == ["", "", "", "🙂", "", "\ufffd"]
        assert pieces(tokenizer, [first + 0xFF, word]) == ["\ufffd", "a", ""]


def test_special_tokens_do_not_break_a_character() -> None:
    smile = list("🙂".encode())
    assert pieces(BYTE_LEVEL, [*smile[:2], EOS, *smile[2:]]) == ["", "", "", "", "🙂", ""]
    assert pieces(BYTE_LEVEL, [*smile[:2], EOS], skip_special=False) == ["", "", "\ufffd<|eos|>", ""]


def test_leading_space_is_dropped_once_and_only_at_the_start() -> None:
    space, the, letter = 259, 272, 260
    assert pieces(SENTENCEPIECE, [the, the]) == ["the", " the", ""]
    assert pieces(SENTENCEPIECE, [space, space, letter]) == ["", " ", "a", ""]
    assert pieces(SENTENCEPIECE, [1, the]) == ["", "the", ""]
    assert pieces(SENTENCEPIECE, [3 + 0x20, letter]) == ["", "a", ""]
    assert pieces(SENTENCEPIECE, [the, the], continues=True) == [" the", " the", ""]
    assert pieces(BYTE_LEVEL, BYTE_LEVEL.encode(" a")) == [" a", ""]


def test_continued_text_joins_its_prompt(stories_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(stories_folder, 512)
    ids = tokenizer.encode("Once upon a time there was a dog")
    for cut in range(1, len(ids)):
        tail = "".join(pieces(tokenizer, ids[cut:], continues=True))
        assert tokenizer.decode(ids[:cut]) + tail == tokenizer.decode(ids)


def test_token_bytes() -> None:
    assert [BYTE_LEVEL.token_bytes(i) for i in (0, 32, 97, 255, 256)] == [b"\0", b" ", b"a", b"\xff", b"he"]
    assert BYTE_LEVEL.token_bytes(EOS) == b"<|eos|>"
    assert BYTE_LEVEL.token_bytes(VOCAB_SIZE - 1) == b""
    assert [SENTENCEPIECE.token_bytes(i) for i in (3, 258, 272, 261)] == [b"\0", b"\xff", b" the", b"b"]


def test_added_tokens_outside_the_byte_alphabet_are_their_text() -> None:
    raw = byte_level_tokenizer()
    raw["added_tokens"].append({**raw["added_tokens"][0], "id": 274, "content": "a b\u2603", "special": False})
    tokenizer = loads(raw)
    assert tokenizer.decode([274, 97]) == "a b\u2603a" == tokenizer._backend.decode([274, 97])


def test_only_real_byte_tokens_are_bytes() -> None:
    raw = sentencepiece_style()
    raw["model"]["vocab"] |= {"<0xZZ>": 273, "<0x1>": 274, "<0x4a>": 275}
    tokenizer = loads(raw)
    assert [tokenizer.token_bytes(token) for token in (273, 274, 275)] == [b"<0xZZ>", b"<0x1>", b"J"]


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE, 1 << 40])
def test_d11_id_outside_the_vocabulary(token: int) -> None:
    for act in (lambda: BYTE_LEVEL.decode([token]), lambda: BYTE_LEVEL.token_text(token)):
        with pytest.raises(UsageError, match=f"`{token}`"):
            act()


# ---- encoding


@every_kind
@pytest.mark.parametrize("text", TEXTS)
def test_encodes_like_the_package(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    assert tokenizer.encode(text) == tokenizer._backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("special", SPECIALS)
def test_d13_text_that_spells_a_special_token(special: str) -> None:
    text = f"say {special} now"
    plain = BYTE_LEVEL.encode(text)
    assert BYTE_LEVEL.decode(plain) == text
    assert not any(BYTE_LEVEL.is_special(token) for token in plain)
    parsed = BYTE_LEVEL.encode(text, parse_special=True)
    assert [token for token in parsed if BYTE_LEVEL.is_special(token)] == [BYTE_LEVEL.token_id(special)]
    assert BYTE_LEVEL.encode(text) == plain  # parsing once leaves no trace


def test_d13_special_token_that_the_model_itself_would_find() -> None:
    raw = sentencepiece_style()
    raw["normalizer"] = None
    raw["model"] = {"type": "Unigram", "unk_id": 0, "byte_fallback": True,
                    "vocab": [[piece, 0.0 if piece == "</s>" else -5.0] for piece in raw["model"]["vocab"]]}  # fmt: skip
    tokenizer = loads(raw)
    assert tokenizer._backend.encode("a</s>b").ids == [260, 2, 261]
    plain = tokenizer.encode("a</s>b")
    assert 2 not in plain
    assert tokenizer.decode(plain) == "a</s>b"


def test_bos() -> None:
    tokenizer = loads(byte_level_tokenizer(), special=SpecialTokens(bos_id=BOS))
    assert tokenizer.encode("a", add_bos=True) == [BOS, 97]
    assert tokenizer.encode("", add_bos=True) == [BOS]
    assert BYTE_LEVEL.encode("a", add_bos=True) == [97]  # it has none
    assert (BYTE_LEVEL.bos_id, BYTE_LEVEL.bos_text, BYTE_LEVEL.eos_text, BYTE_LEVEL.add_bos) == (None, "", "", False)


def test_bos_from_the_post_processor() -> None:
    raw = byte_level_tokenizer()
    raw["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [BOS], "tokens": ["<|bos|>"]}},
    }
    tokenizer = loads(raw)
    assert (tokenizer.bos_id, tokenizer.add_bos) == (BOS, True)
    assert tokenizer.encode("a") == [97]
    assert not loads(raw, special=SpecialTokens(add_bos=False)).add_bos


def test_d9_a_long_run_and_d10_half_a_surrogate() -> None:
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode("a" * 100_000)) == "a" * 100_000
    for text in ("\ud800", "a\udfff", "\udc80" * 3):
        with pytest.raises(UsageError, match="surrogate"):
            BYTE_LEVEL.encode(text)
    assert BYTE_LEVEL.encode("ok") == [111, 107]


def test_d7_regex_that_runs_away(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(split_by("(a+)+$"))
    tokenizer = Tokenizer.from_folder(tmp_path, VOCAB_SIZE)
    with pytest.raises(InvalidTokenizer, match="cannot encode"):
        tokenizer.encode("a" * 40 + "b")
    assert tokenizer.encode("b") == [98]


def plain(tokenizer: Tokenizer, text: str, *, parse_special: bool = False) -> list[int]:
    """What the package makes of ``text`` at once."""
    tokenizer._backend.encode_special_tokens = not parse_special
    ids: list[int] = tokenizer._backend.encode(text, add_special_tokens=False).ids
    return ids


STYLES = {"byte-level": byte_level_tokenizer(), "regex": regex_style(), "sentencepiece": sentencepiece_style(),
          "first": spaced("first"), "always": spaced("always"), "never": spaced("never")}  # fmt: skip
LOADED = {name: loads(raw) for name, raw in STYLES.items()}
every_style = pytest.mark.parametrize("style", STYLES)
texts = st.one_of(
    st.text(max_size=200),
    st.lists(st.sampled_from((*"ab \né1.🙂", "  ", "the", " the", "日本", "e\u0301", "<|eos|>")), max_size=150).map("".join),
)


@pytest.mark.thorough(keep=2)
@every_style
@settings(max_examples=60, deadline=None)
@given(text=texts, repeats=st.integers(1, 9), window=st.sampled_from([96, 128, 250, 600]))
def test_windows_make_the_ids_of_the_whole(style: str, text: str, repeats: int, window: int) -> None:
    tokenizer = LOADED[style]
    text = text * repeats
    ids = [i for part in window_ids(lambda t: tokenizer._encoding(t, parse_special=False), text, window) for i in part]
    assert ids == plain(tokenizer, text)


@pytest.mark.thorough(keep=9)
@every_style
@pytest.mark.parametrize("piece", ["a", " ", "日本", "a b the ", "a\n", "🙂", "\n\n", "e\u0301", "the1.", "<|im_end|>ab"])
def test_long_texts_are_encoded_as_at_once(style: str, piece: str) -> None:
    text = piece * (40_000 // len(piece))
    assert LOADED[style].encode(text) == plain(LOADED[style], text)
    assert LOADED[style].encode(text, parse_special=True) == plain(LOADED[style], text, parse_special=True)


def test_a_real_text_is_encoded_as_at_once(stories_folder: Path, shared_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(stories_folder, 512)
    text = (shared_folder / "text" / "tinystories-sample.txt").read_text()
    assert tokenizer.encode(text) == plain(tokenizer, text)


def test_an_end_that_is_nowhere_safe_keeps_the_text() -> None:
    raw = sentencepiece_style()  # every text is stripped, so none goes on where another ended
    raw["normalizer"]["normalizers"].insert(0, {"type": "Strip", "strip_left": True, "strip_right": True})
    text = "a b" * 20_000
    assert loads(raw).decode(loads(raw).encode(text)) == text


def test_too_many_tokens_are_refused_before_all_are_made() -> None:
    assert BYTE_LEVEL.encode("x" * 100, most=100) == [120] * 100
    with pytest.raises(ContextOverflow, match="at least 101"):
        BYTE_LEVEL.encode("x" * 101, most=100)
    with pytest.raises(ContextOverflow) as caught:
        BYTE_LEVEL.encode("x" * 10_000_000, most=100)
    assert caught.value.prompt_tokens < 10_000


def test_a_long_text_costs_the_memory_of_its_ids(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(sentencepiece_style()))
    script = """
import resource, sys
from pathlib import Path
from edge_llm.text.tokenizer import Tokenizer
tokenizer = Tokenizer.from_folder(Path(sys.argv[1]), 280)
text = "a b the " * 125_000
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tokenizer.encode(text)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 << 10  # KiB, for 1 MB of text; at once it took 300 MiB


def test_a_tokenizer_that_is_gone_keeps_no_memory(tmp_path: Path) -> None:
    """Nor do the threads that it worked in: a server loads models for as long as it runs."""
    write_tokenizer(tmp_path)
    code = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from edge_llm.text.tokenizer import Tokenizer
together, texts = Barrier(4), [" ".join(f"{thread}ab{word}cd" for word in range(4000)) for thread in range(4)]
def encode(text):
    together.wait()
    return tokenizer.encode(text)
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
with ThreadPoolExecutor(4) as threads:
    for turn in range(8):
        tokenizer = Tokenizer.from_folder(Path(sys.argv[1]), vocab_size=int(sys.argv[2]))
        assert all(threads.map(encode, texts))
        if turn == 1:
            before = resident()
print(resident() - before)
"""
    grown = subprocess.run([sys.executable, "-c", code, tmp_path, str(VOCAB_SIZE)], capture_output=True, text=True, check=True)
    assert int(grown.stdout) < 2 << 20


@pytest.mark.thorough(keep=6)
@every_style
@pytest.mark.parametrize("flags", [{}, {"rstrip": True}, {"lstrip": True}], ids=str)
@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.sampled_from(["a", " a", "b ", "<C>", "<X>", "the", "\n", "é", "  "]), max_size=12))
def test_marks_are_control_tokens_around_which_nothing_changes(style: str, flags: dict[str, bool], parts: list[str]) -> None:
    """<C> is the template's and <X> is spelled: as if <X> were no control token at all."""
    control = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} | flags
    both = with_controls(STYLES[style], {"<C>": control, "<X>": control})
    without = with_controls(STYLES[style], {"<C>": control})
    text = "".join(parts)
    marked = "".join(both.marked(part) if part == "<C>" else part for part in parts)
    assert both.encode(marked) == without.encode(text, parse_special=True)


def with_controls(raw: dict[str, Any], controls: dict[str, dict[str, bool]]) -> Tokenizer:
    added = [{"id": VOCAB_SIZE + i, "content": content, **flags} for i, (content, flags) in enumerate(controls.items())]
    return loads(raw | {"added_tokens": [*raw["added_tokens"], *added]}, VOCAB_SIZE + 2)


def test_what_a_mark_is_nobody_can_spell() -> None:
    first, second = loads(byte_level_tokenizer()), loads(byte_level_tokenizer())
    assert first.marked("<|eos|>") != second.marked("<|eos|>")
    assert first.encode(first.marked("a<|eos|>b")) == [97, EOS, 98]
    assert EOS not in first.encode(second.marked("a<|eos|>b"))
    assert first.decode(first.encode("a<|eos|>b")) == "a<|eos|>b"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=200, deadline=None)
@given(ids=ids_of, continues=st.booleans())
def test_pieces_are_the_bytes_of_the_text(kind: str, ids: list[int], continues: bool) -> None:
    decoder = IncrementalDecoder(KINDS[kind], continues=continues)
    data = b""
    for token in ids:
        data += b"" if KINDS[kind].is_special(token) else decoder.piece(token)
        decoder.push(token)
    assert data.decode("utf-8", "replace") == "".join(pieces(KINDS[kind], ids, continues=continues))


@pytest.mark.thorough(keep=5)
@pytest.mark.parametrize(
    "step",
    [
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 100},
        {"type": "Replace", "pattern": {"Regex": "b*"}, "content": "日本"},
        {"type": "Prepend", "prepend": "▁"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "NFC"}, {"type": "Lowercase"},
        {"type": "ByteLevel"},
        {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": True, "lowercase": True},
    ],
    ids=str,
)  # fmt: skip
@settings(max_examples=100, deadline=None)
@given(text=st.one_of(st.text(min_size=1), st.sampled_from(["ﷺ", "a", "日本", "İ", "\U0001d160", "ΐ"])))
def test_no_text_grows_more_than_its_steps_say(step: dict[str, Any], text: str) -> None:
    backend = tokenizers.Tokenizer.from_str(json.dumps(byte_level_tokenizer() | {"normalizer": step, "pre_tokenizer": None}))
    assert len(backend.normalizer.normalize_str(text).encode()) <= text_growth(backend) * len(text.encode()) + 64


def test_the_steps_of_known_families_are_taken() -> None:
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    twice = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
    table = json.loads(charsmap(33))["normalizer"]
    steps = {"type": "Sequence", "normalizers": [table, twice]}
    tables = byte_level_tokenizer() | {"normalizer": steps, "pre_tokenizer": space}
    growths = [text_growth(tokenizers.Tokenizer.from_str(json.dumps(raw))) for raw in (*STYLES.values(), tables)]
    assert growths == [2, 6, 3, 4, 4, 4, 33 * 4 * 4]
    assert [window_for(growth, 8192) for growth in growths] == [8192] * 6 + [496]


def test_a_tokenizer_that_grows_texts_encodes_them_in_smaller_windows(tmp_path: Path) -> None:
    """The text becomes a hundred times as long, but never all of it at once."""
    raw = byte_level_tokenizer()
    raw["normalizer"] = {"type": "Replace", "pattern": {"String": "b"}, "content": "a" * 50}
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    script = """
import resource, sys
from pathlib import Path
from edge_llm.text.tokenizer import Tokenizer
tokenizer = Tokenizer.from_folder(Path(sys.argv[1]), 280)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert len(tokenizer.encode("b" * 20_000)) == 1_000_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 << 10  # KiB


def test_training_leftovers_are_switched_off() -> None:
    raw = byte_level_tokenizer()
    raw["model"]["dropout"] = 0.9
    raw["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    raw["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                      "pad_type_id": 0, "pad_token": "!"}  # fmt: skip
    tokenizer = loads(raw)
    assert {tuple(tokenizer.encode("hello the hello")) for _ in range(20)} == {tuple(BYTE_LEVEL.encode("hello the hello"))}


# ---- files


def folder_with(tmp_path: Path, **files: Any) -> Path:
    write_tokenizer(tmp_path)
    for name, value in files.items():
        path = tmp_path / f"{name}.json"
        path.unlink(missing_ok=True)
        if value is not None:
            write_json(path, value)
    return tmp_path


def test_from_folder(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path), VOCAB_SIZE)
    assert (tokenizer.bos_id, tokenizer.add_bos, tokenizer.bos_text) == (BOS, False, "<|bos|>")
    assert tokenizer.eos_ids == {EOS, IM_END}
    assert tokenizer.special_texts == SPECIALS


@pytest.mark.parametrize(
    ("files", "bos", "eos", "add_bos"),
    [
        ({"generation_config": None, "tokenizer_config": None}, None, set(), False),
        ({"generation_config": None, "tokenizer_config": None, "config": {"bos_token_id": BOS, "eos_token_id": EOS}},
         BOS, {EOS}, False),
        ({"generation_config": {"eos_token_id": IM_END}, "tokenizer_config": {"eos_token": {"content": "<|eos|>"}}},
         None, {EOS, IM_END}, False),
        ({"generation_config": {}, "tokenizer_config": {"bos_token": {"content": "<|bos|>"}, "add_bos_token": True}},
         BOS, set(), True),
        ({"tokenizer_config": {"bos_token": None, "add_bos_token": True}}, None, {EOS, IM_END}, False),
    ],
)  # fmt: skip
def test_bos_and_eos_from_the_configs(
    files: dict[str, Any], bos: int | None, eos: set[int], add_bos: bool, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, **files), VOCAB_SIZE)
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.add_bos) == (bos, eos, add_bos)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"generation_config": {"eos_token_id": VOCAB_SIZE}}, f"`{VOCAB_SIZE}` is outside"),
        ({"generation_config": {"eos_token_id": -1}}, "`-1`"),
        ({"generation_config": {"eos_token_id": list(range(10_000))}}, "up to 64"),
        ({"generation_config": {"eos_token_id": "2"}}, "`2`"),
        ({"generation_config": {"eos_token_id": [2, None]}}, "eos_token_id"),
        ({"generation_config": {"eos_token_id": 2.0}}, "`2.0`"),
        ({"generation_config": {"bos_token_id": 1 << 70}}, "outside"),
        ({"generation_config": []}, "JSON object"),
        ({"tokenizer_config": {"eos_token": "<|gone|>"}}, "`<|gone|>` is not in the vocabulary"),
        ({"tokenizer_config": {"eos_token": 7}}, "`7`"),
    ],
)
def test_c15_bad_bos_and_eos(files: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidTokenizer) as caught:
        Tokenizer.from_folder(folder_with(tmp_path, **files), VOCAB_SIZE)
    assert message in str(caught.value)


@pytest.mark.parametrize("bad", TOKENIZERS, ids=lambda bad: bad.id)
def test_bad_tokenizer(bad: BadTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(bad.data)
    with pytest.raises(bad.error, match=bad.message) as caught:
        Tokenizer.from_folder(tmp_path, VOCAB_SIZE)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_d4_a_gap_in_the_ids_is_harmless(tmp_path: Path) -> None:
    raw = byte_level_tokenizer()
    raw["model"]["vocab"]["gap"] = VOCAB_SIZE - 1
    tokenizer = loads(raw)
    assert tokenizer.decode([VOCAB_SIZE - 1, VOCAB_SIZE - 2]) == "gap"


def test_d5_an_empty_added_token_never_matches() -> None:
    raw = byte_level_tokenizer()
    raw["added_tokens"].append({**raw["added_tokens"][0], "id": VOCAB_SIZE - 1, "content": ""})
    try:
        tokenizer = loads(raw)
    except EdgeLLMError:
        return
    assert tokenizer.encode("ab", parse_special=True) == [97, 98]


def test_tokenizer_file_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path, VOCAB_SIZE)
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(InvalidTokenizer, match="is a pipe"):
        Tokenizer.from_folder(tmp_path, VOCAB_SIZE)
    (tmp_path / "tokenizer.json").unlink()
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(InvalidTokenizer, match="at most"):
        Tokenizer.from_folder(tmp_path, VOCAB_SIZE)


def test_what_a_handler_raises_is_no_fault_of_a_text() -> None:
    class Interrupted:
        """A backend during whose work a time limit is over."""

        def encode_batch(self, texts: list[str], **_: Any) -> list[Any]:
            signal.raise_signal(signal.SIGALRM)
            return found

    def handle(*_: Any) -> None:
        raise TimeoutError

    tokenizer = loads(byte_level_tokenizer())
    found = tokenizer._backend.encode_batch(["a"])
    tokenizer._backend = Interrupted()
    before = signal.signal(signal.SIGALRM, handle)
    try:
        with pytest.raises(TimeoutError):
            tokenizer.encode("a")
    finally:
        signal.signal(signal.SIGALRM, before)


def test_interrupts_are_not_swallowed() -> None:
    class Interrupting:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            raise KeyboardInterrupt

    tokenizer = loads(byte_level_tokenizer())
    tokenizer._backend = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode("a")
