"""A real server on a loopback port for tests, and a service that a test plays by hand."""

import asyncio
import contextlib
import threading
import time
from concurrent.futures import Future

import httpx

from edge_llm.config import RuntimeConfig
from edge_llm.engine.delta_stream import DeltaStream
from edge_llm.engine.request import Delta, Finish, Timings, Usage
from edge_llm.engine.service import BatchingService
from edge_llm.opening.load import load_engine
from edge_llm.server.host import ModelHost
from edge_llm.server.pool import ModelPool
from edge_llm.server.run import ServeOptions, listen, make_server

NAMES = ("builtin", "an/alias")


def builtin_engine(**options):
    return load_engine(None, RuntimeConfig(threads=1, **options))


def hosted(service=None, engine=None, names=NAMES):
    """A host whose model is ready."""
    engine = engine or builtin_engine()
    host = ModelHost(names)
    host.start(engine, service or BatchingService(engine, queue_limit=64))
    return host


@contextlib.contextmanager
def serving(host, port=0, ports=None, **options):
    """Run ``host``, or a pool, on a free port, or on ``port``, in a thread; yields its address, or as many as ``ports``."""
    pool = host if isinstance(host, ModelPool) else ModelPool(host)
    chosen = ServeOptions(**{"port": port, "drain_seconds": 1.0, **options})
    listeners = [listen(chosen) for _ in range(ports or 1)]
    urls = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    server = make_server(pool, chosen)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(listeners)), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield urls if ports else urls[0]
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server ends when asked to"


@contextlib.contextmanager
def client_of(host, **options):
    """An httpx client of a server of ``host``."""
    with serving(host, **options) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


class HandService:
    """Streams that the test fills: ``service.streams[i].put(delta)``."""

    running = waiting = 0

    def __init__(self):
        self.streams = []
        self.refusal = None

    def submit(self, request):
        if self.refusal is not None:
            raise self.refusal
        stream = DeltaStream(request, lambda stream: stream.put(end("cancelled")))
        self.streams.append(stream)
        return stream

    def embed(self, prompts):
        return Future()

    def close(self, *, drain_seconds):
        for stream in self.streams:
            stream.cancel()

    def wait_for(self, count=1, seconds=60.0):
        until = time.monotonic() + seconds
        while len(self.streams) < count:
            assert time.monotonic() < until, "no request came"
            time.sleep(0.002)
        return self.streams[count - 1]


def end(reason="stop", prompt=3, completion=1):
    """The last delta of a stream."""
    return Delta("", finish=Finish(reason, Usage(prompt, completion, 0), Timings(1.0, 1.0, 1.0, 1.0, 1.0)))
