"""The token ids that an import runs: what is measured, and what weights are fitted to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.convert.calibrate import MAX_TOKENS, PASSAGE_BREAK, CalibrationText, calibration_sequences, some_of
from edge_llm.convert.parallel import core_count
from edge_llm.convert.saved import Saved
from edge_llm.convert.self_written import PRODUCTS_PER_SECOND, check_memory, openings, tokens_worth_writing, widest, write_text
from edge_llm.errors import UsageError
from edge_llm.kernels import ThreadPool
from edge_llm.models.layer import Decoder
from edge_llm.progress import StageProgress
from edge_llm.sources.base import Source
from edge_llm.text.tokenizer import Tokenizer

FEW_TOKENS = 512
"""A shorter calibration text is worth a word: folds and shadows chosen on it fit other texts less well."""
ENOUGH_PER_COLUMN = 5
"""Tokens per input channel of the widest linear that are enough to fit codes to; of fewer, import tells."""
MAX_CODED_TOKENS = 32768
"""Tokens that 4-bit weights are fitted to, at most."""
_CODED_WORK = 2**46
"""Multiply-adds of the float model on these tokens, at most: larger models are fitted to fewer, `MAX_INT8_TOKENS` at least."""
MAX_INT8_TOKENS = 8192
"""The same of INT8 weights, which gain less: with twice as many the KL of SmolLM2 is the same."""


def coded_tokens(decoder: Decoder, *, codes: bool) -> int:
    """Tokens that weights of ``decoder`` are fitted to, at most; ``codes``: in 4 bits, which gain more of them."""
    affordable = max(MAX_INT8_TOKENS, _CODED_WORK // decoder.parameters)
    return min(affordable, MAX_CODED_TOKENS) if codes else MAX_INT8_TOKENS


@dataclass(frozen=True)
class Texts:
    """Token ids int64 [T] of sequences."""

    measured: list[np.ndarray]
    coded: list[np.ndarray]
    """Empty where nothing is coded."""


def texts_of(
    text: CalibrationText,
    source: Source,
    decoder: Decoder,
    tokenizer: Tokenizer,
    coded: int,
    saved: Saved,
    progress: StageProgress,
    notice: Callable[[str], None],
) -> Texts:
    """The sequences of ``text``, and those that weights are fitted to: at most ``coded`` tokens, 0 where none are.

    The model writes half of them where that is asked for (which is better than all of them: LOG, "4-bit weights"); that is
    ``saved``.
    """
    if text.by_model and decoder.is_encoder:
        raise UsageError("--calibration self: an encoder writes no text; leave it out, or give a file", param="calibration")
    texts = _shipped(text, tokenizer, source.config, coded, share=2 if text.by_model else 1)
    if text.by_model:
        written = saved.load("own text")
        if written is None:
            most = coded // 2 or MAX_TOKENS
            fewest = min(most, ENOUGH_PER_COLUMN * widest(decoder)) if coded else most
            tokens = tokens_worth_writing(decoder, fewest, most)
            written = _written(text, source, decoder, tokenizer, tokens, partial(progress, "writing"), notice)
            saved.save("own text", written)
        texts = Texts(some_of(written, MAX_TOKENS // 2) + texts.measured, written + texts.coded if coded else [])
    _tell_short(texts, coded, decoder, notice)
    return texts


def _shipped(text: CalibrationText, tokenizer: Tokenizer, config: ModelConfig, coded: int, share: int) -> Texts:
    """Of ``text``, one part in ``share`` of what is wanted."""
    all_of_it = PASSAGE_BREAK.join(filter(None, (text.text, text.more)))
    return Texts(
        calibration_sequences(text.text, tokenizer, config, MAX_TOKENS // share),
        calibration_sequences(all_of_it, tokenizer, config, coded // share) if coded else [],
    )


def _written(
    text: CalibrationText,
    source: Source,
    decoder: Decoder,
    tokenizer: Tokenizer,
    tokens: int,
    progress: Callable[[int, int], None],
    notice: Callable[[str], None],
) -> list[np.ndarray]:
    check_memory(decoder)
    cores = core_count()
    minutes = round(tokens * decoder.parameters / PRODUCTS_PER_SECOND / cores / 60)
    lasts = f"about {minutes} minutes on {cores} cores" if minutes > 1 else "a minute or less"
    notice(f"the model writes {tokens} tokens of calibration text, which takes {lasts}")
    beginnings = openings(text.text, tokenizer, source.template(tokenizer))
    context, pool = source.config.context, ThreadPool(cores)
    return write_text(source, decoder, context, tokenizer.eos_ids, beginnings, tokens, pool, progress)


def _tell_short(texts: Texts, most: int, decoder: Decoder, notice: Callable[[str], None]) -> None:
    measured, coded = (sum(len(ids) for ids in some) for some in (texts.measured, texts.coded))
    if measured < FEW_TOKENS:
        notice(f"the calibration text has only {measured} tokens; with {FEW_TOKENS} or more, INT8 is nearer to float")
    enough = min(round(0.9 * most), ENOUGH_PER_COLUMN * widest(decoder))  # the last window of a text may be short
    if texts.coded and coded < enough:
        notice(
            f"weights are fitted to {coded} tokens, for {widest(decoder)} input channels of a linear; with {enough} or more "
            "they fit other texts better: give a longer `--calibration FILE`, or `--calibration self`: the model writes one"
        )
