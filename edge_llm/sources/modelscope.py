"""Downloads from ModelScope, `modelscope:ORG/NAME`, as `edge_llm.sources.hub` has them from the Hugging Face hub.

MODELSCOPE_ENDPOINT names the service, MODELSCOPE_API_TOKEN who asks, MODELSCOPE_CACHE where files go:

    <cache>/hub/edge-llm/models--ORG--NAME/blobs/<SHA-256>
                                           snapshots/<digest of all files' names and checksums>/<file>
                                           refs/<revision>

The service has no commits: a snapshot is known by what the list of files says.  It answers errors with status 200 too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from edge_llm.errors import HubError, InvalidModel
from edge_llm.files import shown, write_whole
from edge_llm.progress import StageProgress, byte_count, ignore
from edge_llm.sources.hub_download import Address, Blobs, RemoteFile, folder_name, no_trace, quietly, remember, small_file
from edge_llm.sources.hub_errors import clear_errors, reason, when_unreachable
from edge_llm.sources.hub_files import Listing, Wanted, cached, check_names, is_safe_name, needed
from edge_llm.sources.modelscope_errors import endpoint, modelscope, refusal
from edge_llm.strict_json import parse_object

DEFAULT_REVISION = "master"
_MAX_FILES = 16_384
_MAX_SIZE = 1 << 50
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SNAPSHOT = re.compile(r"[0-9a-f]{40}")


def look(repository: str, revision: str | None = None, wanted: Wanted = Wanted()) -> Listing:  # noqa: B008
    """Ask what a download of ``repository`` brings.  Arguments and errors are those of `pull`."""
    check_names(repository, revision)
    with clear_errors(modelscope(_cache()), repository, revision), quietly():
        return _listed(repository, revision or DEFAULT_REVISION, ignore, wanted)


def pull(
    repository: str,
    revision: str | None = None,
    progress: StageProgress | None = None,
    notice: Callable[[str], None] = ignore,
    wanted: Wanted = Wanted(),  # noqa: B008
) -> Path:
    """As `edge_llm.sources.hub.pull`, from ModelScope; revision: branch or tag (default: master)."""
    check_names(repository, revision)
    revision, folder = revision or DEFAULT_REVISION, _folder(repository)
    with no_trace(folder), clear_errors(modelscope(_cache()), repository, revision), quietly():
        listing = _listed(repository, revision, notice, wanted)
        if listing.folder is not None:
            return listing.folder / listing.model
        if listing.model:
            notice(f"{listing.model}, {byte_count(listing.weights_bytes)}")
        blobs = _blobs(repository)
        large = [file for file in listing.files if file.is_weights]
        blobs.fetch(large, lambda file: _address(repository, revision, file), progress or ignore)
        snapshot = folder / "snapshots" / listing.commit
        for file in listing.files:
            _put(snapshot / file.name, file, blobs, lambda file: _small_file(repository, revision, file))
        remember(folder, revision, listing.commit)
        return snapshot / listing.model


def _listed(repository: str, revision: str, notice: Callable[[str], None], wanted: Wanted) -> Listing:
    """What the service lists, or what came earlier where it cannot be asked."""
    try:
        present = _present(repository, revision)
        files = needed(repository, present, wanted, lambda file: _small_file(repository, revision, file))
    except Exception as error:
        listing = when_unreachable(error, lambda: _cached(repository, revision, wanted))
        notice(f"{endpoint()} cannot be reached ({reason(error)}): `{repository}` is taken from `{_cache()}`")
        return listing
    for file in files:
        if file.is_weights and file.sha256 is None:
            raise HubError(f"{endpoint()} names no SHA-256 of `{shown(file.name)}` of `{repository}`; take another repository")
    blobs = _blobs(repository)
    missing = sum(file.size - blobs.held(file) for file in files if file.is_weights)
    return Listing(_snapshot_of(present), tuple(files), None, missing)


def _cached(repository: str, revision: str, wanted: Wanted) -> Listing:
    folder = _folder(repository)
    commit = (folder / "refs" / revision).read_text()
    if not _SNAPSHOT.fullmatch(commit):
        raise FileNotFoundError(folder)
    return cached(repository, folder / "snapshots" / commit, commit, wanted)


def _present(repository: str, revision: str) -> dict[str, RemoteFile]:
    """All files of the repository.  Raises `HubError` for an answer that is none."""
    query = urlencode({"Revision": revision, "Recursive": "true"})
    url = f"{endpoint()}/api/v1/models/{quote(repository)}/repo/files?{query}"
    try:
        answer = parse_object(small_file(_to(url), "the list of files"), "the list of files", error=HubError)
    except InvalidModel as error:  # it is too long
        raise HubError(f"what {endpoint()} lists for `{repository}` cannot be read: {error}") from None
    if answer.get("Code", 200) != 200 or answer.get("Success") is False:
        raise refusal(repository, revision, answer)
    data = answer.get("Data")
    entries = data.get("Files") if isinstance(data, dict) else None
    if not isinstance(entries, list) or len(entries) > _MAX_FILES:
        raise _no_list(repository, "no list of files" if not isinstance(entries, list) else f"{len(entries)} files")
    found = [_remote_file(repository, entry) for entry in entries if not _is_folder(entry)]
    return {file.name: file for file in found}


def _is_folder(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("Type") == "tree"


def _remote_file(repository: str, entry: Any) -> RemoteFile:
    name, size = (entry.get(key) for key in ("Path", "Size")) if isinstance(entry, dict) else (None, None)
    if not isinstance(name, str) or not is_safe_name(name):
        raise _no_list(repository, f"a file that is called `{shown(name)}`")
    if type(size) is not int or not 0 <= size <= _MAX_SIZE:
        raise _no_list(repository, f"`{shown(name)}` with `{shown(size)}` bytes")
    checksum = entry.get("Sha256")
    is_checksum = isinstance(checksum, str) and _SHA256.fullmatch(checksum.lower()) is not None
    return RemoteFile(name, size, checksum.lower() if is_checksum else None)


def _no_list(repository: str, what: str) -> HubError:
    return HubError(f"{endpoint()} lists {what} for `{repository}`, which is no list; is MODELSCOPE_ENDPOINT right?")


def _snapshot_of(present: dict[str, RemoteFile]) -> str:
    """What tells this state of a repository from any other."""
    facts = sorted([file.name, file.size, file.sha256] for file in present.values())
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:40]


def _put(path: Path, file: RemoteFile, blobs: Blobs, read: Callable[[RemoteFile], bytes]) -> None:
    """Have ``file`` at ``path``: a link to its blob, or its bytes where it is small."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if file.is_weights:
        if not path.exists():
            path.unlink(missing_ok=True)
            path.symlink_to(os.path.relpath(blobs.folder / str(file.sha256), path.parent))
    elif not _is_there(path, file):
        write_whole(path, read(file), mode=0o644)


def _is_there(path: Path, file: RemoteFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    return file.sha256 is None or hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256


def _small_file(repository: str, revision: str, file: RemoteFile) -> bytes:
    """The bytes of ``file``.  Raises `HubError` for others than were promised."""
    data = small_file(_address(repository, revision, file), file.name, file.size)
    if file.sha256 is not None and hashlib.sha256(data).hexdigest() != file.sha256:
        raise HubError(f"`{shown(file.name)}` of `{repository}` arrived damaged; run the command again")
    return data


def _address(repository: str, revision: str, file: RemoteFile) -> Address:
    query = urlencode({"Revision": revision, "FilePath": file.name})
    return _to(f"{endpoint()}/api/v1/models/{quote(repository)}/repo?{query}")


def _to(url: str) -> Address:
    """``url`` with what says who asks; neither header goes to another host that it redirects to."""
    token = os.environ.get("MODELSCOPE_API_TOKEN", "").strip()
    known = {"Authorization": f"Bearer {token}", "Cookie": f"m_session_id={token}"} if token.isascii() and token else {}
    return Address(url, {"User-Agent": "edge-llm", "Accept-Encoding": "identity", **known})


def _blobs(repository: str) -> Blobs:
    return Blobs(_folder(repository) / "blobs", repository, "MODELSCOPE_CACHE")


def _folder(repository: str) -> Path:
    return _cache() / folder_name(repository)


def _cache() -> Path:
    root = os.environ.get("MODELSCOPE_CACHE") or "~/.cache/modelscope"
    return Path(root).expanduser() / "hub" / "edge-llm"
