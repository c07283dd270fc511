"""The self-test of a card: every probe in turn, whatever becomes of the others, as a report that its owner can send.

Probes run in a child process.  After one that failed in a way that may spoil the next, or that ended or blocked its process,
the next one has a new process.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edge_llm.ascend.selftest.probes import PROBES, Probe
from edge_llm.child.owner import Child, ChildEnded
from edge_llm.errors import DeviceError

OPEN_SECONDS = 300.0
"""Most that finding and opening a card may take."""
LONGEST_LOG = 2000
MOST_REOPENED = 2
"""So many times in a row a card that was lost is tried to be opened again."""

Told = Callable[[str, int, int], None]
"""Is told of (probe, how many have ended, how many there are)."""


class SelfTest:
    """Asks probes of the card of this machine."""

    def __init__(self, probes: Sequence[Probe] = PROBES) -> None:
        self._probes = probes
        self._child: Child | None = None
        self._log = Path()
        self._refused = 0

    def run(self, told: Told = lambda name, done, total: None) -> dict[str, Any]:
        """The chip, and what every probe found.  Raises `DeviceError` when there is no card that can be used."""
        with tempfile.TemporaryDirectory(prefix="edge-llm-selftest-") as folder:
            self._log = Path(folder) / "log"
            try:
                return self._run(told)
            finally:
                self._end()

    def _run(self, told: Told) -> dict[str, Any]:
        told("opening", 0, len(self._probes))
        chip = self._open()
        if "error" in chip:
            raise DeviceError(chip["error"])
        results: dict[str, Any] = {}
        for done, probe in enumerate(self._probes):
            told(probe.name, done, len(self._probes))
            start = time.perf_counter()
            found = self._result(probe)
            spent = round(time.perf_counter() - start, 3)
            results[probe.name] = {"ok": "error" not in found, "needed": probe.needed, "took_seconds": spent, **found}
        told("", len(self._probes), len(self._probes))
        return {"chip": chip, "probes": results}

    def _open(self) -> dict[str, Any]:
        """The chip, or why it cannot be opened."""
        try:
            self._child = Child(self, "edge_llm.ascend.selftest.child", str(self._log))
        except OSError as error:
            return {"error": f"no process can be started: {error.strerror}"}
        return self._asked("", OPEN_SECONDS)

    def _result(self, probe: Probe) -> dict[str, Any]:
        if self._child is None:
            if self._refused >= MOST_REOPENED:
                return {"error": "not asked: the card could not be opened again"}
            opened = self._open()
            if "error" in opened:
                self._end()
                self._refused += 1
                return {"error": f"the card cannot be opened again: {opened['error']}"}
            self._refused = 0
        return self._asked(f"{probe.run.__module__}:{probe.run.__name__}", probe.seconds)

    def _asked(self, question: str, seconds: float) -> dict[str, Any]:
        """The child's figures, or an error; afterwards there is none where it is not to be asked again."""
        assert self._child is not None
        try:
            reply = json.loads(self._child.ask(question.encode(), seconds))
        except ChildEnded as error:
            failed = f"its process ended with {error.code}"
        except TimeoutError:
            failed = f"no answer within {seconds:.0f} s"
        else:
            if reply.get("spoiled"):
                self._end()
            return dict(reply["figures"]) if "figures" in reply else {"error": reply["error"]}
        self._end()
        log = _end_of(self._log)
        return {"error": failed} | ({"log": log} if log else {})

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
        self._child = None


def _end_of(log: Path) -> str:
    """The last that libraries printed."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_LOG))
            return file.read(LONGEST_LOG).decode(errors="replace").strip()
    except OSError:
        return ""
