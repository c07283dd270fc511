"""No grammar ends the process, takes seconds for ever, or leaves the memory full."""

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.config import Grammar, RuntimeConfig
from edge_llm.decoding import guided
from edge_llm.decoding import trial as trial_module
from edge_llm.decoding.grammar_source import source_of
from edge_llm.decoding.guided import MAX_KEPT_BYTES, Constraint, check_grammar
from edge_llm.decoding.trial import MAX_BYTES, on_deep_stack
from edge_llm.errors import Overloaded, UsageError
from edge_llm.opening.load import load_engine

pytestmark = pytest.mark.thorough(file=4)


def chain(count, link):
    """A schema of definitions that refer to one another."""
    defs = {f"d{at}": link({"$ref": f"#/$defs/d{at + 1}"}) for at in range(count)} | {f"d{count}": {"type": "null"}}
    return Grammar("json_schema", json.dumps({"$ref": "#/$defs/d0", "$defs": defs}))


def rules(count, rule):
    """A Lark grammar of rules, or of terminals where the name has capitals."""
    return Grammar("lark", "\n".join(rule(at, at + 1) for at in range(count)) + "\n" + rule(count, "").split(":")[0] + ': "a"')


def gbnf(count):
    links = "".join(f'r{at} ::= "a" r{at + 1}\n' for at in range(count))
    return Grammar("lark", f'root ::= r0\n{links}r{count} ::= "a"')


CHAINS = {
    "references": lambda n: chain(n, lambda to: to),
    "properties": lambda n: chain(n, lambda to: {"type": "object", "properties": {"a": to}}),
    "items": lambda n: chain(n, lambda to: {"type": "array", "items": to}),
    "anyOf": lambda n: chain(n, lambda to: {"anyOf": [to, {"type": "null"}]}),
    "allOf": lambda n: chain(n, lambda to: {"allOf": [to]}),
    "several": lambda n: chain(n, lambda to: {"anyOf": [{"type": "object", "properties": {"a": {"items": to}}}]}),
    "rules": lambda n: rules(n, lambda at, to: f"{'start' if at == 0 else f'r{at}'}: r{to}"),
    "rules in text": lambda n: rules(n, lambda at, to: f'{"start" if at == 0 else f"r{at}"}: "a" r{to} "b" | "c"'),
    "empty rules": lambda n: rules(n, lambda at, to: f"{'start' if at == 0 else f'r{at}'}: r{to}?"),
    "terminals": lambda n: rules(n, lambda at, to: f'{"start" if at == 0 else f"T{at}"}: (T{to} "x")?'),
    "gbnf": gbnf,
}
PATTERNS = [{"type": "string", "pattern": f"a{i}|b"} for i in range(40)]
COSTLY = {
    "conjunctions": Grammar("json_schema", json.dumps({"allOf": PATTERNS})),
    "intersections": Grammar("lark", "start: A\nA: " + " & ".join(f"/.*a.{{{i}}}b.*/" for i in range(40))),
    "left recursion": Grammar("lark", "start: " + "|".join(f"start r{i}" for i in range(5000)) + '|"x"\n'
                              + "".join(f'r{i}: "a"\n' for i in range(5000))),
    "classes": Grammar("regex", r"[a-z]\w\d" * 10_000),
    "repetitions": Grammar("regex", "((a{999}b){999}c){999}"),
    "nested repetitions": Grammar("lark", 'start: y{99999}\ny: x{99999}\nx: "a" | "b" "c"'),
    "parentheses": Grammar("lark", "start: " + "(" * 300_000),
    "brackets in a schema": Grammar("json_schema", '{"items":' * 300_000),
    "deep constant": Grammar("json_schema", '{"const":' + "[" * 900 + "]" * 900 + "}"),
    "gbnf parentheses": Grammar("lark", "root ::= " + "(" * 100_000),
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return load_engine(None, RuntimeConfig(threads=1, context=64)).tokenizer


def outcome(grammar, tokenizer):
    try:
        check_grammar(grammar, tokenizer)
        Constraint(grammar, tokenizer)
    except UsageError as error:
        return str(error)
    return "ok"


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_followed_or_refused(tokenizer, name):
    assert outcome(CHAINS[name](300), tokenizer) == "ok"
    longer = outcome(CHAINS[name](400 if name == "gbnf" else 5000), tokenizer)
    assert re.search("^ok|takes more than|too deeply|too big|too large", longer)


ENDLESS = {
    "itself": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    "each other": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "a property that is the whole": {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]},
    "a list of the whole": {"type": "array", "items": {"$ref": "#"}},
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_passes_the_check_can_begin_an_answer(tokenizer, name):
    grammar = Grammar("json_schema", json.dumps(ENDLESS[name]))
    try:
        check_grammar(grammar, tokenizer)
    except UsageError:
        return
    assert np.isfinite(Constraint(grammar, tokenizer).mask(np.zeros(tokenizer.vocab_size, np.float32))).any()


@pytest.mark.parametrize("name", COSTLY)
def test_what_takes_too_much_is_refused_in_seconds(tokenizer, name):
    started = time.perf_counter()
    said = outcome(COSTLY[name], tokenizer)
    assert time.perf_counter() - started < 60  # 2 s of processor time, on a busy machine
    if name in ("conjunctions", "intersections", "left recursion", "classes"):
        assert re.search("takes more than (48 MiB|2 s)", said)
    assert len(said) < 600


REPORTED = {"properties": (940, 20_000), "rules": (2700, 20_000), "gbnf": (3660,), "terminals": (20_000,)}
"""Lengths of chains that ended the process by SIGSEGV, and longer ones."""
HOSTILE = """
import json, resource, sys
sys.path[:0] = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from edge_llm.config import RuntimeConfig
from edge_llm.opening.load import load_engine
import test_decoding_trial as trial
tokenizer = load_engine(None, RuntimeConfig(threads=1, context=64)).tokenizer
trial.outcome(trial.Grammar("json_object"), tokenizer)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name, counts in trial.REPORTED.items():
    for count in counts:
        print(name, count, trial.outcome(trial.CHAINS[name](count), tokenizer)[:60])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_process_outlives_every_hostile_grammar():
    """In a process of its own, under a limit of memory."""
    paths = json.dumps(sys.path)
    done = subprocess.run([sys.executable, "-c", HOSTILE, paths], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr[-2000:]) == (0, "")
    *lines, growth = done.stdout.splitlines()
    assert len(lines) == sum(map(len, REPORTED.values()))
    assert lines[0] == "properties 940 ok"
    assert lines[2] == "rules 2700 ok"
    assert int(growth) < 400 << 10  # KiB at the worst moment


@pytest.mark.thorough
def test_kept_grammars_are_bounded_by_their_bytes(tokenizer):
    import psutil

    def ask_many() -> int:
        """Resident bytes after eleven grammars of some 30 MiB each."""
        for _ in range(11):
            constraint = Constraint(Grammar("regex", f"{next(fresh)}" + "abcdefghi" * 10_000), tokenizer)
            constraint.mask(np.zeros(tokenizer.vocab_size, np.float32))
            assert 0 < guided._guide_of(tokenizer).kept_bytes <= MAX_KEPT_BYTES
        return psutil.Process().memory_info().rss

    fresh = itertools.count()
    outcome(Grammar("json_object"), tokenizer)
    settled = ask_many()  # what the allocator keeps for itself is taken by now
    assert ask_many() - settled < 4 * MAX_KEPT_BYTES
    assert MAX_BYTES <= MAX_KEPT_BYTES  # so that the one in use is kept


def test_small_grammars_are_kept_many_at_once(tokenizer):
    for at in range(100):
        outcome(Grammar("choice", json.dumps([f"{at} yes", "no"])), tokenizer)
    assert len(guided._guide_of(tokenizer)._compiled) >= 100


def test_a_trial_goes_on_when_its_process_has_ended(tokenizer):
    assert outcome(Grammar("regex", "abc"), tokenizer) == "ok"
    trial = guided._guide_of(tokenizer)._trial
    os.kill(trial._child.process_id, signal.SIGKILL)
    assert outcome(Grammar("regex", "abcd"), tokenizer) == "ok"
    os.kill(trial._child.process_id, signal.SIGALRM)  # as when it has been idle
    assert outcome(Grammar("regex", "abcde"), tokenizer) == "ok"


def test_an_answer_that_nobody_waited_for_is_not_the_next_one_s(tokenizer):
    """Ctrl-C while a grammar is tried, in a program that goes on."""
    outcome(Grammar("regex", "warm"), tokenizer)

    def interrupt(*_):
        raise KeyboardInterrupt

    usual = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            outcome(COSTLY["conjunctions"], tokenizer)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
    assert outcome(Grammar("regex", "fine"), tokenizer) == "ok"


def test_the_process_of_trials_ends_with_its_owner(tmp_path):
    code = """
from edge_llm.config import Grammar, RuntimeConfig
from edge_llm.decoding import guided
from edge_llm.opening.load import load_engine
tokenizer = load_engine(None, RuntimeConfig(threads=1, context=64)).tokenizer
guided.check_grammar(Grammar("regex", "a"), tokenizer)
print(guided._guide_of(tokenizer)._trial._child.process_id)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_a_trial_ends_with_the_fork_that_tries_a_grammar(tokenizer):
    trial = guided._guide_of(tokenizer)._trial
    question = {"source": source_of(COSTLY["left recursion"], trial.lark_of)}
    forks = []
    for attempt in range(20):  # a fork may be over before a busy machine lets us see it
        if forks:
            break
        outcome(Grammar("regex", f"warm again {attempt}"), tokenizer)
        child = trial._child
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(trial._asked, question)
            while not slow.done() and not forks:
                forks = forks_of(child.process_id)
            child.end()
            slow.exception()  # the pipes are closed under the thread that asks
    assert forks
    until = time.monotonic() + 60
    while any(state_of(pid) not in (None, "Z", "X") for pid in forks):  # a signal is not delivered at once
        assert time.monotonic() < until
        time.sleep(0.01)
    assert outcome(Grammar("regex", "fine again"), tokenizer) == "ok"


@pytest.mark.parametrize("length", [1, 100_000], ids=["reading", "writing"])
def test_a_process_that_hangs_is_waited_for_only_so_long(tokenizer, monkeypatch, length):
    trial = guided._guide_of(tokenizer)._trial
    outcome(Grammar("regex", "warm once more"), tokenizer)
    monkeypatch.setattr(trial_module, "MAX_WAIT_SECONDS", 0.1)
    os.kill(trial._child.process_id, signal.SIGSTOP)
    with pytest.raises(Overloaded, match=r"0\.1 seconds"):
        check_grammar(Grammar("lark", f'start: "{"a" * length}"'), tokenizer)
    monkeypatch.undo()
    assert outcome(Grammar("regex", f"fine, {length}"), tokenizer) == "ok"


def test_only_so_many_grammars_wait_for_their_trial(tokenizer):
    trial = guided._guide_of(tokenizer)._trial
    for _ in range(trial_module.MAX_WAITING):
        trial._places.acquire()
    try:
        with pytest.raises(Overloaded, match="ask again"):
            check_grammar(Grammar("regex", "one too many"), tokenizer)
    finally:
        for _ in range(trial_module.MAX_WAITING):
            trial._places.release()
    assert outcome(Grammar("regex", "one too many"), tokenizer) == "ok"


def forks_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state_of(pid):
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def test_a_mask_that_takes_too_long_ends_its_request(tokenizer, monkeypatch):
    monkeypatch.setattr(guided, "MAX_MASK_SECONDS", 0.02)
    many = "|".join(f'"a" r{at}' for at in range(300))
    text = f'start: e\ne: e e | {many} | "a"\n' + "".join(f'r{at}: "a" e\n' for at in range(300))
    constraint = Constraint(Grammar("lark", text), tokenizer)
    token = tokenizer.encode("a")[0]
    with pytest.raises(UsageError, match="too long to follow"):
        for _ in range(50):
            constraint.mask(np.zeros(tokenizer.vocab_size, np.float32))
            constraint.accept(token)


def test_a_deep_stack_is_deep_and_the_usual_one_stays():
    import threading

    def depth(left):
        return 0 if left == 0 else 1 + depth(left - 1)

    usual = threading.stack_size()
    assert on_deep_stack(lambda: depth(500)) == 500
    assert threading.stack_size() == usual


# ---- mutated grammars

SEEDS = (
    'start: pair ("," pair)*\npair: NAME "=" /[0-9]{1,3}/\nNAME: /[a-z]+/ & /.*x/\n',
    'root ::= "a" (b | c)+ "d"\nb ::= [a-z]{2,5}\nc ::= "x" c?\n',
    json.dumps({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"items": {"$ref": "#"}}}}),
    json.dumps({"allOf": [{"type": "string", "pattern": "^a+$"}, {"maxLength": 9}], "anyOf": [{"format": "date"}, {}]}),
    r"(a|b{2,9})*[^x-z]\w+(?i:q)\p{L}?",
)
PARTS = ("(", ")", "{1,99999}", "*", "+", "?", "|", "&", "~", "[", "]", '"', "/", "\\", "$ref", "#/$defs/b", "allOf", "{", "}",
         "start", "NAME", "\n", "::=", ": ", "99999999999", ".", "^", "-1", "null", "%json", "%ignore", "%regex", "<[1-5]>",
         "@a", "[lazy]", "\x00", "é", "\U0001f642")  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(("lark", "regex", "json_schema", "choice")))
def test_mutated_grammars_are_followed_or_refused(tokenizer, seed, kind):
    random_ = random.Random(seed)
    text = random_.choice(SEEDS)
    for _ in range(random_.randint(1, 8)):
        at, until = sorted((random_.randint(0, len(text)), random_.randint(0, len(text))))
        part = random_.choice(PARTS) * random_.choice((1, 1, 1, 2, 50))
        text = text[:at] + part + (text[at:] if random_.random() < 0.7 else text[at:until] * 2 + text[until:])
    assert len(outcome(Grammar(kind, text), tokenizer)) < 600
