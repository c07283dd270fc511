"""The template that a server was started with: by name or from a file, with thoughts on or off."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from edge_llm.errors import InvalidTokenizer, UsageError
from edge_llm.paths import builtin_bundle
from edge_llm.talk.served_template import served_template, template_source
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.known_templates import KNOWN_TEMPLATES
from edge_llm.text.tokenizer import Tokenizer

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]
SWITCHED = (
    "{% for m in messages %}{{ m.content }}{% endfor %}<|a|><think>\n{% if not enable_thinking %}</think>{% endif %}"
)
OPENS = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<|a|><think>\n' }}"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(builtin_bundle(), 2048)


def served(tokenizer: Tokenizer, source: str | None, reasoning: str = "auto") -> ChatTemplate:
    return served_template(ChatTemplate.default(), tokenizer, source, reasoning)


@pytest.mark.parametrize("name", KNOWN_TEMPLATES)
def test_every_known_template_shows_every_message_in_order(name: str, tokenizer: Tokenizer) -> None:
    text = served(tokenizer, template_source(name)).render(TALK)
    places = [text.index(message["content"]) for message in TALK]
    assert places == sorted(places)


def test_chatml_is_what_the_field_has(tokenizer: Tokenizer) -> None:
    text = served(tokenizer, template_source("chatml")).render([{"role": "user", "content": "Hi"}])
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("source", "reasoning", "end"),
    [
        (SWITCHED, "on", "<think>\n"),
        (SWITCHED, "off", "<think>\n</think>"),
        (OPENS, "on", "<think>\n"),
        (OPENS, "off", "<think>\n</think>"),
        (OPENS, "auto", "<think>\n"),
    ],
)
def test_reasoning_is_told_to_the_template_or_closed_behind_it(
    source: str, reasoning: str, end: str, tokenizer: Tokenizer
) -> None:
    assert served(tokenizer, source, reasoning).render([{"role": "user", "content": "Hi"}]).endswith(f"<|a|>{end}")


def test_a_request_that_says_how_to_think_has_the_last_word(tokenizer: Tokenizer) -> None:
    template = served(tokenizer, SWITCHED, "off")
    assert template.render([{"role": "user", "content": "Hi"}], {"enable_thinking": True}).endswith("<think>\n")


def test_a_template_from_a_file_is_told_the_date(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ date_string }}|{% for m in messages %}{{ m.content }}{% endfor %}")
    text = served(tokenizer, template_source(str(file))).render([{"role": "user", "content": "Hi"}])
    assert text.startswith(datetime.now().strftime("%d %b %Y"))


def test_wrong_names_and_templates_are_refused_at_the_start(tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match="is no file, and none of chatml"):
        template_source("no-such")
    with pytest.raises(InvalidTokenizer, match="leaves out what the user says"):
        served(tokenizer, "always the same")
