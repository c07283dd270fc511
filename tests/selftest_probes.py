"""Probes of tests/test_selftest.py, which the child process of the self-test imports by this file's name."""

import os
import signal
import sys
import time

from edge_llm.errors import DeviceError, DeviceLost


def good(ground):
    return {"chip": ground.law.name, "process": os.getpid(), "no_fallback": os.environ["TORCH_NPU_FALLBACK_CPU_DISABLE"]}


def another(ground):
    return good(ground)


def last(ground):
    return good(ground)


def wrong(ground):
    return {"differing": 3, "error": "3 of 4 values differ"}


def refuses(ground):
    raise DeviceError("Ascend310P3 refuses npu_swiglu: x is one")


def loses(ground):
    try:
        raise RuntimeError("EZ9999: inner error\nERR01100 OPS call acl api failed")
    except RuntimeError as error:
        raise DeviceLost("ascend", "EZ9999: inner error") from error


def raises(ground):
    return [][3]


def dies(ground):
    print("the driver's last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(ground):
    print("it waits for the card", flush=True)
    time.sleep(3600)


def chatters(ground):
    os.write(1, b"[W] a library writes to stdout\n" * 10)
    print("so does Python")
    return {"said": True}


def infinite(ground):
    return {"rate": float("inf"), "nested": {"none": float("nan")}, "pair": (1, 2)}


def loses_one_of_several(ground):
    return {"failed": 1, "error": "index_copy_: error code is 507018", "spoiled": True}
