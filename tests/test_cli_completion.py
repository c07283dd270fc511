"""Completion in shells: the protocol that the scripts speak, in processes, and the scripts in a real bash."""

import os
import shutil
import subprocess
import sys

import pytest

from edge_llm.cli.main import VERBS, run
from edge_llm.models.known import find_known, known_models, short_names
from edge_llm.paths import builtin_bundle, bundle_path
from edge_llm.server.running import listed

pytestmark = pytest.mark.thorough(file=5)

EDGE_LLM = [sys.executable, "-m", "edge_llm"]


def completed(line, shell="bash"):
    """What the shell is told of the last word of ``line``; a space at its end begins a new one."""
    words = line.split(" ")
    current = {"COMP_WORDS": line, "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1)}
    environment = os.environ | current | {"_EDGE_LLM_COMPLETE": f"{shell}_complete"}
    done = subprocess.run(EDGE_LLM, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done
    return [line for line in done.stdout.split("\n") if line]


def test_verbs():
    assert completed("edge-llm ") == [f"plain,{verb}" for verb, _, _ in VERBS]
    assert completed("edge-llm ru") == ["plain,run"]
    assert completed("edge-llm zz") == []


def test_verbs_are_completed_without_importing_them():
    code = (
        "import sys\nfrom edge_llm.cli.main import cli\nimport click\n"
        "items = cli.shell_complete(click.Context(cli), 's')\n"
        "assert [item.value for item in items] == ['serve', 'stop', 'show'], items\n"
        "assert not {'numpy', 'rich', 'edge_llm.cli.serve', 'edge_llm.cli.models'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("edge-llm run builtin --temp", ["plain,--temperature"]),
        ("edge-llm run --kv ", ["plain,auto", "plain,int8", "plain,float16"]),
        ("edge-llm serve --prefix", ["plain,--prefix-cache"]),
        ("edge-llm import x --shadow f", ["plain,full"]),
        ("edge-llm cache pr", ["plain,prune"]),
        ("edge-llm bench la", ["plain,lanes"]),
        ("edge-llm bench lanes --ga", ["plain,--gantt"]),
        ("edge-llm completion f", ["plain,fish"]),
        ("edge-llm config per", ["plain,perplexity"]),
        ("edge-llm --ver", ["plain,--version"]),
    ],
)
def test_options_choices_and_words_of_groups(line, found):
    assert completed(line) == found


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("verb", ["run", "chat", "serve", "bench", "plan", "show", "rm", "perplexity", "export", "cache clear"])
def test_names_of_models(verb):
    for name in ("qwen-small", "not a name", "of\nlines", ".hidden"):
        bundle_path("qwen-small").with_name(name).mkdir(parents=True)
    brought = [name.replace(":", "-") for name in short_names()] if verb in ("run", "chat", "serve") else []
    wanted = ["qwen-small", *(name for name in brought if name.startswith("qw"))]
    assert completed(f"edge-llm {verb} qw") == [f"plain,{name}" for name in wanted]
    words = [f"plain,{word}" for word in ("experts", "lanes", "load", "neurons", "sampling", "simulate", "speculation")]
    assert [line for line in completed(f"edge-llm {verb} ") if line not in words] == ["plain,builtin", "plain,qwen-small"]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("verb", ["import", "pull", "run"])
def test_every_short_name_is_completed_and_understood(verb):
    for letter in {name[0] for name in short_names()}:
        names = [line.removeprefix("plain,") for line in completed(f"edge-llm {verb} {letter}")]
        found = {find_known(name).name for name in names if name != "builtin"}
        assert found == {model.name for model in known_models() if model.name[0] == letter}
        assert not any(":" in name for name in names), "bash breaks words there"


def test_stop_completes_what_runs(edge_llm_home):
    assert completed("edge-llm stop ") == []
    with listed(["qwen", "gpt-4o", "odd name"], "127.0.0.1", 8123, 1.0), listed(["builtin"], "127.0.0.1", 9000, 1.0):
        bundle_path("queer").mkdir(parents=True)
        assert sorted(completed("edge-llm stop ")) == ["plain,builtin", "plain,gpt-4o", "plain,qwen"]
        assert completed("edge-llm stop q") == ["plain,qwen"]
        assert completed("edge-llm stop 8") == ["plain,8123"]
    assert completed("edge-llm stop q") == []


def test_paths_to_models_are_left_to_the_shell():
    assert completed("edge-llm run ./mo") == ["dir,./mo"]


def test_a_home_or_a_config_that_is_wrong_is_not_in_the_way(edge_llm_home):
    (edge_llm_home / "models").write_text("in the way")
    (edge_llm_home / "config.toml").write_text("no [ TOML")
    assert completed("edge-llm run b") == []
    assert completed("edge-llm run --te") == ["plain,--temperature"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_also_get_the_help(shell):
    told = "\n".join(completed("edge-llm ru", shell))
    assert "run" in told and "Answer one prompt" in told


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_us(capsys, shell):
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_EDGE_LLM_COMPLETE={shell}_complete" in script and "edge-llm" in script
    assert run(["completion", "--help"]) == 0
    assert f"edge-llm completion {shell} >" in capsys.readouterr().out
    assert run(["completion", "csh"]) == 2


def test_a_real_bash_completes(tmp_path, capsys):
    shutil.copytree(builtin_bundle(), bundle_path("mine"))
    assert run(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    program = tmp_path / "edge-llm"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m edge_llm "$@"\n')
    program.chmod(0o755)
    ask = (
        f"source {tmp_path / 'script'}\nCOMP_WORDS=(edge-llm show mi)\nCOMP_CWORD=2\n_edge_llm_completion edge-llm\n"
        'echo "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", ask], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("mine\n", 0), done


def test_help_completes_verbs():
    assert completed("edge-llm help pe") == ["plain,perplexity"]
