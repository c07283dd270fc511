"""The same tests with everything late that may be late: `EDGE_LLM_TEST_DELAY=300 pytest tests/test_tui_*.py`.

Work of other threads begins, ends and reaches the disk up to that many milliseconds late, and now and then the event loop is
held up for as long.  A test that fails with it, and not without, waits for a time and not for what it wants.
"""

import asyncio
import random
import sqlite3
import threading
import time
from concurrent.futures import thread
from functools import wraps

TURNS = 50
"""Of the event loop, one is late among as many."""
CALLS = 4
"""Of SQLite, likewise."""


def make_late(most_seconds: float) -> None:
    """Make threads, SQLite and event loops of this process late from now on."""
    rest = _Rest(most_seconds)
    threading.Thread.run = _around(threading.Thread.run, rest)
    thread._WorkItem.run = _around(thread._WorkItem.run, rest)
    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **options: connect(*args, **{"factory": _late_connection(rest)} | options)
    turn = asyncio.BaseEventLoop._run_once

    @wraps(turn)
    def late_turn(loop: asyncio.BaseEventLoop) -> None:
        if rest.comes(TURNS):
            time.sleep(rest.seconds())
        turn(loop)

    asyncio.BaseEventLoop._run_once = late_turn


class _Rest:
    def __init__(self, most: float) -> None:
        self._most = most
        self._random = random.Random()  # tests seed the shared one

    def seconds(self) -> float:
        """Mostly short, as on a busy machine."""
        return self._most * self._random.random() ** 8

    def comes(self, among: int) -> bool:
        return self._random.random() * among < 1

    def take(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(self.seconds())


def _around(work, rest):
    @wraps(work)
    def late(*args, **options):
        rest.take()
        try:
            return work(*args, **options)
        finally:
            rest.take()

    return late


def _late_connection(rest):
    class Late(sqlite3.Connection):
        def execute(self, *args):
            if rest.comes(CALLS):
                rest.take()
            return super().execute(*args)

    return Late
