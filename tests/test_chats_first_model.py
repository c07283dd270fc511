"""The model of a chat for which nobody names one: the last that was used, else a real one."""

import os
import shutil

import pytest
from real_terminal import Terminal

from edge_llm.chats.first_model import first_model
from edge_llm.chats.store import ChatStore
from edge_llm.chats.tree import new_id
from edge_llm.paths import builtin_bundle, chats_file, models_folder

pytestmark = pytest.mark.thorough(file=1)


def import_models(*names):
    """Bundles of these names, the last one the newest."""
    for at, name in enumerate(names):
        folder = models_folder() / name
        shutil.copytree(builtin_bundle(), folder)
        os.utime(folder / "manifest.json", (1000 + at, 1000 + at))


def used(*models):
    """A store with a chat for each of ``models``, the last one the newest."""
    store = ChatStore.open(chats_file())[0]
    for model in models:
        store.create({"model": model}, new_id())
    return store


@pytest.mark.parametrize(
    ("imported", "models", "first"),
    [
        ((), (), None),
        (("b", "a"), (), "a"),
        (("b", "a"), ("a", "b"), "b"),
        (("b", "a"), ("b", "gone"), "b"),
        (("b", "a"), ("b", None, 7, "", "gpt-4o/x"), "b"),
        (("b", "a"), (None,), "a"),
        (("b", "a"), ("b", "builtin"), "builtin"),
        ((), ("gone", None), None),
    ],
)
def test_the_last_used_goes_before_the_last_imported(imported, models, first):
    import_models(*imported)
    (models_folder() / "no-bundle").mkdir(parents=True)
    assert first_model(used(*models)) == first


def quit(terminal):
    terminal.press("ctrl+q")
    assert terminal.wait_end() == 0


def test_the_chat_opens_what_was_used_last_and_at_first_a_real_model():
    """However the program is begun without a model's name, in a chat of before the import too."""
    with Terminal() as terminal:
        terminal.wait_for("builtin")
        terminal.write("hello\r")
        terminal.wait_for("tokens")
        quit(terminal)
    import_models("older", "newer")
    with Terminal() as terminal:
        terminal.wait_for(lambda text: "newer" in text and "hello" in text)
        quit(terminal)
    with Terminal("chat", "--new") as terminal:
        terminal.wait_for(lambda text: "newer" in text and "toy" not in text)
        terminal.write("/model older\r")
        terminal.wait_for("older:")
        terminal.write("hi\r")
        terminal.wait_for("tokens")
        quit(terminal)
    for arguments in ((), ("chat", "--new")):
        with Terminal(*arguments) as terminal:
            terminal.wait_for("older")
            quit(terminal)


def test_the_plain_chat_opens_the_same():
    import_models("older", "newer")
    for expected in ("newer", "older"):
        with Terminal("chat", "--plain") as terminal:
            terminal.wait_for(f"{expected}: context")
            terminal.write("/exit\r")
            assert terminal.wait_end() == 0
        assert chats_file().exists() == (expected == "older"), "to look makes no file"
        used("older").close()
