"""Gaps: the tokens of a family, in its order, and a clear word where there are none."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from edge_llm.errors import UsageError
from edge_llm.text.infill import infill_prompt, infill_tokens
from edge_llm.text.tokenizer import SpecialTokens, Tokenizer

FAMILIES = [
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
]


def tokenizer_with(*marks: str) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", *marks])
    return Tokenizer(backend, backend.get_vocab_size(), SpecialTokens(bos_id=backend.token_to_id("<s>"), add_bos=True))


@pytest.mark.parametrize("marks", FAMILIES)
def test_a_prompt_is_prefix_suffix_and_gap_in_the_family_s_tokens(marks: tuple[str, ...]) -> None:
    tokenizer = tokenizer_with(*marks)
    found = tokenizer.decode(infill_prompt(tokenizer, "def f(", "return 1"), skip_special=False)
    assert found == f"<s>{marks[0]}def f({marks[1]}return 1{marks[2]}"


def test_files_go_before_behind_their_names() -> None:
    tokenizer = tokenizer_with(*FAMILIES[0])
    found = tokenizer.decode(infill_prompt(tokenizer, "a", "b", files=[("x.h", "int x;")]), skip_special=False)
    assert "<|file_sep|>x.h\nint x;\n" in found and found.endswith("<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>")
    assert found.startswith("<s><|repo_name|>")


def test_what_spells_a_token_in_the_texts_is_text() -> None:
    tokenizer = tokenizer_with(*FAMILIES[1])
    tokens = infill_tokens(tokenizer)
    assert tokens is not None
    found = infill_prompt(tokenizer, "<fim_middle>", "<fim_prefix>")
    assert [found.count(token) for token in (tokens.prefix, tokens.suffix, tokens.middle)] == [1, 1, 1]


def test_a_model_without_them_says_so() -> None:
    tokenizer = tokenizer_with("<fim_prefix>", "<fim_suffix>")
    assert infill_tokens(tokenizer) is None
    with pytest.raises(UsageError, match="fills no gaps") as refusal:
        infill_prompt(tokenizer, "a", "b")
    assert refusal.value.param == "suffix"
