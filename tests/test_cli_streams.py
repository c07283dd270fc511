"""Standard streams that are closed, full or endless, and text that is none: one line and an exit code, nothing else."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from real_terminal import Terminal

from edge_llm.cli import piped
from edge_llm.cli.main import run
from edge_llm.cli.terminal import LINES_PER_SECOND, _progress_lines, _say_stages
from edge_llm.paths import builtin_bundle, models_folder
from edge_llm.progress import Journey, Pace, Step

pytestmark = pytest.mark.thorough(file=4)

WRITING = (
    "chat builtin -n 2", "--help", "--version", "serve --help", "list", "list --json", "show builtin", "doctor",
    "run builtin hi -n 2", "run builtin hi -n 2 --json", "cache list --json", "cache prune --json", "plan builtin",
    "bench builtin -p 1 -n 0 -r 1", "import SOURCE --name mine --shadow none", "perplexity builtin TEXT",
)  # fmt: skip
"""What writes to stdout; the first reads what is piped in."""

IN_CHILDREN = """
import json, os, sys
from importlib import import_module

from edge_llm.bench import rates
from edge_llm.cli.main import VERBS, main
from edge_llm.kernels.roofs import read_bandwidth

rates.read_bandwidth = lambda pool: read_bandwidth(pool, 16 << 20)
for _, module, _ in VERBS:
    import_module("edge_llm.cli." + module)
found = {}
for command in sys.argv[2:]:
    read_end, write_end = os.pipe()
    if not (child := os.fork()):
        os.dup2(write_end, 2)
        if sys.argv[1] == "closed":
            os.close(1)
            sys.stdout = None  # as an interpreter that was started so
        else:
            os.dup2(os.open(sys.argv[1], os.O_WRONLY), 1)
        main(command.split())
    os.close(write_end)
    with os.fdopen(read_end) as file:
        err = file.read()
    found[command] = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), err]
print(json.dumps(found))
"""


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("stdout", ["closed", "/dev/full"])
def test_a_stdout_that_takes_nothing_is_one_line_and_a_failure(tmp_path: Path, tiny_model: Any, stdout: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some words")
    commands = [c.replace("TEXT", str(text)).replace("SOURCE", str(tiny_model("llama"))) for c in WRITING]
    done = subprocess.run(
        [sys.executable, "-c", IN_CHILDREN, stdout, *commands], input="hello\n", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    why = "Bad file descriptor" if stdout == "closed" else "No space left on device"
    for command, (code, err) in json.loads(done.stdout).items():
        errors = [line for line in err.splitlines() if line.startswith("error: ")]
        assert (code, len(errors)) == (1, 1), (command, code, err)
        assert errors[0].startswith("error: cannot write") and errors[0].endswith(why), (command, err)
        assert "Traceback" not in err and "Exception ignored" not in err, (command, err)


PROGRAM = f"{sys.executable} -m edge_llm"


@pytest.mark.parametrize(
    ("command", "code", "out", "err"),
    [
        ("list >&-", 1, "", "error: cannot write to standard output: Bad file descriptor\n"),
        ("run builtin hi -n 1 <&- 2>&-", 0, None, ""),
        ("show nowhere >&- 2>&- <&-", 1, "", ""),
        ("nonsense 2>/dev/full", 2, "", ""),
        ("show nowhere 2>/dev/full", 1, "", ""),
    ],
)
def test_the_program_with_streams_of_a_careless_parent(command: str, code: int, out: str | None, err: str) -> None:
    done = subprocess.run(f"{PROGRAM} {command}", shell=True, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (code, err)
    assert done.stdout == out if out is not None else done.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_an_encoding_without_a_letter_is_no_failure(tmp_path: Path, encoding: str) -> None:
    home = os.fsdecode(os.fsencode(tmp_path) + b"/h\xff\xe2\x96\x81")
    environment = os.environ | {"PYTHONIOENCODING": encoding, "EDGE_LLM_HOME": home}
    done = subprocess.run(f"{PROGRAM} doctor", shell=True, capture_output=True, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert str(tmp_path).encode() in done.stdout


def test_text_of_a_shell_without_a_locale_is_utf8() -> None:
    environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    command = [sys.executable, "-m", "edge_llm", "run", "builtin", "-n", "1", "--json"]
    good = subprocess.run([*command, "h\xe9"], capture_output=True, timeout=60, env=environment, stdin=subprocess.DEVNULL)
    assert (good.returncode, good.stderr) == (0, b"")
    bad = subprocess.run([*command, b"h\xe9"], capture_output=True, timeout=60, env=environment, stdin=subprocess.DEVNULL)
    assert bad.returncode == 2
    assert b"is not UTF-8 text" in bad.stderr and b"Traceback" not in bad.stderr


# --- what is piped in --------------------------------------------------------------------------------------------


def with_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


@pytest.mark.parametrize("verb", ["run", "chat"])
def test_ten_megabytes_in_one_line_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    run(["run", "builtin", "warm", "-n", "1"])
    with_stdin(monkeypatch, os.urandom(5_000_000).hex().encode())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    capsys.readouterr()
    code = run([verb, "builtin", "-n", "1"])
    out, err = capsys.readouterr()
    assert (code, out) == (2 if verb == "run" else 0, "")
    assert err.startswith("error: this model's maximum context length is 1024 tokens, but the prompt has at least ")
    assert err.count("\n") == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_a_prompt_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with Path("/dev/zero").open() as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        assert run(["run", "builtin"]) == 2
    assert capsys.readouterr().err == "error: more than 16 MiB are piped in; no context here holds that\n"


def test_a_chat_goes_on_after_lines_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(piped, "MAX_BYTES", 100)
    with_stdin(monkeypatch, b"x" * 300 + b"\n" + b"\xff\n" + b"y" * 101 + b"\nhello\n/stats\n" + b"z" * 500)
    assert run(["chat", "builtin", "-n", "2"]) == 0
    out, err = capsys.readouterr()
    assert out.strip()
    assert err.count("error: a line has more than") == 3
    assert err.count("error: that line is not UTF-8 text") == 1
    assert "tokens read" in err


def test_a_plain_chat_says_that_it_attaches_no_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("inside")
    monkeypatch.chdir(tmp_path)
    with_stdin(monkeypatch, b"@nofile.txt and @notes.txt, please\nme@example.org @someone. @ @app.cache(x) hi\n")
    assert run(["chat", "builtin", "-n", "1"]) == 0
    assert [line for line in capsys.readouterr().err.splitlines() if "sent as text" in line] == [
        "no file `nofile.txt`; sent as text",
        "`notes.txt` is not attached, only the full-screen chat does that; sent as text",
    ]


# --- what a terminal is shown ------------------------------------------------------------------------------------


def test_strings_of_a_manifest_move_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    from edge_llm.formats.manifest import decode_manifest, encode_manifest

    evil = "\x1b[2J\x1b]0;owned\x07\r\n\x9b31mred\u202e"
    folder = models_folder() / "mine"
    shutil.copytree(builtin_bundle(), folder)
    shutil.copytree(builtin_bundle(), models_folder() / "x\x1b[2Jy\nz")
    (folder.parent / "broken\x1b[2J").mkdir()
    path = folder / "manifest.json"
    fields = decode_manifest(path.read_bytes(), path)
    del fields["checksum"]
    fields["created_with"] = evil
    fields["source"] |= {"path": evil, "digest": evil}
    path.write_bytes(encode_manifest(fields))
    for command in (["show", "mine"], ["list"], ["show", "./\x1b[2J"], ["cache", "list"], ["rm", "\x1b[2J"]):
        run(command)
        for text in capsys.readouterr():
            assert all(char.isprintable() or char == "\n" for char in text), command
    assert run(["show", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["created_with"] == evil


BAR = """
import sys

from edge_llm.cli.terminal import note, progress_bar

with progress_bar() as draw:
    draw("layers", 1, 4)
    note("folded 3 of 4 layers: `model.layers.0` is uneven")
    note("x" * 60 + " " + "y" * 60)
    draw("layers", 2, 4)
    sys.stdin.readline()  # the test has seen it
note("ready")
"""


def test_a_note_stands_whole_above_a_bar_and_on_lines_of_its_own() -> None:
    with Terminal(command=[sys.executable, "-c", BAR], columns=80, rows=20) as terminal:
        lines = [line for line in terminal.wait_for("2 of 4").splitlines() if line]
        assert lines[-4:-1] == ["folded 3 of 4 layers: `model.layers.0` is uneven", "x" * 60, "y" * 60]
        assert lines[-1].startswith("layers") and sum("layers  " in line for line in lines) == 1
        terminal.write("\n")
        assert terminal.wait_for("ready").splitlines().count("ready") == 1
        assert terminal.wait_end() == 0


def test_a_log_is_told_how_far_a_long_stage_is(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 1.0, 31.0, 32.0, 90.0, 91.0, 200.0])
    say = _say_stages(Journey(), lambda: next(times))
    for done in (0, 1, 2, 3):
        say("layers", done, 8)
    say("output", 0, 1)
    for done in (6, 8):
        say("layers", done, 8)
    assert capsys.readouterr().err.splitlines() == [
        "layers ...", "layers 2 of 8, 1:33 left ...", "output ...", "layers 6 of 8, 0:30 left ...",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "done", "total", "left", "said"),
    [
        ("layers", 3, 24, None, "3 of 24"),
        ("layers", 3, 24, 59.6, "3 of 24, 1:00 left"),
        ("layers", 3, 24, 7322.0, "3 of 24, 2:02:02 left"),
        ("layers", 24, 24, 0.0, "24 of 24"),
        ("load", 5, 1000, 3.0, "0%, 0:03 left"),
        ("download", 141_300_000, 257_000_000, 6.0, "141 of 257 MB, 0:06 left"),
        ("download", 1_000_000, 1_503_300_328, None, "0.0 of 1.5 GB"),
        ("digest", 0, 0, None, "100%"),
    ],
)
def test_how_far_a_stage_is_and_how_long_it_takes(stage: str, done: int, total: int, left: float | None, said: str) -> None:
    assert Step(stage, done, total, left).so_far == said


def test_time_is_told_from_where_a_stage_began() -> None:
    """An import that goes on begins in the middle of a stage."""
    pace = Pace()
    assert pace.seconds_left("layers", 20, 24, 5.0) is None
    assert pace.seconds_left("output", 0, 1, 6.0) is None
    assert pace.seconds_left("layers", 22, 24, 15.0) == 10.0


def test_a_program_is_told_the_first_the_last_and_not_too_much(capsys: pytest.CaptureFixture[str]) -> None:
    step = 1 / LINES_PER_SECOND
    times = iter([0.0, 0.1 * step, 1.2 * step, 1.3 * step, 1.4 * step])
    say = _progress_lines(Journey(), lambda: next(times))
    for done in (0, 1, 2, 3, 4):
        say("download", done, 4)
    rows = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    left, _ = ([row.pop(name, None) for row in rows] for name in ("seconds_left", "bytes_per_second"))
    assert rows == [{"stage": "download", "done": done, "total": 4} for done in (0, 2, 4)]
    assert left == [None, 0.1, 0.0]


def test_a_program_follows_an_import(tiny_model: Any, edge_llm_home: Path) -> None:
    command = [sys.executable, "-m", "edge_llm", "import", str(tiny_model("llama")), "--name", "mine", "--progress", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"{edge_llm_home / 'models' / 'mine'}\n"), done.stderr
    lines = done.stderr.splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    assert lines[-1] == "ready: chat with `edge-llm chat mine`"
    assert {"digest", "layers"} <= {row["stage"] for row in rows}
    last = {row["stage"]: row for row in rows}
    times = {"seconds_left", "seconds_left_in_all"}
    assert all(set(row) - times == {"stage", "done", "total"} and row["done"] <= row["total"] for row in rows)
    assert last["layers"]["done"] == last["layers"]["total"]
