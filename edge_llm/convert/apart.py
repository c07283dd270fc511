"""A model that is brought to this machine by a process of its own: it can be stopped, and takes no time of the chat's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from edge_llm.errors import EdgeLLMError, Unavailable, UsageError
from edge_llm.progress import Step

GRACE_SECONDS = 5.0
"""What the process has to tidy up when it is stopped."""
_ROOT = str(Path(__file__).parents[2])
_ERROR = "error: "
_MOST_LINE = 1 << 16
_START = """\
import json, os, signal, sys, threading

def end_with_parent():
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)

signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=end_with_parent, daemon=True).start()
sys.path[:] = json.loads(sys.argv.pop(1))
from edge_llm.__main__ import main
main()
"""
"""Runs the command line, and ends its process group with whoever holds the other end of its standard input."""


def fetch(source: str) -> ImportProcess:
    """Import ``source``, as `edge-llm import` takes it; begins with the iteration."""
    if not source.strip():
        raise UsageError("name what to fetch: a hub id such as Qwen/Qwen2.5-0.5B-Instruct, or a folder", param="source")
    return ImportProcess(source.strip())


class ImportProcess:
    """`edge-llm import` of ``source`` in a process group of its own.  One thread iterates; any may cancel."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._name = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False
        self._starting = threading.Lock()

    @property
    def name(self) -> str:
        return self._name

    def __iter__(self) -> Iterator[Step]:
        process = self._start()
        assert process.stderr is not None and process.stdout is not None
        said: deque[str] = deque(maxlen=5)
        try:
            for line in _lines(process.stderr):
                step = Step.from_json(line)
                if step is None:
                    said.append(line)
                else:
                    yield step
            printed = process.stdout.read(_MOST_LINE)
            code = process.wait()
        finally:
            self._end(process)
        if code != 0:
            raise self._failure(code, said)
        self._name = Path(os.fsdecode(printed).strip()).name

    def cancel(self) -> None:
        with self._starting:
            self._cancelled = True
        process = self._process
        if process is not None:
            _signal(process, signal.SIGINT)
            killer = threading.Timer(GRACE_SECONDS, _signal, (process, signal.SIGKILL))
            killer.daemon = True
            killer.start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._starting:
            if self._cancelled:
                raise self._stopped()
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-c", _START, json.dumps([_ROOT, *filter(None, sys.path)]),
                     "import", "--progress", "json", "--", self._source],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )  # fmt: skip
            except (OSError, ValueError) as error:  # no processes left, or a zero byte in the source
                raise EdgeLLMError(f"cannot start an import: {error}") from None
            return self._process

    def _failure(self, code: int, said: deque[str]) -> EdgeLLMError:
        if self._cancelled:
            return self._stopped()
        stated = next((line for line in reversed(said) if line.startswith(_ERROR)), None)
        if stated is not None:
            return EdgeLLMError(stated.removeprefix(_ERROR))
        if code < 0:
            return EdgeLLMError(f"the import of `{self._source}` was ended by signal {-code}; is there enough memory?")
        return EdgeLLMError(f"the import of `{self._source}` failed ({code}): {said[-1] if said else 'it said nothing'}")

    def _stopped(self) -> Unavailable:
        return Unavailable(f"fetching `{self._source}` was stopped; fetch it again to go on")

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Nothing is left of ``process`` when nobody iterates any more."""
        _signal(process, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        _signal(process, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To the process, if it still runs, and all that it started in its group."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _lines(pipe: IO[bytes]) -> Iterator[str]:
    while line := pipe.readline(_MOST_LINE):
        yield line.decode("utf-8", "replace").strip()
