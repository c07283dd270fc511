"""What the full-screen chat looks like, as pictures; `pytest --snapshot-update` draws them anew."""

import pytest
from chat_driver import until
from scripted_provider import ScriptedCatalogue, ScriptedProvider, answer
from test_tui_inside import INSIDE
from textual.widgets import Collapsible, Markdown

from edge_llm.chats.store import ChatStore
from edge_llm.providers.base import Facts
from edge_llm.tui.app import ChatApp
from edge_llm.tui.options import ChatOptions

pytestmark = pytest.mark.thorough(file=2)

CODE = """Here is a **loop**:

```python
for number in range(3):
    print(number)
```

1. It counts
2. It prints
"""


@pytest.fixture
def picture(snap_compare, tmp_path):
    """Compares the chat after ``prompts`` and ``then`` with its picture."""

    async def nothing(app):
        pass

    def compare(prompts, then=nothing, *, scripts=(), size=(100, 30), **provider):
        catalogue = ScriptedCatalogue({"scripted": ScriptedProvider(scripts, facts=Facts("scripted", 1024), **provider)})
        app = ChatApp(lambda: catalogue, lambda: (ChatStore.in_memory(), ""), ChatOptions(folder=tmp_path))

        async def act(pilot):
            app.prompt.area.cursor_blink = False
            await until(lambda: app.session.provider is not None)
            for prompt in prompts:
                await app.session.send(prompt)
            await then(app)
            await until(lambda: app.query_one("#status").activity == "")
            app.inside.poll()
            await pilot.pause()

        return snap_compare(app, terminal_size=size, run_before=act)

    return compare


def test_a_chat(picture):
    assert picture(["Hello", "How are you?\nAnd the others?"])


async def open_thought(app):
    view = app.transcript.views()[-1]
    view.focus()
    await until(lambda: view.has_focus)
    view.action_thought()
    await until(lambda: view.query_one(Collapsible).query_one(Markdown).size.height)


async def look_inside(app):
    app.show_inside(True)
    await until(lambda: app.inside.size.height)


def test_thoughts_and_code(picture):
    assert picture(["A loop, please"], open_thought, scripts=[answer(CODE, thought="Which *language*?")])


def test_looking_inside(picture):
    assert picture(["Hello"], look_inside, inside=INSIDE, size=(120, 40))


def test_a_narrow_terminal(picture):
    assert picture(["Hello"], size=(40, 12))
