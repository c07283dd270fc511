"""What a model of code writes between two texts: the control tokens of its family that say where the gap is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge_llm.errors import UsageError
from edge_llm.text.tokenizer import Tokenizer

_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder 2, Granite code
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<PRE>", "<SUF>", "<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM-4
)
"""(before the prefix, before the suffix, before what is to be written) by family."""
_REPOSITORY = ("<|repo_name|>", "<repo_name>", "<reponame>", "<|reponame|>")
_FILE = ("<|file_sep|>", "<file_sep>", "<|file_separator|>", "<filename>")


@dataclass(frozen=True)
class InfillTokens:
    """The control tokens of a model that fills gaps."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None
    """What stands before the name of a repository and of a file, in models that were shown several files."""


def infill_tokens(tokenizer: Tokenizer) -> InfillTokens | None:
    """Those of the model of ``tokenizer``; None for one that has none."""
    for marks in _MARKS:
        found = [tokenizer.token_id(mark) for mark in marks]
        if all(token is not None and token < tokenizer.vocab_size for token in found):
            prefix, suffix, middle = (token for token in found if token is not None)
            return InfillTokens(prefix, suffix, middle, _first(tokenizer, _REPOSITORY), _first(tokenizer, _FILE))
    return None


def infill_prompt(
    tokenizer: Tokenizer, prefix: str, suffix: str, *, files: Sequence[tuple[str, str]] = (), most: int | None = None
) -> list[int]:
    """The tokens of a prompt whose answer stands between ``prefix`` and ``suffix``; ``files`` (name, text) go before.

    What spells a control token in the texts is text.  Raises `UsageError` for a model without the tokens, `ContextOverflow`
    above ``most`` tokens.
    """
    tokens = infill_tokens(tokenizer)
    if tokens is None:
        raise UsageError(
            "this model fills no gaps: its tokenizer has no tokens for that (such as <|fim_prefix|>); take a model of code, "
            "or leave the suffix out",
            param="suffix",
        )

    def text(given: str) -> list[int]:
        return tokenizer.encode(given, most=most)

    found = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    if files and tokens.repository is not None and tokens.file is not None:
        found += [tokens.repository, *text("repository\n")]
    for name, content in files:
        found += text(f"{name}\n{content}\n") if tokens.file is None else [tokens.file, *text(f"{name}\n{content}\n")]
    if files and tokens.file is not None:
        found += [tokens.file, *text("gap\n")]
    return [*found, tokens.prefix, *text(prefix), tokens.suffix, *text(suffix), tokens.middle]


def _first(tokenizer: Tokenizer, names: Sequence[str]) -> int | None:
    found = (tokenizer.token_id(name) for name in names)
    return next((token for token in found if token is not None and token < tokenizer.vocab_size), None)
