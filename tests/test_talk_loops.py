"""Sampling, another answer and the guard against loops: `run`, the plain chat, Python, and a chat with a server."""

import asyncio
import copy
import io
import json
import re
import sys
from dataclasses import replace

import pytest
from serving import builtin_engine, hosted, serving

from edge_llm.chats.settings import ChatSettings
from edge_llm.cli.main import run
from edge_llm.config import REPETITION
from edge_llm.convert.importer import import_model
from edge_llm.decoding.defaults import FOR_PEOPLE
from edge_llm.decoding.loops import LIMITS
from edge_llm.engine.engine import Engine
from edge_llm.errors import UsageError
from edge_llm.llm import LLM
from edge_llm.providers.base import Ask, Ended, Wanted
from edge_llm.providers.chunks import ChunkReader
from edge_llm.providers.local import LocalProvider
from edge_llm.providers.remote import RemoteCatalogue, request_body

HELLO = ({"role": "user", "content": "Hello"},)
SAID = "said the same over and over and was ended"


def cut(tokens):
    return f"[cut short after {tokens} tokens; --max-tokens allows more]"


@pytest.fixture
def loops(monkeypatch, engine):
    """The built-in model with a taste for one word, whichever face loads it."""
    (token,) = engine.tokenizer.encode(" the")
    other = copy.copy(engine)
    other.defaults = replace(engine.defaults, logit_bias=((token, 100.0),))
    for face in ("edge_llm.cli.run", "edge_llm.cli.plain_chat", "edge_llm.llm"):
        monkeypatch.setattr(f"{face}.load_engine", lambda *_: other)
    return other


@pytest.fixture
def call(capsys, monkeypatch):
    """Exit code, stdout and stderr of one call of the command line."""

    def call_(*arguments, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = run([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call_


@pytest.fixture
def asked(monkeypatch):
    """The parameters of every request that an engine answers."""
    found = []
    stream = Engine.stream

    def kept(self, request, *more):
        found.append(request.params)
        return stream(self, request, *more)

    monkeypatch.setattr(Engine, "stream", kept)
    return found


# ---- what is asked for where nobody says


@pytest.fixture
def unnamed(tiny_model, tmp_path):
    """A model whose author names no sampling."""
    source = tiny_model("llama", chat_template="{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}bot:")
    config = json.loads((source / "generation_config.json").read_text())
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": config["eos_token_id"]}))
    return import_model(source, "unnamed", target=tmp_path / "unnamed")


def test_people_get_sampled_answers_where_the_author_names_nothing(call, asked, unnamed):
    assert call("run", unnamed, "hello", "-n", 3)[0] == 0
    assert call("run", unnamed, "hello", "-n", 3, "--raw")[0] == 0
    assert call("chat", unnamed, "-n", 3, stdin="hello\n")[0] == 0
    LLM(unnamed).chat(list(HELLO), max_tokens=3)
    assert asked == [replace(FOR_PEOPLE, max_tokens=3)] * 4


def test_temperature_0_stays_greedy_and_the_guard_may_be_off(call, asked, unnamed):
    for word in ("run", "chat"):
        arguments = (word, unnamed, *(["hello"] if word == "run" else []), "-n", 3, "--temperature", 0, "--no-loop-guard")
        assert call(*arguments, stdin="" if word == "run" else "hello\n")[0] == 0
    assert [(params.temperature, params.loop_guard) for params in asked] == [(0.0, False)] * 2


def test_the_builtin_model_keeps_what_its_author_names(call, asked):
    assert call("run", "builtin", "hello", "-n", 3)[0] == 0
    assert (asked[0].temperature, asked[0].top_p, asked[0].min_p) == (0.4, 0.9, 0.0)


def test_a_chat_shows_what_holds(unnamed):
    provider = LocalProvider(LLM(unnamed).engine)
    try:
        shown = provider.facts.sampling
        assert (shown["temperature"], shown["min_p"], shown["dry_multiplier"], shown["loop_guard"]) == (0.7, 0.05, 0.8, True)
    finally:
        provider.close()


# ---- an answer that is in a loop


def test_run_says_on_stderr_that_an_answer_looped(call, loops):
    code, out, err = call("run", "builtin", "Hello")
    assert (code, out) == (0, " the" * LIMITS.fewest + "\n")
    assert err == "[the answer said the same over and over and was ended; --no-loop-guard lets it go on]\n"
    found = json.loads(call("run", "builtin", "Hello", "--json")[1])
    assert (found["finish_reason"], found["usage"]["completion_tokens"]) == ("repetition", LIMITS.fewest)
    code, out, err = call("run", "builtin", "Hello", "--no-loop-guard", "-n", 300)
    assert (code, out, err) == (0, " the" * 300 + "\n", cut(300) + "\n")


def test_the_config_file_and_the_environment_turn_the_guard_off(call, loops, monkeypatch, edge_llm_home):
    monkeypatch.setenv("EDGE_LLM_LOOP_GUARD", "false")
    assert len(call("run", "builtin", "Hello", "-n", 300)[1].split()) == 300
    monkeypatch.delenv("EDGE_LLM_LOOP_GUARD")
    path = re.search(r"\S+\.toml", call("config")[1])[0]
    edge_llm_home.joinpath(path).write_text("[defaults]\nloop-guard = false\n")
    assert len(call("run", "builtin", "Hello", "-n", 300)[1].split()) == 300
    assert len(call("run", "builtin", "Hello", "-n", 300, "--loop-guard")[1].split()) == LIMITS.fewest


def test_the_plain_chat_says_so_and_goes_on(call, loops):
    code, out, err = call("chat", "builtin", stdin="Hello\n/continue\n/regenerate\n")
    assert (code, out) == (0, (" the" * LIMITS.fewest + "\n") * 3)
    assert err.count(f"[the answer {SAID}; /continue goes on, /regenerate answers again]") == 3


def test_python_knows_a_loop_from_a_limit(loops):
    reply = LLM().reply(list(HELLO))
    assert (reply.reason, reply.finish.reason) == ("length", REPETITION)


# ---- another answer


def test_answering_again_in_the_plain_chat_is_never_greedy_and_draws_anew(call, asked):
    greedy = ("--temperature", 0, "--seed", 5, "-n", 8)
    code, out, err = call("chat", "builtin", *greedy, stdin="Hello\n/regenerate\n/regenerate\n")
    assert code == 0 and set(err.splitlines()) == {cut(8)}
    assert [params.temperature for params in asked] == [0.0, 0.7, 0.7]
    assert len({params.seed for params in asked}) == 3
    assert out.count("\n") == 3


def test_answering_again_and_going_on_keep_the_conversation(call, monkeypatch):
    prompts = []
    stream = Engine.stream

    def kept(self, request):
        prompts.append(self.tokenizer.decode(request.prompt, skip_special=False))
        return stream(self, request)

    monkeypatch.setattr(Engine, "stream", kept)
    code, out, err = call("chat", "builtin", "-n", 5, "--seed", 1, stdin="Hello\n/regenerate\n/continue\nAnd then?\n")
    assert code == 0 and set(err.splitlines()) == {cut(5)}
    _, second, rest, _ = out.splitlines()
    assert prompts[0] == prompts[1] and prompts[2] == prompts[1] + second
    assert second + rest in prompts[3] and prompts[3].count("<|assistant|>") == 2


def test_there_is_nothing_to_answer_again_at_first(call):
    assert call("chat", "builtin", stdin="/regenerate\n/continue\n")[1:] == ("", "there is no answer yet\n" * 2)


def test_another_answer_of_this_machine_is_sampled_from_a_seed_of_its_own(engine):
    provider = LocalProvider(engine)
    ask = Ask(HELLO, {"temperature": 0.0, "seed": 5}, again=True)
    first, second = (provider.request(ask)[0].params for _ in range(2))
    provider.close()
    assert first.temperature == second.temperature == 0.7
    assert len({first.seed, second.seed, 5}) == 3


@pytest.mark.parametrize(
    ("sampling", "sent"),
    [
        ({}, {}),
        ({"temperature": 0.2}, {"temperature": 0.2}),
        ({"temperature": 0.0}, {"temperature": 0.7}),
        ({"top_k": 1, "max_tokens": 9}, {"temperature": 0.7, "top_k": 0, "max_tokens": 9}),
    ],
)
def test_another_answer_of_a_server_asks_for_no_more_than_it_must(sampling, sent):
    body = request_body("m", Ask(HELLO, sampling, again=True))
    assert {name: body[name] for name in body.keys() & {"temperature", "top_k", "min_p", "max_tokens", "seed"}} == sent
    assert request_body("m", Ask(HELLO, {"seed": 5}, again=True))["seed"] != 5
    assert request_body("m", Ask(HELLO, sampling)) == request_body("m", Ask(HELLO, sampling, again=False))


# ---- a server's chat


def test_a_chat_with_our_server_hears_of_a_loop(loops):
    other = copy.copy(loops)
    other.served = replace(loops.defaults)

    async def ends(sampling):
        provider = RemoteCatalogue(url).open(Wanted(None), lambda *_: None)
        return [piece async for pieces in provider.ask(Ask(HELLO, sampling)) for piece in pieces if isinstance(piece, Ended)]

    with serving(hosted(engine=other)) as url:
        assert [end.reason for end in asyncio.run(ends({}))] == [REPETITION]
        assert [end.reason for end in asyncio.run(ends({"loop_guard": False, "max_tokens": 300}))] == ["length"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"finish_reason": "length", "stopped_by": "repetition"}, REPETITION),
        ({"finish_reason": "repetition"}, REPETITION),
        ({"finish_reason": "length", "stopped_by": ["repetition"]}, "length"),
        ({"finish_reason": "length"}, "length"),
        ({"finish_reason": "stop"}, "stop"),
        ({"stopped_by": "repetition"}, None),
    ],
)
def test_reasons_of_servers(fields, reason):
    reader = ChunkReader()
    reader.read(json.dumps({"choices": [{"delta": {}, **fields}]}))
    assert reader.reason == reason


# ---- the setting


def test_the_guard_is_a_setting_of_a_chat():
    settings = ChatSettings().changed("loop-guard", "off")
    assert settings.value("loop_guard") is False
    assert ChatSettings.from_json(settings.as_json()) == settings
    assert settings.changed("loop_guard", "").value("loop_guard") is None
    with pytest.raises(UsageError, match="loop_guard cannot be `0`: on or off"):
        settings.changed("loop_guard", "0")
    assert ChatSettings.from_json({"sampling": {"loop_guard": "x", "top_k": 3}}).sampling == {"top_k": 3}


def test_a_fresh_engine_has_these_defaults():
    assert builtin_engine().defaults.loop_guard
