"""The two texts of `edge-llm bench neurons`, as token ids."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from edge_llm.bench.held_out import WINDOW
from edge_llm.bench.quality import check_enough, windows_of
from edge_llm.convert.calibrate import HELD_OUT_TEXT, read_calibration, read_text
from edge_llm.formats.bundle import Bundle
from edge_llm.text.tokenizer import Tokenizer


def texts(bundle: Bundle, text: Path | None, calibration: Path | None, most: int) -> tuple[list[list[int]], list[list[int]]]:
    """``text`` and ``calibration`` in windows, at most so many tokens of each; what spells a control token is one.

    Raises `UsageError` for a text that is too short.
    """
    tokenizer, window = Tokenizer.from_folder(bundle.folder, bundle.config.vocab_size), min(WINDOW, bundle.config.context)
    bos = tokenizer.bos_id if tokenizer.add_bos else None

    def cut(found: str) -> list[list[int]]:
        ids = tokenizer.encode(found, parse_special=True)
        check_enough(ids, window, bos)
        return list(islice(windows_of(ids[:most], window, bos), max(1, most // window)))

    return cut(read_text(text or HELD_OUT_TEXT)[0]), cut(read_calibration(calibration).text)
