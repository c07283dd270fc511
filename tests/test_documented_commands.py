"""Every `edge-llm ...` that the documents show is understood as it is written: its verb, its options and their values."""

import contextlib
import re
import shlex
from pathlib import Path

import click
import pytest

from edge_llm.cli.main import cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```.*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BEHIND = ("|", "||", "&&", ";", "do", "then")
"""Words of a shell behind which a command begins."""


def commands(page):
    """The arguments of every command in blocks and between accents; what may be left out, in brackets, is there."""
    text = page.read_text().replace("\\\n", " ")
    inline = re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
    lines = [line for block in BLOCK.findall(text) for line in block.splitlines()]
    for line in [*lines, *(found.replace("\\|", "|") for found in inline)]:
        if "edge-llm" not in line:
            continue
        try:
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
            lexer.whitespace_split = True
            words = list(lexer)
        except ValueError:  # prose, or a line of another language
            continue
        for at, word in enumerate(words):
            begins = at == 0 or words[at - 1] in BEHIND or re.fullmatch(r"[A-Z_]+=\S*", words[at - 1])
            if begins and (word == "edge-llm" or word.endswith("/bin/edge-llm")):
                rest = words[at + 1 :]
                end = next((place for place, one in enumerate(rest) if set(one) <= set("|;&<>")), len(rest))
                yield [one.strip("[]") for one in rest[:end]]


def understand(arguments):
    """Parse ``arguments``, and do nothing; raises what is wrong with them."""
    context, command = click.Context(cli, info_name="edge-llm"), cli
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        inner = command.get_command(context, arguments[0])
        if inner is None and command is not cli:  # `bench MODEL`
            break
        assert inner is not None, f"no verb {arguments[0]}"
        command, arguments = inner, arguments[1:]
        context = click.Context(command, parent=context, info_name="verb") if isinstance(command, click.Group) else context
    with contextlib.suppress(click.exceptions.Exit):  # of --help
        command.make_context("verb", list(arguments), parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_understood(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for arguments in commands(page):
        if len(arguments) <= 1 and arguments != ["doctor"]:  # the name of a verb alone
            assert not arguments or arguments[0].startswith("-") or arguments[0] == "help" or cli.command_of(arguments[0])
            continue
        try:
            understand(arguments)
        except (click.ClickException, AssertionError) as wrong:
            pytest.fail(f"{page.name}: edge-llm {' '.join(arguments)}: {wrong}")


def test_commands_are_found_and_wrong_ones_are_seen():
    assert len([*commands(ROOT / "README.md")]) >= 15
    for wrong in (["run", "x", "--temperture", "1"], ["frobnicate", "x"], ["plan", "x", "--ctx", "many"], ["bench", "x", "y"]):
        with pytest.raises((click.ClickException, AssertionError)):
            understand(wrong)


def test_every_verb_of_the_readme_s_first_commands_is_there_to_be_helped(capsys):
    for verb in {arguments[0] for arguments in commands(ROOT / "README.md") if arguments}:
        understand([verb, "--help"])
        assert "Usage: " in capsys.readouterr().out
