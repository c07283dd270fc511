"""The commands of `edge-llm bench`: their help, what they load, the old spellings, and models that are named like them."""

import json
import re
import shutil
import subprocess
import sys

import click
import pytest
from families import family_folder

from edge_llm.cli.bench.speed import MOVED, bench_command
from edge_llm.cli.bench.words import COMMANDS, WORDS
from edge_llm.cli.main import run
from edge_llm.convert.importer import import_model

pytestmark = pytest.mark.thorough(file=4)


@pytest.fixture
def bench(capsys):
    """Call `edge-llm bench`: (exit code, stdout, stderr)."""

    def call(*arguments):
        code = run(["bench", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


# -- help -------------------------------------------------------------------------------------------------------------


def test_the_help_of_speed_lists_the_commands_and_its_own_options(bench):
    code, out, _ = bench("--help")
    assert code == 0 and out.startswith("Usage: edge-llm bench [OPTIONS] [MODEL]\n")
    assert all(f"\n  {word} " in out and text in out for word, _, text in COMMANDS)
    assert all(flag in out for flag in ("-pg", "--ttft", "--peer", "--compare", "--synthetic"))


@pytest.mark.parametrize("word", WORDS)
def test_every_command_explains_itself(bench, word):
    code, out, _ = bench(word, "-h")
    assert code == 0 and out.startswith(f"Usage: edge-llm bench {word} [OPTIONS] ")
    assert out.strip().splitlines()[-1].split()[:2] == ["-h,", "--help"]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("arguments", [["bench", "--help"], *(["bench", word, "--help"] for word in WORDS)], ids=" ".join)
def test_help_loads_no_engine(arguments):
    """Nor does speed, in whose peak memory it would count."""
    script = f"import sys; from edge_llm.cli.main import run; run({arguments}); print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not set(loaded) & {"edge_llm.engine.engine", "edge_llm.opening.load", "tokenizers", "jinja2", "rich", "torch"}


@pytest.mark.parametrize("family", ["gemma2", "phi3, long"])
def test_a_family_that_no_peer_runs_is_measured_alone(bench, family, tmp_path):
    """Its weights, and random ones at its shape; a peer is refused in a line."""
    folder, _ = family_folder(tmp_path / "source", family)
    import_model(folder, "tiny")
    (tmp_path / "text").write_text("hello world, the word in her hell. " * 20)
    sizes = ["-p", "8", "-n", "2", "-r", "1", "-t", "1", "--json"]
    for model in (["tiny", "--breakdown", "--quality-text", tmp_path / "text"], ["--synthetic", folder / "config.json"]):
        code, out, err = bench(*model, *sizes)
        assert code == 0, err
        assert [row["test"] for row in json.loads(out)] == ["pp8", "tg2"]
    code, out, err = bench("tiny", "--peer", "torch", *sizes)
    assert (code, out) == (2, "") and err.count("\n") <= 2 and "no other engine's file is made here" in err


# -- the old spellings ------------------------------------------------------------------------------------------------

OLD = [
    ("--concurrency", "1,8,32"), ("--concurrency=1,8", "-p", "8"), ("builtin", "--concurrency", "1"), ("--concurrency",),
    ("--batch-window", "1"), ("--simulate", "llm-npu-qwen1.5-1.8b", "-p", "256"), ("--simulate",), ("--simulate=x", "--json"),
    ("--speculation",), ("builtin", "--speculation"), ("--speculation", "-t", "1"), ("--sampling",), ("builtin", "--sampling"),
    ("--policy", "all"), ("--device", "emulated:310p", "--policy", "all"), ("--gantt",), ("--gantt", "-p", "8"),
    ("--trace", "x.json"), ("--draft", "none"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", OLD, ids=" ".join)
def test_an_old_spelling_ends_in_one_line_with_the_new_one(bench, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    code, out, err = bench(*arguments)
    flag = next(argument for argument in arguments if argument.partition("=")[0] in MOVED).partition("=")[0]
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {flag} ") and MOVED[flag] in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", MOVED)
def test_the_new_spelling_exists(flag):
    context = click.Context(bench_command)
    spellings = re.findall(r"`edge-llm bench (\w+)([^`]*)`", MOVED[flag])
    assert spellings
    for word, rest in spellings:
        command = bench_command.get_command(context, word)
        known = {name for param in command.params for name in (*param.opts, param.human_readable_name.upper())}
        assert set(re.findall(r"--[\w-]+|\bMODEL\b|\bTABLE\b", rest)) <= known


@pytest.mark.parametrize(
    ("word", "flag"),
    [
        ("lanes", "--peer"), ("lanes", "-n"), ("lanes", "--float"), ("lanes", "--concurrency"), ("lanes", "--simulate"),
        ("simulate", "-t"), ("simulate", "--peer"), ("simulate", "--policy"), ("simulate", "--device"),
        ("load", "-d"), ("load", "--save"), ("load", "--gantt"), ("load", "--draft"),
        ("speculation", "-p"), ("speculation", "--roof"),
        ("sampling", "-d"), ("sampling", "--batch-window"), ("sampling", "--output-err"),
    ],
)  # fmt: skip
def test_a_command_does_not_know_the_options_of_others(bench, word, flag):
    code, out, err = bench(word, flag, "1")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: `edge-llm bench {word}` has no option `{flag}`; ") and err.count("\n") == 1


# -- a model and a command of one name --------------------------------------------------------------------------------


@pytest.fixture
def namesake(tiny_model, edge_llm_home):
    """The folder of a model that is called `lanes`."""
    return import_model(tiny_model("llama", num_hidden_layers=1), "lanes")


def test_a_model_that_is_named_like_a_command_is_measured_by_m_and_by_path(bench, namesake, tmp_path, monkeypatch):
    options = ("-p", 4, "-n", 0, "-r", 1, "-t", 1, "--json")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(namesake, tmp_path / "lanes")
    for arguments in (("-m", "lanes"), ("--model=lanes",), (namesake,), ("./lanes",)):
        code, out, err = bench(*arguments, *options)
        assert code == 0, err
        assert [(row["test"], row["n_prompt"]) for row in json.loads(out)] == [("pp4", 4)]
    code, out, err = bench(*options, "-m", "lanes")
    assert (code, len(json.loads(out))) == (0, 1), err


def test_the_word_right_after_bench_is_the_command(bench, namesake):
    uses = []  # of the subgraphs that a card is given
    for model in ((), ("lanes",), ("-m", "lanes")):
        code, out, err = bench("lanes", *model, "-p", 4, "-r", 1, "-t", 1, "--device", "emulated:310p")
        assert code == 0, err
        assert "| pp4  | auto " in out
        uses.append(int(re.search(r"for (\d+) uses", err)[1]))
    assert uses[0] > uses[1] == uses[2], "the built-in model has more layers than the one called `lanes`"


@pytest.mark.parametrize("arguments", [("-p", "4", "lanes"), ("--", "lanes"), ("-r", "1", "lanes", "-t", "1")], ids=" ".join)
def test_a_command_in_another_place_is_not_taken_for_a_model(bench, namesake, arguments):
    code, out, err = bench(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "write it right after `bench`" in err and "-m lanes" in err
