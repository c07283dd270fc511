"""`bench lanes`, `load`, `speculation`, `sampling`: real runs on the built-in model, and their rows."""

import json
import socket
import threading
from types import SimpleNamespace

import pytest

from edge_llm.bench import lanes, measure, sampling
from edge_llm.bench.concurrency import BorrowedTokenizer, load_for
from edge_llm.bench.loads import Load
from edge_llm.bench.rest import ask
from edge_llm.bench.sampling import WAYS
from edge_llm.bench.synthetic import write_random
from edge_llm.cli.main import run
from edge_llm.config import GenerationParams, LlamaConfig, RuntimeConfig
from edge_llm.convert.calibrate import HELD_OUT_TEXT
from edge_llm.decoding.sampler import greedy
from edge_llm.engine import generation
from edge_llm.errors import DeviceError
from edge_llm.paths import builtin_bundle
from edge_llm.runner.order import POLICIES
from edge_llm.scheduler import Span, Trace
from edge_llm.text.tokenizer import Tokenizer

pytestmark = pytest.mark.thorough(file=5)

SYNTHETIC = LlamaConfig(
    family="llama", vocab_size=4000, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=16, context=512, norm_eps=1e-6, rope_theta=1e4, tied_embeddings=True,
)  # fmt: skip
"""With a larger vocabulary than the built-in model's."""


@pytest.fixture
def bench(capsys):
    """Call `edge-llm bench`: (exit code, stdout, stderr)."""

    def call(*arguments):
        code = run(["bench", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


def test_every_policy_runs_on_the_emulated_card_and_is_simulated_too(bench, tmp_path):
    trace = tmp_path / "trace.json"
    arguments = ("lanes", "-p", 100, "--chunk", 32, "-r", 1, "--device", "emulated:310p", "-t", 2, "--policy", "all")
    code, out, err = bench(*arguments, "-o", "json", "--trace", trace)
    assert code == 0, err
    rows = json.loads(out)
    assert [row["policy"] for row in rows] == [*POLICIES, "planned"]
    for row in rows:
        assert 0 < row["lower_bound_ms"] <= row["makespan_ms"] * 1.0001
        assert row["predicted_ms"] > 0 and 0 <= row["npu_idle_share"] < 1
        assert row["overflow_share"] == rows[0]["overflow_share"] > 0
        assert 0 < row["shadow_ms"] < row["makespan_ms"] and 0 <= row["shadow_beside_share"] <= 1
    assert "subgraphs were built for" in err
    drawn = {event["args"]["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["name"] == "thread_name"}
    assert drawn == {"cpu", "npu"}


def test_a_prompt_is_text_as_often_as_it_takes_and_anything_for_random_weights():
    text = Tokenizer.from_folder(builtin_bundle(), 1536).encode(HELD_OUT_TEXT.read_text("utf-8"))
    assert lanes.prompt_tokens(2 * len(text) + 3, 1536, builtin_bundle()) == text + text + text[:3]
    anything = lanes.prompt_tokens(5000, 97, None)
    assert (len(anything), set(anything)) == (5000, set(range(97)))


def test_seconds_beside_products_are_those_in_which_the_card_multiplied():
    spans = [
        Span("p1", "npu", 1, 4), Span("p2", "npu", 3, 6), Span("p3", "npu", 8, 9),  # a card may be sent the next one early
        Span("a.shadow", "cpu", 0, 2), Span("b.shadow", "cpu", 2, 3), Span("other", "cpu", 3, 5),
        Span("c.shadow", "cpu", 5, 8.5), Span("d.shadow", "cpu", 9, 11),
    ]  # fmt: skip
    run = Trace(tuple(sorted(spans, key=lambda span: span.end)), ("cpu", "npu"))
    shadows = lanes.shadow_spans(run)
    assert [span.name for span in shadows] == ["a.shadow", "b.shadow", "c.shadow", "d.shadow"]
    assert [lanes.beside_products(run, [span]) for span in shadows] == [1, 1, 1.5, 0]
    (row,) = lanes.rows([lanes.LaneRun("feed", 7, (run,), predicted=11.0, overflow=0.0025)])
    assert (row["shadow_ms"], row["shadow_beside_share"]) == (8500, 3.5 / 8.5)
    assert lanes.markdown([row]).splitlines()[-1].endswith("|    0.25% |    8500.0 |             41% |")


def test_a_gantt_chart_of_a_streamed_prompt_has_the_flash_lane(bench):
    code, out, err = bench("lanes", "-p", 64, "-r", 1, "--memory", "60%", "--gantt", "-t", 2)
    assert code == 0, err
    assert "| pp64 | auto " in out and "flash |" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lanes", "--policy", "fastest"), "unknown policy `fastest`"),
        (("lanes", "--policy", "in-order", "-p", 600, "--chunk", 32), "takes 5 windows"),
        (("load", "--concurrency", "0"), "--concurrency must be above 0"),
        (("load", "-p", "0"), "invalid value for '-p'"),
        (("load", "-n", "0"), "invalid value for '-n'"),
        (("sampling", "-n", "0"), "invalid value for '-n'"),
        (("sampling", "-p", "8,16"), "'8,16' is not a valid integer"),
        (("lanes", "-t", "1,2"), "'1,2' is not a valid integer"),
        (("lanes", "builtin", "--synthetic", "llama-1.1b"), "give MODEL or --synthetic, not both"),
        (("lanes", "-p", "0"), "nothing to run: give -p a number above 0"),
        (("load", "-p", "8,16"), "'8,16' is not a valid integer"),
        (("speculation", "-t", "1,2"), "'1,2' is not a valid integer"),
        (("speculation", "--ctx", "16"), "--ctx `16` is too small for answers of"),
        (("speculation", "--draft", "none"), "--draft none guesses nothing; name lookup, self:N or a MODEL"),
        (("speculation", "--draft", "self:0"), "--draft `self:0` names no number of layers"),
        (("speculation", "--synthetic", "llama-1.1b", "--draft", "builtin"), "has no draft model; try self:N"),
        (("--ttft", "--memory", "60%"), "--ttft is of a process with all weights"),
        (("--memory", "60%", "--float"), "--memory has no meaning with --float"),
        (("--device", "emulated:310p", "--float"), "--float runs on the host only"),
    ],
)
def test_mistakes_are_refused(bench, arguments, message):
    code, out, err = bench(*arguments, "-r", 1)
    assert (code, out) == (2, "") and message in err


def test_answers_at_once(bench):
    code, out, err = bench("load", "--concurrency", "1,4", "-p", 8, "-n", 8, "-r", 2, "-o", "json", "--batch-window", 1)
    assert code == 0, err
    rows = json.loads(out)
    assert [(row["n_streams"], row["test"], len(row["samples_ts"])) for row in rows] == [(1, "pp8+tg8", 2), (4, "pp8+tg8", 2)]
    assert rows[0]["speedup"] == 1.0 and rows[1]["tokens_per_second"] > 0


@pytest.mark.parametrize("through", ["service", "REST"])
def test_every_load_is_beside_the_runner_alone(bench, through):
    more = ("--rest",) if through == "REST" else ()
    code, out, err = bench("load", "--concurrency", "1,3,80", "-p", 4, "-n", 6, "-r", 2, "-t", 1, "--json", *more)
    assert code == 0, err
    rows = json.loads(out)
    assert [(row["through"], row["n_streams"]) for row in rows] == [(through, 1), (through, 3), (through, 80)]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["decode_ts"] / row["bare_ts"])
        assert min(row["samples_ts"]) > 0 < row["first_token_ms"]


def test_every_token_of_a_borrowed_tokenizer_has_text():
    known, vocab = 1536, 4000
    own, borrowed = (kind.from_folder(builtin_bundle(), vocab) for kind in (Tokenizer, BorrowedTokenizer))
    texts = [borrowed.token_bytes(token) for token in range(vocab)]
    assert all(texts) and texts[:known] == [own.token_bytes(token) for token in range(known)] == texts[known : 2 * known]


def test_a_synthetic_model_answers_token_by_token_and_guesses_nothing(tmp_path):
    write_random(tmp_path, SYNTHETIC)
    engine = load_for(tmp_path, RuntimeConfig(threads=1), [Load(1, 12, 40)], synthetic=True)
    params = GenerationParams(max_tokens=40, ignore_eos=True)
    deltas = list(engine.stream(engine.token_request([5, 6, 7] * 4, params)))
    assert sum(bool(delta.text) for delta in deltas) == 40
    assert (engine.counters.generated_tokens, engine.counters.drafted_tokens) == (40, 0)


def test_a_server_that_ends_early_is_an_error():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def hang_up():
            taken, _ = listener.accept()
            taken.recv(4096)
            taken.sendall(b"HTTP/1.1 503 Service Unavailable\r\n\r\nno")
            taken.close()

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(DeviceError, match="ended a stream early: .*503"):
            ask(listener.getsockname()[1], [b"GET / HTTP/1.1\r\n\r\n"])


def test_speculation_guesses_right_on_copies_only(bench):
    code, out, err = bench("speculation", "-r", 1, "-n", 16, "-o", "json")
    assert code == 0, err
    copied, new, asked = json.loads(out)
    assert (copied["text"], new["text"], asked["text"]) == ("rewritten", "new", "questions")
    assert copied["accepted_share"] > 0.5 > new["accepted_share"]
    assert copied["tokens_per_sweep"] > 2 and new["tokens_per_sweep"] >= 1


def test_speculation_says_from_which_share_of_right_guesses_a_drafter_pays(bench):
    for draft, right in (("self:5", 1), ("builtin", 1), ("self:1", 0)):
        code, out, err = bench("speculation", "-r", 1, "-n", 24, "-t", 1, "--draft", draft, "--json")
        assert code == 0, err
        (row,) = json.loads(out)
        assert (row["text"], row["draft"]) == ("questions", draft)
        assert row["accepted_share"] > 0.8 if right else row["accepted_share"] < 0.8
        assert row["tokens_per_sweep"] > (1.5 if right else 1)
        assert row["pays_from"] is None or 0 <= row["pays_from"] <= 1
    code, out, err = bench("speculation", "-r", 1, "-n", 8, "-t", 1, "--draft", "self:2", "--memory", "85%")
    assert code == 0 and "| tokens per sweep |" in out and "x |" in out, err


def test_sampling_says_what_every_way_to_choose_adds(bench):
    code, out, err = bench("sampling", "-p", 16, "-n", 8, "-r", 2, "-t", 1, "--json")
    assert code == 0, err
    rows = json.loads(out)
    ways = [row["sampling"] for row in rows]
    assert ways[:2] == ["runner alone", "greedy"] and len(set(ways)) == len(ways)
    assert all(any(kind in way for way in ways) for kind in ("top-p", "top-k", "min-p", "penalties", "log-probabilities"))
    alone = 1e3 / rows[0]["tokens_per_second"]
    assert (rows[0]["step_share"], rows[0]["added_ms"]) == (1, 0) and all(0 < row["step_share"] < 1 for row in rows[1:])
    for row in rows:
        assert (row["test"], row["n_gen"], row["n_depth"], len(row["samples_ts"])) == ("tg8 @ d16", 8, 16, 2)
        assert min(row["samples_ts"]) > 0
        assert row["added_ms"] > 0 or row is rows[0]
        assert row["ratio"] == pytest.approx(alone * row["tokens_per_second"] / 1e3)


def test_a_choice_takes_what_the_steps_of_its_own_answer_leave(monkeypatch):
    """The prompt takes 100 seconds, the 8 steps behind it 3, 4, 5, ..., and each of 9 choices 2."""
    seconds = [0.0]
    for module in (sampling, measure, generation):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    engine = load_for(builtin_bundle(), RuntimeConfig(threads=1), [Load(2, 16, 9)], synthetic=False)
    run_step = engine.runner.run

    def step(segments, **how):
        known = segments[0].sequence.length
        seconds[0] += 100 if known < 16 else known - 13
        return run_step(segments, **how)

    def choose(logits):
        seconds[0] += 2
        return greedy(logits)

    monkeypatch.setattr(engine.runner, "run", step)
    monkeypatch.setattr(generation, "make_sampler", lambda params, pool: choose)
    alone, *ways = sampling.measure(engine, 16, 8, 2)
    steps = sum(range(3, 11))
    assert (alone.seconds, alone.step_share, alone.added_ms) == ((steps, steps), 1, 0)
    assert [way.way for way in ways] == list(WAYS)
    for way in ways:
        assert (way.step_seconds, way.seconds) == ((steps, steps), (steps + 18, steps + 18))
        assert (way.step_share, way.added_ms) == (steps / (steps + 18), 2000)
    assert [row["added_ms"] for row in sampling.rows([alone, *ways], 16, 8)] == [0, *(2000 for _ in ways)]


def test_the_table_of_sampling_has_a_row_for_every_way(bench):
    code, out, err = bench("sampling", "-p", 4, "-n", 2, "-r", 1, "-t", 1)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "ms added to a token" in lines[0] and len(lines) == 2 + 1 + len(WAYS)
    assert all(any(f"| {way} " in line for line in lines) for way in WAYS)


def test_sampling_tells_a_person_how_far_it_is(bench, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    code, _, err = bench("sampling", "-p", 4, "-n", 2, "-r", 2, "-t", 1)
    assert code == 0
    assert err.splitlines() == ["tg2 @ d4, 13 ways in turns; first a run to warm up", "turn 1 of 2", "turn 2 of 2"]


def test_a_text_without_tokens_gives_a_prompt_all_the_same(monkeypatch, tmp_path):
    class NoTokens:
        def encode(self, text):
            return []

    monkeypatch.setattr("edge_llm.text.tokenizer.Tokenizer.from_folder", lambda *_: NoTokens())
    found = lanes.prompt_tokens(7, 50, tmp_path)
    assert len(found) == 7 and all(0 <= token < 50 for token in found)
