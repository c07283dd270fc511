"""The command line as people and scripts meet it: output, exit codes, one clear line for every mistake."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from families import family_folder

from edge_llm.cli.layers import layers_lines, layers_report
from edge_llm.cli.main import VERBS, run
from edge_llm.convert.importer import import_model
from edge_llm.devices import device_forms
from edge_llm.engine.engine import Engine
from edge_llm.errors import DeviceError
from edge_llm.models import describe, load_config

pytestmark = pytest.mark.thorough(file=12)


@pytest.fixture(scope="session")
def tiny_bundle(tiny_model, tmp_path_factory):
    """A bundle of a tiny random model with a chat template."""
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}bot:{% endif %}"
    source = tiny_model("llama", chat_template=template)
    return import_model(source, "tiny", target=tmp_path_factory.mktemp("bundles") / "tiny", keep_float=True)


def edge(capsys, *arguments):
    """Exit code, stdout, stderr of one call."""
    code = run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def call(capsys, monkeypatch):
    """Call the command line with text on stdin (nothing by default)."""
    import io

    def call_(*arguments, stdin=""):
        text = io.TextIOWrapper(io.BytesIO(stdin.encode() if isinstance(stdin, str) else stdin), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", text)
        return edge(capsys, *arguments)

    return call_


def test_help_names_every_verb(call):
    code, out, _ = call("--help")
    assert code == 0
    assert all(verb in out for verb, _, _ in VERBS)


@pytest.mark.parametrize("verb", [verb for verb, _, _ in VERBS])
def test_every_verb_explains_itself(call, verb):
    code, out, _ = call(verb, "--help")
    assert code == 0
    assert out.startswith("Usage:")


def test_help_names_every_device(call):
    code, out, _ = call("run", "--help")
    listed = " ".join(out.split()).partition("--device TEXT")[2].partition("--placement")[0]
    assert code == 0
    assert [form for form in (*device_forms(), "auto") if not re.search(rf"\b{form}\b", listed)] == []


def test_run_prints_the_answer_and_nothing_else_on_stdout(call, tiny_bundle):
    code, out, err = call("run", tiny_bundle, "hello", "--max-tokens", 8, "--temperature", 0, "--ignore-eos")
    again = call("run", tiny_bundle, "hello", "--max-tokens", 8, "--temperature", 0, "--ignore-eos")
    assert (code, err) == (0, "[cut short after 8 tokens; --max-tokens allows more]\n")
    assert out.endswith("\n")
    assert again[1] == out


def test_run_json_is_one_object_with_the_documented_keys(call, tiny_bundle):
    code, out, _ = call("run", tiny_bundle, "hello", "--max-tokens", 5, "--ignore-eos", "--json")
    answer = json.loads(out)
    assert code == 0
    place = {"device", "device_reason", "placement", "placement_reason", "keys", "activations"}
    sources = {"card_bytes_per_token", "host_bytes_per_token", "flash_bytes_per_token"}
    assert set(answer) == {"text", "reasoning", "tokens", "finish_reason", "usage", "timings"} | place | sources
    assert (answer["finish_reason"], len(answer["tokens"])) == ("length", 5)
    assert answer["usage"]["completion_tokens"] == 5


def test_the_prompt_can_be_piped_and_is_put_behind_the_argument(call, tiny_bundle):
    options = ("--max-tokens", 4, "--temperature", 0, "--json", "--ignore-eos")
    piped = call("run", tiny_bundle, *options, stdin="hello")
    given = call("run", tiny_bundle, "hello", *options)
    both = call("run", tiny_bundle, "say", *options, stdin="hello")
    joined = call("run", tiny_bundle, "say\n\nhello", *options)
    text = [json.loads(result[1])["tokens"] for result in (piped, given, both, joined)]
    assert text[0] == text[1]
    assert text[2] == text[3]


PIPED = [
    ("Q\n", [], ["Q"]),
    ("Q\r\n", [], ["Q"]),
    ("Q\r", [], ["Q\r"]),
    ("Q\n\n", [], ["Q\n"]),
    ("Q\r\n\r\n", [], ["Q\r\n"]),
    ("\n\nQ \n", [], ["\n\nQ "]),
    ("\n\n", [], ["\n"]),
    ("one\ntwo\n", ["Summarize:"], ["Summarize:\n\none\ntwo"]),
    ("two\n\n", ["one\n"], ["one\n\n\ntwo\n"]),
    ("\n", ["Q\n"], ["Q\n"]),
]
"""What is piped in beside which arguments, and the arguments that say the same alone."""


@pytest.mark.parametrize(("stdin", "beside", "alone"), PIPED)
def test_the_end_of_the_last_piped_line_is_not_part_of_the_prompt(call, monkeypatch, stdin, beside, alone):
    prompts = []
    answer = Engine.answer
    monkeypatch.setattr(Engine, "answer", lambda self, request: prompts.append(request.prompt) or answer(self, request))
    options = ("-n", 4, "-t", 1, "--temperature", 0, "--json")
    both = [call("run", "builtin", *beside, *options, stdin=stdin), call("run", "builtin", *alone, *options)]
    assert [(code, err) for code, _, err in both] == [(0, "")] * 2
    piped, given = ({**json.loads(out), "timings": None} for _, out, _ in both)
    assert piped == given
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize("text", ["Q\n", "Q\r\n\n", "\n", "Q"])
def test_raw_keeps_what_is_piped_in_as_it_is(call, monkeypatch, text):
    prompts = []
    answer = Engine.answer
    monkeypatch.setattr(Engine, "answer", lambda self, request: prompts.append(request.prompt) or answer(self, request))
    options = ("-n", 1, "-t", 1, "--json", "--raw")
    assert [call("run", "builtin", *options, stdin=text)[0], call("run", "builtin", text, *options)[0]] == [0, 0]
    assert prompts[0] == prompts[1]


def test_echo_and_an_argument_print_the_same(call):
    options = ("run", "builtin", "-n", 8, "-t", 1, "--temperature", 0)
    assert call(*options, stdin="What is a cat?\n") == call(*options, "What is a cat?")


@pytest.mark.parametrize("stdin", ["", "\n", "\r\n"])
def test_the_end_of_a_line_alone_is_no_prompt(call, stdin):
    code, out, err = call("run", "builtin", stdin=stdin)
    assert (code, out) == (2, "") and err.startswith("error: no prompt")


def test_a_seed_repeats_a_sampled_answer(call, tiny_bundle):
    def sample(seed):
        return call("run", tiny_bundle, "hi", "--temperature", 1.5, "--seed", seed, "--max-tokens", 16, "--json")[1]

    assert json.loads(sample(1))["tokens"] == json.loads(sample(1))["tokens"] != json.loads(sample(2))["tokens"]


def test_a_draft_model_changes_no_token(call, tiny_bundle):
    def answer(draft):
        code, out, _ = call(
            "run", tiny_bundle, "how are you", "--temperature", 0, "-n", 24, "--ignore-eos", "--json", "--draft", draft
        )
        assert code == 0
        return json.loads(out)

    alone, helped = answer("none"), answer(tiny_bundle)
    assert helped["tokens"] == alone["tokens"]
    assert alone["timings"]["drafted_tokens"] == 0
    assert helped["timings"]["accepted_tokens"] == helped["timings"]["drafted_tokens"] > 0  # no end token is due


def test_a_draft_model_runs_on_the_host_whatever_the_device(call, tiny_bundle):
    placed = ("--device", "emulated:310p", "--placement", "card", "--card-memory", "1GiB", "--ctx", 64)
    code, out, err = call("run", tiny_bundle, "hello", "-n", 8, "--ignore-eos", "--json", "--draft", tiny_bundle, *placed)
    assert code == 0, err
    assert json.loads(out)["timings"]["accepted_tokens"] > 0


def test_raw_leaves_the_template_out(call, tiny_bundle):
    def prompt_tokens(*options):
        return json.loads(call("run", tiny_bundle, "hello", "--max-tokens", 1, "--json", *options)[1])["usage"]["prompt_tokens"]

    assert prompt_tokens("--raw") < prompt_tokens() < prompt_tokens("--system", "be kind")


def test_the_float_path_runs_on_the_kept_float_weights(call, tiny_bundle):
    code, out, err = call("run", tiny_bundle, "hello", "--max-tokens", 4, "--float", "--ignore-eos")
    assert (code, err.count("\n")) == (0, 1)
    assert out.strip() or out == "\n"


def test_chat_answers_every_piped_line_and_obeys_commands(call, tiny_bundle):
    lines = "hello\n/reset\n/system be kind\n/stats\n/help\n/nonsense\nagain\n/stats\n/exit\nnever answered\n"
    code, out, err = call("chat", tiny_bundle, "--max-tokens", 3, "--temperature", 0, "--seed", 1, stdin=lines)
    assert code == 0
    assert out.count("\n") >= 2
    assert "starts over" in err
    assert "unknown command `/nonsense`" in err
    assert "tokens read" in err


def test_a_chat_that_outgrows_its_context_says_so_and_goes_on(call, tiny_bundle):
    code, _, err = call("chat", tiny_bundle, "--ctx", 40, "--max-tokens", 2, stdin="x " * 60 + "\nhi\n")
    assert code == 0
    assert "maximum context length is 40 tokens" in err
    assert "Traceback" not in err


def test_an_interrupt_stops_the_answer_and_not_the_chat(call, tiny_bundle, monkeypatch):
    from edge_llm.engine.engine import Engine

    stream = Engine.stream

    def interrupted_once(self, request):
        monkeypatch.setattr(Engine, "stream", stream)
        deltas = stream(self, request)
        yield next(deltas)
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "stream", interrupted_once)
    code, out, err = call("chat", tiny_bundle, "--max-tokens", 3, "--temperature", 0, stdin="hello\nagain\n/stats\n/exit\n")
    assert code == 0
    assert err.count("[stopped]") == 1
    assert "tokens read" in err
    assert out.endswith("\n")


def test_import_list_show_rm(call, tiny_model, edge_llm_home):
    source = tiny_model("qwen2")
    code, out, err = call("import", source, "--name", "mine")
    assert code == 0, err
    assert out.strip() == str(edge_llm_home / "models" / "mine")
    assert "mine" in call("list")[1]
    rows = json.loads(call("list", "--json")[1])
    assert [row["name"] for row in rows] == ["builtin", "mine"]
    facts = json.loads(call("show", "mine", "--json")[1])
    assert facts["model"]["family"] == "qwen2"
    assert facts["source"]["path"] == str(source)
    shown = call("show", "mine")[1]
    assert "gate_up" in shown and "tied_embeddings" in shown
    assert not re.search(r"\b(None|True|False)\b|\b0\.00 M", shown)  # neither Python nor weights that are there
    code, out, err = call("import", source, "--name", "mine")
    assert (code, out.strip()) == (0, str(edge_llm_home / "models" / "mine"))
    assert "nothing to do" in err and "imported as" not in err
    code, _, err = call("rm", "mine")  # nobody is there who could say yes
    assert (code, "--yes" in err) == (2, True)
    assert json.loads(call("show", "mine", "--json")[1]) == facts
    assert call("rm", "mine", "--yes")[0] == 0
    assert list((edge_llm_home / "models").iterdir()) == []
    code, _, err = call("show", "mine")
    assert (code, err.count("\n")) == (1, 1)


GEMMA_1B = {
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 26, "hidden_size": 1152,
    "intermediate_size": 6912, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144,
    "sliding_window": 512, "sliding_window_pattern": 6, "max_position_embeddings": 32768,
}  # fmt: skip


def test_layers_are_told_in_a_line():
    report = layers_report(describe(load_config(GEMMA_1B)))
    assert layers_lines(report) == ["26 layers: 22 x window 512, 4 x full (5 and 1 in turn)"]
    assert report["kinds"] == [
        {"layers": 22, "window": 512, "rotated": True}, {"layers": 4, "window": 0, "rotated": True},
    ]  # fmt: skip
    assert report["pattern"] == [int(layer % 6 == 5) for layer in range(26)]


@pytest.mark.parametrize(
    ("family", "line"), [("cohere2", "6 layers: 5 x window 16, 1 x full without positions"), ("ernie4_5", None)]
)
def test_show_says_what_layers_see(call, tmp_path, family, line):
    source, _ = family_folder(tmp_path / family, family)
    assert call("import", source, "--name", "mine", "--fast")[0] == 0
    facts, shown = json.loads(call("show", "mine", "--json")[1]), call("show", "mine")[1]
    assert bool(facts["layers"]) == ("layers: " in shown) == (line is not None)
    if line is not None:
        assert line in shown
        assert len(facts["layers"]["pattern"]) == facts["model"]["num_layers"]


SILENT = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(("template", "said"), [(None, None), (SILENT, "before the first user message")])
def test_show_says_what_a_template_makes_of_messages(call, tiny_model, template, said):
    assert call("import", tiny_model("llama", chat_template=template), "--name", "mine")[0] == 0
    facts, shown = json.loads(call("show", "mine", "--json")[1]), call("show", "mine")[1]
    assert (facts["chat_template"], facts.get("chat", {}).get("system_messages")) == (said is not None, said)
    assert (f"system_messages {said}" in shown) == (said is not None)


def test_bench_prints_llama_bench_rows(call, tiny_bundle):
    options = ("-p", "16,8", "-n", "2", "-pg", "8,2", "-d", "0,16", "-r", "2")
    code, out, _ = call("bench", tiny_bundle, *options, "-o", "json")
    rows = json.loads(out)
    assert code == 0
    labels = ["pp16", "pp8", "tg2", "pp8+tg2"]
    assert [row["test"] for row in rows] == labels + [f"{label} @ d16" for label in labels]
    assert all(len(row["samples_ts"]) == 2 and row["avg_ts"] > 0 and row["peak_rss_bytes"] > 0 for row in rows)
    assert rows[0]["n_prompt"] == 16
    table = call("bench", tiny_bundle, *options)[1].splitlines()
    assert len(table) == 2 + len(rows)
    assert len({len(line) for line in table}) == 1
    assert len(call("bench", tiny_bundle, *options, "-o", "csv")[1].splitlines()) == 1 + len(rows)
    assert [json.loads(line)["test"] for line in call("bench", tiny_bundle, *options, "-o", "jsonl")[1].splitlines()]


def test_bench_takes_llama_bench_ranges(call, tiny_bundle):
    out = call("bench", tiny_bundle, "-p", "8-32*2", "-n", "0", "-d", "0-16+16", "-r", "1", "-o", "json")[1]
    assert [(row["n_prompt"], row["n_depth"]) for row in json.loads(out)] == [(p, d) for d in (0, 16) for p in (8, 16, 32)]


@pytest.mark.thorough
def test_bench_rows_say_all_that_makes_a_number(call, tiny_bundle, tmp_path):
    path = tmp_path / "rows.json"
    options = ("-p", "8", "-n", "2", "-r", "1", "-t", "1,2", "-ub", "8", "-b", "16", "-ctk", "q8_0", "--roof", "--breakdown")
    code, out, err = call("bench", tiny_bundle, *options, "--ttft", "--progress", "-oe", "csv", "--json", "--save", path)
    assert code == 0, err
    rows = json.loads(out)
    assert [(row["test"], row["n_threads"]) for row in rows] == [("pp8", 1), ("tg2", 1), ("pp8", 2), ("tg2", 2)]
    assert json.loads(path.read_text()) == rows
    assert {(row["n_ubatch"], row["n_batch"], row["type_k"]) for row in rows} == {(8, 16, "int8")}
    for row in rows:
        assert row["gops_share" if row["n_prompt"] else "gb_s_share"] > 0
        assert row["breakdown"]["test"] == row["test"]
        assert 0 < row["ready_ms"] < row["ttft_ms"]
        assert row["ttft_cold_ms"] > 0
        assert row["environment"]["cpu"] == row["cpu_info"]
    assert "pp8, 2 threads" in err
    assert "build_version,build_commit," in err
    table = call("bench", tiny_bundle, "-p", "8", "-n", "0", "-r", "1", "-t", "1", "-ub", "8", "--compare", path)[1]
    assert table.splitlines()[0].rstrip(" |").endswith("vs. saved")
    assert table.splitlines()[2].rstrip(" |").endswith("x")


def test_bench_takes_a_model_after_m_and_repeated_lists(call, tiny_bundle):
    out = call("bench", "-m", tiny_bundle, "-p", "8", "-p", "16,8", "-n", "0", "-r", "1", "--no-warmup", "-o", "json")[1]
    assert [row["n_prompt"] for row in json.loads(out)] == [8, 16]


def test_perplexity_reports_both_paths(call, tiny_bundle, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog " * 8)
    code, out, _ = call("perplexity", tiny_bundle, text, "--json", "--window", 64, "--max-tokens", 200)
    quality = json.loads(out)
    assert code == 0
    place = {"device", "device_reason", "placement", "placement_reason", "keys", "activations"}
    figures = {"perplexity", "float_perplexity", "mean_kl", "top1_agreement", "tokens", "shares", "clipped_inputs", "precision"}
    assert set(quality) == figures | place
    assert quality["precision"] == "int8"
    assert set(quality["shares"]) == {"linears", "keys", "values", "output", "tokens"}
    assert quality["perplexity"] == pytest.approx(quality["float_perplexity"], rel=0.1)
    assert 0.0 <= quality["mean_kl"] < 0.1


def test_perplexity_of_keys_and_values_alone(call, tiny_bundle, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog " * 8)
    words = ("perplexity", tiny_bundle, text, "--window", 64, "--max-tokens", 100, "--kv", "q8_0,f16/int4")
    code, out, _ = call(*words)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["int8", "float16/int4"]
    rows = json.loads(call(*words, "--json")[1])["kv"]
    assert [(row["scheme"], row["key_bits"] > 8, row["quality"]["tokens"]) for row in rows] == [
        ("int8", True, 98), ("float16/int4", True, 98),
    ]  # fmt: skip


def test_the_forms_of_keys_have_the_names_of_other_engines_too(call, tiny_bundle):
    for name in ("int8", "q8_0"):
        assert call("run", tiny_bundle, "x", "-n", 1, "--kv", name)[0] == 0
    for name in ("float16", "f16", "fp16"):
        assert "the device `host` keeps keys and values as int8" in call("run", tiny_bundle, "x", "-n", 1, "--kv", name)[2]
    assert "'int4' is not one of 'auto', 'int8', 'float16'" in call("run", tiny_bundle, "x", "--kv", "q4_0")[2]


def test_perplexity_takes_the_names_of_keys_alike_on_the_host_and_on_a_card(call, tiny_bundle, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog " * 2)
    for device in ("host", "emulated:310p"):
        assert call("perplexity", tiny_bundle, text, "--max-tokens", 20, "--kv", " Q8_0", "--device", device)[0] == 0


def test_perplexity_says_what_it_does_before_it_begins_to_load(call, tiny_bundle, tmp_path, monkeypatch):
    def fail(model, runtime):
        raise DeviceError("loading failed")

    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox")
    monkeypatch.setattr("edge_llm.cli.perplexity.load_comparison", fail)
    assert call("perplexity", tiny_bundle, text)[2] == "loading ...\nerror: loading failed\n"


def test_doctor_looks_at_the_machine(call):
    code, out, _ = call("doctor", "--json")
    findings = json.loads(out)
    assert code == 0
    assert {"python", "threads", "kernels", "memory", "ascend card"} <= set(findings)
    assert call("doctor")[0] == 0


def test_doctor_plan_and_show_print_one_plan(call):
    facts = {}
    for verb in ("doctor", "show", "plan"):
        code, out, _ = call(verb, "builtin", "--json")
        assert code == 0
        facts[verb] = json.loads(out)
    planned = facts["doctor"]["plan"]
    assert planned["good"] and planned["value"] == "`builtin` has room here"
    assert planned["facts"] == facts["show"]["plan"]
    of_plan = {name: facts["plan"][name] for name in planned["facts"]}
    assert of_plan | {"weights_budget_bytes": None} == planned["facts"], "whose --memory is 100 %"
    shown = call("show", "builtin")[1]
    rows = call("doctor", "builtin")[1].partition("plan ")[2].splitlines()[1:]
    assert len(rows) > 5 and all(row.strip() in shown for row in rows)


def test_doctor_says_what_has_no_room(call, monkeypatch):
    monkeypatch.setattr("edge_llm.cli.doctor.free_memory", lambda: 1 << 20)
    code, out, _ = call("doctor", "builtin")
    assert code == 0
    assert "! plan " in out and "and 1.0 MiB of main memory are free" in out and "-> `--memory 50%` reads" in out


def test_doctor_of_a_model_that_is_not_here_or_is_broken(call, edge_llm_home):
    code, out, err = call("doctor", "nowhere")
    assert (code, out) == (1, "") and "no model `nowhere`" in err
    (edge_llm_home / "models/broken").mkdir(parents=True)
    (edge_llm_home / "models/broken/manifest.json").write_text("{}")
    code, out, _ = call("doctor", "broken", "--json")
    assert code == 0
    planned = json.loads(out)["plan"]
    assert planned["good"] is False and planned["facts"] == {} and "import" in planned["value"]
    code, _, err = call("doctor", "builtin", "--selftest")
    assert code == 2 and "leave MODEL out" in err


HELPS = {"help": "", "help help": "", "help rm": " rm", "help bench lanes": " bench lanes"}


@pytest.mark.parametrize(("words", "verb"), HELPS.items())
def test_help_is_a_word_too(call, words, verb):
    code, out, err = call(*words.split())
    assert (code, err) == (0, "") and out.startswith(f"Usage: edge-llm{verb} [OPTIONS]")


MISTAKES = {
    "unknown verb": (("nonsense",), 2, "no command `nonsense`; there are: bench, cache, chat"),
    "mistyped verb": (("chta",), 2, "no command `chta`; did you mean `chat`?"),
    "mistyped verb behind help": (("help", "chta"), 2, "no command `chta`; did you mean `chat`?"),
    "another program's verb": (("remove", "mine"), 2, "no command `remove`; did you mean `rm`?"),
    "one more of another program": (("delete", "mine"), 2, "no command `delete`; did you mean `rm`?"),
    "unknown option": (("run", "--nonsense"), 2, "--nonsense"),
    "no prompt": (("run", "{bundle}"), 2, "no prompt"),
    "no such model": (("run", "nowhere", "hi"), 1, "no model `nowhere`"),
    "no such folder": (("run", "./nowhere", "hi"), 1, "no model `./nowhere`"),
    "a name that is a traversal": (("show", "..%2f"), 2, "cannot be a model name"),
    "a model folder that is not imported": (("run", "{source}", "hi"), 2, "not imported yet"),
    "negative temperature": (("run", "{bundle}", "hi", "--temperature", "-1"), 2, "temperature must be between 0 and 100"),
    "temperature is no number": (("run", "{bundle}", "hi", "--temperature", "warm"), 2, "'warm' is not a valid float"),
    "not-a-number": (("run", "{bundle}", "hi", "--top-p", "nan"), 2, "'nan' is not a valid float"),
    "top-p above one": (("run", "{bundle}", "hi", "--top-p", "1.5"), 2, "`1.5`"),
    "negative top-k": (("run", "{bundle}", "hi", "--top-k", "-2"), 2, "`-2`"),
    "max-tokens zero": (("run", "{bundle}", "hi", "--max-tokens", "0"), 2, "max_tokens must be at least 1"),
    "negative seed": (("run", "{bundle}", "hi", "--seed", "-1"), 2, "seed must be between"),
    "empty stop": (("run", "{bundle}", "hi", "--stop", ""), 2, "stop takes"),
    "threads zero": (("run", "{bundle}", "hi", "--threads", "0"), 2, "threads must be between 1 and 1024"),
    "threads without end": (("run", "{bundle}", "hi", "--threads", "100000"), 2, "`100000`"),
    "context zero": (("run", "{bundle}", "hi", "--ctx", "0"), 2, "context must be at least 1"),
    "context above the model's": (("run", "{bundle}", "hi", "--ctx", "99999999"), 2, "`99999999`"),
    "chunk zero": (("run", "{bundle}", "hi", "--chunk", "0"), 2, "chunk must be between"),
    "prompt above the context": (("run", "{bundle}", "{long}", "--ctx", "32"), 2, "maximum context length is 32 tokens"),
    "empty prompt": (("run", "{bundle}", ""), 2, "prompt is empty"),
    "float path on a card": (("run", "{bundle}", "hi", "--float", "--placement", "card"), 2, "--float does not do it"),
    "float path and no placement": (("run", "{bundle}", "hi", "--float", "--placement", "crad"), 2, "it is no placement"),
    "float path in card memory": (("run", "{bundle}", "hi", "--float", "--card-memory", "1GiB"), 2, "--card-memory has no"),
    "a share of a card": (("run", "{bundle}", "hi", "--device", "emulated:310p", "--card-memory", "5%"), 2, "write 300MiB"),
    "unknown device": (("run", "{bundle}", "hi", "--device", "toaster"), 2, "no device `toaster`"),
    "unknown chip": (("run", "{bundle}", "hi", "--device", "emulated:9x"), 2, "no chip `9x`"),
    "compiled products of no folder": (("run", "{bundle}", "hi", "--device", "om:./nowhere"), 2, "`nowhere` is no folder"),
    "draft model with other tokens": (("run", "{bundle}", "hi", "--draft", "builtin"), 2, "has another tokenizer"),
    "system without a template": (("run", "{bundle}", "hi", "--system", "x", "--raw"), 2, "--system"),
    "bench with nothing to do": (("bench", "{bundle}", "-p", "0", "-n", "0"), 2, "nothing to measure"),
    "bench with words": (("bench", "{bundle}", "-p", "many"), 2, "`many`"),
    "bench with a range without end": (("bench", "{bundle}", "-p", "8-32+0"), 2, "`8-32+0`"),
    "bench with a bad pair": (("bench", "{bundle}", "-pg", "8"), 2, "`8`"),
    "bench of model and shape": (("bench", "{bundle}", "--synthetic", "llama-1.1b"), 2, "not both"),
    "bench above the context": (("bench", "{bundle}", "-p", "99999999", "-n", "0"), 2, "`99999999`"),
    "bench of an unknown shape": (("bench", "--synthetic", "gpt-9"), 2, "gpt-9"),
    "bench of unknown keys": (("bench", "{bundle}", "-ctk", "f16"), 2, "INT8, not `f16`"),
    "bench with a flag that means nothing here": (("bench", "{bundle}", "-ngl", "99"), 2, "-ngl is a flag of llama-bench"),
    "bench against nobody": (("bench", "{bundle}", "--peer", "ollama"), 2, "no peer `ollama`"),
    "bench compared with no rows": (("bench", "{bundle}", "--compare", "{empty}"), 2, "holds no rows"),
    "bench with no threads": (("bench", "{bundle}", "-t", "0"), 2, "threads must be between 1 and 1024"),
    "bench with a chunk without end": (("bench", "{bundle}", "-ub", "99999"), 2, "chunk must be between"),
    "breakdown of the float path": (("bench", "{bundle}", "--breakdown", "--float"), 2, "--float"),
    "perplexity of no such keys": (("perplexity", "builtin", "{empty}", "--kv", "int3"), 2, "there are float16, int8"),
    "perplexity of keys that no card has": (
        ("perplexity", "builtin", "{empty}", "--kv", "int4", "--device", "emulated:310p"), 2, "as int8 or float16",
    ),
    "perplexity of keys, of an empty file": (("perplexity", "{bundle}", "{empty}", "--kv", "int8"), 2, "too few"),
    "perplexity of keys on no host": (("perplexity", "{bundle}", "{empty}", "--kv", "int8", "--placement", "card"), 2, "host"),
    "perplexity of keys and shadows": (("perplexity", "{bundle}", "{empty}", "--kv", "int8", "--no-shadow"), 2, "no meaning"),
    "perplexity of no file": (("perplexity", "{bundle}", "./no.txt"), 2, "`no.txt`"),
    "perplexity of a folder": (("perplexity", "{bundle}", "{source}"), 2, "cannot read"),
    "perplexity of an empty file": (("perplexity", "{bundle}", "{empty}"), 2, "too few"),
    "import of nothing": (("import", "./nowhere"), 1, "nowhere"),
    "import of no name": (("import", ""), 2, "the source is empty"),
    "import of spaces": (("import", " ", "--name", "x"), 2, "the source is empty"),
    "import with an endless calibration file": (("import", "{source}", "--calibration", "x" * 300), 2, "File name too long"),
    "import with an endless file of sensitive linears": (
        ("import", "{source}", "--weights", "w4", "--sensitive", "x" * 300), 2, "File name too long",
    ),
    "perplexity of an endless name": (("perplexity", "{bundle}", "x" * 300), 2, "File name too long"),
    "show with the model's name taken for a file": (("show", "--sensitive", "builtin"), 2, "`builtin` for its file"),
    "import under a bad name": (("import", "{source}", "--name", "../x"), 2, "`../x` cannot be a model name"),
    "import with no calibration file": (("import", "{source}", "--calibration", "./no.txt"), 2, "no file `no.txt`"),
    "import with no file of sensitive linears": (
        ("import", "{source}", "--weights", "w4", "--sensitive", "./no.json"), 2, "no file `no.json`; check the path",
    ),
    "import with a folder of sensitive linears": (
        ("import", "{source}", "--weights", "w4", "--sensitive", "{source}"), 2, "a regular file is needed",
    ),
    "a server with no file of keys": (("serve", "{bundle}", "--api-key-file", "./no.txt"), 2, "`no.txt`"),
    "a chat with no file of keys": (("chat", "--url", "http://x", "--api-key-file", "./no.txt"), 2, "`no.txt`"),
    "bench compared with no file": (("bench", "{bundle}", "--compare", "./no.jsonl"), 2, "no.jsonl"),
    "bench saved to no file": (("bench", "{bundle}", "--save", "-"), 2, "./-"),
    "bench traced to no file": (("bench", "lanes", "{bundle}", "--trace", "-"), 2, "./-"),
    "show to stdout twice": (("show", "{bundle}", "--json", "--sensitive", "-"), 2, "--sensitive -"),
    "bench of two models": (("bench", "{bundle}", "-m", "builtin"), 2, "not both"),
    "bench saved to no folder": (("bench", "{bundle}", "--save", "nowhere/x.jsonl"), 2, "no folder `nowhere`"),
    "a schema of no file": (("run", "{bundle}", "hi", "--json-schema", "no.json"), 2, "no file `no.json`"),
    "import to fewer bits than there can be": (
        ("import", "{source}", "--weights", "auto", "--bits", "3"), 2, "bits per weight at least; give --bits",
    ),
    "removing the built-in model": (("rm", "builtin"), 2, "built-in"),
    "removing nothing": (("rm", "nowhere", "--yes"), 1, "no model `nowhere`"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_line(call, tiny_bundle, tiny_model, tmp_path, edge_llm_home, mistake):
    arguments, wanted_code, wanted_text = MISTAKES[mistake]
    empty = tmp_path / "empty.txt"
    empty.touch()
    places = {
        "{bundle}": str(tiny_bundle), "{source}": str(tiny_model("llama")), "{long}": "word " * 100, "{empty}": str(empty),
    }  # fmt: skip
    code, out, err = call(*(places.get(argument, argument) for argument in arguments))
    assert code == wanted_code
    assert wanted_text in err
    assert out == ""
    assert "Traceback" not in err
    errors = [line for line in err.splitlines() if line.lower().startswith("error")]
    assert len(errors) == 1
    assert not list(edge_llm_home.rglob("*"))


def test_a_flipped_byte_is_refused(call, tiny_bundle, tmp_path):
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(tiny_bundle, broken)
    data = bytearray((broken / "weights.bin").read_bytes())
    data[len(data) // 2] ^= 1
    (broken / "weights.bin").write_bytes(data)
    code, out, err = call("run", broken, "hi")
    assert (code, out, err.count("\n")) == (1, "", 1)
    (broken / "weights.bin").write_bytes(data[:-1])
    assert call("run", broken, "hi")[0] == 1


def test_stdin_that_is_not_text_is_refused(call, tiny_bundle):
    code, _, err = call("run", tiny_bundle, stdin=b"\xff\xfe")
    assert (code, err) == (2, "error: stdin is not UTF-8 text (byte 0); pipe text\n")


CUTS = {
    "tokens": (
        ("run", "builtin", "Tell me a story", "-n", 3, "--ignore-eos"),
        "[cut short after 3 tokens; --max-tokens allows more]\n",
    ),
    "context": (
        ("run", "builtin", "Tell me a story", "--ctx", 24, "--ignore-eos"),
        "[cut short: the context of 24 tokens is full; --ctx may allow more]\n",
    ),
    "its own end": (("run", "builtin", "hi", "--temperature", 0), ""),
    "in JSON": (("run", "builtin", "Tell me a story", "-n", 3, "--ignore-eos", "--json"), ""),
}


@pytest.mark.parametrize("name", CUTS)
def test_an_answer_that_was_cut_says_so_on_stderr_and_is_no_failure(call, name):
    arguments, said = CUTS[name]
    code, out, err = call(*arguments)
    assert (code, err) == (0, said)
    if "--json" in arguments:
        assert json.loads(out)["finish_reason"] == "length"


def test_a_plain_chat_says_that_an_answer_was_cut(call):
    code, _, err = call("chat", "builtin", "-n", 2, stdin="Tell me a story\n")
    assert (code, err) == (0, "[cut short after 2 tokens; --max-tokens allows more]\n")


MISUSE = {
    ("run", "--nonsense"): "`edge-llm run` has no option `--nonsense`",
    ("run", "--temperture", "1", "hi"): "did you mean `--temperature`?",
    ("run", "builtin", "who", "are", "you"): 'put it in quotes: `edge-llm run builtin "who are you"`',
    ("run", "Who are you?"): 'write `edge-llm run builtin "Who are you?"`',
    ("chat", "Who are you?"): 'write `edge-llm run builtin "Who are you?"`',
    ("doctor", "x", "y"): "`edge-llm doctor` takes no `y`; `edge-llm doctor --help` says what it takes",
    ("import",): "SOURCE is missing; `edge-llm import --help` says what it takes",
    ("run", "builtin", "hi", "--temperature"): "requires an argument",
    ("run", "builtin", "hi", "--kv", "int3"): "'int3' is not one of",
    ("cache", "frobnicate"): "frobnicate",
    ("bench", "builtin", "extra"): "`edge-llm bench` takes no `extra`",
    ("--nonsense",): "`edge-llm` has no option `--nonsense`; `edge-llm --help` says what it takes",
}


@pytest.mark.parametrize("arguments", MISUSE)
def test_misuse_has_one_voice(call, arguments):
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ") and MISUSE[arguments] in err


@pytest.mark.parametrize("verb", [verb for verb, _, _ in VERBS])
def test_every_verb_refuses_an_unknown_option_in_one_voice(call, verb):
    code, out, err = call(verb, "--no-such-thing-at-all")
    if verb == "config":  # whose options may be another command's
        return
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: `edge-llm {verb}` has no option `--no-such-thing-at-all`; ")


def test_a_model_name_that_is_nearly_one_is_asked_back(call):
    code, _, err = call("run", "Biultin", "hi")
    assert (code, err) == (1, "error: no model `Biultin`; did you mean `builtin`?\n")


SHELL_LINES = {
    'while read -r l; do RUN "$l"; done < lines': ["a", "b", "c"],
    'cat lines | while read -r l; do RUN "$l"; done': ["a", "b", "c"],
    'while read -r l; do timeout 60 RUN "$l"; done < lines': ["a", "b", "c"],
    'cat lines | for l in x y; do RUN "$l"; done': ["x", "y"],
    'cat lines | while read -r l; do timeout 60 RUN "$l"; done': ["a", "b", "c"],
    'cat lines | while read -r l; do RUN "$l" </dev/null; done': ["a", "b", "c"],
    "cat lines | RUN say": ["say\n\na\nb\nc"],
    "RUN say < lines": ["say\n\na\nb\nc"],
    "cat lines | timeout 60 RUN say": ["say\n\na\nb\nc"],
    "cat lines | RUN -": ["a\nb\nc"],
    "cat lines | RUN": ["a\nb\nc"],
    "cat lines | { RUN say; cat >rest; }": ["say"],
    "cat lines | { RUN say -; cat >rest; }": ["say\n\na\nb\nc"],
    "RUN say </dev/null": ["say"],
    "RUN say <&-": ["say"],
}
"""What shells do with stdin, and the prompts that come of it."""
TELLS_PROMPT = """
import sys
from edge_llm.cli import run
run.load_engine = lambda *_: print(ascii(run.told), end=" ") or sys.exit()
whole = run._whole_prompt
run._whole_prompt = lambda *given: setattr(run, "told", whole(*given)) or run.told
from edge_llm.cli.main import main
main(["run", "builtin", *sys.argv[1:]])
"""


@pytest.mark.parametrize("shell", [shell for shell in ("bash", "dash", "zsh", "busybox") if shutil.which(shell)])
@pytest.mark.parametrize("line", SHELL_LINES)
def test_stdin_is_read_where_it_is_ours_and_left_to_a_shell_that_reads_it(tmp_path, shell, line):
    (tmp_path / "lines").write_text("a\nb\nc\n")
    (tmp_path / "tell.py").write_text(TELLS_PROMPT)
    words = [shell, *(["sh"] if shell == "busybox" else []), "-c", line.replace("RUN", f"{sys.executable} tell.py") + "\n:"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.stderr == ""
    assert [ast.literal_eval(word) for word in re.findall("'[^']*'", done.stdout)] == SHELL_LINES[line]
    if (rest := tmp_path / "rest").exists():
        assert rest.read_text() == ("" if "-;" in line else "a\nb\nc\n")  # what was left alone is still there


def test_who_waits_for_stdin_says_so_after_a_while():
    with subprocess.Popen(
        [sys.executable, "-m", "edge_llm", "run", "builtin", "hi", "-", "-n", "1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as waiting:  # fmt: skip
        assert waiting.stderr.readline() == "reading stdin ... (Ctrl-D ends it, </dev/null skips it)\n"
        assert waiting.poll() is None
        out, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 0 and out and "reading" not in err


def program(*arguments, **options):
    command = [sys.executable, "-m", "edge_llm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def test_the_program_as_a_process(tiny_bundle, tmp_path):
    done = program("run", tiny_bundle, "hi", "--max-tokens", 2, stdin=subprocess.DEVNULL, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "[cut short after 2 tokens; --max-tokens allows more]\n")
    missing = program("run", "nowhere", "hi", stdin=subprocess.DEVNULL)
    assert (missing.returncode, missing.stdout) == (1, "")


def test_a_reader_that_goes_away_is_no_crash(tiny_bundle):
    command = f"{sys.executable} -m edge_llm run {tiny_bundle} hi --ignore-eos --max-tokens 300 | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.stderr == b""


def test_a_model_in_another_folder_runs_from_anywhere(tiny_bundle, tmp_path):
    environment = os.environ | {"HOME": "/nonexistent", "EDGE_LLM_HOME": str(tmp_path / "none")}
    done = program("run", tiny_bundle, "hi", "--max-tokens", 1, env=environment, cwd="/", stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
