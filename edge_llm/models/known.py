"""The shipped table of small models by short names, as people type them: `qwen3`, `llama3.2:1b` (`small_models.toml`)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import UnsupportedModel
from edge_llm.files import shown
from edge_llm.models import load_config

_TABLE = Path(__file__).with_name("small_models.toml")
_FEW = 6
"""Names that a message lists at most."""


@dataclass(frozen=True)
class KnownModel:
    """A published model that the table names."""

    names: tuple[str, ...]
    repository: str
    download: int
    """About the bytes of its weights as published."""
    gated: bool
    """Its terms must be accepted on its page before it can be downloaded."""
    raw: Mapping[str, Any] = field(repr=False, compare=False)
    """What counts of its config.json."""

    @cached_property
    def config(self) -> ModelConfig:
        """Its shapes; not all of its constants.  Its family is loaded for that alone."""
        return load_config(dict(self.raw))

    @property
    def name(self) -> str:
        """The one of its names that says its size."""
        return self.names[-1]


@cache
def known_models() -> tuple[KnownModel, ...]:
    """All that the table names, in its order."""
    return tuple(
        KnownModel(
            tuple(one["names"]),
            one["repository"],
            one["download"],
            one.get("gated", False),
            one["config"],
        )
        for one in _table()["model"]
    )


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(_TABLE.read_text())


def short_names() -> list[str]:
    """All names of the table, those without a size first."""
    return sorted((name for one in _table()["model"] for name in one["names"]), key=lambda name: ":" in name)


def find_known(word: str) -> KnownModel | None:
    """The model that ``word`` names: a short name, also with `:latest` or `-` for `:`, or its hub id or the end of that."""
    wanted = _plain(word.casefold().removesuffix(":latest"))
    for model in known_models():
        repository = model.repository.casefold()
        if wanted in (*map(_plain, model.names), _plain(repository), _plain(repository.partition("/")[2])):
            return model
    return None


def names_like(word: str) -> list[str]:
    """Short names that ``word`` may have meant: of its family, those that begin so, or one that is spelled nearly so."""
    wanted = word.casefold()
    names = [name for model in known_models() for name in model.names]
    family = wanted.partition(":")[0]
    found = [name for name in names if ":" in wanted and name.partition(":")[0] == family and ":" in name]
    found = found or [name for name in names if wanted and name.startswith(wanted) and ":" not in name]
    return (found or get_close_matches(wanted, names, n=1, cutoff=0.75))[:_FEW]


def refuse_family(word: str) -> UnsupportedModel | None:
    """The error for ``word`` if it names a family that people ask for and that does not run here."""
    wanted = word.casefold()
    runs = {family for model in known_models() if wanted.startswith(family := model.name.partition(":")[0])}
    for begins, what in _table()["not_yet"].items():
        is_meant = re.fullmatch(rf"{re.escape(begins)}([-_:.]?\d.*|[-_:.].*)?", wanted)
        if is_meant and not any(family.startswith(begins) for family in runs):
            names = ", ".join(f"`{name}`" for name in short_names() if ":" not in name)
            return UnsupportedModel(
                f"no model `{shown(word)}`: {what} cannot be run here yet; these are fetched by name: {names}; "
                "`edge-llm list` shows what is here"
            )
    return None


def _plain(name: str) -> str:
    return name.replace(":", "-")
