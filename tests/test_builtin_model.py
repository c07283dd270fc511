"""The model that ships in the package: small, true to its float weights, and right on phrasings it never saw."""

import json
import sys
from pathlib import Path

import pytest

from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.opening.load import load_engine
from edge_llm.paths import builtin_bundle

pytestmark = pytest.mark.thorough(file=2)

ASSETS = Path(__file__).resolve().parents[1] / "assets" / "builtin_model"
MOST_TOKENS = 60
"""Of an answer; longer ones are stories."""


@pytest.fixture(scope="module")
def questions():
    return json.loads((ASSETS / "heldout.json").read_text())


@pytest.fixture(scope="module")
def is_right():
    """The rule by which an answer is of the right kind."""
    sys.path.insert(0, str(ASSETS))
    try:
        from corpus import is_right
    finally:
        sys.path.pop(0)
    return is_right


def answers(questions, float_path):
    engine = load_engine(None, RuntimeConfig(float_path=float_path, threads=2))
    greedy = GenerationParams(max_tokens=MOST_TOKENS)
    for question in questions:
        request = engine.chat_request([{"role": "user", "content": question["question"]}], greedy)
        yield engine.answer(request).text


@pytest.fixture(scope="module")
def int8_answers(questions):
    return list(answers(questions, float_path=False))


def test_it_is_small():
    assert sum(path.stat().st_size for path in builtin_bundle().rglob("*") if path.is_file()) <= 8e6


def test_held_out_questions_get_an_answer_of_the_right_kind(questions, int8_answers, is_right):
    assert len(questions) >= 300
    wrong = [
        (question["question"], answer)
        for question, answer in zip(questions, int8_answers, strict=True)
        if not is_right(answer, question["expect"])
    ]
    assert len(wrong) <= 0.05 * len(questions), wrong


@pytest.mark.thorough
def test_int8_answers_are_the_float_answers(questions, int8_answers):
    every_second = slice(None, None, 2)  # the float path is slow
    float_answers = list(answers(questions[every_second], float_path=True))
    same = sum(a == b for a, b in zip(int8_answers[every_second], float_answers, strict=True))
    assert same >= 0.98 * len(float_answers)


def test_it_says_what_it_is():
    engine = load_engine(None, RuntimeConfig())
    request = engine.chat_request([{"role": "user", "content": "Who are you?"}], GenerationParams())
    assert "built-in model" in engine.answer(request).text


def test_it_goes_on_with_a_story():
    engine = load_engine(None, RuntimeConfig())
    answer = engine.answer(engine.text_request("Once upon a time", GenerationParams(max_tokens=40)))
    assert len(set(answer.text.split())) > 15


def test_nothing_in_the_bundle_tells_where_it_was_made():
    source = json.loads((builtin_bundle() / "manifest.json").read_text())["source"]
    assert (source["path"], source["float"]) == (None, "source")
