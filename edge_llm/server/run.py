"""The server as a process: a socket, uvicorn, a model that loads behind it, and an end that lets answers finish."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import uvicorn

from edge_llm.errors import Unavailable, UsageError
from edge_llm.files import shown
from edge_llm.server import limits
from edge_llm.server.app import create_app
from edge_llm.server.connection import Connection, Remark
from edge_llm.server.guards import LOOPBACK_NAMES, Access
from edge_llm.server.host import LoadModel
from edge_llm.server.pool import ModelPool

log = logging.getLogger("edge_llm.server")

_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_BACKLOG = 2048
_ACCEPTS = 16
"""Connections that are accepted in one go; without a free descriptor asyncio fails that many times."""
_LEAST_DESCRIPTORS = 64
_ENOUGH_DESCRIPTORS = 1 << 16

@dataclass(frozen=True)
class ServeOptions:
    """Where to listen, for whom, and how to end."""

    host: str = "127.0.0.1"
    port: int = 8080
    keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """More names for the Host header."""
    origins: tuple[str, ...] = ()
    drain_seconds: float = 30.0


def listen(options: ServeOptions) -> socket.socket:
    """A listening socket.

    Raises `UsageError` for an address that this machine does not have, or a wide one without a key, `Unavailable` where the
    machine does not give the port.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:  # UnicodeError: it cannot be a name
        reason = error.strerror if isinstance(error, OSError) else "this cannot be a name"
        raise _no_address(options.host, reason) from None
    if not _is_loopback(str(address[0])) and not options.keys:
        raise UsageError(
            f"--host `{options.host}` lets other machines in; give --api-key-file (or --api-key), or listen on 127.0.0.1",
            param="host",
        )
    # asyncio sends small pieces without delay only on sockets that say they are TCP
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise _no_address(options.host, error.strerror) from None
        raise Unavailable(
            f"cannot listen on `{options.host}` port `{options.port}`: {error.strerror}; choose another with --port"
        ) from None
    return listener


def _no_address(host: str, reason: str | None) -> UsageError:
    return UsageError(f"--host `{shown(host)}` is not an address of this machine: {reason}", param="host")


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def access_for(options: ServeOptions) -> Access:
    """Who may talk to a server with ``options``: this machine's own names on a wide bind, loopback names always."""
    names = {*LOOPBACK_NAMES, options.host.lower(), *(name.lower() for name in options.hosts)}
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(options.host)
        if address.version == 6:
            names.add(f"[{address}]")
        if address.is_unspecified:
            names |= _own_names()
    return Access(options.keys, frozenset(names - {"0.0.0.0", "::", "[::]"}), frozenset(options.origins))


def _own_names() -> set[str]:
    """Addresses of this machine: an attacker's name can point to them, but a Host header that is a bare address cannot lie."""
    import psutil

    found = {address.address.partition("%")[0] for each in psutil.net_if_addrs().values() for address in each}
    return {name if "." in name else f"[{name}]" for name in found if "." in name or name.count(":") > 1}


class _Server(uvicorn.Server):
    """uvicorn that looks after its connections, leaves signals to `serve`, and drains the service at its end."""

    def __init__(self, config: uvicorn.Config, pool: ModelPool, drain_seconds: float, on_drain: Callable[[int], None]) -> None:
        super().__init__(config)
        self._pool = pool
        self._drain_seconds = drain_seconds
        self._on_drain = on_drain
        self._next_look = 0.0

    def ask_to_end(self, *_: Any) -> None:
        """Drain and end; end at once when asked a second time.  Also a signal handler."""
        self.force_exit = self.should_exit
        self.should_exit = True
        if self.force_exit:  # whoever cuts answers off need not be told of it
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_LoopTrouble())
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)

    async def on_tick(self, counter: int) -> bool:
        if (now := asyncio.get_running_loop().time()) >= self._next_look:
            self._next_look = now + limits.LOOK_SECONDS
            for connection in list(self.server_state.connections):
                cast(Connection, connection).look(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        draining = {"drain_seconds": self._drain_seconds}
        closing = threading.Thread(target=self._pool.close, kwargs=draining, name="drain", daemon=True)
        if self._drain_seconds and (unanswered := self._pool.unanswered):
            self._on_drain(unanswered)
        closing.start()
        await super().shutdown(sockets)
        until = time.monotonic() + limits.END_SECONDS  # the drain is over by now
        while closing.is_alive() and not self.force_exit and time.monotonic() < until:
            await asyncio.sleep(0.02)


class _LoopTrouble:
    """What the event loop complains about goes to the log; that no connection can be taken, one line now and then."""

    def __init__(self) -> None:
        self._exhausted = Remark()

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            self._exhausted.say("new connections wait: %s; raise `ulimit -n` if this lasts", error.strerror)
        else:
            log.error("event loop: %s", context.get("message"), exc_info=error)


def make_server(pool: ModelPool, options: ServeOptions, on_drain: Callable[[int], None] = lambda _: None) -> _Server:
    """The server of ``pool``, ready to run on a socket; ``on_drain`` as in `serve`."""
    config = uvicorn.Config(
        create_app(pool, access_for(options)),
        http=Connection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=limits.IDLE_SECONDS,  # type: ignore[arg-type]  # passed on to the event loop
        backlog=_ACCEPTS,
        timeout_graceful_shutdown=max(1, round(options.drain_seconds) + 2),
        h11_max_incomplete_event_size=2 * limits.HEADER_BYTES,
    )
    return _Server(config, pool, options.drain_seconds, on_drain)


def serve(
    pool: ModelPool,
    listener: socket.socket,
    options: ServeOptions,
    load: LoadModel | None,
    on_begin: Callable[[], None],
    on_drain: Callable[[int], None],
) -> None:
    """Serve on ``listener`` until SIGTERM or SIGINT, then drain.  Raises what loading the model of a pool of one raises.

    ``on_begin`` is called as soon as signals end the server, ``on_drain`` with the requests that it then waits for, if any.
    """
    check_descriptors()
    host = pool.one
    server = make_server(pool, options, on_drain)

    def load_behind() -> None:
        if host is not None and load is not None:
            host.load(load)
            server.should_exit = server.should_exit or not host.ready

    loading = threading.Thread(target=load_behind, name="load", daemon=True)
    with _signals_to(server.ask_to_end):
        on_begin()
        loading.start()
        server.run(sockets=[listener])
        loading.join(limits.END_SECONDS)
    if host is not None and host.failure is not None:
        raise host.failure


def check_descriptors() -> None:
    """Take all the descriptors that this process may have; raises `UsageError` if they are too few to serve."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft != resource.RLIM_INFINITY and soft < _LEAST_DESCRIPTORS:
        raise UsageError(f"this process may open only `{soft}` files; a server needs {_LEAST_DESCRIPTORS}: `ulimit -n 1024`")


@contextlib.contextmanager
def _signals_to(handler: Callable[..., None]) -> Iterator[None]:
    """Let ``handler`` have SIGTERM and SIGINT."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
