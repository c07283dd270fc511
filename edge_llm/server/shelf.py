"""The models of this user as a server offers them: those that were imported, and the built-in one; read anew for each look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from edge_llm.engine.contract import Service
from edge_llm.engine.engine import Engine
from edge_llm.errors import ModelNotFound
from edge_llm.files import shown
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.ledger import MemoryNeeds
from edge_llm.paths import BUILTIN_MODEL_NAME, find_bundle, imported_models
from edge_llm.progress import StageProgress
from edge_llm.weights.budget import parse_memory


@dataclass(frozen=True)
class SizedModel:
    """What a model takes, by the sizes that its manifest says."""

    name: str
    memory: MemoryNeeds


class ImportedModels:
    """All models here, each with ``pages`` bytes for keys and values; ``memory`` is the budget for weights, if there is one.

    ``open_model`` makes the engine and the service of a name; it is called from other threads.
    """

    def __init__(
        self, open_model: Callable[[str, StageProgress], tuple[Engine, Service]], pages: int, memory: str | None = None
    ) -> None:
        self.load = open_model
        self._pages = pages
        self._memory = memory
        self._sizes: dict[str, tuple[int, SizedModel]] = {}
        """By name: the manifest's time, and what it said then."""

    def names(self) -> Sequence[str]:
        return [*sorted(imported_models()), BUILTIN_MODEL_NAME]

    def default(self) -> str:
        return next(iter(imported_models()), BUILTIN_MODEL_NAME)

    def plan(self, name: str) -> SizedModel:
        folder = find_bundle(name)
        made = (folder / "manifest.json").stat().st_mtime_ns
        known = self._sizes.get(name)
        if known is None or known[0] != made:
            with open_bundle(folder) as bundle:
                weights = bundle.size if self._memory is None else min(bundle.size, parse_memory(self._memory, bundle.size))
            known = self._sizes[name] = (made, SizedModel(name, MemoryNeeds(weights, self._pages)))
        return known[1]

    def unknown(self, name: str) -> ModelNotFound:
        here = {one.casefold(): one for one in self.names()}
        near = [here[one] for one in get_close_matches(name.casefold(), here, 3)]
        meant = f"did you mean {' or '.join(f'`{shown(one)}`' for one in near)}? " if near else ""
        ways = "GET /v1/models lists what is here, `edge-llm import SOURCE` gets one from a hub (`pull` only downloads)"
        return ModelNotFound(f"no model `{shown(name)}` here; {meant}{ways}", model=name)
