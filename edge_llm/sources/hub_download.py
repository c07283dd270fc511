"""Large files of a hub, by whatever address: they go on where a broken connection or a killed process stopped, and get their
name when their SHA-256 is right.  The requests are huggingface_hub's."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from edge_llm.errors import HubError, InvalidModel, StorageError
from edge_llm.progress import StageProgress, byte_count
from edge_llm.sources.counted import Counted
from edge_llm.strict_json import MAX_BYTES

PIECE_BYTES = 1 << 20
"""What is taken from a connection at once: so often progress is told, and less is lost when one breaks."""

_WEIGHTS = (".safetensors", ".gguf")


@dataclass(frozen=True)
class RemoteFile:
    """A file of the repository that is needed."""

    name: str
    size: int
    sha256: str | None

    @property
    def is_weights(self) -> bool:
        return self.name.endswith(_WEIGHTS)


@dataclass(frozen=True)
class Address:
    """Where a file is asked for."""

    url: str
    headers: Mapping[str, str | None]


@dataclass(frozen=True)
class Blobs:
    """A folder of files under their SHA-256."""

    folder: Path
    repository: str
    """As messages call it."""
    setting: str
    """The variable that puts the folder elsewhere."""

    def held(self, file: RemoteFile) -> int:
        """Bytes of a large ``file`` that have come."""
        for path in (self.folder / str(file.sha256), self._partial(file)):
            if path.exists():
                return min(file.size, path.stat().st_size)
        return 0

    def fetch(self, files: Sequence[RemoteFile], address_of: Callable[[RemoteFile], Address], progress: StageProgress) -> None:
        """Bring those of ``files`` that have a SHA-256, one after the other.

        Raises `HubError` for one that arrives damaged or longer than it was said to be, and `StorageError`.
        """
        total = sum(file.size for file in files)
        large = [file for file in files if file.sha256 and not (self.folder / file.sha256).exists()]
        self._check_space(sum(file.size - self.held(file) for file in large))
        done = total - sum(file.size for file in large)
        for remote in large:

            def arrived(count: int, before: int = done) -> None:
                progress("download", before + count, total)

            arrived(self.held(remote))
            self._fetch(remote, address_of(remote), arrived)
            done += remote.size
        progress("download", total, total)

    def _fetch(self, remote: RemoteFile, address: Address, arrived: Callable[[int], None]) -> None:
        from huggingface_hub import constants
        from huggingface_hub.file_download import http_get

        assert remote.sha256
        expected = None if remote.size > constants.MAX_HTTP_DOWNLOAD_SIZE else remote.size  # it would refuse larger ones
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self._partial(remote)

        def grown(count: int) -> None:
            if count > remote.size:
                partial.unlink(missing_ok=True)
                raise HubError(
                    f"`{remote.name}` of `{self.repository}` is longer than the {byte_count(remote.size)} that the hub said, "
                    "and was removed; try again later"
                )
            arrived(count)

        with partial.open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HubError(f"`{remote.name}` of `{self.repository}` is being downloaded by another process; wait") from None
            have = file.seek(0, os.SEEK_END)
            if have > remote.size:
                have = file.truncate(0)
            try:
                http_get(
                    address.url,
                    cast(BinaryIO, Counted(file, grown)),
                    resume_size=have,
                    headers=dict(address.headers),
                    expected_size=expected,
                )
            except BaseException:
                if not file.tell():  # nothing came that a next try could use
                    partial.unlink(missing_ok=True)
                raise
            file.flush()
            os.fsync(file.fileno())
            if _sha256(partial) != remote.sha256:
                partial.unlink()
                raise HubError(f"`{remote.name}` of `{self.repository}` arrived damaged and was removed; run the command again")
            partial.rename(self.folder / remote.sha256)

    def _partial(self, remote: RemoteFile) -> Path:
        return self.folder / f"{remote.sha256}.edge-llm.incomplete"

    def _check_space(self, needed: int) -> None:
        place = next(parent for parent in (self.folder, *self.folder.parents) if parent.exists())
        free = shutil.disk_usage(place).free
        if free < needed + 2**20:
            raise StorageError(
                f"the download needs {byte_count(needed)} in `{place}`, where {byte_count(free)} are free; free some, or set "
                f"{self.setting} to a folder on another disk"
            )


def small_file(address: Address, name: str, size: int | None = None) -> bytes:
    """The bytes of a file that is read at once.  Raises `InvalidModel` for one with more than `MAX_BYTES`."""
    from huggingface_hub.file_download import http_get

    def check(count: int) -> None:
        if count > MAX_BYTES:
            raise InvalidModel(f"`{name}` has more than {MAX_BYTES >> 20} MiB")

    check(size or 0)
    data = io.BytesIO()
    http_get(address.url, cast(BinaryIO, Counted(data, check)), headers=dict(address.headers), expected_size=size)
    return data.getvalue()


def patience() -> int:
    """Seconds that a hub may say nothing."""
    from huggingface_hub import constants

    return int(constants.HF_HUB_DOWNLOAD_TIMEOUT)


@contextmanager
def quietly() -> Iterator[None]:
    """Have huggingface_hub show no bars, say nothing, take `PIECE_BYTES` at once, and wait no longer than `patience`."""
    from huggingface_hub import constants
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
        get_session,
        logging,
    )

    get_session().timeout = patience()  # some of its requests have none
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


@contextmanager
def no_trace(folder: Path, *beside: Path) -> Iterator[None]:
    """On failure remove those folders that this call made, unless ``folder`` holds blobs that a next try can use."""
    folders = [folder, *beside]
    new = [one for one in folders if not one.exists()]
    try:
        yield
    except BaseException:
        if folder in new and not any(path.stat().st_size for path in (folder / "blobs").glob("*")):
            for one in new:
                shutil.rmtree(one, ignore_errors=True)
        raise


def remember(folder: Path, revision: str, commit: str) -> None:
    """Note in a repository's ``folder`` which commit the revision was, as huggingface_hub does, so that it is found offline."""
    reference = folder / "refs" / revision
    try:
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit)
    except OSError:  # only costs the offline look-up
        return


def folder_name(repository: str) -> str:
    return "models--" + repository.replace("/", "--")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
