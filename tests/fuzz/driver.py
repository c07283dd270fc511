"""Runs one target of the fuzzing: inputs without end under limits of memory and time, each made by the seed and its number.

    python tests/fuzz/driver.py bodies --seed 7 --seconds 600     look for findings
    python tests/fuzz/driver.py bodies --replay FILE              try one input again

A target is a module `target_NAME` with a class `Target`; `make` makes an input (a dictionary of strings) and `run` tries it.
What `run` raises is a finding, and so are a death, more than `SECONDS` and, while refusing, more than `GROWTH` bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import json
import os
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SECONDS = 5.0
"""Longest time of one input: of the CPU, because the machine may be busy."""
HANGS_AFTER = 40.0
"""Wall seconds after which an input is taken to hang."""
GROWTH = 64 << 20
"""Most bytes that memory may grow while an input is refused."""
KEPT = 192 << 20
"""Most bytes that all inputs together may leave behind: caches and what the heap keeps."""
ADDRESS_SPACE = 4 << 30
"""Most address space beside what is taken when the target is ready."""
MOST_FINDINGS = 20


class Target(Protocol):
    """Something that takes inputs from strangers."""

    def make(self, random: Random) -> dict[str, Any]:
        """An input: JSON values."""
        ...

    def run(self, made: dict[str, Any]) -> bool:
        """Try an input: True if it was taken, False if it was refused as it must be.  Anything else raises."""
        ...


@dataclass(frozen=True)
class Finding:
    """What went wrong with which input, and where that lies."""

    what: str
    file: str

    def __str__(self) -> str:
        return f"{self.what}\n  input: {self.file}"


# -- in the child -------------------------------------------------------------------------------------------------------


def main() -> None:
    asked = _arguments()
    os.environ["RUST_BACKTRACE"] = "0"
    sys.path[:0] = [str(ROOT), str(HERE.parent), str(HERE)]
    target: Target = importlib.import_module(f"target_{asked.target}").Target()
    if asked.replay:
        verdict = attempt(target, json.loads(Path(asked.replay).read_text()))
        print(verdict or "as it must be")
        sys.exit(verdict is not None)
    warm_up(target)
    limit_memory()
    search(target, asked)
    os._exit(0)  # whatever threads do still


def search(target: Target, asked: argparse.Namespace) -> None:
    """Try input after input; a line of JSON per finding, and one at the end."""
    folder = Path(asked.findings)
    idle = memory("VmRSS")
    until = time.monotonic() + asked.seconds
    number, found = asked.first, 0
    while time.monotonic() < until and found < MOST_FINDINGS:
        made = make(target, asked, number)
        running = folder / f"{asked.target}-{asked.seed}-{number}.json"
        running.write_text(json.dumps(made))
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        what = attempt(target, made)
        faulthandler.cancel_dump_traceback_later()
        if what is None:
            running.unlink()
        else:
            found += 1
            print(json.dumps({"what": what, "file": str(running)}), flush=True)
        number += 1
    print(json.dumps({"tried": number - asked.first, "kept": memory("VmRSS") - idle}), flush=True)


def make(target: Target, asked: argparse.Namespace, number: int) -> dict[str, Any]:
    return target.make(Random(f"{asked.target} {asked.seed} {number}"))


def attempt(target: Target, made: dict[str, Any]) -> str | None:
    """What is wrong with how ``target`` takes an input; None if nothing is."""
    before, started = memory("VmRSS"), used_seconds()
    forget_peak()
    try:
        taken = target.run(made)
    except BaseException as error:  # a panic of the tokenizers library is no `Exception`
        return place(error)
    seconds, growth = used_seconds() - started, memory("VmHWM") - before
    if seconds > SECONDS:
        return f"took {seconds:.1f} s"
    if not taken and growth > GROWTH:
        return f"grew by {growth >> 20} MiB while it was refused"
    return None


def place(error: BaseException) -> str:
    """What was raised, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:1500]}{where}"


def warm_up(target: Target) -> None:
    """Inputs that nobody counts: after them everything is imported, and the heap has its size."""
    for number in range(5):
        with contextlib.suppress(Exception):
            target.run(target.make(Random(f"warm {number}")))


def limit_memory() -> None:
    most = memory("VmSize") + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def memory(name: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most since `forget_peak`, VmSize of addresses."""
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(name))


def forget_peak() -> None:
    with contextlib.suppress(OSError):  # then the peak is that of the whole run: stricter
        Path("/proc/self/clear_refs").write_text("5")


def used_seconds() -> float:
    """Of the CPU, by this process and the children that it waited for."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fuzz one target.")
    parser.add_argument("target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="Number of the first input.")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--findings", default="/tmp", help="Folder for inputs that were findings.")
    parser.add_argument("--replay", help="File with one input.")
    return parser.parse_args()


# -- in the parent ------------------------------------------------------------------------------------------------------


def fuzz(target: str, seed: int, seconds: float, folder: Path) -> Iterator[Finding | str]:
    """Fuzz ``target`` in children, a new one after every death: what was found, and at last a line about all of it."""
    until, first, tried, deaths = time.monotonic() + seconds, 0, 0, 0
    while (left := until - time.monotonic()) > 0 and deaths < MOST_FINDINGS:
        child = _child(target, seed, first, left, folder)
        last = None
        for line in child.stdout.splitlines():
            last = json.loads(line)
            if "what" in last:
                yield Finding(**last)
        if last is not None and "tried" in last:
            tried += last["tried"]
            if last["kept"] > KEPT:
                yield Finding(f"{last['tried']} inputs left {last['kept'] >> 20} MiB behind", f"seed {seed}, from {first} on")
            break
        running = max(folder.glob(f"{target}-{seed}-*.json"), key=_number, default=None)
        if running is None or _number(running) < first:
            yield Finding(f"cannot start: {child.stderr[-2000:]}", "none")
            break
        deaths += 1
        tried += _number(running) + 1 - first
        first = _number(running) + 1
        yield Finding(f"died with {child.returncode}: {child.stderr[-1500:]}", str(running))
    yield f"{target}: {tried} inputs, seed {seed}"


def _child(target: str, seed: int, first: int, seconds: float, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, HERE / "driver.py", target, "--seed", seed, "--first", first, "--seconds", seconds]
    command += ["--findings", folder]
    most = int(2 * seconds + 10 * HANGS_AFTER)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    return subprocess.run([str(word) for word in command], capture_output=True, text=True, errors="replace", preexec_fn=limit)


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


if __name__ == "__main__":
    main()
