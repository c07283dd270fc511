"""Errors in the chat say what to do in the chat; what has no place there is said to be an option of the start."""

import ast
import re
from pathlib import Path

import pytest
from chat_driver import drive
from scripted_provider import ScriptedCatalogue, ScriptedProvider

import edge_llm
from edge_llm.errors import ContextOverflow, OutOfMemory, UsageError
from edge_llm.paths import no_such_model
from edge_llm.tui.wording import AT_THE_START, in_chat

pytestmark = pytest.mark.thorough(file=3)

FLAG = re.compile(r"(?<![\w-])--[a-z]")
SHELL = re.compile(r"`[^`]*`")
PACKAGES = ("engine", "kv", "weights", "devices", "npu", "subgraphs", "formats", "runner", "text", "talk", "providers", "quant")


def told_by_an_engine():
    """The texts of its errors and warnings."""
    root = Path(edge_llm.__file__).parent
    for path in [root / "errors.py", root / "paths.py", *(each for name in PACKAGES for each in (root / name).rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr | ast.Constant):
                text = ast.unparse(node)
                if FLAG.search(text) and "\\n" not in text and not text.startswith(("'''", '"""')):
                    yield text


def test_no_error_of_an_engine_names_a_flag_that_the_chat_has_as_a_setting():
    texts = [*told_by_an_engine()]
    assert len(texts) > 20
    for text in texts:
        told = in_chat(text)
        assert not re.search(r"--(ctx|memory|device)\b(?!-)", SHELL.sub("", told).replace("--device /dev", "")), told
        assert bool(FLAG.search(SHELL.sub("", told))) == told.endswith(AT_THE_START)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UsageError("--ctx `9` is more than the 8 tokens"), "context `9` (F5) is more than the 8 tokens"),
        (OutOfMemory("the host has 1 MiB free; try --memory 50%"), "try memory 50% (F5)"),
        (UsageError("no card can be used; use --device host"), "use device host (F5)"),
        (no_such_model("nobody"), "no model `nobody`; F4 shows what is here, `/pull SOURCE` adds one"),
        (UsageError("raise --kv-memory"), f"raise --kv-memory\n{AT_THE_START}"),
    ],
)
def test_why_a_model_does_not_load_is_told_in_the_chats_words(tmp_path, error, told):
    def refuse():
        raise error

    async def talk(chat):
        await chat.until(lambda: chat.told(told))

    drive(talk, tmp_path, catalogue=ScriptedCatalogue(loads={"scripted": [refuse]}), ready=False)


def test_why_an_answer_failed_is_told_in_the_chats_words(tmp_path):
    provider = ScriptedProvider([[UsageError("a chunk is too long: a smaller --ctx takes less")], [ContextOverflow(9, 8)]])

    async def talk(chat):
        await chat.ask("Hello")
        await chat.until(lambda: chat.told("a smaller context (F5) takes less"))
        assert "Failed: a chunk is too long: a smaller context (F5) takes less" in chat.screen
        await chat.ask("Again")
        assert "--ctx" not in chat.screen

    drive(talk, tmp_path, provider)
