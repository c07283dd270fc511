"""One way from messages to a request and from text to thoughts and answer: the faces say the same of the same text."""

import contextlib
import copy
import io
import json
import sys

import pytest
from serving import HandService, client_of, end, hosted

from edge_llm.cli.main import run
from edge_llm.config import Grammar
from edge_llm.engine.engine import Engine
from edge_llm.engine.request import Delta
from edge_llm.errors import UsageError
from edge_llm.llm import LLM
from edge_llm.text.chat import ChatTemplate

ASK = [{"role": "user", "content": "Why?"}]
LINES = "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}{% endfor %}<|assistant|>"
OPENS = LINES + "<think>\n"
"""A generation prompt that opens a thought."""
PLAIN = LINES.replace("</think>", "!")
CASES = [
    (OPENS, "hm, 2 < 3\n</think>\n\nYes.\n", "hm, 2 < 3", "Yes.\n"),
    (OPENS, "cut off </thi", "cut off </thi", ""),
    (LINES, "<think>\nhm\n</think>\n\nYes, <think> is a tag.", "hm", "Yes, <think> is a tag."),
    (LINES, " Yes, <", "", " Yes, <"),
    (PLAIN, "<think>x</think>y", "x", "y"),  # whatever its template lacks
    (PLAIN, "It is <think>x</think>y", "", "It is <think>x</think>y"),
]


class Script(HandService):
    """Answers every request with the same deltas, for an engine and as a service, and keeps the requests."""

    def __init__(self, pieces=()):
        super().__init__()
        self.deltas = [*(Delta(piece, (1,)) for piece in pieces), end()]
        self.requests = []

    def stream(self, request):
        self.requests.append(request)
        return iter(self.deltas)

    def submit(self, request):
        stream = super().submit(request)
        self.requests.append(request)
        for delta in self.deltas:
            stream.put(delta)
        return stream


class Terminal(io.StringIO):
    """A stream that a person reads."""

    def isatty(self):
        return True


def cuttings(text):
    """``text`` cut once at every character, and at all of them."""
    return [[text[:at], text[at:]] for at in range(len(text))] + [list(text)]


@pytest.fixture
def thinker(engine, monkeypatch):
    """``thinker(template)``: the model with another template, whichever face loads it."""

    def make(template):
        other = copy.copy(engine)
        other.template = ChatTemplate(template)
        for face in ("edge_llm.cli.run", "edge_llm.cli.plain_chat", "edge_llm.llm"):
            monkeypatch.setattr(f"{face}.load_engine", lambda *_: other)
        return other

    return make


def asked(monkeypatch, script, *arguments, stdin=""):
    """Stdout, and what a person reads on stderr, of one call of the command line."""
    out, err = io.StringIO(), Terminal()
    with monkeypatch.context() as patched, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patched.setattr(Engine, "stream", lambda _, request, cancel=None: script.stream(request))
        patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        assert run(list(arguments)) == 0
    return out.getvalue(), err.getvalue()


def dimmed(text):
    """All that ``text`` has between the marks of dimmed text."""
    return "".join(piece.split("\x1b[0m")[0] for piece in text.split("\x1b[2m")[1:])


def whole_line(text):
    return text if text.endswith("\n") else text + "\n"


@pytest.mark.parametrize(("template", "text", "thought", "said"), CASES)
def test_the_command_line_says_the_answer_and_shows_thoughts_apart(thinker, monkeypatch, template, text, thought, said):
    thinker(template)
    for pieces in cuttings(text):
        out, err = asked(monkeypatch, Script(pieces), "run", "builtin", "Why?")
        assert (out, dimmed(err)) == (whole_line(said), thought + "\n" if thought else ""), pieces
        found = json.loads(asked(monkeypatch, Script(pieces), "run", "builtin", "Why?", "--json")[0])
        assert (found["text"], found["reasoning"]) == (said, thought), pieces
        out, err = asked(monkeypatch, Script(pieces), "chat", "builtin", stdin="Why?\n")
        assert (out, dimmed(err)) == (said + "\n", thought + "\n" if thought else ""), pieces


@pytest.mark.parametrize(("template", "text", "thought", "said"), CASES)
def test_python_has_both(thinker, monkeypatch, template, text, thought, said):
    thinker(template)
    for pieces in cuttings(text):
        monkeypatch.setattr(Engine, "stream", lambda _, request, cancel=None, pieces=pieces: Script(pieces).stream(request))
        reply = LLM().reply(ASK)
        assert (reply.thought, reply.said, LLM().chat(ASK)) == (thought, said, said), pieces


@pytest.mark.parametrize(("template", "text", "thought", "said"), CASES)
def test_rest_says_the_same(thinker, template, text, thought, said):
    script = Script()
    with client_of(hosted(script, thinker(template))) as client:
        for pieces in cuttings(text):
            script.deltas = Script(pieces).deltas
            message = client.post("/v1/chat/completions", json={"messages": ASK}).json()["choices"][0]["message"]
            assert (message.get("reasoning_content", ""), message["content"]) == (thought, said), pieces
            blocks = client.post("/v1/messages", json={"messages": ASK, "max_tokens": 9}).json()["content"]
            found = {block["type"]: block.get("thinking", block.get("text")) for block in blocks}
            assert (found.get("thinking", ""), found.get("text", "")) == (thought, said), pieces
            items = client.post("/v1/responses", json={"input": "Why?"}).json()["output"]
            found = {item["type"]: item["content"][0]["text"] for item in items}
            assert (found.get("reasoning", ""), found.get("message", "")) == (thought, said), pieces


def test_thoughts_are_lost_where_nobody_reads_them(thinker, monkeypatch, capsys):
    thinker(OPENS)
    monkeypatch.setattr(Engine, "stream", lambda _, request: Script(["hm</think>Yes."]).stream(request))
    monkeypatch.setattr(sys, "stdin", None)
    assert run(["run", "builtin", "Why?"]) == 0
    assert capsys.readouterr() == ("Yes.\n", "")


def test_what_was_thought_is_not_shown_again(thinker, monkeypatch):
    engine, script = thinker(LINES), Script(["<think>secret</think>Yes."])
    asked(monkeypatch, script, "chat", "builtin", stdin="Why?\nAnd then?\n")
    again = [*ASK, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And then?"}]
    assert script.requests[1].prompt == engine.chat_request(again, engine.defaults).prompt


@pytest.mark.parametrize("template", [OPENS, LINES, PLAIN])
def test_every_face_makes_the_same_request(thinker, monkeypatch, template):
    """A form of the answer stands behind a thought, where the model thinks."""
    engine, script = thinker(template), Script(["123"])
    asked(monkeypatch, script, "run", "builtin", "Why?", "--regex", "[0-9]{3}")
    with client_of(hosted(script, engine)) as client:
        client.post("/v1/chat/completions", json={"messages": ASK, "regex": "[0-9]{3}"}).raise_for_status()
    monkeypatch.setattr(Engine, "stream", lambda _, request, cancel=None: script.stream(request))
    LLM().chat(ASK, grammar=Grammar("regex", "[0-9]{3}"))
    assert len(script.requests) == 3
    assert len({(request.prompt, request.params.grammar) for request in script.requests}) == 1
    assert (script.requests[0].params.grammar == Grammar("regex", "[0-9]{3}")) == (template == PLAIN)


def test_python_s_messages_are_checked_and_made_plain_like_the_server_s(thinker, monkeypatch):
    thinker(LINES)
    script = Script(["Yes."])
    monkeypatch.setattr(Engine, "stream", lambda _, request, cancel=None: script.stream(request))
    assert LLM().chat([{"role": "user", "content": [{"type": "text", "text": "Why?"}]}]) == LLM().chat(ASK) == "Yes."
    assert script.requests[0].prompt == script.requests[1].prompt
    with pytest.raises(UsageError, match=r"messages\[0\].role must be one of"):
        LLM().chat([{"role": "nobody", "content": "Why?"}])
