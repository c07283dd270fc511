"""A failing disk for the tests: the faults there are, and a nursery that runs commands of edge-llm with one of them."""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

HERE = Path(__file__).parent
KINDS = {"open": 1, "read": 2, "write": 4, "fsync": 8, "rename": 16, "unlink": 32, "mkdir": 64, "utime": 128, "list": 256}
"""As in `faults.c`."""
SHORT, KILL = -1, -2


@dataclass(frozen=True)
class Fault:
    """Call number ``call`` (from 1; 0: none) of ``kinds`` is spoiled, and all later ones if ``always``."""

    kinds: int
    how: int
    always: bool = False
    call: int = 0

    def __str__(self) -> str:
        what = {SHORT: "short", KILL: "kill"}.get(self.how) or errno.errorcode.get(self.how, "none")
        names = "any" if self.kinds == ALL else "+".join(name for name, bit in KINDS.items() if bit & self.kinds)
        return f"{what} at {names} {self.call}{' and after' if self.always else ''}"


ALL = sum(KINDS.values())
NO_FAULT = Fault(ALL, 0)


def _errors(names, *codes):
    return [Fault(KINDS[name], code, always) for name in names for code in codes for always in (False, True)]


FAULTS = (
    Fault(ALL, KILL),
    *_errors(("open", "mkdir"), errno.ENOSPC, errno.EIO, errno.EMFILE),
    *_errors(("write",), errno.ENOSPC, errno.EIO, SHORT),
    *_errors(("read",), errno.EIO, SHORT),
    *_errors(("fsync", "rename"), errno.EIO, errno.ENOSPC),
    *_errors(("unlink", "utime", "list"), errno.EIO),
)


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    """Exit code; negative: the signal that killed it."""
    stdout: str
    stderr: str
    counts: dict[str, int]
    """Calls of every kind, if it came to its end."""
    answer: str
    """What the server that it was answered with."""

    def calls(self, fault: Fault) -> int:
        """How many places there are for ``fault``."""
        return sum(count for bit, count in self.counts.items() if int(bit) & fault.kinds)

    @property
    def errors(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("error: ")]


class Nursery:
    """A process with everything imported; ``run`` has a fork of it run one command.  ``folder`` is for its own files."""

    def __init__(self, folder: Path) -> None:
        library = folder / "faults.so"
        compiler = shutil.which("cc") or shutil.which("gcc")
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, HERE / "faults.c", "-ldl"], check=True)
        environment = os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, HERE / "nursery.py"]
        self._process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, bufsize=1, env=environment)
        self._files = {name: folder / name for name in ("stdout", "stderr", "counts", "answer")}

    def run(self, command, below: Path, fault: Fault = NO_FAULT, body=None) -> Result:
        """Run ``command`` with ``fault`` in the files below ``below``, where its home is.  ``body`` is sent to a server."""
        for path in self._files.values():
            path.unlink(missing_ok=True)
        job = {
            "command": [str(word) for word in command],
            "home": str(below / "home"),
            "below": str(below),
            "kinds": fault.kinds,
            "call": fault.call,
            "how": fault.how,
            "always": fault.always,
            "report": list(KINDS.values()),
            **{name: str(self._files[name]) for name in ("stdout", "stderr", "counts")},
        }
        if body is not None:
            port = free_port()
            job["command"] += ["--port", str(port)]
            job["ask"] = {"port": port, "body": body, "answer": str(self._files["answer"])}
        self._process.stdin.write(json.dumps(job) + "\n")
        code = int(self._process.stdout.readline())
        said = {name: path.read_text(errors="replace") if path.exists() else "" for name, path in self._files.items()}
        return Result(code, said["stdout"], said["stderr"], json.loads(said["counts"] or "{}"), said["answer"])

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
