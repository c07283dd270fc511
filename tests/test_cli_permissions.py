"""A home, a models folder or a model that this user may not use: one line from every verb, and nothing is changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_llm.paths import builtin_bundle

COMMANDS = (
    "list", "show mine", "run mine hi -n 1", "run builtin hi -n 1 --draft mine", "chat mine", "rm mine -y",
    "doctor", "plan mine", "bench mine -p 1 -n 0 -r 1", "bench --synthetic llama-1.1b -p 1 -n 0", "cache list",
    "cache clear -y", "perplexity mine TEXT", "serve mine --port 0", "import SOURCE --name other",
)  # fmt: skip

ANOTHER_USER = """
import contextlib, io, json, os, sys
from importlib import import_module

from edge_llm.cli.main import VERBS, run

def call(command):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(command.split())
    return [code, out.getvalue(), err.getvalue()]

sys.stdin = None
for _, module, _ in VERBS:
    import_module("edge_llm.cli." + module)
for module in ("edge_llm.engine.service", "edge_llm.server.run", "edge_llm.opening.float_assembly", "encodings.idna"):
    import_module(module)  # the other user may not even read the interpreter's files
call("run builtin hi -n 1"), call("doctor")
if os.geteuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
print(json.dumps({command: call(command) for command in sys.argv[1:]}))
"""


def as_another_user(home: Path, *commands: str) -> dict[str, Any]:
    """Exit code, stdout and stderr of each command, by a user who owns nothing here."""
    environment = os.environ | {"EDGE_LLM_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_USER, *commands], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may look into, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("locked", ["home", "home/models", "home/models/mine"])
def test_every_verb_says_what_it_may_not_see(place: Path, tiny_model: Any, locked: str) -> None:
    home = place / "home"
    (home / "models").mkdir(parents=True)
    shutil.copytree(builtin_bundle(), home / "models" / "mine")
    text, source = place / "text.txt", place / "source"
    text.write_text("some words")
    shutil.copytree(tiny_model("llama"), source)
    subprocess.run(["chmod", "-R", "a+rX", str(place)], check=True)
    before = sorted(place.rglob("*"))
    (place / locked).chmod(0)
    try:
        commands = [command.replace("TEXT", str(text)).replace("SOURCE", str(source)) for command in COMMANDS]
        found = as_another_user(home, *commands)
    finally:
        (place / locked).chmod(0o755)
    for command, (code, out, err) in found.items():
        assert "internal error" not in err and "Traceback" not in err, (command, err)
        errors = [line for line in err.splitlines() if line.startswith("error: ")]
        assert (code, len(errors)) in ((0, 0), (1, 1), (2, 1)), (command, code, err)
        if errors:
            assert str(place) in errors[0], (command, err)
        if "mine" in command:
            assert (code, out) == (1, ""), (command, code, out)
    assert found["doctor"][0] == 0
    if locked == "home/models/mine":  # the other models are still listed
        assert "Permission denied" in found["list"][1] and "builtin" in found["list"][1]
    else:
        assert "Permission denied" in found["doctor"][1] or "may not be read" in found["doctor"][1]
    assert sorted(place.rglob("*")) == before
