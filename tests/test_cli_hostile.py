"""Every verb with every option and a value that nobody means: an exit code, at most one line of error, nothing left."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from edge_llm.cli.main import VERBS, cli, run
from edge_llm.cli.values import NewFile
from edge_llm.convert.importer import import_model

VALUES = {
    "empty": "", "zero": "0", "minus one": "-1", "huge": "9" * 18, "too long a number": "9" * 5000, "nan": "nan", "inf": "inf",
    "beyond float": "1e999", "underscore": "1_000", "other digits": "\u0663", "superscript": "\u00b2", "percent": "50%",
    "not UTF-8": "a\udcff", "control": "a\x1b[2J\nb", "long": "x" * 300, "longer": "x" * 5000,
    "open bracket": "{", "nobody": "~nobody-at-all/x", "folder": "FOLDER", "below a file": "FILE/x", "text": "FILE",
    "empty file": "/dev/null", "endless": "/dev/zero", "refuses to be read": "/proc/self/mem",
}  # fmt: skip
PLAIN_NUMBERS = {"zero", "minus one", "huge"}
"""The values that a number option may take as a number, in bounds or not."""

REQUIRED = {
    "run": ["BUNDLE", "hi", "-n", "1"], "bench": ["BUNDLE", "-p", "1", "-n", "0", "-r", "1"], "chat": ["BUNDLE"],
    "perplexity": ["BUNDLE", "FILE", "--max-tokens", "4"], "serve": ["nowhere"], "plan": ["nowhere"], "show": ["nowhere"],
    "rm": ["nowhere"], "import": ["./nowhere"], "pull": ["nobody/nothing"], "export": ["BUNDLE", "--chunk", "1"],
    "bench lanes": ["BUNDLE", "-p", "4", "-r", "1"],
    "bench load": ["BUNDLE", "-p", "1", "-n", "1", "-r", "1", "--concurrency", "1"],
    "bench sampling": ["BUNDLE", "-p", "1", "-n", "1", "-r", "1"], "bench speculation": ["BUNDLE", "-r", "1", "--ctx", "16"],
    "bench simulate": ["llm-npu-qwen1.5-1.8b", "-p", "256"],
}  # fmt: skip
"""What each verb needs to come as far as its options are looked at, and no farther than is quick."""
OTHERWISE: dict[tuple[str, str], list[str]] = {
    (f"bench {word}".strip(), "--synthetic"): [] for word in ("", "lanes", "load", "sampling", "speculation")
}
WRITES = {("bench", "--save"), ("bench lanes", "--trace"), ("bench simulate", "--trace"), ("export", "--out")}
"""Options whose value is the name of a file or folder to write."""
KEEPS = {("run", "--prefix-cache"), ("chat", "--prefix-cache")}
"""Options that keep pages for the next start: a size that is a number, however huge, makes the folder."""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every verb, and every verb of a group, with its words."""
    context = click.Context(cli)
    for verb, _, _ in VERBS:
        command = cli.get_command(context, verb)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{verb} {name}", command.get_command(context, name)) for name in command.list_commands(context))
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield verb, command


def cases() -> Iterator[Any]:
    """(words of a verb, an option or an argument's place) for all that takes a value."""
    for words, command in commands():
        for number, param in enumerate(p for p in command.params if isinstance(p, click.Argument)):
            yield pytest.param(words, number, id=f"{words} {param.human_readable_name}")
        for option in command.params:
            if isinstance(option, click.Option) and not option.is_flag:
                yield pytest.param(words, option.opts[-1], id=f"{words} {option.opts[-1]}")


def test_the_files_that_a_verb_reads_are_known() -> None:
    """Those whose name is a path; that of a missing file is a mistake with an exit code of 2 (`tests/test_cli.py`)."""
    found = {
        (words, param.opts[-1]) for words, command in commands() for param in command.params
        if isinstance(param.type, click.Path) and not isinstance(param.type, NewFile)
    }  # fmt: skip
    assert found == {
        ("import", "--sensitive"), ("perplexity", "file"), ("serve", "--api-key-file"), ("chat", "--api-key-file"),
        ("bench", "--compare"), ("bench", "--quality-text"), ("bench experts", "trace"), ("bench neurons", "--text"),
        ("bench neurons", "--calibration"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tiny_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return import_model(tiny_model("llama", num_hidden_layers=1), "t", target=tmp_path_factory.mktemp("bundles") / "tiny")


@pytest.mark.thorough(keep=11)
@pytest.mark.parametrize(("words", "place"), list(cases()))
def test_no_value_breaks_a_verb(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    edge_llm_home: Path,
    bundle: Path,
    words: str,
    place: str | int,
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("some words")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    real = {"BUNDLE": str(bundle), "FOLDER": str(tmp_path / "folder"), "FILE": str(tmp_path / "file")}
    for kind, value in VALUES.items():
        if (words, place) in WRITES and value.startswith(("/dev/", "/proc/")):
            continue
        value = value.replace("FOLDER", real["FOLDER"]).replace("FILE", real["FILE"])
        needed = [real.get(word, word) for word in OTHERWISE.get((words, str(place)), REQUIRED.get(words, []))]
        if isinstance(place, int):
            needed[place : place + 1] = ["--", value] if place == len(needed) - 1 else [value]
        else:
            needed += [place, value]
        if words in ("rm", "cache clear"):
            needed.insert(0, "-y")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
        code = run([*words.split(), *needed])
        out, err = capsys.readouterr()
        said = (kind, code, out[-500:], err[-1000:])
        assert code in (0, 1, 2), said
        assert "internal error" not in err and "Traceback" not in err, said
        errors = [line for line in err.splitlines() if line.lower().startswith("error")]
        assert len(errors) == (code != 0), said
        assert all(char.isprintable() or char in "\n\t" for char in err), said
        if (words, place) not in WRITES:
            left = [*edge_llm_home.rglob("*"), *(tmp_path / "here").rglob("*")]
            kept = edge_llm_home / "prefix-cache"
            assert [path for path in left if (words, place) not in KEEPS or not path.is_relative_to(kept)] == [], said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "here"]


def number_options() -> Iterator[Any]:
    for words, command in commands():
        for option in command.params:
            if isinstance(option.type, (click.types.IntParamType, click.types.FloatParamType)):
                yield pytest.param(option, id=f"{words} {option.opts[-1]}")


@pytest.mark.parametrize("option", list(number_options()))
def test_a_number_is_written_in_plain_digits(option: click.Option) -> None:
    context = click.Context(click.Command("any"))
    for kind, value in VALUES.items():
        if kind not in PLAIN_NUMBERS:
            with pytest.raises(click.BadParameter) as refused:
                option.type.convert(value, option, context)
            assert len(str(refused.value)) < 300
    number = min(7, getattr(option.type, "max", None) or 7)
    assert option.type.convert(str(number), option, context) == number


def test_many_numbers_are_looked_at() -> None:
    assert len(list(number_options())) > 30
    assert len(list(cases())) > 90


def test_rows_are_written_to_a_device_and_not_in_its_place(tmp_path: Path, bundle: Path) -> None:
    device = tmp_path / "device"
    device.symlink_to("/dev/null")
    assert run(["bench", str(bundle), "-p", "1", "-n", "0", "-r", "1", "--save", str(device)]) == 0
    assert device.is_char_device()
    assert list(tmp_path.iterdir()) == [device]
