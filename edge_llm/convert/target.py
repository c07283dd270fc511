"""What is at the place where an import is to write, and whether there is room."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from edge_llm.config import INT8
from edge_llm.convert.calibrate import read_calibration
from edge_llm.convert.trial import TOKENS as HELD_OUT_TOKENS
from edge_llm.errors import EdgeLLMError, StorageError, UsageError
from edge_llm.files import folder_bytes
from edge_llm.formats.bundle import open_bundle, read_manifest
from edge_llm.formats.sizes import int8_bytes
from edge_llm.kernels.pointwise import MAX_TURN
from edge_llm.models.layer import Decoder

_BEFORE = {"weights": INT8, "turns": "none"}
"""What older bundles do not say of how they were made."""


def taken(target: Path) -> UsageError:
    return UsageError(
        f"a different model or import is already called `{target.name}`; choose another `--name`, or replace it with "
        "`--overwrite`",
        param="name",
    )


def refuse_overlap(folder: Path, target: Path) -> None:
    source, place = folder.resolve(), target.resolve()
    if source == place or source in place.parents or place in source.parents:
        raise UsageError(
            f"the source `{folder}` and the place of the bundle `{target}` overlap; choose another `--name`",
            param="name",
        )


def existing(target: Path, made_by: Mapping[str, str], keep_float: bool) -> str:
    """What is at ``target``: none, same, older (same source, imported before there were folds or turns), damaged (same
    source, but bytes or float weights are lost) or other."""
    if not os.path.lexists(target):
        return "none"
    try:
        made_from = read_manifest(target)["source"]
    except EdgeLLMError:
        return "other"
    older = "turns" not in made_from
    if older and not _asks_as_before(made_by, made_from):
        return "other"
    judged = {key for key in made_by if key not in (_RENEWED if older else ("folds",))}
    if any(made_from.get(key, _BEFORE.get(key)) != made_by[key] for key in judged):
        return "other"
    if keep_float and made_from.get("float") != "source":
        return "other"
    try:
        with open_bundle(target) as bundle:
            bundle.verify()
            has_source = bundle.float_source() is not None
    except EdgeLLMError:
        return "damaged"
    folded = made_from.get("folds", "none") == made_by["folds"]
    if not folded and made_by["folds"] == "none":
        return "other"
    if not has_source:
        return "damaged"  # the source was moved
    return "older" if (older and made_by["turns"] != "none") or not folded else "same"


_RENEWED = ("folds", "turns", "weights", "calibration")
"""What an older edge-llm did otherwise where nothing was asked for."""


def _asks_as_before(made_by: Mapping[str, str], made_from: Mapping[str, str | None]) -> bool:
    """Whether ``made_by`` wants of an older import what that has, or what is done today without being asked for."""
    shipped = {read_calibration(coded=coded).digest for coded in (False, True)}
    texts = {str(made_from.get("calibration")), made_by["calibration"]}
    bits = {(one or INT8).replace(", fitted", "") for one in (made_from.get("weights"), made_by["weights"])}
    return len(bits) == 1 and (len(texts) == 1 or texts <= shipped) and made_by["turns"] in ("none", f"at most {MAX_TURN}")


def check_space(
    folder: Path, decoder: Decoder, weights: int | None = None, *, keep_float: bool, fitted_tokens: int
) -> None:
    """Raise `StorageError` where ``folder`` has no room for the bundle, whose ``weights`` take so many bytes where that is
    known, and for what is saved on the way."""
    needed = weights or space_needed(decoder, keep_float=keep_float, fitted_tokens=fitted_tokens)
    free = shutil.disk_usage(folder).free + folder_bytes(folder)
    if free < needed:
        raise StorageError(
            f"the bundle needs about {needed / 1e6:.0f} MB in `{folder.parent}`, where {free / 1e6:.0f} MB are free; "
            "free some, or set EDGE_LLM_HOME to a folder on another disk"
        )


def space_needed(decoder: Decoder, *, keep_float: bool, fitted_tokens: int) -> int:
    """Bytes that the folder of an import takes at most."""
    floats = 2 * decoder.parameters if keep_float else 0
    states = 2 * 4 * decoder.hidden_size * (fitted_tokens + 2 * HELD_OUT_TOKENS)  # twice: a file is replaced by a whole one
    return int8_bytes(decoder) + floats + states
