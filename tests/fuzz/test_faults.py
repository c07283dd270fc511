"""Every call that touches the disk fails, once or for good, or is the last before a kill: whole or absent, and nothing left.

Of each command the faults are tried in an order that the seed makes, as many as its share of the time allows; with enough
`--fuzz-seconds` these are all: `pytest tests/fuzz/test_faults.py --fuzz-seconds 3000`.
"""

import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from disk import FAULTS, KILL, NO_FAULT, Nursery, Result
from model_files import tiny_config, write_model

from edge_llm.errors import EdgeLLMError, ModelNotFound
from edge_llm.formats.bundle import open_bundle

PROMPT = "the world and the other world " * 3
BODY = {"prompt": PROMPT, "max_tokens": 4}


@dataclass(frozen=True)
class World:
    """What a command finds: ``folder`` holds the home and the source; ``homes`` what a home may be made of."""

    folder: Path
    homes: Path
    memory: str
    """Budget with which every layer is streamed."""

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def model(self) -> Path:
        return self.home / "models" / "m"

    def reset(self, home: str) -> None:
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(self.homes / home, self.home)

    def model_is_whole(self) -> bool:
        """False if it is absent; anything else between raises."""
        try:
            with open_bundle(self.model) as bundle:
                bundle.verify()
        except ModelNotFound:
            assert not self.model.exists()
            return False
        return True

    def files(self) -> set[str]:
        """All that is in the home, pages without their names."""
        found = (path.relative_to(self.home) for path in self.home.rglob("*") if path.is_file())
        return {str(path.parent / "page") if path.suffix == ".page" else str(path) for path in found}

    def pages(self) -> list[Path]:
        return list(self.home.glob("prefix-cache/*/*.page"))


@dataclass(frozen=True)
class Command:
    """A command under faults: the home that it begins with, and what must hold after it and after the next start."""

    name: str
    home: str
    words: Callable[[World], list[object]]
    after: Callable[[World, Result, Result], None]
    """Given the result, and that of a run without a fault."""
    body: dict | None = None

    def __str__(self) -> str:
        return self.name


def import_words(world, *more):
    return ["import", world.folder / "source", "--name", "m", "--shadow", "none", "--calibration", world.folder / "text", *more]


def run_words(world):
    return ["run", "m", PROMPT, "--raw", "--max-tokens", 4, "--memory", world.memory]


def imported(world, result, _):
    assert world.model_is_whole() or result.code != 0


def removed(world, result, _):
    assert not (world.model_is_whole() and result.code == 0)


def answered(world, result, good):
    assert world.model_is_whole()
    if result.code == 0:
        assert result.stdout == good.stdout


def served(world, result, good):
    assert world.model_is_whole()
    if result.code == 0:
        assert text_of(result) == text_of(good)


def cleared(world, result, _):
    assert not (world.pages() and result.code == 0)


def text_of(result):
    """What was answered, without numbers of the moment."""
    return result.answer.partition('"choices"')[2].partition('"usage"')[0]


COMMANDS = (
    Command("import", "empty", import_words, imported),
    Command("import over another", "other", lambda world: import_words(world, "--overwrite"), imported),
    Command("rm", "used", lambda _: ["rm", "m", "--yes"], removed),
    Command("run streamed", "model", run_words, answered),
    Command("serve", "used", lambda _: ["serve", "m", "--prefix-cache", "1MiB"], served, body=BODY),
    Command("serve for the first time", "model", lambda _: ["serve", "m", "--prefix-cache", "1MiB"], served, body=BODY),
    Command("cache clear", "used", lambda _: ["cache", "clear", "--yes"], cleared),
)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("no C compiler, which the failing disk is made with")
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def world(nursery, tmp_path_factory):
    """A world whose homes are `empty`, with `other` model, with the `model`, and with a `used` one that has pages."""
    folder, homes = tmp_path_factory.mktemp("world"), tmp_path_factory.mktemp("homes")
    shape = tiny_config(num_hidden_layers=2, hidden_size=32, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1)
    write_model(folder / "source", shape)
    write_model(folder / "another", shape, seed=1)
    (folder / "text").write_text("hello world, the other world\n" * 20)
    world = World(folder, homes, "")
    (homes / "empty").mkdir()
    for name, source, home in (("other", "another", "empty"), ("model", "source", "empty")):
        world.reset(home)
        words = ["import", folder / source, "--name", "m", "--shadow", "none", "--calibration", folder / "text"]
        assert nursery.run(words, folder).code == 0
        shutil.copytree(world.home, homes / name)
    result = nursery.run(["serve", "m", "--prefix-cache", "1MiB"], folder, body=BODY)
    assert result.code == 0 and world.pages(), result
    shutil.copytree(world.home, homes / "used")
    too_little = nursery.run(["run", "m", "x", "--memory", "1B"], folder).stderr
    return replace(world, memory=too_little.partition("the least that works is ")[2].partition(" ")[0])


def walk(good, seed):
    """Every fault at every call that a run makes which went like ``good``, shuffled."""
    faults = [replace(fault, call=call) for fault in FAULTS for call in range(1, good.calls(fault) + 1)]
    random.Random(seed).shuffle(faults)
    return faults


def check(nursery, world, command, fault, good):
    """Run ``command`` with ``fault``, and again without; raises `AssertionError` when something does not hold."""
    world.reset(command.home)
    result = nursery.run(command.words(world), world.folder, fault, command.body)
    said = f"{result.stderr}{result.stdout}"
    assert "internal error" not in said and "Traceback" not in said, said
    if fault.how == KILL:
        assert result.code in (-9, 0), said
    else:
        assert result.code in (0, 1), f"exit {result.code}: {said}"
        assert len(result.errors) == result.code, said
    command.after(world, result, good)
    again = nursery.run(command.words(world), world.folder, NO_FAULT, command.body)
    gone = command.name == "rm" and "no model `m`" in again.stderr
    assert again.code == (1 if gone else 0), again.stderr
    command.after(world, again, good)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_whole_or_absent_and_nothing_left(nursery, world, command, fuzz):
    world.reset(command.home)
    good = nursery.run(command.words(world), world.folder, NO_FAULT, command.body)
    assert good.code == 0, good.stderr
    nursery.run(command.words(world), world.folder, NO_FAULT, command.body)
    clean = world.files()
    faults = walk(good, fuzz.seed)
    until, tried, findings = time.monotonic() + fuzz.share, 0, []
    for fault in faults:
        if time.monotonic() > until:
            break
        tried += 1
        try:
            check(nursery, world, command, fault, good)
            assert world.files() == clean
        except (AssertionError, EdgeLLMError) as finding:
            findings.append(f"{fault}: {finding}")
    print(f"{command}: {tried} of {len(faults)} faults, seed {fuzz.seed}")
    assert not findings, f"{len(findings)} of {tried} faults of `{command}`:\n" + "\n".join(findings[:20])
