"""How long a key takes to be seen in the full-screen chat, while an answer streams and while none does; in a real terminal.

    python benchmarks/chat_latency.py                  a 200-turn chat; about a minute
    python benchmarks/chat_latency.py --turns 20 --keys 50 --json

The chat has Markdown, code, tables and Chinese.  Its answers come from a server in another process, at two rates.  A key is one
letter at the prompt; it counts as seen when the terminal has the bytes that draw it.  Every figure is of this machine: compare
figures of one run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from real_terminal import BlindTerminal, Terminal  # noqa: E402

from edge_llm.chats.open_chat import OpenChat  # noqa: E402
from edge_llm.chats.store import ChatStore  # noqa: E402
from edge_llm.paths import chats_file  # noqa: E402

P95_MS, FIRST_FRAME_MS = 50.0, 500.0
"""What is asked of key to echo while streaming, and of the time to the first frame."""
RATES = (50, 1000)
"""Tokens a second of the server: what people run, and more than one can read."""
PROMPT = b"lists commands"
SETTLE_SECONDS = 1.0
PAUSE = (0.03, 0.12)
"""Seconds between keys, not in step with the frames."""
LINE = 40
LETTERS = "БГДЖЗИЙЛПФЦЧШЩЪЫЬЭЮЯбгджзийлпфцчшщъыьэюяΓΔΘΛΞΠΣΦΨΩαβγδεζηθικλμνξπρστυφχψω"
PROSE = "An **important** word, a `name`, and a sentence that goes on for a while; 然后是一些中文，还有 emoji 😀. "
ANSWER = (
    f"# A heading\n\n{PROSE * 3}\n\n- one\n- two with `code`\n- three\n\n"
    "```python\ndef area(width: float, height: float) -> float:\n    return width * height  # 面积\n```\n\n"
    f"| name | 大小 |\n|---|---|\n| a | 1 |\n| b | 2 |\n\n> {PROSE}\n\n{PROSE}\n"
)


def write_chat(turns: int) -> None:
    """A chat of so many turns, the one that opens."""
    store = ChatStore.open(chats_file())[0]
    chat = OpenChat.new(store, {})
    parent = None
    for turn in range(turns):
        prompt = chat.add("user", f"Question {turn}: 什么是 {PROSE}", parent=parent)
        parent = chat.add("assistant", ANSWER, parent=prompt.id, model="someone", state="whole").id
    chat.save()


# ---- the server, in a process of its own


def serve(rate: float, connection: Connection) -> None:
    """Answer without end, ``rate`` tokens a second."""
    pieces = [ANSWER[at : at + 4] for at in range(0, len(ANSWER), 4)]

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._begin("application/json")
            self.wfile.write(json.dumps({"data": [{"id": "scripted"}]}).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._begin("text/event-stream")
            with contextlib.suppress(OSError):
                for piece in _forever(pieces):
                    event = {"choices": [{"index": 0, "delta": {"content": piece}}]}
                    self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                    time.sleep(1 / rate)

        def _begin(self, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    connection.send(server.server_port)
    server.serve_forever()


def _forever(pieces: Sequence[str]) -> Iterator[str]:
    while True:
        yield from pieces


@contextlib.contextmanager
def serving(rate: float) -> Iterator[str]:
    """The address of a server that answers at ``rate``."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(rate, there), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.kill()


# ---- what is measured


def start(terminal: Terminal, model: str) -> dict[str, float]:
    """Milliseconds from the start of the process to its first frame, to the chat, and to a model that can answer."""
    frame = terminal.wait_raw(PROMPT)
    ready = terminal.wait_raw(model.encode(), terminal.raw.find(PROMPT))
    return {"first_frame_ms": 1e3 * (frame - terminal.begun_at), "ready_ms": 1e3 * (ready - terminal.begun_at)}


class Typist:
    """Types letters that nobody else writes, each long after it was typed before."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._letters = itertools.cycle(LETTERS)
        self._column = 0

    def times(self, keys: int) -> list[float]:
        """Milliseconds from writing a letter to the bytes that draw it, for so many letters."""
        return [self._time() for _ in range(keys)]

    def send(self, text: str) -> None:
        """Send ``text`` in place of what is written."""
        self._clear()
        self._terminal.write(f"{text}\r")

    def _time(self) -> float:
        if self._column == LINE:
            self._clear()
        self._column += 1
        letter = next(self._letters).encode()
        time.sleep(random.uniform(*PAUSE))
        since, begin = len(self._terminal.raw), time.perf_counter()
        self._terminal.write(letter)
        return 1e3 * (self._terminal.wait_raw(letter, since) - begin)

    def _clear(self) -> None:
        self._terminal.write("\x15")
        self._column = 0


def summary(times: Sequence[float]) -> dict[str, float]:
    """The middle and the end of ``times``."""
    ordered = sorted(times)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    return {"median_ms": statistics.median(ordered), "p95_ms": p95, "max_ms": ordered[-1], "keys": len(ordered)}


def with_server(rate: float, keys: int) -> dict[str, dict[str, float]]:
    """The chat that is stored, answered at ``rate``."""
    with serving(rate) as url, BlindTerminal("chat", "--url", url, columns=120, rows=40) as terminal:
        found = {"start": start(terminal, "scripted")}
        typist = Typist(terminal)
        time.sleep(SETTLE_SECONDS)
        found["idle"] = summary(typist.times(keys))
        since = len(terminal.raw)
        typist.send("go on")
        terminal.wait_raw(b"writing", since)
        time.sleep(SETTLE_SECONDS)
        found["streaming"] = summary(typist.times(keys))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--keys", type=int, default=200, help="letters for each figure")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory(prefix="edge-llm-") as home:
        os.environ["EDGE_LLM_HOME"] = home
        write_chat(options.turns)
        for rate in RATES:
            name = f"{rate} tokens/s"
            found[name] = with_server(rate, options.keys)
    print(json.dumps(found, indent=2) if options.json else table(found, options.turns))


def table(found: Mapping[str, Mapping[str, Mapping[str, float]]], turns: int) -> str:
    """The figures, and the bar where they miss it."""
    lines = [f"{turns} turns; milliseconds; the bar is p95 {P95_MS:.0f} while streaming, first frame {FIRST_FRAME_MS:.0f}", ""]
    for name, parts in found.items():
        for part, figures in parts.items():
            shown = "  ".join(f"{key.removesuffix('_ms').replace('_', ' ')} {value:.1f}" for key, value in figures.items())
            missed = (part == "streaming" and figures["p95_ms"] > P95_MS) or figures.get("first_frame_ms", 0) > FIRST_FRAME_MS
            lines.append(f"{name:<20} {part:<10} {shown}{'   above the bar' * missed}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
