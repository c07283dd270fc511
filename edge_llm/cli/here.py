"""What a person names as MODEL becomes a model that is here: by its name, or downloaded and imported after a yes."""

from __future__ import annotations

import click

from edge_llm.config import RuntimeConfig
from edge_llm.errors import ModelNotFound, UsageError
from edge_llm.paths import find_bundle

yes_option = click.option("-y", "--yes", is_flag=True, help="Download and import a MODEL that is not here without asking.")
no_store_option = click.option(
    "--no-store", is_flag=True, help="Keep nothing of a MODEL that is a GGUF file: it is laid out in memory, for this time."
)


def known_here(model: str | None, *, or_file: bool = False) -> str | None:
    """``model`` as `find_bundle` takes it, which may be named as for `model_here`; nothing is brought here.

    ``or_file``: a GGUF file in blocks is taken as it is, as by `model_here`.

    Raises `ModelNotFound` and `UsageError` for one that is not here, with the way out.
    """
    try:
        find_bundle(model)
    except (ModelNotFound, UsageError) as missing:
        from edge_llm.cli import bring  # the importer, which a model that is here does without

        assert model is not None
        return bring.find(model, missing, or_file=or_file)
    return model


def model_here(model: str | None, runtime: RuntimeConfig, *, yes: bool, store: bool = True) -> str | None:
    """``model`` as `find_bundle` takes it.  One that is not here is offered, and brought here by who says yes, or by ``yes``.

    It may be a hub id, the address of a page of the hub, a folder or a file in it, or a short name of the shipped table.
    A GGUF file in blocks is taken without a question, unless ``runtime`` names a card; where it is not to be in ``store``, into
    memory until this process ends.
    Raises `ModelNotFound` and `UsageError` where nothing can be brought or nobody can be asked, and what an import raises.
    """
    try:
        find_bundle(model)
    except (ModelNotFound, UsageError) as missing:
        from edge_llm.cli import bring  # the importer, which a model that is here does without

        assert model is not None
        return bring.bring(model, missing, runtime, yes=yes, store=store)
    return model
