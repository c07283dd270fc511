"""Repositories by the hub that a person names: Hugging Face's, or ModelScope."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edge_llm.progress import StageProgress, ignore
from edge_llm.sources import hub, modelscope
from edge_llm.sources.hub_download import folder_name
from edge_llm.sources.hub_files import Listing, Wanted
from edge_llm.sources.place import MODELSCOPE, Place, place_of


def look(place: Place, revision: str | None = None) -> Listing:
    """What a download of ``place`` brings.  Arguments and errors are those of `pull`."""
    ask = modelscope.look if place.hub == MODELSCOPE else hub.look
    return ask(place.repository, revision or place.revision, Wanted(place.gguf))


def pull(
    place: Place,
    revision: str | None = None,
    progress: StageProgress | None = None,
    notice: Callable[[str], None] = ignore,
    *,
    adapter: bool = False,
) -> Path:
    """Download what an import needs of ``place``, which is on a hub, and return the folder, or the GGUF file.

    revision: another than that of ``place``.  adapter: it is an adapter, not a model.  See `edge_llm.sources.hub.pull`.
    """
    fetch = modelscope.pull if place.hub == MODELSCOPE else hub.pull
    return fetch(place.repository, revision or place.revision, progress, notice, Wanted(place.gguf, adapter))


def find_folder(
    source: str | Path,
    revision: str | None = None,
    progress: StageProgress = ignore,
    notice: Callable[[str], None] = ignore,
) -> tuple[str, str, Path]:
    """Kind (folder or hub), name and folder of ``source``; what is on the hub is downloaded first."""
    place = place_of(source)
    if place.folder is not None:
        return "folder", str(place.folder), place.folder
    found = pull(place, revision, progress, notice)
    beside = found.parts.index(folder_name(place.repository))
    commit = found.parts[beside + 2]  # of the cache: models--ORG--NAME/snapshots/COMMIT, and a GGUF file in it
    return "hub", f"{place}@{commit}", found
