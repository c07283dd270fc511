"""Opening a model goes straight: each room of `edge_llm.opening` is entered once, the plan's own apart."""

import sys
import threading
from pathlib import Path

import pytest

from edge_llm import opening
from edge_llm.config import RuntimeConfig
from edge_llm.opening.load import load_engine

HERE = str(Path(opening.__file__).parent)
DATA = {"plan", "ledger"}
"""What is handed on is asked by all."""
ONCE = {"auto_device", "numerics"}
"""Entered by the first opening of a process only."""
MAKING = ["load", "machine", "resolve", "defaults", "cpus", "budgets", "kv_plan"]
WAYS = {
    "host": ({}, []),
    "pages on disk": ({"prefix_cache": "1MiB", "memory": "90%"}, ["prefix_cache"]),
    "a card": ({"device": "emulated:310p"}, []),
}


class Walk:
    """The rooms that calls enter from another one of them, in their order; calls of one thread while another waits."""

    def __init__(self):
        self.rooms = []
        self._last = {}

    def __call__(self, frame, event, _):
        here = room(frame)
        if event != "call" or here is None or frame.f_code.co_name.startswith("<"):
            return
        above = frame.f_back
        while above is not None and room(above) is None:
            above = above.f_back
        caller, thread = above and room(above), threading.get_ident()
        if caller != here and self._last.get(thread) != (caller, here):
            self.rooms.append(here)
        if caller != here:
            self._last[thread] = (caller, here)


def room(frame):
    path = Path(frame.f_code.co_filename)
    return path.stem if str(path.parent) == HERE else None


@pytest.mark.parametrize("way", WAYS)
def test_no_room_is_entered_twice(way, edge_llm_home):
    given, more = WAYS[way]
    walk = Walk()
    tracer = sys.getprofile()
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        load_engine("builtin", RuntimeConfig(threads=1, context=64, **given))
    finally:
        sys.setprofile(tracer)
        threading.setprofile(tracer)
    rooms = [one for one in walk.rooms if one not in DATA | ONCE]
    assert rooms == [*MAKING, "begin", "carry_out", *more, "draft_model"]
