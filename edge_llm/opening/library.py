"""The models that are here, as lists and pickers show them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge_llm.config import DEFAULT_CONTEXT, ModelConfig
from edge_llm.errors import EdgeLLMError
from edge_llm.files import folder_bytes
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.formats.sizes import sizes
from edge_llm.kv.pages import PAGE_TOKENS, page_bytes
from edge_llm.models import describe
from edge_llm.opening.made_from import repository_of
from edge_llm.paths import model_folders
from edge_llm.resources import free_memory


@dataclass(frozen=True)
class InstalledModel:
    """What is known of a model without reading its weights; with a ``problem``, only its name and folder are."""

    name: str
    folder: Path
    family: str = ""
    parameters: int = 0
    nbytes: int = 0
    """Of all its files."""
    weights_bytes: int = 0
    kv_bytes: int = 0
    """Of INT8 keys and values, when the context that it gets by default is full."""
    context: int = 0
    precision: str = ""
    """The schemes of its linears, such as `int8` or `int8+float16`, the one with most linears first."""
    repository: str = ""
    """The hub id that it was imported from, if it was."""
    problem: str | None = None

    def fits(self, free: int | None = None) -> bool:
        """Whether its weights and a full default context have room in ``free`` bytes; default: the memory that is free now.

        One that does not fit may still run: `--memory` streams weights from flash, `--ctx` makes the context smaller.
        """
        return self.problem is None and fits(self.weights_bytes, self.kv_bytes, free_memory() if free is None else free)


def fits(weights_bytes: int, kv_bytes: int, free: int) -> bool:
    """Whether weights and keys and values have room in ``free`` bytes of memory."""
    return weights_bytes + kv_bytes <= free


def default_kv_bytes(config: ModelConfig) -> int:
    """Bytes of INT8 keys and values, when the context that a model gets by default is full."""
    return page_bytes(describe(config).attentions) // PAGE_TOKENS * min(config.context, DEFAULT_CONTEXT)


def installed_models() -> list[InstalledModel]:
    """The built-in model and those that were imported, by name.  Raises `StorageError` where nobody may look."""
    return [_installed(name, folder) for name, folder in model_folders()]


def _installed(name: str, folder: Path) -> InstalledModel:
    try:
        with open_bundle(folder) as bundle:
            return installed(name, bundle)
    except EdgeLLMError as error:
        return InstalledModel(name, folder, problem=str(error))


def installed(name: str, bundle: Bundle) -> InstalledModel:
    """What is known of the open ``bundle``, which is called ``name``."""
    config, described = bundle.config, describe(bundle.config)
    return InstalledModel(
        name,
        bundle.folder,
        config.family,
        described.parameters,
        folder_bytes(bundle.folder),
        bundle.size,
        default_kv_bytes(config),
        config.context,
        sizes(bundle).precision,
        repository_of(bundle.manifest["source"])[0],
    )
