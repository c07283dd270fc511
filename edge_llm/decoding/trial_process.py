"""The process in which a grammar is tried: `edge_llm.decoding.trial` starts it, with nothing of edge-llm loaded.

Its arguments are the folder of the grammar library and the limits of one trial.  It reads the vocabulary, then grammars, one
a line (or a GBNF text, to turn into Lark), and answers each with a line: what is wrong with it and how many bytes it takes,
or what killed it.  Every grammar is
tried in a fork of its own, so one that kills its process or never ends takes nothing along.  The process ends with its
input, or when nothing has come for a while.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

IDLE_SECONDS = 60
_LEAST = json.dumps({"grammars": [{"lark_grammar": 'start: "a"'}]})
_LEAST_BYTES = 64 << 10
"""What the least grammar takes; by how much its process grows is what a trial itself takes."""


class _Bytes:
    """A vocabulary with the size and control tokens of the model's, in which every other text is written in bytes."""

    is_tokenizer_wrapper = True

    def __init__(self, size: int, control: dict[str, str], end: int) -> None:
        plain = (token for token in range(size) if str(token) not in control)
        written = {token: bytes([byte]) for byte, token in zip(range(256), plain, strict=False)}
        self._of_byte = {data[0]: token for token, data in written.items()}
        written |= {int(token): text.encode() for token, text in control.items()}
        self.tokens = [written.get(token, b"") for token in range(size)]
        self.special_token_ids = [int(token) for token in control]
        self.eos_token_id = end
        self.bos_token_id = None

    def __call__(self, text: str | bytes) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return [self._of_byte[byte] for byte in data if byte in self._of_byte]


def _main(folder: str, stack_bytes: int, most_bytes: int, seconds: float) -> None:
    sys.path.append(folder)
    import llguidance
    from llguidance.gbnf_to_lark import gbnf_to_lark

    vocabulary = json.loads(sys.stdin.buffer.readline())
    table = _Bytes(vocabulary["size"], vocabulary["control"], vocabulary["ends"][0])
    tokens = llguidance.LLTokenizer(table, n_vocab=vocabulary["size"], eos_token=vocabulary["ends"])  # type: ignore[arg-type]
    limits = llguidance.LLParserLimits(**vocabulary["limits"])

    def attempt(source: str) -> dict[str, Any]:
        matcher = llguidance.LLMatcher(tokens, source, log_level=0, limits=limits)
        if not matcher.is_error() and not matcher.is_stopped():
            bits = (ctypes.c_int32 * ((vocabulary["size"] + 31) // 32))()
            matcher.deep_copy().unsafe_compute_mask_ptr(ctypes.addressof(bits), ctypes.sizeof(bits))
        return {"error": matcher.get_error()[:4000] if matcher.is_error() else ""}

    def converted(gbnf: str) -> dict[str, Any]:
        try:
            return {"error": "", "lark": str(gbnf_to_lark(gbnf))}
        except Exception as error:  # the converter raises several kinds, none of them public
            return {"error": str(error)[:4000] or "it nests too deeply"}

    def answer(question: dict[str, str]) -> dict[str, Any]:
        work = (lambda: attempt(question["source"])) if "source" in question else (lambda: converted(question["gbnf"]))
        return _apart(lambda: _measured(work, stack_bytes, most_bytes, seconds))

    itself = answer({"source": _LEAST}).get("bytes", 0) - _LEAST_BYTES
    while True:
        signal.alarm(IDLE_SECONDS)  # it ends the process
        line = sys.stdin.buffer.readline()
        signal.alarm(0)
        if not line:
            break
        said = answer(json.loads(line))
        if "bytes" in said:
            said["bytes"] = max(said["bytes"] - itself, _LEAST_BYTES)
        print(json.dumps(said), flush=True)


def _apart(work: Any) -> dict[str, Any]:
    """What ``work`` returns in a fork, or {"killed": signal}."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        try:
            os.write(theirs, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(said) if said else {"killed": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}


def _measured(work: Any, stack_bytes: int, most_bytes: int, seconds: float) -> dict[str, Any]:
    """What ``work`` returns within the limits, and the {"bytes"} by which the process grew."""
    _limit(stack_bytes + most_bytes, seconds)
    said: list[dict[str, Any]] = []
    threading.stack_size(stack_bytes)
    before = _peak_bytes()
    thread = threading.Thread(target=lambda: said.append(work()))
    thread.start()
    thread.join()
    return said[0] | {"bytes": _peak_bytes() - before} if said else {"killed": signal.SIGABRT}


def _limit(more_bytes: int, seconds: float) -> None:
    """Let this process compute for ``seconds`` more, and take ``more_bytes`` more."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    statm = Path("/proc/self/statm")
    if statm.exists():
        now = int(statm.read_text().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = now + more_bytes if hard == resource.RLIM_INFINITY else min(now + more_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
