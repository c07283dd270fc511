"""What a model thinks, told apart from what it says, however the text is cut."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_llm.talk.wish import Wish
from edge_llm.text.reasoning import CLOSE, OPEN, ReasoningSplitter, Thinking, ThoughtCounter, ThoughtGate

PIECES = ["<think>", "</think>", "<", "</", "think>", "\n", " ", "a", "so ", "<thin", "é"]


def split(pieces, opened=False):
    splitter = ReasoningSplitter(opened=opened)
    parts = [splitter.push(piece) for piece in pieces] + [splitter.finish()]
    return "".join(thought for thought, _ in parts), "".join(said for _, said in parts)


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("<think>\nhm, 2 < 3\n</think>\n\nYes.", "hm, 2 < 3", "Yes."),
        ("\n<think></think>Yes.", "", "Yes."),
        ("Yes, <think> is a tag.", "", "Yes, <think> is a tag."),
        ("  Yes.\n", "", "  Yes.\n"),
        ("<think>cut off", "cut off", ""),
        ("<think>cut off </thi", "cut off </thi", ""),
        ("<thin", "", "<thin"),
        ("<think>a</think>b</think>c", "a", "b</think>c"),
        ("", "", ""),
    ],
)
def test_a_thought_stands_at_the_beginning(text, thought, said):
    assert split([text]) == (thought, said)


def test_the_prompt_may_open_the_thought():
    assert split(["\nhm\n</think>\n\nYes."], opened=True) == ("hm", "Yes.")
    assert split(["hm"], opened=True) == ("hm", "")
    assert split([" \n"], opened=True) == ("", "")


@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=20), opened=st.booleans(), cuts=st.lists(st.integers(0, 60), max_size=8)
)
def test_any_cutting_gives_the_same_parts(pieces, opened, cuts):
    text = "".join(pieces)
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    assert split([text[a:b] for a, b in itertools.pairwise(ends)], opened) == split([text], opened)


def gated(pieces, thinking):
    gate = ThoughtGate(thinking)
    parts = [gate.push(piece) for piece in pieces] + [gate.finish()]
    return "".join(thought for thought, _ in parts), "".join(said for _, said in parts)


@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=20),
    thinking=st.sampled_from(Thinking),
    cuts=st.lists(st.integers(0, 60), max_size=8),
)
def test_a_gate_opens_where_the_answer_begins(pieces, thinking, cuts):
    """It tells thought and answer apart as the splitter does, and changes neither."""
    text = "".join(pieces)
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    inside, said = gated([text[a:b] for a, b in itertools.pairwise(ends)], thinking)
    assert inside + said == text and (inside, said) == gated([text], thinking)
    if thinking is Thinking.RAW:
        assert said == text
    else:
        opened = thinking is Thinking.OPEN
        assert said == split([text], opened)[1]
        assert split([inside], opened) == (split([text], opened)[0], "")


@pytest.mark.parametrize(
    ("behind", "thinking"),
    [
        ("", Thinking.FREE), ("<|assistant|>\n", Thinking.FREE), ("<think>\n", Thinking.OPEN),
        ("<think>\n\n</think>\n\n", Thinking.RAW),
        ("</think> <think>", Thinking.OPEN), ("<think>x</think> y", Thinking.FREE),
    ],
)  # fmt: skip
def test_what_a_template_puts_behind_the_last_message_says_where_an_answer_begins(behind, thinking):
    assert Thinking.behind(behind) == thinking


def test_a_thought_is_shown_as_it_comes():
    splitter = ReasoningSplitter()
    assert splitter.push("<think>one ") == ("one", "")
    assert splitter.thinking
    assert splitter.push("two </th") == (" two", "")
    assert splitter.push("ink> yes") == ("", "yes")
    assert not splitter.thinking


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=20), opened=st.booleans())
def test_the_tokens_of_a_thought_are_counted_with_those_of_its_tags(pieces, opened):
    counter = ThoughtCounter(opened=opened)
    text, count = OPEN if opened else "", 0
    for piece in pieces:
        counter.push(piece.encode())
        if CLOSE not in text:
            text += piece
            count += text.lstrip().startswith(OPEN)
    assert counter.count == count


@pytest.mark.parametrize("begun", ["", "<think>", "<think>x", "<think>x</think>", "<think>x</think>y"])
@pytest.mark.parametrize("piece", ["\n", "abc"])
def test_a_long_text_takes_time_in_proportion(begun, piece):
    splitter, counter, gate = ReasoningSplitter(), ThoughtCounter(), ThoughtGate(Thinking.FREE)
    started = time.process_time()
    for one in [begun, *[piece] * 50_000]:
        splitter.push(one)
        gate.push(one)
        counter.push(one.encode())
    assert time.process_time() - started < 3.0


QWEN3 = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>{% endif %}"
DEEPSEEK = "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ '<think>' if thinking else '</think>' }}"
GPT_OSS = "{{ 'Reasoning: ' + reasoning_effort + message.thinking }}"
SEED = "{% if thinking_budget is defined %}{{ thinking_budget }}{% endif %}<think>"
R1 = "enable_thinking {{ '<think> enable_thinking' }} {{ message.enable_thinking }} {# reasoning_effort #}"
NONE = "{{ messages }} thinking"
REMARK = "{{ messages }}{# {{ enable_thinking }} <think> #}"
OFF, ON = Wish(False), Wish(True)
LOW, BOUNDED = Wish(True, "low"), Wish(True, budget=9)


@pytest.mark.parametrize(
    ("template", "wish", "variables", "fulfilled"),
    [
        (QWEN3, OFF, {"enable_thinking": False}, True), (QWEN3, ON, {"enable_thinking": True}, True),
        (QWEN3, LOW, {"enable_thinking": True}, True), (QWEN3, BOUNDED, {"enable_thinking": True}, True),
        (QWEN3, Wish(True, "high"), {"enable_thinking": True}, False), (GPT_OSS, BOUNDED, {}, False),
        (QWEN3, Wish(True, "medium"), {"enable_thinking": True}, True), (DEEPSEEK, ON, {"thinking": True}, True),
        (DEEPSEEK, OFF, {"thinking": False}, True), (GPT_OSS, LOW, {"reasoning_effort": "low"}, True),
        (GPT_OSS, ON, {}, True), (GPT_OSS, OFF, {}, False), (SEED, OFF, {"thinking_budget": 0}, True),
        (SEED, BOUNDED, {"thinking_budget": 9}, True), (SEED, ON, {}, True), (R1, ON, {}, True), (R1, OFF, {}, False),
        (R1, LOW, {}, True), (NONE, OFF, {}, True), (NONE, ON, {}, False),
        (REMARK, OFF, {}, True), (REMARK, ON, {}, False), ("{% broken '", ON, {}, False),
    ],
)  # fmt: skip
def test_a_wish_is_told_to_a_template_in_the_variables_that_it_has(template, wish, variables, fulfilled):
    assert (wish.variables(template), wish.fulfilled(template)) == (variables, fulfilled)
