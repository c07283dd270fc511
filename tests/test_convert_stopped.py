"""An import that is stopped goes on where it was, and what it gives is what it would have been."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass

import numpy as np
import pytest
from model_files import tiny_config, write_model

from edge_llm.cli.main import run
from edge_llm.config import INT8, W4
from edge_llm.convert import job
from edge_llm.convert.allocate import AUTO, LayerBits
from edge_llm.convert.importer import import_model
from edge_llm.convert.saved import Saved
from edge_llm.convert.unfinished import Unfinished
from edge_llm.errors import NumericError, StorageError, Unavailable, UsageError
from edge_llm.formats import leftovers
from edge_llm.paths import bundle_path, models_folder

pytestmark = pytest.mark.thorough(file=2)

STOPPED = ".stopped-m"
KINDS = {"int8": LayerBits(INT8), "w4": LayerBits(W4), "auto": LayerBits(AUTO, 6.0), "head": LayerBits(W4, head=W4)}
FAMILIES = {"int8": "qwen3", "w4": "qwen2", "auto": "llama", "head": "mistral"}


class Stop(Exception):
    """Ctrl-C, or a crash."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A model for every kind of weights."""
    folder = tmp_path_factory.mktemp("stopped")
    for family in FAMILIES.values():
        write_model(folder / family, tiny_config(family, num_hidden_layers=3))
    return folder


@pytest.fixture(scope="module")
def whole(sources, tmp_path_factory):
    """The bytes of a bundle that came in one go, by the kind of its weights."""
    made = {}

    def of(kind):
        if kind not in made:
            target = tmp_path_factory.mktemp("whole") / "m"
            made[kind] = contents(import_model(sources / FAMILIES[kind], target=target, weights=KINDS[kind], keep_float=True))
        return made[kind]

    return of


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def go(sources, kind, progress=None, **more):
    said = []
    options = {"weights": KINDS[kind], "keep_float": True, "notice": said.append, **more}
    return import_model(sources / FAMILIES[kind], "m", progress=progress, **options), said


def stop_at(stage, done):
    def progress(*step):
        if step[:2] == (stage, done):
            raise Stop

    return progress


def stopped(sources, kind, stage="layers", done=2):
    with pytest.raises(Stop):
        go(sources, kind, stop_at(stage, done))
    assert names() == [STOPPED]


def names():
    return sorted(path.name for path in models_folder().iterdir())


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("kind", KINDS)
def test_stopped_at_every_step_it_comes_to_the_same(sources, whole, kind):
    """Every run gets one step further than the one before."""
    seen = []

    def next_step(*step):
        if step not in seen:
            seen.append(step)
            raise Stop
        told.append(step)

    while True:
        told = []
        try:
            folder, _ = go(sources, kind, next_step)
            break
        except Stop:
            assert not bundle_path("m").exists()
            assert sum(stage in ("calibration", "layers") for stage, _, _ in told) <= 2, "a layer is done again"
    assert contents(folder) == whole(kind)
    assert names() == ["m"]
    assert {"digest", "calibration", "layers", "output", "copy"} <= {stage for stage, _, _ in seen}
    assert {("layers", done, 3) for done in range(4)} <= set(seen)


@dataclass(frozen=True)
class Change:
    """Another import of the same name."""

    kind: str = "w4"
    seed: int = 0
    text: str | None = None
    version: str | None = None
    fresh: bool = False


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(
    "change",
    [Change("auto"), Change("int8"), Change(seed=1), Change(text="word " * 900), Change(version="9.9"), Change(fresh=True)],
    ids=["bits", "weights", "source", "text", "version", "fresh"],
)
def test_another_import_does_not_go_on_from_there(sources, tmp_path, monkeypatch, change):
    stopped(sources, "w4")
    source, steps, said = tmp_path / "source", [], []
    write_model(source, tiny_config(FAMILIES["w4"], num_hidden_layers=3), seed=change.seed)
    text = None if change.text is None else tmp_path / "text.txt"
    if text is not None:
        text.write_text(change.text)
    if change.version:
        monkeypatch.setattr(job, "_version", lambda: change.version)
    options = {"weights": KINDS[change.kind], "calibration": text, "keep_float": True}
    folder = import_model(
        source, "m", **options, fresh=change.fresh, progress=lambda *step: steps.append(step), notice=said.append
    )
    assert ("calibration", 0, 3) in steps
    assert change.fresh or any("removing what another import" in line for line in said)
    assert names() == ["m"]
    assert contents(folder) == contents(import_model(source, target=tmp_path / "alone", **options))


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_stopped_is_gone_on_with(sources, tmp_path, edge_llm_home, number):
    source = tmp_path / "source"
    write_model(source, tiny_config("llama", num_hidden_layers=8))
    command = [sys.executable, "-m", "edge_llm", "import", str(source), "--name", "m", "--weights", "w4", "--progress", "json"]
    environment = os.environ | {"EDGE_LLM_HOME": str(edge_llm_home)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        for line in process.stderr:
            if line.startswith('{"stage": "layers", "done": 3,'):
                process.send_signal(number)
                break
        rest = process.stderr.read()
    assert process.returncode != 0
    assert names() == [STOPPED]
    assert (number != signal.SIGINT) or "goes on from there" in rest
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=environment, check=True, timeout=120)
    rows = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    first = {row["stage"]: row["done"] for row in reversed(rows)}
    assert first["calibration"] == 8
    assert first["layers"] >= 2
    assert names() == ["m"]
    alone = import_model(source, target=tmp_path / "alone", weights=KINDS["w4"])
    assert contents(bundle_path("m")) == contents(alone)


@pytest.mark.thorough
def test_a_full_disk_is_said_and_what_is_done_stays(sources, whole, monkeypatch):
    """With some bytes more each time, it comes to its end."""
    real, free, failures = os.write, [0], 0

    def write(fd, data):
        free[0] -= len(data)
        if free[0] < 0:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    for _ in range(30):
        free[0] = 300_000
        try:
            go(sources, "auto")
            break
        except StorageError as error:
            failures += 1
            assert "no space left" in str(error)
            assert names() == [STOPPED]
    free[0] = 10**9
    assert failures >= 2
    assert contents(go(sources, "auto")[0]) == whole("auto")


DAMAGES = {
    "a byte": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
    "the first byte": lambda data: bytes([data[0] ^ 255]) + data[1:],
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "no sense": lambda data: b"\0" * len(data),
}


FILES = ["job.saved", "survey.saved", "survey-1.saved", "costs.saved", "progress.saved", "bundle/weights.bin"]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("file", FILES)
def test_what_is_damaged_is_made_again(sources, whole, file):
    stopped(sources, "auto", "output", 0)
    path = models_folder() / STOPPED / file
    path.write_bytes(DAMAGES["a byte"](path.read_bytes()))
    assert contents(go(sources, "auto")[0]) == whole("auto")


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_value_is_none(tmp_path, damage):
    saved = Saved(tmp_path)
    for value in ([1, 2, 3], {"a": np.arange(100.0)}, np.zeros((3, 0))):
        saved.save("x", value)
        path = tmp_path / "x.saved"
        path.write_bytes(damage(path.read_bytes()))
        assert saved.load("x") is None


def test_what_was_written_after_the_last_word_is_cut_off(sources, whole):
    stopped(sources, "auto", "layers", 1)
    with (models_folder() / STOPPED / "bundle" / "weights.bin").open("ab") as file:
        file.write(b"half a layer")
    assert contents(go(sources, "auto")[0]) == whole("auto")


def test_errors_of_the_model_leave_nothing(sources):
    for error in (NumericError("x"), UsageError("x")):

        def fail(stage, done, total, error=error):
            if stage == "layers" and done == 1:
                raise error

        with pytest.raises(type(error)):
            go(sources, "w4", fail)
        assert names() == []


def test_what_is_kept_is_listed_and_removed(sources, capsys):
    stopped(sources, "w4")
    assert run(["list"]) == 0
    out, err = capsys.readouterr()
    assert "an import of m was stopped" in err and "MiB" in err
    assert STOPPED not in out
    assert run(["list", "--json"]) == 0
    assert [model["name"] for model in json.loads(capsys.readouterr().out)] == ["builtin"]
    assert run(["run", "m", "hello"]) == 1
    assert names() == [STOPPED]
    assert run(["rm", "m"]) == 0
    assert "stopped import" in capsys.readouterr().err
    assert names() == []
    assert run(["rm", "m"]) == 1


def test_the_command_starts_anew_where_it_is_told_to(sources, capsys):
    command = ["import", str(sources / FAMILIES["w4"]), "--name", "m", "--weights", "w4", "--keep-float"]
    for more, goes_on in ([], True), (["--fresh"], False):
        stopped(sources, "w4")
        assert run([*command, *more]) == 0
        assert ("this one goes on from there" in capsys.readouterr().err) == goes_on
        assert run(["rm", "m", "--yes"]) == 0


def test_what_a_finished_import_left_goes_with_the_next(sources):
    """It was killed between the rename of its bundle and its end."""
    go(sources, "w4")
    (models_folder() / STOPPED / "bundle").mkdir(parents=True)
    go(sources, "w4")
    assert names() == ["m"]


def test_a_model_goes_with_its_stopped_import(sources):
    go(sources, "int8")
    with pytest.raises(Stop):
        go(sources, "w4", stop_at("layers", 1), overwrite=True)
    assert names() == [STOPPED, "m"]
    assert run(["rm", "m", "--yes"]) == 0
    assert names() == []


def test_an_import_at_work_is_not_taken_for_a_stopped_one(sources, capsys):
    def look(stage, done, total):
        if (stage, done) == ("layers", 1):
            assert run(["list"]) == 0
            assert run(["rm", "m"]) == 1
            looked.append(capsys.readouterr().err)

    looked = []
    go(sources, "int8", look)
    assert len(looked) == 1 and "was stopped" not in looked[0]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("kind", ["auto", "w4"])
def test_a_second_import_of_a_name_is_refused_before_it_begins(sources, whole, kind):
    """With the owner and the way out, whether it is the same import or another; the first is no worse for it."""

    def another(stage, done, total):
        if (stage, done) == ("layers", 1):
            with pytest.raises(Unavailable, match=rf"another import of `m` is at work \(process {os.getpid()}\); .*--name"):
                go(sources, kind, lambda *step: seen.append(step))
            assert names() == [STOPPED]

    seen = []
    assert contents(go(sources, "auto", another)[0]) == whole("auto")
    assert names() == ["m"] and not seen


def test_who_only_looks_at_a_folder_refuses_nobody(sources, whole):
    """A listing, or the removal of what was stopped, holds the folder for a moment."""
    stopped(sources, "auto")
    held = leftovers.lock_if_free(models_folder() / STOPPED)
    threading.Timer(0.1, os.close, [held]).start()
    assert contents(go(sources, "auto")[0]) == whole("auto")


def test_without_locks_nothing_is_kept_and_all_else_works(sources, whole, monkeypatch):
    def refuse(fd, how):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(Stop):
        go(sources, "auto", stop_at("layers", 2))
    assert contents(go(sources, "auto")[0]) == whole("auto")
    assert [name for name in names() if name[0] != "."] == ["m"]
    assert STOPPED not in names()


def test_values_come_back_as_they_were(tmp_path):
    saved = Saved(tmp_path)
    value = {
        "numbers": [1, -0.0, float("inf"), 1e-320, None, True, "ü\0"],
        "arrays": (np.arange(6, dtype=np.int32).reshape(2, 3).T, np.zeros((0, 4), np.float32), np.array([], np.int32)),
        "number": np.float32(0.1),
        "record": Change("x"),
        "nested": {"a": [Change(text="y"), {}]},
    }
    saved.save("some value", value)
    found = saved.load("some value", Change)
    assert found["numbers"] == value["numbers"] and np.signbit(found["numbers"][1])
    for array, wanted in zip(found["arrays"], value["arrays"], strict=True):
        assert np.array_equal(array, wanted) and array.dtype == wanted.dtype and array.flags.writeable
    assert type(found["number"]) is np.float32 and found["number"] == np.float32(0.1)
    assert (found["record"], found["nested"]) == (value["record"], value["nested"])
    assert saved.load("another") is None
    assert saved.load("some value") is None  # a record of a kind that is not named


def test_a_value_that_cannot_be_saved_leaves_the_one_before(tmp_path, monkeypatch):
    saved = Saved(tmp_path)
    saved.save("x", [1])

    def full(fd, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="no space left"):
        patch.setattr(os, "write", full)
        saved.save("x", [2])
    assert saved.load("x") == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["x.saved"]


def test_a_folder_in_its_place_that_is_no_import_is_replaced(tmp_path):
    (tmp_path / STOPPED / "deep").mkdir(parents=True)
    (tmp_path / STOPPED / "deep" / "x").write_text("x")
    with Unfinished(tmp_path / "m", {"a": "b"}, print) as place:
        assert sorted(path.name for path in place.folder.iterdir()) == ["bundle", "job.saved", "owner"]
    assert list(tmp_path.iterdir()) == []
