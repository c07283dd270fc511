"""Downloads from the Hugging Face hub: only the files an import needs, resumable, into the user's Hugging Face cache.

The requests are huggingface_hub's: it reads HF_ENDPOINT (a mirror), HF_HUB_OFFLINE, HF_TOKEN and HF_HOME from the
environment, and sends a token only to the hub itself.  What is added here: the choice of files, a check of free space
before and of every large file's SHA-256 after, progress, large files that go on where a killed download stopped, and
one clear line per failure.  Beside `edge_llm.sources.modelscope` nothing else in the project opens a connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from edge_llm.errors import HubError
from edge_llm.files import read_file, shown
from edge_llm.progress import StageProgress, byte_count, ignore
from edge_llm.sources.hub_download import (
    Address,
    Blobs,
    RemoteFile,
    folder_name,
    no_trace,
    patience,
    quietly,
    remember,
    small_file,
)
from edge_llm.sources.hub_errors import clear_errors, hugging_face, reason, when_unreachable
from edge_llm.sources.hub_files import TEXT_FILES, Listing, Wanted, cached, check_names, needed
from edge_llm.strict_json import MAX_BYTES

_NO_FILE = "-"
_COMMIT = re.compile(r"[0-9a-f]{40}")


def look(repository: str, revision: str | None = None, wanted: Wanted = Wanted()) -> Listing:  # noqa: B008
    """Ask the hub what a download of ``repository`` brings.  Arguments and errors are those of `pull`."""
    check_names(repository, revision)
    with clear_errors(hugging_face(), repository, revision), quietly():
        return _listed(repository, revision, ignore, wanted)


def pull(
    repository: str,
    revision: str | None = None,
    progress: StageProgress | None = None,
    notice: Callable[[str], None] = ignore,
    wanted: Wanted = Wanted(),  # noqa: B008
) -> Path:
    """Download what an import needs of ``repository`` (``org/name``) and return the folder.

    revision: branch, tag or commit (default: main).  wanted: of a GGUF file its path is returned, of the first where it is
    split; one is chosen where the repository has GGUF files alone.  progress is called with ("download", bytes done, bytes
    in all).
    Where the hub cannot be reached, a complete earlier download is taken, and ``notice`` is told so.
    Raises `HubError`, `UsageError` (not an id), `UnsupportedModel` (no safetensors there) or `StorageError`.
    """
    check_names(repository, revision)
    from huggingface_hub import constants, snapshot_download

    cache, name = Path(constants.HF_HUB_CACHE), folder_name(repository)
    with no_trace(cache / name, cache / ".locks" / name), clear_errors(hugging_face(), repository, revision), quietly():
        listing = _listed(repository, revision, notice, wanted)
        if listing.folder is not None:
            return listing.folder / listing.model
        if listing.model:
            notice(f"{listing.model}, {byte_count(listing.weights_bytes)}")
        commit, files = listing.commit, list(listing.files)
        _blobs(repository).fetch(files, lambda file: _address(repository, commit, file), progress or ignore)
        # takes the large files from the cache, the small ones from the hub
        names = [file.name for file in files]
        folder = Path(snapshot_download(repository, revision=commit, allow_patterns=names))  # none of them is a pattern
        if revision != commit:
            remember(cache / name, revision or "main", commit)
        _check_sizes(folder, repository, files)
        return folder / listing.model


def _listed(repository: str, revision: str | None, notice: Callable[[str], None], wanted: Wanted) -> Listing:
    """What the hub lists, or what is in the cache where it may not or cannot be asked."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return _cached(repository, revision, wanted)
    try:
        commit, files = _wanted(repository, revision, wanted)
    except Exception as error:
        listing = when_unreachable(error, lambda: _cached(repository, revision, wanted))
        notice(f"{constants.ENDPOINT} cannot be reached ({reason(error)}): `{repository}` is taken from the Hugging Face cache")
        return listing
    blobs = _blobs(repository)
    large = [file for file in files if file.sha256 or file.is_weights]
    return Listing(commit, tuple(files), None, sum(file.size - blobs.held(file) for file in large))


def _cached(repository: str, revision: str | None, wanted: Wanted) -> Listing:
    from huggingface_hub import snapshot_download

    # files are looked for by hand: huggingface_hub would miss those that were never wanted
    look_up = partial(snapshot_download, repository, revision=revision, local_files_only=True)
    folder = Path(look_up(allow_patterns=[_NO_FILE]))
    listing = cached(repository, folder, folder.name, wanted)
    if not (listing.model or wanted.adapter):
        look_up(allow_patterns=list(TEXT_FILES))
    return listing


def _wanted(repository: str, revision: str | None, wanted: Wanted) -> tuple[str, list[RemoteFile]]:
    """Ask the hub for the commit and for the files that an import reads."""
    from huggingface_hub import HfApi

    info = HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=patience())
    commit = info.sha or ""
    if not _COMMIT.fullmatch(commit):
        raise HubError(f"the hub's answer for `{repository}` names the commit `{shown(commit)}`; try again later")
    present = {file.rfilename: _remote_file(file) for file in info.siblings or []}
    base, about_gguf = getattr(info.card_data, "base_model", None), getattr(info, "gguf", None)
    return commit, needed(repository, present, wanted, lambda file: _small_file(repository, commit, file), base, about_gguf)


def _small_file(repository: str, commit: str, file: RemoteFile) -> bytes:
    """The bytes of ``file``: those of an earlier download, or the hub's."""
    from huggingface_hub import try_to_load_from_cache

    here = try_to_load_from_cache(repository, file.name, revision=commit)
    if isinstance(here, str):
        return read_file(Path(here), MAX_BYTES)
    return small_file(_address(repository, commit, file), file.name, file.size)


def _address(repository: str, commit: str, file: RemoteFile) -> Address:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    return Address(hf_hub_url(repository, file.name, revision=commit), build_hf_headers())


def _blobs(repository: str) -> Blobs:
    from huggingface_hub import constants

    return Blobs(Path(constants.HF_HUB_CACHE) / folder_name(repository) / "blobs", repository, "HF_HOME")


def _remote_file(file: Any) -> RemoteFile:
    checksum = getattr(file.lfs, "sha256", None)
    return RemoteFile(file.rfilename, int(file.size or 0), checksum)


def _check_sizes(folder: Path, repository: str, files: list[RemoteFile]) -> None:
    """Hold every file against its promised size; a wrong one is removed, to be fetched again."""
    for remote in files:
        path = folder / remote.name
        if not path.exists() or path.stat().st_size != remote.size:
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise HubError(f"`{remote.name}` of `{repository}` did not arrive whole; run the command again")
