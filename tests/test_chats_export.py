"""Chats as Markdown and JSON, and back."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from writing_store import WritingStore

from edge_llm.chats.export import as_json, as_markdown, file_name_of, from_json
from edge_llm.chats.tree import Attachment, Chat, Message
from edge_llm.errors import UsageError

HOSTILE = "\x1b]0;owned\x07 [bold] </details> \u202e ``` \x00"


@pytest.fixture
def store():
    made = WritingStore.in_memory()
    yield made
    made.close()


@pytest.fixture
def chat(store):
    made = store.begin({"system": "Be kind", "temperature": 0.25})
    prompt = store.add(made.id, None, "user", "# Hi\n天", attachments=[Attachment("a`b.md", "```\ncode\n```\n")])
    store.add(made.id, prompt.id, "assistant", "first try", model="qwen")
    second = store.add(made.id, prompt.id, "assistant", "", model="qwen", state="growing")
    store.grow(second, "```python\nprint(1)\n```\ndone", "I think\n- so", "whole", {"completion_tokens": 4})
    return store.chat(made.id)


def test_markdown_holds_the_path_with_its_thoughts_and_files(chat, store):
    prompt, _, second = store.messages(chat.id)
    text = re.sub(r" · \d{4}-\d\d-\d\d \d\d:\d\d", "", as_markdown(chat, [prompt, second]))
    assert text == (
        "# Hi\n\n## You\n\n"
        "<details>\n<summary>Attached: a`b.md</summary>\n\n````\n```\ncode\n```\n````\n\n</details>\n\n# Hi\n天\n\n"
        "## qwen\n\n<details>\n<summary>Thoughts</summary>\n\nI think\n- so\n\n</details>\n\n"
        "```python\nprint(1)\n```\ndone\n"
    )


@pytest.mark.parametrize(
    ("cut_off", "end"),
    [
        ("before\n```python\nprint(", "\n```"),
        ("````\n```\n", "\n````"),
        ("~~~\n```", "\n~~~"),
        ("```\nwhole\n```", ""),
        ("```\nwhole\n`````", ""),
        ("``` not ` a fence", ""),
        ("~~~\n~~~ no end\n", "\n~~~"),
    ],
)
def test_a_block_that_was_cut_off_ends_where_its_message_ends(cut_off, end):
    messages = [
        Message(1, 1, None, "assistant", cut_off, model="m", state="stopped"),
        Message(2, 1, 1, "user", "and then?"),
    ]
    text = as_markdown(Chat(1, "t"), messages)
    assert f"{cut_off.strip()}{end}\n\n## You" in text
    assert "## m (stopped)" in text


def test_thoughts_cannot_leave_their_fold():
    text = as_markdown(Chat(1, "t"), [Message(1, 1, None, "assistant", "x", thought="a\n</DETAILS>\n\nb")])
    assert "> a\n> </DETAILS>\n>\n> b\n\nx" in text


def test_titles_and_names_are_one_line_of_markdown():
    messages = [Message(1, 1, None, "assistant", "x", model="m\nn<b>", attachments=(Attachment("a\n<i>\x1b.txt", "t"),))]
    text = as_markdown(Chat(1, "two\nlines\x1b[0m"), messages)
    assert text.startswith("# two lines [0m\n\n## m n<b>")
    assert "<summary>Attached: a &lt;i&gt; .txt</summary>" in text


def test_json_holds_the_whole_tree_and_comes_back(chat, store):
    text = as_json(chat, store.messages(chat.id))
    document = json.loads(text)
    assert (document["format"], document["version"], document["title"]) == ("edge-llm chat", 1, "Hi")
    assert "天" in text
    read, messages = from_json(text.encode(), "a.json")
    assert as_json(read, messages) == text
    copy = store.take_in(read, messages)
    assert (copy.title, copy.settings, copy.created) == (chat.title, chat.settings, chat.created)
    old, new = store.messages(chat.id), store.messages(copy.id)
    place = {None: None} | {one.id: other.id for one, other in zip(old, new, strict=True)}
    for one, other in zip(old, new, strict=True):
        assert (other.role, other.text, other.thought, other.attachments) == (one.role, one.text, one.thought, one.attachments)
        assert (other.parent, other.figures, other.model) == (place[one.parent], one.figures, one.model)
    assert copy.leaf == place[chat.leaf]


@given(text=st.text(max_size=50))
def test_any_text_survives_json(text):
    chat = Chat(3, text, {"system": text}, 1, 5.0, 6.5)
    message = Message(1, 3, None, "user", text, text, (Attachment(text, text),), text, "whole", {}, 7.25)
    read, (back,) = from_json(as_json(chat, [message]).encode(), "x")
    assert (read.title, read.settings) == (text, {"system": text})
    assert (back.text, back.thought, back.attachments, back.model) == (text, text, (Attachment(text, text),), text)


def changed(text, change):
    document = json.loads(text)
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("title"),
        lambda d: d.update(format="other"),
        lambda d: d.update(version=2),
        lambda d: d.update(title=5),
        lambda d: d.update(leaf=99),
        lambda d: d.update(leaf=[]),
        lambda d: d.update(leaf=True),
        lambda d: d.update(messages={}),
        lambda d: d.update(messages=5),
        lambda d: d.update(messages=["x"]),
        lambda d: d.update(created="never"),
        lambda d: d.update(created=1e300),
        lambda d: d.update(created=10**400),
        lambda d: d["messages"].reverse(),
        lambda d: d["messages"].append(d["messages"][0]),
        lambda d: d["messages"][0].update(parent=1),
        lambda d: d["messages"][0].update(parent=3),
        lambda d: d["messages"][0].update(role="system"),
        lambda d: d["messages"][0].update(state="odd"),
        lambda d: d["messages"][0].update(id="1"),
        lambda d: d["messages"][0].update(text=None),
        lambda d: d["messages"][0].update(figures=[]),
        lambda d: d["messages"][0].update(attachments=[{"name": "x"}]),
        lambda d: d["messages"][0].update(created=-1),
    ],
)
def test_what_is_no_exported_chat_is_refused_by_name(chat, store, change):
    with pytest.raises(UsageError, match=r"`a\\x1b.json`") as refused:
        from_json(changed(as_json(chat, store.messages(chat.id)), change), "a\x1b.json")
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"\xff", b"{", b"[" * 100_000, b'{"format": NaN}', b"{}"])
def test_what_is_no_json_is_refused(data):
    with pytest.raises(UsageError, match="`a.json`"):
        from_json(data, "a.json")


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Why is the sky blue?", "why-is-the-sky-blue.md"),
        ("../../etc/passwd", "etc-passwd.md"),
        ("今天天气", "今天天气.md"),
        ("", "new-chat.md"),
        ("???", "chat.md"),
        (HOSTILE, "0-owned-bold-details.md"),
        ("x" * 500, "x" * 49 + ".md"),
        ("-rf", "rf.md"),
    ],
)
def test_file_names_are_safe(title, name):
    assert file_name_of(title, ".md") == name


@given(st.text())
def test_file_names_are_safe_whatever_the_title(title):
    name = file_name_of(title, ".json")
    assert name.isprintable() and len(name.encode()) < 200 and name[0] not in ".-" and not set(name) & set('/\\:*?"<>| ')
