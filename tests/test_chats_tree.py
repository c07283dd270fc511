"""Trees of messages, and titles made of their first words."""

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_llm.chats.titles import COLUMNS, columns, title_of
from edge_llm.chats.tree import Attachment, Message, fence_of, newest_leaf, path_to, siblings


def tree(*parents):
    """Messages 1, 2, ... that follow the given ones; roles take turns along a path."""
    depth = {None: -1}
    made = []
    for id, parent in enumerate(parents, 1):
        depth[id] = depth[parent] + 1
        made.append(Message(id, 1, parent, "assistant" if depth[id] % 2 else "user", f"text {id}"))
    return made


def test_a_path_goes_from_the_first_message_to_the_leaf():
    messages = tree(None, 1, 1, 2, 4, 3)
    assert [message.id for message in path_to(messages, 5)] == [1, 2, 4, 5]
    assert [message.id for message in path_to(reversed(messages), 6)] == [1, 3, 6]
    assert path_to(messages, None) == path_to(messages, 99) == []


def test_siblings_are_the_other_tries_of_the_same_turn():
    messages = tree(None, 1, 1, 2, 1, None)
    assert [message.id for message in siblings(messages, messages[2])] == [2, 3, 5]
    assert [message.id for message in siblings(messages, messages[0])] == [1, 6]
    assert [message.id for message in siblings(messages, messages[3])] == [4]


def test_the_newest_leaf_takes_the_newest_follower_at_every_step():
    messages = tree(None, 1, 1, 2, 3, 3, 6)
    assert (newest_leaf(messages, 1), newest_leaf(messages, 2), newest_leaf(messages, 7)) == (7, 4, 7)


@pytest.mark.parametrize("text", ["plain", "```\ncode\n```", "````md\n```\n````", "`" * 40, "a ` b", ""])
def test_an_attached_file_cannot_end_its_own_block(text):
    message = Message(1, 1, None, "user", "What is this?", attachments=(Attachment("a.md", text), Attachment("b.txt", "b")))
    fence = fence_of(text)
    assert message.content == f"File `a.md`:\n{fence}\n{text}\n{fence}\n\nFile `b.txt`:\n```\nb\n```\n\nWhat is this?"
    assert not [line for line in text.splitlines() if re.match(rf"\s*{fence}", line)]


def test_a_message_without_files_is_its_text():
    assert Message(1, 1, None, "user", " as it is\n").content == " as it is\n"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Hello", "Hello"),
        ("\n\n  ## Why is the *sky* `blue`?  \nmore", "Why is the sky blue?"),
        ("> - [ ] **buy** ~~milk~~ bread", "buy milk bread"),
        ("1. first\n2. second", "first"),
        ("see [the page](https://example.org/x) now", "see the page now"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("---\n***\n| a | b |", "| a | b |"),
        ("snake_case_name and 2 * 3 * 4", "snake_case_name and 2 * 3 * 4"),
        ("#!/bin/sh", "#!/bin/sh"),
        ("#hashtag", "#hashtag"),
        ("-5 degrees", "-5 degrees"),
        ("今天天气怎么样", "今天天气怎么样"),
        ("👍", "👍"),
        ("???", "???"),
        ("", "New chat"),
        (" \n\t\r\n", "New chat"),
        ("\x1b[31mred\x1b[0m \x1b]0;owned\x07 text", "[31mred [0m ]0;owned text"),
        ("a\u202eb\u2028c", "a b"),
        (
            "one two three four five six seven eight nine ten eleven twelve",
            "one two three four five six seven eight nine ten…",
        ),
        ("x" * 200, "x" * 49 + "…"),
        ("天" * 200, "天" * 24 + "…"),
        ("short " + "x" * 200, "short " + "x" * 43 + "…"),
    ],
)
def test_titles(text, title):
    assert title_of(text) == title


@given(st.text(alphabet=st.characters(codec=None) | st.sampled_from("*_`#>-[]() \n\x1b天́👍"), max_size=120))
def test_a_title_is_one_short_printable_line_whatever_the_text(text):
    title = title_of(text)
    assert title.isprintable() and title.strip() == title and title
    assert columns(title) <= COLUMNS


def test_a_title_of_a_long_line_is_made_at_once():
    for hostile in ("*" * 100_000, "[" * 100_000, "`a" * 50_000, "- " * 50_000, "1. " * 30_000 + "x", "_a" * 50_000):
        assert columns(title_of(hostile)) <= COLUMNS


def test_chats_need_nothing_that_is_slow_to_load():
    code = "import sys, edge_llm.chats.store, edge_llm.chats.export, edge_llm.chats.attachments\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "rich", "textual", "httpx", "jinja2"} & set(loaded)
