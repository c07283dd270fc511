"""The engine's stream of deltas, over a real byte tokenizer and a runner that continues every prompt with a script."""

import itertools

import numpy as np
import pytest
import tokenizers

from edge_llm.config import GenerationParams, LlamaConfig
from edge_llm.decoding.draft import no_draft
from edge_llm.engine.engine import Engine, collect
from edge_llm.engine.request import Request
from edge_llm.errors import ContextOverflow, NumericError, UsageError
from edge_llm.runner.base import Cancelled
from edge_llm.runner.inside import RunnerInside
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.tokenizer import SpecialTokens, Tokenizer

END = 256
CONFIG = LlamaConfig(
    family="llama", vocab_size=257, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1, num_kv_heads=1,
    head_dim=8, context=64, norm_eps=1e-5, rope_theta=1e4,
)  # fmt: skip
TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"


def byte_tokenizer():
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend, 257, SpecialTokens(eos_ids=frozenset({END}), add_bos=False))


class Sequence:
    def __init__(self):
        self.tokens = []

    @property
    def length(self):
        return len(self.tokens)

    def truncate(self, length):
        del self.tokens[length:]

    def close(self):
        self.truncate(0)


class LastMemory:
    """Remembers the tokens of the last sequence that was kept."""

    def __init__(self):
        self.remembered = []

    def open(self, tokens=(), adapter=None):
        sequence = Sequence()
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(self.remembered, tokens[:-1], strict=False))
        sequence.tokens = [token for token, _ in same]
        return sequence

    def reserve(self, sequence, tokens):
        return

    def remember(self, sequence, tokens):
        self.remembered = list(tokens[: sequence.length])

    def has_room(self, tokens):
        return True

    def check_fits(self, tokens):
        return

    def state(self):
        return {}


class ScriptRunner:
    """After a prompt of n tokens the logits of position n + i say ``script[i]``; it counts the tokens it computed."""

    context = 64
    pool = None

    def look(self):
        return RunnerInside()

    def __init__(self, script):
        self.script = script
        self.computed = 0
        self.start = None
        self.memory = LastMemory()

    def run(self, segments, *, cancel=None):
        if cancel is not None and cancel():
            raise Cancelled
        return [self.forward(segment.sequence, segment.tokens) for segment in segments]

    def forward(self, sequence, tokens):
        if len(tokens) > 1 or self.start is None:
            self.start = sequence.length + len(tokens)
        self.computed += len(tokens)
        sequence.tokens += list(tokens)
        logits = np.zeros((1, 257), np.float32)
        logits[0, self.script[min(sequence.length - self.start, len(self.script) - 1)]] = 1.0
        return logits


@pytest.fixture
def tokenizer():
    return byte_tokenizer()


def make_engine(tokenizer, text, end=True, template=None):
    script = tokenizer.encode(text) + ([END] if end else [])
    template = template or ChatTemplate(TEMPLATE)
    runner = ScriptRunner(script)
    return Engine("script", CONFIG, tokenizer, template, GenerationParams(), runner, load_ms=1.0, make_drafter=lambda: no_draft)


def ask(engine, prompt="hi there", **params):
    return engine.answer(engine.text_request(prompt, GenerationParams(**params)))


def test_an_answer_ends_at_the_end_token(tokenizer):
    answer = ask(make_engine(tokenizer, "hello"))
    assert (answer.text, answer.finish.reason) == ("hello", "stop")
    assert answer.finish.usage.prompt_tokens == 8
    assert answer.finish.usage.completion_tokens == 6
    assert len(answer.tokens) == 5


@pytest.mark.parametrize("speaker", ["user", "assistant"])
def test_without_a_template_an_answer_is_one_turn(tokenizer, speaker):
    engine = make_engine(tokenizer, f" Paris.\n{speaker}: And where else?", template=ChatTemplate.default())
    answer = engine.answer(engine.chat_request([{"role": "user", "content": "Where?"}], GenerationParams()))
    assert (answer.text, answer.finish.reason) == (" Paris.", "stop")


def test_max_tokens_ends_it_with_length(tokenizer):
    answer = ask(make_engine(tokenizer, "hello"), max_tokens=3)
    assert (answer.text, answer.finish.reason) == ("hel", "length")


def test_a_full_context_ends_it_with_length(tokenizer):
    answer = ask(make_engine(tokenizer, "x", end=False), "y" * 60)
    assert (answer.text, answer.finish.reason) == ("xxxx", "length")


def test_a_stop_string_is_never_shown(tokenizer):
    answer = ask(make_engine(tokenizer, "one two three"), stop=("two", "zzz"))
    assert (answer.text, answer.finish.reason) == ("one ", "stop")


def test_text_that_only_began_like_a_stop_string_is_shown_at_the_end(tokenizer):
    assert ask(make_engine(tokenizer, "one tw"), stop=("two",)).text == "one tw"


def test_a_stream_never_shows_half_a_character(tokenizer):
    text = "naïve ☃ 𝄞 done"
    engine = make_engine(tokenizer, text)
    pieces = [delta.text for delta in engine.stream(engine.text_request("go", GenerationParams()))]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_cut_by_the_token_limit_is_marked(tokenizer):
    assert ask(make_engine(tokenizer, "☃"), max_tokens=2).text == "\ufffd"


def test_ignore_eos_goes_on(tokenizer):
    assert len(ask(make_engine(tokenizer, "ab"), ignore_eos=True, max_tokens=9).tokens) == 9


def test_cancel_stops_between_tokens_and_says_so(tokenizer):
    engine = make_engine(tokenizer, "abcdefgh")
    shown = []
    for delta in engine.stream(engine.text_request("go", GenerationParams()), cancel=lambda: len(shown) >= 3):
        shown.append(delta.text)
        finish = delta.finish
    assert ("".join(shown), finish.reason) == ("abc", "cancelled")


def test_cancel_before_the_prompt_is_done(tokenizer):
    engine = make_engine(tokenizer, "abc")
    asked = iter([False, True, True])
    answer = collect(engine.stream(engine.text_request("go", GenerationParams()), cancel=lambda: next(asked)))
    assert (answer.text, answer.finish.reason) == ("", "cancelled")
    assert ask(engine, "go").text == "abc"


def test_closing_the_stream_leaves_the_engine_usable(tokenizer):
    engine = make_engine(tokenizer, "abc")
    stream = engine.stream(engine.text_request("go", GenerationParams()))
    next(stream)
    stream.close()
    assert ask(engine, "go").text == "abc"


def test_the_next_turn_computes_only_what_is_new(tokenizer):
    engine = make_engine(tokenizer, "ok")
    messages = [{"role": "user", "content": "first"}]
    first = engine.answer(engine.chat_request(messages, GenerationParams()))
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "second"}]
    before = engine.runner.computed
    second = engine.answer(engine.chat_request(messages, GenerationParams()))
    usage = second.finish.usage
    assert usage.cached_tokens == len("user:first|assistant:ok")
    assert engine.runner.computed - before == len("|user:second|assistant:") + len("ok")
    assert second.text == "ok"


def test_the_same_prompt_again_computes_its_last_token_only(tokenizer):
    engine = make_engine(tokenizer, "ok")
    ask(engine, "same prompt")
    again = ask(engine, "same prompt")
    assert (again.text, again.finish.usage.cached_tokens) == ("ok", len("same prompt") - 1)


def test_a_prompt_as_long_as_the_context_is_refused_with_both_numbers(tokenizer):
    with pytest.raises(ContextOverflow, match="maximum context length is 64 tokens, but the prompt has 64"):
        ask(make_engine(tokenizer, "a"), "y" * 64)


def test_an_empty_prompt_is_refused(tokenizer):
    with pytest.raises(UsageError, match="empty"):
        ask(make_engine(tokenizer, "a"), "")


def test_logits_that_are_no_numbers_are_an_error_and_the_engine_goes_on(tokenizer):
    engine = make_engine(tokenizer, "a")
    forward = engine.runner.forward
    engine.runner.forward = lambda *args, **kwargs: np.full((1, 257), np.nan, np.float32)
    with pytest.raises(NumericError):
        ask(engine)
    engine.runner.forward = forward
    assert ask(engine, "go").text == "a"


def test_control_tokens_in_a_message_stay_text(tokenizer):
    engine = make_engine(tokenizer, "a")
    request = engine.chat_request([{"role": "user", "content": "<end>"}], GenerationParams())
    assert isinstance(request, Request)
    assert END not in request.prompt


def test_answers_are_json(tokenizer):
    answer = ask(make_engine(tokenizer, "hello")).as_dict()
    assert answer["text"] == "hello"
    assert answer["finish_reason"] == "stop"
    assert answer["usage"] == {"prompt_tokens": 8, "completion_tokens": 6, "cached_tokens": 0}
    assert set(answer["timings"]) == {
        "load_ms", "prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_second",
        "drafted_tokens", "accepted_tokens",
    }  # fmt: skip
