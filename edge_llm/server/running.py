"""Which servers run for this user: a small file for each, which its server holds locked; one that nobody holds is stale."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import json
import os
import re
import select
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge_llm.errors import EdgeLLMError, StorageError, Unavailable
from edge_llm.files import shown
from edge_llm.paths import servers_folder
from edge_llm.strict_json import parse_object

MAX_BYTES = 1 << 16
EVERY_MODEL = "(every model)"
"""What a server of all models has in place of a name."""
LATE = 1e10
"""Seconds since 1970, far in the future: calendars and clocks of the system take no more."""
_KEY = re.compile(r"[A-Za-z0-9_-]{0,128}")
_HALF_WRITTEN = re.compile(r"\.([0-9]{1,10})-[0-9]{1,5}")
"""The name of a server's file until it is whole: its process and port."""


@dataclass(frozen=True)
class Running:
    """A server."""

    names: tuple[str, ...]
    """Those of its model, its own first."""
    host: str
    port: int
    pid: int
    began: int
    """When its process began, in ticks of the system: another process of this number has another one."""
    since: float
    """The same in seconds since 1970, by the clock of the machine."""
    drain_seconds: float
    key: str = ""
    """What it takes as an API key from whoever can read this; empty where it asks for none."""

    @property
    def serves_every_model(self) -> bool:
        """Whether it loads any model that a request names."""
        return self.names[0] == EVERY_MODEL

    @property
    def url(self) -> str:
        """Where this machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def memory(self) -> int | None:
        """Bytes of memory that its process has; None when it has ended."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError, ValueError):
            return None

    def ask_to_end(self) -> Ending:
        """Have it drain and end, as Ctrl-C does; asked again, it ends at once.

        Raises `Unavailable` for a process that is not this server (any more), or is another user's.
        """
        try:
            handle = os.pidfd_open(self.pid)  # what is asked below is asked of this process, whoever gets its number
        except ProcessLookupError:
            raise Unavailable(f"the server `{self.names[0]}` (process {self.pid}) has ended") from None
        except OSError as failure:
            raise Unavailable(f"cannot reach process {self.pid} of the server `{self.names[0]}`: {failure.strerror}") from None
        ending = Ending(handle)
        if _began(self.pid) != self.began:
            ending.close()
            raise Unavailable(
                f"process {self.pid} is not the server `{self.names[0]}`: that is in another container, or has ended"
            )
        ending.ask()
        return ending


class Ending:
    """A process that was asked to end.  Close it when done."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def ask(self) -> None:
        """Send it SIGTERM (again).  Raises `Unavailable` where that is not allowed."""
        try:
            signal.pidfd_send_signal(self._handle, signal.SIGTERM)
        except ProcessLookupError:
            return
        except OSError as failure:
            raise Unavailable(f"cannot stop the server: {failure.strerror}; its user can") from None

    def wait(self, seconds: float) -> bool:
        """Whether it ends within ``seconds``."""
        return bool(select.select([self._handle], [], [], seconds)[0])

    def close(self) -> None:
        os.close(self._handle)


@contextmanager
def listed(names: Sequence[str], host: str, port: int, drain_seconds: float, key: str = "") -> Iterator[None]:
    """This process is a server, and `running` finds it; where no file can be written it serves all the same."""
    pid = os.getpid()
    server = Running(tuple(names), host, port, pid, _began(pid) or 0, round(time.time(), 3), drain_seconds, key)
    path = descriptor = None
    with contextlib.suppress(OSError, StorageError):
        folder = servers_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in _living(folder):  # what was left goes
            pass
        path, new = folder / f"{pid}-{port}.json", folder / f".{pid}-{port}"
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, json.dumps(asdict(server)).encode())
        new.rename(path)
    try:
        yield
    finally:
        if path is not None:
            path.unlink(missing_ok=True)
        if descriptor is not None:
            os.close(descriptor)


def running() -> list[Running]:
    """The servers of this user, the first one that began first.  Raises `StorageError`."""
    folder = servers_folder()
    try:
        found = list(_living(folder)) if folder.is_dir() else []
    except OSError as failure:
        raise StorageError(f"cannot list `{folder}`: {failure.strerror}; check its permissions") from None
    return sorted(found, key=lambda server: (server.since, server.port))


def _living(folder: Path) -> Iterator[Running]:
    """Those whose files are in ``folder``; what servers left that were killed goes, half-written files too."""
    for path in sorted(folder.iterdir()):
        if path.suffix == ".json":
            if (server := _read(path)) is not None:
                yield server
        elif (half := _HALF_WRITTEN.fullmatch(path.name)) and _began(int(half[1])) is None:
            _read(path)


def _read(path: Path) -> Running | None:
    """The server whose file is at ``path``; None, and the file goes, if it has died."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # it has just ended, or it is no file
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as failure:
        if failure.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        return _server(_held(descriptor))
    else:
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    finally:
        os.close(descriptor)


def _held(descriptor: int) -> bytes:
    """What the file has; nothing for what is no file."""
    try:
        return os.read(descriptor, MAX_BYTES)
    except OSError:
        return b""


def _server(data: bytes) -> Running | None:
    try:
        found: dict[str, Any] = parse_object(data, "a server's file", max_bytes=MAX_BYTES)
        server = Running(**found | {"names": tuple(found["names"])})
        ipaddress.ip_address(server.host)
        numbers = [(server.port, 1, 65535), (server.pid, 1, 2**31 - 1), (server.began, 0, 2**63)]
        whole = all(type(value) is int and least <= value <= most for value, least, most in numbers)
        times = all(type(value) in (int, float) and 0 <= value < LATE for value in (server.since, server.drain_seconds))
        named = bool(server.names) and all(isinstance(name, str) for name in server.names)
        named = named and isinstance(server.host, str)  # `ip_address` takes a number too
        named = named and isinstance(server.key, str) and _KEY.fullmatch(server.key) is not None
        return server if whole and times and named else None
    except (EdgeLLMError, KeyError, TypeError, ValueError):  # of another version, or somebody wrote it
        return None


def _began(pid: int) -> int | None:
    """When the process began, in ticks; None where there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def nameable(server: Running) -> str:
    """How messages call ``server``."""
    return f"`{shown(server.names[0])}` at {shown(server.url)} (process {server.pid})"
