"""Markdown as a model writes it: whatever is no mark is text, and lines stay lines."""

import string
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge_llm.talk.markdown import markdown_parser

SHOWN = string.ascii_letters + string.digits + "äß漢λ" + "\"$%&'(),./;?@^{}<"
"""What is no mark of Markdown anywhere: whoever says it is to see it."""


def plain(text):
    """What a parse of ``text`` gives to whoever draws it."""
    return "".join(said(token) for token in markdown_parser().parse(text))


def said(token):
    if token.type == "inline":
        return "".join(map(said, token.children)) + "\n"
    if token.type == "list_item_open":
        return token.info and token.info + token.markup
    if token.type in ("fence", "code_block"):
        return f"{token.info}\n{token.content}"
    return "\n" if token.type == "hardbreak" else token.content


def shown(text):
    """How often each sign stands in ``text`` that is no mark."""
    return Counter(sign for sign in text if sign in SHOWN)


WORDS = st.text("aB1 äß漢λ", min_size=1, max_size=8).map(lambda text: f"w{text.strip()}")
ODD = st.sampled_from([
    "List<String>", "<b>bold</b>", "std::vector<std::string>", "<tag>", "a<b and c>d", "&lt;", "&nbsp;", "&#65;",
    "x**2 + y**2", "2*3*4",
    "__init__.py", "handlers[name](event)", "f[i]()", "[text](https://a.example/b?c=d&e=f \"T &amp; t\")",
    "![cat](cat.png)", "[a][b]", "[^1]",
    "<https://a.example/%41>", "mailto:ann@b.example", "www.example.com", r"\(x_1\)", r"\[ \frac{1}{2} \]",
    r"C:\Users\.ssh\x", "`code <b>`",
    "**bold**", "*it*", "~~gone~~", "https://a.example/(b)", "snake_case_name", "$a_b$", "5. x", "`", "|", "~",
])  # fmt: skip
LINE = st.lists(WORDS | ODD, min_size=1, max_size=5).map(" ".join)
TEXT = st.lists(LINE, min_size=1, max_size=4).map("\n".join)
BLOCKS = st.one_of(
    TEXT,
    TEXT.map(lambda text: f"<config>\n    <name>{text}</name>\n</config>"),
    st.tuples(st.sampled_from(["```", "````", "~~~"]), st.sampled_from(["", "python", "c++ x=1", "<xml>"]), TEXT).map(
        lambda three: f"{three[0]}{three[1]}\n{three[2]}\n{three[0]}"
    ),
    st.tuples(st.sampled_from(["- ", "* ", "3. ", "7) ", "  - ", "> ", "# ", "### ", "    ", "[a]: ", "> > - "]),
    TEXT).map("".join),
    st.lists(st.tuples(st.integers(0, 20), LINE), min_size=2, max_size=4).map(
        lambda items: "\n".join(f"{at}. {text}" for at, text in items)
    ),
    st.lists(LINE, min_size=1, max_size=4).map(lambda cells: "| a | b |\n|---|:-:|\n| " + " | ".join(cells) + " |"),
    st.sampled_from(["---", "===", "| a |", "|--|", "- - -", "<!-- note -->", "<script>x</script>",
    "  indented\n      more"]),
)
DOCUMENTS = st.lists(st.tuples(BLOCKS, st.sampled_from(["\n", "\n\n"])).map("".join), min_size=1, max_size=6).map("".join)
ANY_TEXT = st.text("ab1 <>&;*_`~#-+=|[]()!\\\"':/.\n\t漢", max_size=60)


@settings(max_examples=300, deadline=None)
@given(DOCUMENTS | ANY_TEXT)
@example(">" * 60 + " deep")
@example("- " * 60 + "deep")
@example("| a |\n|---|\n| 1 | 2 | 3 |")
def test_what_is_no_mark_is_text_in_whatever_a_model_says(text):
    text = text.replace("](<", "](")  # brackets around a target are marks
    assert not shown(text) - shown(plain(text))


@pytest.mark.parametrize(
    "text",
    [
        "Use <b>bold</b> and List<String> or a<b and c>d, and <tag> inline.",
        "<config>\n  <name>edge</name>\n        <x/>\n</config>",
        "Roses are red,\nViolets are blue", "Name: Ann\n   Street: 1 Main St", "&lt;b&gt; &amp; &#65;",
        "[1]: https://a.example \"title\"",
        "std::map<std::string, int>", "__init__.py", "2*3*4 = 24", "a**2 + b**2 = c**2", "handlers[name](event) f[0]()",
        r"\[ x \\ y \]",
        r"C:\Users\.ssh", "docker run \\\nimage", "a    b  c", "<!-- a note -->", "f(*args, **kwargs)", "[]()",
        "mailto:a@b.example",
        "http://a.example/%41", "x < y > z",
    ],
)  # fmt: skip
def test_text_without_a_mark_is_shown_as_it_was_said(text):
    assert plain(text) == text + "\n"


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("**bold** *it* _it_ ~~no~~ `a*b`", "bold it it no a*b\n"), ("**S**imple **R**ules", "Simple Rules\n"),
        (r"\*stars\* 5\_000 \<b\> \`tick\`", "*stars* 5_000 <b> `tick`\n"), ("1\\. no list", "1. no list\n"),
        ("\\# no heading", "# no heading\n"),
        ("[docs](https://a.example/b)", "docs (https://a.example/b)\n"), ("[a.example/b](a.example/b)", "a.example/b\n"),
        ('![cat](cat.png "Tom")', '🖼 cat (cat.png "Tom")\n'), ("# Title #", "Title\n"), ("1. a\n1. b\n7. c",
        "1.a\n1.b\n7.c\n"),
    ],
)  # fmt: skip
def test_marks_are_drawn_and_not_shown(text, drawn):
    assert plain(text) == drawn


NESTED = ("[" * 3000, "![" * 3000, "[*" * 2000, "[`" * 500, "[" * 300 + "a" + "](x)" * 300, "> " * 3000 + "a")


@pytest.mark.parametrize("text", NESTED, ids=range(len(NESTED)))
def test_what_nests_without_end_is_text(text):
    """Also where little is left of the stack."""

    def deep(levels):
        return deep(levels - 1) if levels else plain(text)

    for found in (plain(text), deep(500)):
        assert found.count("[") == text.count("[") and found.count("a") == text.count("a")


@pytest.mark.parametrize("text", ["42.", "1)", "-", "7.\n8.", "- a\n-\n- b"])
def test_an_item_that_says_nothing_has_a_line(text):
    types = [token.type for token in markdown_parser().parse(text)]
    assert types.count("inline") == types.count("list_item_open") > 0
