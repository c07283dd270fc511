"""A process ends while its daemon threads are in native calls: none of them comes back to an interpreter that has gone."""

import subprocess
import sys

SCRIPT = """
import os, threading, time
from edge_llm.kernels.checksum import crc32c

class Last:
    def __del__(self, write=os.write, sleep=time.sleep, crc32c=crc32c, data=bytes(1 << 10)):
        for _ in range(20):
            sleep(0.02)
            crc32c(data)
        write(1, b"ended")

last = Last()  # the ending interpreter takes it apart, and gives the GIL to those who wait for it meanwhile
gate = threading.Barrier(9)
names = {"gate": gate, "crc32c": crc32c, "data": bytes(1 << 22)}  # a running thread keeps these
exec("def work():\\n gate.wait()\\n while True: crc32c(data)", names)
for _ in range(8):
    threading.Thread(target=names["work"], daemon=True).start()
gate.wait()
for _ in range(20):
    crc32c(names["data"])
"""


def test_the_interpreter_ends_under_native_calls():
    """CPython up to 3.13 unwinds such a thread's stack; a frame of C++ on the way aborted the process."""
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended", "")
