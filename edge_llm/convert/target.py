"""What is at the place where an import is to write, and whether there is room."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from edge_llm.config import INT8
from edge_llm.convert.texts import MAX_CODED_TOKENS
from edge_llm.errors import EdgeLLMError, StorageError, UsageError
from edge_llm.files import folder_bytes
from edge_llm.formats.bundle import open_bundle, read_manifest
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
    older = "turns" not in made_from and made_by["turns"] != "none"
    judged = {key for key in made_by if key not in (("folds", "turns", "weights", "calibration") if older else ("folds",))}
    if any(made_from.get(key, _BEFORE.get(key)) != made_by[key] for key in judged):
        return "other"
    if older and _bits(made_from.get("weights") or INT8) != _bits(made_by["weights"]):
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
    return "older" if older or not folded else "same"


def _bits(weights: str) -> str:
    """``weights`` as a manifest has them, without the word that only says how they were made."""
    return weights.replace(", fitted", "")


def check_space(folder: Path, decoder: Decoder, *, keep_float: bool, fitted: bool) -> None:
    needed = int(1.02 * decoder.parameters) + 2**20
    if keep_float:
        needed += 2 * decoder.parameters
    if fitted:
        needed += 2 * 4 * MAX_CODED_TOKENS * decoder.hidden_size
    free = shutil.disk_usage(folder).free + folder_bytes(folder)
    if free < needed:
        raise StorageError(
            f"the bundle needs about {needed / 1e6:.0f} MB in `{folder.parent}`, where {free / 1e6:.0f} MB are free; "
            "free some, or set EDGE_LLM_HOME to a folder on another disk"
        )
