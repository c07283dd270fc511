"""Runs commands of edge-llm in forks of itself, each with one fault of the disk: a job per line in, what came of it out.

Everything is imported once, so that a command takes as long as its work.  Started by `disk.Nursery` with the library of
`faults.c` preloaded.
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path

from edge_llm.cli.main import VERBS, run

LONGEST_SECONDS = 60
LATE = ("edge_llm.engine.service", "edge_llm.models.llama", "edge_llm.server.run", "edge_llm.text.sandbox")
for module in (*LATE, *(f"edge_llm.cli.{module}" for _, module, _ in VERBS)):
    importlib.import_module(module)


def child(job):
    """Run one command with its fault armed, its output in files; the exit code."""
    os.environ["EDGE_LLM_HOME"] = job["home"]
    for fd, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), fd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.alarm(LONGEST_SECONDS)  # nobody handles it: a command that hangs is killed
    if "ask" in job:
        threading.Thread(target=ask, args=(job["ask"],), daemon=True).start()
    disk = ctypes.CDLL(None)
    disk.fault_arm(os.fsencode(job["below"]), job["kinds"], ctypes.c_long(job["call"]), job["how"], job["always"])
    code = run(job["command"])
    disk.fault_count.restype = ctypes.c_long
    Path(job["counts"]).write_text(json.dumps({bit: disk.fault_count(bit) for bit in job["report"]}))
    return code


def ask(wanted):
    """Send one request as soon as the server takes it, note the answer, and end the server."""
    body = json.dumps(wanted["body"]).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{wanted['port']}/v1/completions", body, headers)
    answer = None
    while answer is None:
        time.sleep(0.01)
        try:
            with urllib.request.urlopen(request, timeout=LONGEST_SECONDS) as response:
                answer = response.read()
        except urllib.error.HTTPError as refusal:
            answer = None if refusal.code == 503 else refusal.read()  # 503: it is still loading
        except OSError:
            pass  # it does not listen yet
    Path(wanted["answer"]).write_bytes(answer)
    os.kill(os.getpid(), signal.SIGTERM)


def main():
    gc.freeze()  # forks share what is here already
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = child(json.loads(line))
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # taking everything down would take longer than most commands
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
