"""The models of this user as a server offers them: those that were imported, and the built-in one; read anew for each look."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from edge_llm.config import RuntimeConfig
from edge_llm.engine.contract import Service
from edge_llm.engine.engine import Engine
from edge_llm.errors import EdgeLLMError, ModelNotFound
from edge_llm.files import shown
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.manifest import MANIFEST
from edge_llm.opening.ledger import MemoryNeeds
from edge_llm.opening.load import plan_of
from edge_llm.paths import BUILTIN_MODEL_NAME, find_bundle, imported_models
from edge_llm.progress import StageProgress


@dataclass(frozen=True)
class SizedModel:
    """What a model takes, as its plan says."""

    name: str
    memory: MemoryNeeds


class ImportedModels:
    """All models here, each opened as ``runtime`` says; a model of a shorter context than is asked for has its own.

    ``open_model`` makes the engine and the service of a name; it is called from other threads.
    """

    def __init__(
        self, open_model: Callable[[RuntimeConfig, str, StageProgress], tuple[Engine, Service]], runtime: RuntimeConfig
    ) -> None:
        self._open_model = open_model
        self._runtime = runtime
        self._sizes: dict[str, tuple[int, SizedModel]] = {}
        """By name: the manifest's time, and what it said then."""

    def names(self) -> Sequence[str]:
        return [*sorted(imported_models()), BUILTIN_MODEL_NAME]

    def default(self) -> str:
        return next(iter(imported_models()), BUILTIN_MODEL_NAME)

    def plan(self, name: str) -> SizedModel:
        try:
            made = (find_bundle(name) / MANIFEST).stat().st_mtime_ns
        except OSError:  # it has just been removed
            raise self.unknown(name) from None
        known = self._sizes.get(name)
        if known is None or known[0] != made:
            known = self._sizes[name] = (made, SizedModel(name, plan_of(name, self._runtime_of(name)).memory))
        return known[1]

    def learn_sizes(self) -> None:
        """Plan every model: each takes a moment, which the first list of them need not wait for then."""
        for name in self.names():
            with contextlib.suppress(EdgeLLMError, OSError):  # whoever asks for it is told
                self.plan(name)

    def load(self, name: str, progress: StageProgress) -> tuple[Engine, Service]:
        return self._open_model(self._runtime_of(name), name, progress)

    def _runtime_of(self, name: str) -> RuntimeConfig:
        if self._runtime.context is None:
            return self._runtime
        with open_bundle(find_bundle(name)) as bundle:
            return replace(self._runtime, context=min(self._runtime.context, bundle.config.context))

    def unknown(self, name: str) -> ModelNotFound:
        here = {one.casefold(): one for one in self.names()}
        near = [here[one] for one in get_close_matches(name.casefold(), here, 3)]
        meant = f"did you mean {' or '.join(f'`{shown(one)}`' for one in near)}? " if near else ""
        ways = "GET /v1/models lists what is here, `edge-llm import SOURCE` gets one from a hub (`pull` only downloads)"
        return ModelNotFound(f"no model `{shown(name)}` here; {meant}{ways}", model=name)
