"""An engine in a process that was forked: it answers as before, or refuses where a step was lost, and never waits for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

SCRIPT = """
import os, sys, threading, warnings
from test_engine_faults import Scene, TEXTS
from edge_llm.config import GenerationParams
from edge_llm.engine.engine import collect
from edge_llm.errors import Unavailable

warnings.simplefilter("ignore")  # a fork of a process with threads, which is what is tried here
scene, who = Scene(kv_tokens=256), sys.argv[1]
engine, run = scene.engine, scene.runner.run
inside, forked, children = threading.Event(), threading.Event(), []

def ask():
    request = engine.text_request(TEXTS[0], GenerationParams(max_tokens=14, ignore_eos=True))
    return collect(engine.stream(request)).tokens

def end(wanted):
    try:
        found = ask()
    except Unavailable as error:
        found = str(error)
    os._exit(0 if found == wanted else 1)

def in_a_step(*given, **how):
    if who == "another" and not inside.is_set():
        inside.set()
        forked.wait()
    if who == "itself" and not children:
        children.append(os.fork())
    return run(*given, **how)

expected = ask()
scene.runner.run = in_a_step
if who == "another":  # thread is in the middle of a step
    found = []
    thread = threading.Thread(target=lambda: found.append(ask()))
    thread.start()
    inside.wait()
    children.append(os.fork())
    if children[-1] == 0:
        with engine.driver.changed:  # nobody has it
            end("this process was forked while the model was computing; load the model here")
    forked.set()
    thread.join()
elif who == "itself":  # goes on in the middle of its step, twice
    found = [ask()]
    if children[-1] == 0:
        if found != [expected]:
            os._exit(1)
        end(expected)
else:
    found = [ask()]
    children.append(os.fork())
    if children[-1] == 0:
        end(expected)
assert found == [expected] and ask() == expected
assert os.waitpid(children[-1], 0)[1] == 0
"""


@pytest.mark.parametrize("who", ["another", "itself", "nobody"])
def test_a_child_goes_on_or_is_refused(who):
    here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    ended = subprocess.run([sys.executable, "-c", SCRIPT, who], capture_output=True, text=True, timeout=60, env=here)
    assert (ended.returncode, ended.stderr) == (0, "")
