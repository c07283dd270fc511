"""Options from the environment and the config file: which one counts, what is refused, and what still works then."""

import io
import json
import re
import sys

import pytest

from edge_llm.cli.main import run
from edge_llm.cli.settings import file_values
from edge_llm.cli.verbs import configured

pytestmark = pytest.mark.thorough(file=6)

ASK = ("run", "builtin", "hi", "--json")


@pytest.fixture
def config(edge_llm_home):
    """Write the config file."""
    return (edge_llm_home / "config.toml").write_text


@pytest.fixture
def call(capsys, monkeypatch):
    """Call edge-llm with nothing on stdin: exit code, stdout, stderr."""

    def call_(*arguments):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        code = run([*map(str, arguments)])
        return code, *capsys.readouterr()

    return call_


def written(call, *options):
    """How many tokens `run` writes with ``options``: as many as -n says, however it is said."""
    code, out, err = call(*ASK, *options)
    assert code == 0, err
    return json.loads(out)["usage"]["completion_tokens"]


def test_a_flag_beats_the_environment_beats_the_file(call, config, monkeypatch):
    config("[defaults]\nmax-tokens = 2\n")
    assert written(call) == 2
    config("[defaults]\nmax-tokens = 2\n[run]\nmax_tokens = 3\n")
    assert written(call) == 3
    monkeypatch.setenv("EDGE_LLM_MAX_TOKENS", "4")
    assert written(call) == 4
    assert written(call, "-n", 1) == 1
    monkeypatch.setenv("EDGE_LLM_MAX_TOKENS", "")
    assert written(call) == 3


def test_a_list_and_a_flag(call, config):
    config("[run]\nmax-tokens = 4\nstop = ['zz zz', 'yy']\nignore-eos = true\nraw = true\n")
    assert written(call) == 4
    config("[run]\nmax-tokens = 4\nraw = false\n")
    assert written(call) == 4


def test_a_text_in_the_environment_is_one_text(call, monkeypatch):
    monkeypatch.setenv("EDGE_LLM_TEMPERATURE", "0")
    whole = json.loads(call(*ASK, "-n", 8, "--raw")[1])["text"]
    monkeypatch.setenv("EDGE_LLM_STOP", f"{whole[2:6]} and more words")
    assert json.loads(call(*ASK, "-n", 8, "--raw")[1])["text"] == whole


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no [ TOML", "is not TOML"),
        ("[defaults]\nthread = 1", "in [defaults] of `FILE`: there is no option `thread` here; did you mean `threads`?"),
        ("[run]\nport = 1", "`port = 1` in [run] of `FILE`: there is no option `port` here; there are: "),
        ("[rnu]\nseed = 1", "`FILE`: there is no table [rnu]; did you mean `run`?"),
        ("[bench.lane]\nseed = 1", "`FILE`: there is no table [bench.lane]; did you mean `bench.lanes`?"),
        ("[doctor]\nselftest = true", "`FILE`: there is no table [doctor]; "),
        ("[defaults]\njson = true", "`json = true` in [defaults] of `FILE`"),
        ("[run]\nthreads = true", "`threads = true` in [run] of `FILE` cannot be used; give what --threads takes"),
        ("[run]\nraw = 1", "`raw = 1` in [run] of `FILE` cannot be used; give true or false"),
        ("[run]\nseed = [1]", "`seed = [1]` in [run] of `FILE` cannot be used; give one value"),
        ("[run]\nstop = [true]", "`stop = [true]` in [run] of `FILE` cannot be used"),
        ("[run]\nseed = 2.5", "not a valid integer (from `seed = 2.5` in [run] of `FILE`; change it there, or give --seed)"),
        ("[run]\nseed = 'x'", "'x' is not a valid integer (from `seed = \"x\"` in [run] of `FILE`"),
        ("[run]\ntop-p = inf", "'inf' is not a valid float (from `top-p = inf` in [run] of `FILE`"),
        ("[run]\nkv = 'int9'", "'int9' is not one of 'auto', 'int8', 'float16' (from `kv = \"int9\"` in [run] of `FILE`"),
        ("[defaults]\nthreads = 0", "got `0` (from `threads = 0` in [defaults] of `FILE`; change it there, or give --threads)"),
        ("[defaults]\ndevice = 'nix'", "no device `nix`; "),
        ("[defaults]\nprefix-cache = 'much'", '(from `prefix-cache = "much"` in [defaults] of `FILE`'),
        ("[run]\nsystem = ''\nmodel = 'builtin'", '`model = "builtin"` in [run] of `FILE`'),
    ],
)
def test_a_wrong_file_is_one_line_and_misuse(call, config, edge_llm_home, text, said):
    config(text)
    code, out, err = call(*ASK, "-n", 1)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("error: ") and err.count(str(edge_llm_home / "config.toml")) == 1
    assert said.replace("FILE", str(edge_llm_home / "config.toml")) in err


def test_a_wrong_environment_is_said_too(call, monkeypatch):
    monkeypatch.setenv("EDGE_LLM_THREADS", "many")
    code, _, err = call(*ASK)
    said = "error: 'many' is not a valid integer (set by EDGE_LLM_THREADS; change it there, or give --threads)\n"
    assert (code, err) == (2, said)
    monkeypatch.setenv("EDGE_LLM_THREADS", "0")
    assert "set by EDGE_LLM_THREADS" in call(*ASK)[2]


@pytest.mark.parametrize("command", ["--help", "--version", "run --help", "serve -h", "cache list --help", "doctor", "config"])
@pytest.mark.parametrize("text", ["no [ TOML", "[nothing]\nx = 1", "[defaults]\nx = 1"])
def test_what_helps_works_with_a_wrong_file(call, config, command, text):
    config(text)
    assert call(*command.split())[0] == 0


def test_a_wrong_table_of_another_command_is_not_in_the_way(call, config):
    config("[serve]\nprot = 1")
    assert written(call, "-n", 1) == 1


def test_what_chat_has_without_flags(call, config, monkeypatch, edge_llm_home):
    """Also when its name is not even typed."""
    config("[chat]\nmodel = 'nowhere'\ntheme = 'nord'\nsidebar = true\n")
    for command in ([], ["chat"]):
        code, _, err = call(*command)
        assert code == 1 and "no model `nowhere`" in err and str(edge_llm_home / "config.toml") in err
    monkeypatch.setenv("EDGE_LLM_DEVICE", "nix")
    assert "EDGE_LLM_DEVICE" in call("chat", "builtin")[2]
    config("")
    assert "EDGE_LLM_DEVICE" in call()[2]


def test_words_of_bench_have_tables_of_their_own(call, config):
    config("[bench]\nn-gen = 0\nrepetitions = 1\nn-prompt = '2,4'\noutput = 'json'\n[bench.sampling]\nn_gen = 'x'\n")
    rows = json.loads(call("bench", "builtin")[1])
    assert [row["n_prompt"] for row in rows] == [2, 4]
    code, _, err = call("bench", "sampling", "builtin")
    assert code == 2 and "[bench.sampling]" in err


def test_shared_options_are_those_that_mean_the_same(call, config, tmp_path):
    """`perplexity --max-tokens` cuts a file and is none of them."""
    import click

    from edge_llm.cli.main import cli
    from edge_llm.cli.options import SHARED_NAMES
    from edge_llm.cli.verbs import VerbContext

    assert {"threads", "device", "prefix-cache", "ctx", "memory", "temperature"} <= SHARED_NAMES
    config("[defaults]\nmax-tokens = 5\nthreads = 2\n")
    root = click.Context(cli)
    values = {}
    for verb in ("perplexity", "run", "serve", "plan", "list", "bench"):
        command = cli.get_command(root, verb)
        values[verb] = file_values(VerbContext(command, parent=root, info_name=verb), configured(root))
    assert values == {
        "perplexity": {"threads": "2"}, "run": {"threads": "2", "max_tokens": "5"}, "serve": {"threads": "2"},
        "plan": {"threads": "2"}, "list": {}, "bench": {"threads": ("2",)},
    }  # fmt: skip


# -- edge-llm config --------------------------------------------------------------------------------------------------


def test_config_shows_file_environment_and_problems(call, config, edge_llm_home, monkeypatch):
    file = str(edge_llm_home / "config.toml")
    code, out, _ = call("config")
    assert code == 0 and f"{file} (not there" in out
    config(
        "[defaults]\nthreads = 2\n[chat]\ntheme = 'nord'\n[keys]\nstop = 'f5'\n[serve]\napi-key = 'secret'\n[run]\nsede = 1\n"
    )
    monkeypatch.setenv("EDGE_LLM_THREAD", "3")
    monkeypatch.setenv("EDGE_LLM_API_KEY", "secret")
    code, out, _ = call("config")
    assert code == 0 and "secret" not in out
    for said in (
        "threads = 2",
        'theme = "nord"',
        'stop = "f5"',
        "EDGE_LLM_THREAD=3 (means nothing; did you mean `EDGE_LLM_THREADS`?)",
    ):
        assert said in out
    facts = json.loads(call("config", "--json")[1])
    assert facts["file"] == file and facts["exists"]
    assert facts["tables"]["defaults"] == {"threads": 2} and facts["tables"]["keys"] == {"stop": "f5"}
    assert facts["environment"]["EDGE_LLM_API_KEY"] == "(hidden)"
    (problem,) = facts["problems"]
    assert "`sede = 1` in [run]" in problem and "did you mean `seed`?" in problem
    config("[keys]\nfly = 'f5'\n")
    assert "no action `fly`" in json.loads(call("config", "--json")[1])["problems"][0]


@pytest.mark.parametrize(
    "text",
    [
        "no [ TOML",
        "[nothing]\nx = 1",
        "[defaults]\nx = 1",
        "[defaults]\nthreads = 'x'",
        "[serve]\nport = 99999",
        "[bench.lanes]\nx = 1",
    ],
)
def test_config_shows_what_a_command_would_refuse(call, config, edge_llm_home, text):
    config(text)
    (problem,) = json.loads(call("config", "--json")[1])["problems"]
    assert str(edge_llm_home / "config.toml") in problem
    assert "problem" in call("config")[1]


def test_config_of_a_verb_says_where_each_value_comes_from(call, config, monkeypatch):
    config("[defaults]\nthreads = 2\ntemperature = 0.5\n[run]\nseed = 7\n")
    monkeypatch.setenv("EDGE_LLM_TEMPERATURE", "0.25")
    code, out, _ = call("config", "--json", "run", "-n", "9", "--raw")
    assert code == 0
    facts = json.loads(out)
    options = {name: (row["value"], row["source"]) for name, row in facts["options"].items()}
    assert facts["command"] == "run"
    assert options["threads"] == (2, "file") and options["seed"] == (7, "file")
    assert options["temperature"] == (0.25, "environment")
    assert options["max-tokens"] == (9, "flag") and options["raw"] == (True, "flag")
    assert options["device"] == ("auto", "default") and options["model"] == (None, "default")
    assert facts["options"]["temperature"]["where"] == "EDGE_LLM_TEMPERATURE"
    assert "[defaults]" in facts["options"]["threads"]["where"]
    rows = dict(line.split(None, 1) for line in call("config", "run")[1].splitlines())
    assert rows["seed"].startswith("7 ") and "file" in rows["seed"]


@pytest.mark.parametrize("words", ["rm", "import", "bench", "bench lanes", "bench simulate", "serve", "perplexity"])
def test_config_of_a_verb_needs_no_arguments(call, words):
    assert call("config", *words.split())[0] == 0


def test_config_of_no_verb(call):
    for word in ("nothing", "doctor", "config", ""):
        code, _, err = call("config", word)
        assert code == 2 and "is no command with settings" in err
    code, _, err = call("config", "runn")
    assert "did you mean `run`?" in err
    assert call("config", "run", "--nothing")[0] == 2


def test_the_key_of_a_server_is_not_shown(call, monkeypatch):
    monkeypatch.setenv("EDGE_LLM_API_KEY", "secret")
    for command in (["config", "serve"], ["config", "--json", "serve"], ["config", "serve", "--api-key", "secret"]):
        code, out, _ = call(*command)
        assert code == 0 and "secret" not in out and "(hidden)" in out


def test_the_example_is_valid_with_and_without_its_comments(call, config):
    text = call("config", "--example")[1]
    settings = re.sub(r"(?m)^# ([a-z-]+ = )", r"\1", text)
    assert settings.count("\n# ") < text.count("\n# ") - 8
    for content in (text, settings):
        config(content)
        facts = json.loads(call("config", "--json")[1])
        assert facts["problems"] == [] and facts["exists"]
    assert facts["tables"]["defaults"]["threads"] == 2
