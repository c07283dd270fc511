"""Downloads from the Hugging Face hub: only the files an import needs, resumable, into the user's Hugging Face cache.

The requests are huggingface_hub's: it reads HF_ENDPOINT (a mirror), HF_HUB_OFFLINE, HF_TOKEN and HF_HOME from the
environment, and sends a token only to the hub itself.  What is added here: the choice of files, a check of free space
before and of every large file's SHA-256 after, progress, large files that go on where a killed download stopped, and
one clear line per failure.  Nothing else in the project opens a connection.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from edge_llm.errors import HubError, InvalidModel, StorageError, UnsupportedModel, UsageError
from edge_llm.files import read_file, shown
from edge_llm.formats.safetensors import MODEL
from edge_llm.progress import StageProgress, byte_count, ignore
from edge_llm.sources.counted import Counted
from edge_llm.sources.hub_errors import clear_errors, is_unreachable, no_safetensors, reason
from edge_llm.sources.hub_gguf import check_runs, choose, is_only_gguf
from edge_llm.sources.modelslim_files import description_of, files_of, weights_of
from edge_llm.sources.quantization import load_settings, plain_settings
from edge_llm.strict_json import MAX_BYTES, parse_object, read_object
from edge_llm.text.chat import TOOL_USE

TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    TOOL_USE,
)
PIECE_BYTES = 1 << 20
"""What is taken from a connection at once: so often progress is told, and less is lost when one breaks."""
_SINGLE = f"{MODEL}.safetensors"
_INDEX = f"{MODEL}.safetensors.index.json"
_SHARD = re.compile(r"model-\d{5}-of-\d{5,6}\.safetensors")
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_REPOSITORY = re.compile(f"{_NAME}/{_NAME}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class RemoteFile:
    """A file of the repository that is needed."""

    name: str
    size: int
    sha256: str | None


@dataclass(frozen=True)
class Listing:
    """What a download of a repository brings."""

    commit: str
    files: tuple[RemoteFile, ...]
    folder: Path | None = None
    """Where all of it is already: the hub was not asked, or did not answer."""
    missing: int = 0
    """Bytes that are not here yet."""

    @property
    def model(self) -> str:
        """The GGUF file, the first where it is split; empty for a folder of Hugging Face's files."""
        return self.files[0].name if self.files and self.files[0].name.lower().endswith(".gguf") else ""

    @property
    def weights_bytes(self) -> int:
        return sum(file.size for file in self.files if file.name.endswith((".safetensors", ".gguf")))


def is_repository(text: str) -> bool:
    """Whether ``text`` can be a hub id."""
    return _REPOSITORY.fullmatch(text) is not None and ".." not in text and "--" not in text


def look(repository: str, revision: str | None = None, gguf: str = "") -> Listing:
    """Ask the hub what a download of ``repository`` brings.  Arguments and errors are those of `pull`."""
    _check(repository, revision)
    with clear_errors(repository, revision), _quietly():
        return _listed(repository, revision, ignore, gguf)


def pull(
    repository: str,
    revision: str | None = None,
    progress: StageProgress | None = None,
    notice: Callable[[str], None] = ignore,
    gguf: str = "",
) -> Path:
    """Download what an import needs of ``repository`` (``org/name``) and return the folder.

    revision: branch, tag or commit (default: main).  gguf: a quantization or a file's name: that GGUF file is downloaded, and
    its path is returned, of the first where it is split; one is chosen where the repository has GGUF files alone.  progress
    is called with ("download", bytes done, bytes in all).
    Where the hub cannot be reached, a complete earlier download is taken, and ``notice`` is told so.
    Raises `HubError`, `UsageError` (not an id), `UnsupportedModel` (no safetensors there) or `StorageError`.
    """
    _check(repository, revision)
    from huggingface_hub import constants, snapshot_download

    cache = Path(constants.HF_HUB_CACHE)
    with _no_trace(cache, repository), clear_errors(repository, revision), _quietly():
        listing = _listed(repository, revision, notice, gguf)
        if listing.folder is not None:
            return listing.folder / listing.model
        if listing.model:
            notice(f"{listing.model}, {byte_count(listing.weights_bytes)}")
        commit, files = listing.commit, list(listing.files)
        _fetch_large(cache / _folder_name(repository) / "blobs", repository, commit, files, progress or ignore)
        # takes the large files from the cache, the small ones from the hub
        names = [file.name for file in files]  # none of them is a pattern
        folder = Path(snapshot_download(repository, revision=commit, allow_patterns=names))
        _remember(cache, repository, revision, commit)
        _check_sizes(folder, repository, files)
        return folder / listing.model


def _check(repository: str, revision: str | None) -> None:
    if not is_repository(repository):
        raise UsageError(f"`{shown(repository)}` is not a hub id; one looks like `Qwen/Qwen2.5-0.5B-Instruct`")
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise UsageError(f"`{shown(revision)}` cannot be a revision; give a branch, a tag or a commit", param="revision")


def _listed(repository: str, revision: str | None, notice: Callable[[str], None], gguf: str = "") -> Listing:
    """What the hub lists, or what is in the cache where it may not or cannot be asked."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return _cached(repository, revision, gguf)
    try:
        commit, files = _wanted(repository, revision, gguf)
    except Exception as error:
        if not is_unreachable(error):
            raise
        try:
            listing = _cached(repository, revision, gguf)
        except Exception:  # not here either: what keeps it from coming is worth telling
            raise error from None
        notice(f"{constants.ENDPOINT} cannot be reached ({reason(error)}): `{repository}` is taken from the Hugging Face cache")
        return listing
    blobs = Path(constants.HF_HUB_CACHE) / _folder_name(repository) / "blobs"
    large = [file for file in files if file.sha256 or file.name.endswith(".safetensors")]
    return Listing(commit, tuple(files), None, sum(file.size - _held(blobs, file) for file in large))


def _held(blobs: Path, file: RemoteFile) -> int:
    """Bytes of a large ``file`` that have come."""
    for path in (blobs / str(file.sha256), _partial(blobs, file)):
        if path.exists():
            return min(file.size, path.stat().st_size)
    return 0


def _cached(repository: str, revision: str | None, gguf: str) -> Listing:
    """What an earlier download, ours or another program's, left.  Raises `FileNotFoundError` where that is not whole."""
    from huggingface_hub import snapshot_download

    # weights are looked for by hand: huggingface_hub would miss the files that were never wanted
    look_up = partial(snapshot_download, repository, revision=revision, local_files_only=True)
    folder = Path(look_up(allow_patterns=[]))
    models = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf")]
    if gguf or (is_only_gguf(models) and not any(folder.glob("*.safetensors*"))):
        chosen = choose(repository, models, gguf)
        return Listing(folder.name, tuple(RemoteFile(name, (folder / name).stat().st_size, None) for name in chosen), folder)
    look_up(allow_patterns=list(TEXT_FILES))
    here = [path.name for path in folder.iterdir()]
    description = description_of(here)
    weights = weights_of(here) if description else MODEL
    single, index = f"{weights}.safetensors", folder / f"{weights}.safetensors.index.json"
    names = [single]
    if index.exists() and not (folder / single).exists():
        weight_map = read_object(index).get("weight_map")
        names = sorted({str(name) for name in weight_map.values()}) if isinstance(weight_map, dict) else []
    for name in ["config.json", *names]:
        if not (folder / name).exists():
            raise FileNotFoundError(folder / name)
    files = tuple(RemoteFile(name, (folder / name).stat().st_size, None) for name in names)
    return Listing(folder.name, files, folder)


def _folder_name(repository: str) -> str:
    return "models--" + repository.replace("/", "--")


def _wanted(repository: str, revision: str | None, gguf: str) -> tuple[str, list[RemoteFile]]:
    """Ask the hub for the commit and for the files that an import reads."""
    from huggingface_hub import HfApi

    info = HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=_patience())
    commit = info.sha or ""
    if not _COMMIT.fullmatch(commit):
        raise HubError(f"the hub's answer for `{repository}` names the commit `{shown(commit)}`; try again later")
    present = {file.rfilename: file for file in info.siblings or []}
    if gguf or (is_only_gguf(present) and not description_of(present)):
        check_runs(repository, getattr(info, "gguf", None))
        return commit, [_remote_file(present[name]) for name in choose(repository, present, gguf)]
    names = [name for name in TEXT_FILES if name in present]
    if _SINGLE in present:
        names.append(_SINGLE)
    elif _INDEX in present:
        names += [_INDEX, *sorted(name for name in present if _SHARD.fullmatch(name))]
    elif not description_of(present):
        raise no_safetensors(repository, list(present), getattr(info.card_data, "base_model", None))
    if description_of(present):
        names += [name for name in files_of(present) if name not in names]
    if "config.json" not in present:
        raise UnsupportedModel(f"`{repository}` has no config.json, so it is not a Hugging Face model; try another one")
    described = description_of(present) is not None
    original = getattr(info.card_data, "base_model", None)
    _check_runs(repository, commit, _remote_file(present["config.json"]), described, original)
    return commit, [_remote_file(present[name]) for name in names]


def _check_runs(repository: str, commit: str, config: RemoteFile, described: bool, original: object) -> None:
    """Refuse a model that does not run here before its weights are downloaded, with what an import would say.

    ``described``: a file of its own says how its weights are quantized.  ``original``: the model that they were made of.
    """
    try:
        raw = parse_object(_small_file(repository, commit, config), config.name)
        load_settings(plain_settings(raw) if described else raw, original)
    except (InvalidModel, UnsupportedModel) as refused:
        raise type(refused)(f"`{repository}` cannot be run here: {refused}") from None


def _small_file(repository: str, commit: str, file: RemoteFile) -> bytes:
    """The bytes of ``file``: those of an earlier download, or the hub's."""
    from huggingface_hub import hf_hub_url, try_to_load_from_cache
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    cached = try_to_load_from_cache(repository, file.name, revision=commit)
    if isinstance(cached, str):
        return read_file(Path(cached), MAX_BYTES)

    def check(count: int) -> None:
        if count > MAX_BYTES:
            raise InvalidModel(f"`{file.name}` has more than {MAX_BYTES >> 20} MiB")

    data = io.BytesIO()
    address = hf_hub_url(repository, file.name, revision=commit)
    http_get(address, cast(BinaryIO, Counted(data, check)), headers=build_hf_headers(), expected_size=file.size)
    return data.getvalue()


def _remote_file(file: Any) -> RemoteFile:
    checksum = getattr(file.lfs, "sha256", None)
    return RemoteFile(file.rfilename, int(file.size or 0), checksum)


def _fetch_large(blobs: Path, repository: str, commit: str, files: list[RemoteFile], progress: StageProgress) -> None:
    """Put the large files into the cache's ``blobs`` under their SHA-256, one after the other."""
    total = sum(file.size for file in files)
    large = [file for file in files if file.sha256 and not (blobs / file.sha256).exists()]
    _check_space(blobs, sum(file.size - _held(blobs, file) for file in large))
    done = total - sum(file.size for file in large)
    for remote in large:

        def arrived(count: int, before: int = done) -> None:
            progress("download", before + count, total)

        arrived(_held(blobs, remote))
        _fetch(blobs, repository, commit, remote, arrived)
        done += remote.size
    progress("download", total, total)


def _fetch(blobs: Path, repository: str, commit: str, remote: RemoteFile, arrived: Callable[[int], None]) -> None:
    """Download one file, from where an earlier try stopped; it gets its name when its SHA-256 is right."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    assert remote.sha256
    blobs.mkdir(parents=True, exist_ok=True)
    partial = _partial(blobs, remote)
    with partial.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HubError(f"`{remote.name}` of `{repository}` is being downloaded by another process; wait") from None
        have = file.seek(0, os.SEEK_END)
        if have > remote.size:
            have = file.truncate(0)
        try:
            http_get(
                hf_hub_url(repository, remote.name, revision=commit),
                cast(BinaryIO, Counted(file, arrived)),
                resume_size=have,
                headers=build_hf_headers(),
                expected_size=remote.size,
            )
        except BaseException:
            if not file.tell():  # nothing came that a next try could use
                partial.unlink()
            raise
        file.flush()
        os.fsync(file.fileno())
        if _sha256(partial) != remote.sha256:
            partial.unlink()
            raise HubError(f"`{remote.name}` of `{repository}` arrived damaged and was removed; run the command again")
        partial.rename(blobs / remote.sha256)


def _partial(blobs: Path, remote: RemoteFile) -> Path:
    return blobs / f"{remote.sha256}.edge-llm.incomplete"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _patience() -> int:
    """Seconds that the hub may say nothing."""
    from huggingface_hub import constants

    return int(constants.HF_HUB_DOWNLOAD_TIMEOUT)


@contextmanager
def _quietly() -> Iterator[None]:
    """Have huggingface_hub show no bars, say nothing, take `PIECE_BYTES` at once, and wait no longer than `_patience`."""
    from huggingface_hub import constants
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
        get_session,
        logging,
    )

    get_session().timeout = _patience()  # some of its requests have none
    bars, verbosity, piece = not are_progress_bars_disabled(), logging.get_verbosity(), constants.DOWNLOAD_CHUNK_SIZE
    disable_progress_bars()
    logging.set_verbosity_error()
    constants.DOWNLOAD_CHUNK_SIZE = PIECE_BYTES
    try:
        yield
    finally:
        constants.DOWNLOAD_CHUNK_SIZE = piece
        logging.set_verbosity(verbosity)
        if bars:
            enable_progress_bars()


def _check_space(folder: Path, needed: int) -> None:
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if free < needed + 2**20:
        raise StorageError(
            f"the download needs {byte_count(needed)} in `{place}`, where {byte_count(free)} are free; free some, or set "
            "HF_HOME to a folder on another disk"
        )


def _remember(cache: Path, repository: str, revision: str | None, commit: str) -> None:
    """Note which commit the revision was, as huggingface_hub does, so that it is found again offline."""
    if revision == commit:
        return
    reference = cache / _folder_name(repository) / "refs" / (revision or "main")
    with suppress(OSError):  # only costs the offline look-up
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit)


def _check_sizes(folder: Path, repository: str, files: list[RemoteFile]) -> None:
    """Hold every file against its promised size; a wrong one is removed, to be fetched again."""
    for remote in files:
        path = folder / remote.name
        if not path.exists() or path.stat().st_size != remote.size:
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise HubError(f"`{remote.name}` of `{repository}` did not arrive whole; run the command again")


@contextmanager
def _no_trace(cache: Path, repository: str) -> Iterator[None]:
    """On failure remove the cache folders that this call made, unless they hold bytes that a next try can use."""
    folders = [cache / _folder_name(repository), cache / ".locks" / _folder_name(repository)]
    new = [folder for folder in folders if not folder.exists()]
    try:
        yield
    except BaseException:
        if folders[0] in new and not any(path.stat().st_size for path in (folders[0] / "blobs").glob("*")):
            for folder in new:
                shutil.rmtree(folder, ignore_errors=True)
        raise
