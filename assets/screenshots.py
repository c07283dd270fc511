"""Draw the README's pictures: the chat with the built-in model, and the look inside, as the app itself exports them.

    python assets/screenshots.py
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from edge_llm.chats.settings import ChatSettings
from edge_llm.chats.store import ChatStore
from edge_llm.config import RuntimeConfig
from edge_llm.providers.local import LocalCatalogue
from edge_llm.tui.app import ChatApp
from edge_llm.tui.options import ChatOptions

ASSETS = Path(__file__).parent
PROMPTS = ("Who are you?", "What are shadow outliers?", "What is 7 plus 8?", "Tell me a short story")
LONG_PROMPT = "Please tell me, as well as you can: " + "what day comes after Monday, and what colour is the sky? " * 8
SECONDS = 60


async def draw() -> None:
    """Write both pictures."""
    app = ChatApp(
        lambda: LocalCatalogue(RuntimeConfig(device="emulated:310p")),
        lambda: (ChatStore.in_memory(), ""),
        ChatOptions(ChatSettings(sampling={"temperature": 0.0}), resume=False),
    )
    async with app.run_test(size=(110, 30)) as pilot:

        async def ask(text: str) -> None:
            app.prompt.area.take(text)
            await pilot.press("enter")
            await pilot.pause(0.2)
            async with asyncio.timeout(SECONDS):
                while app.session.busy:
                    await pilot.pause(0.05)
            await pilot.pause(0.5)

        def save(name: str) -> None:
            (ASSETS / name).write_text(app.export_screenshot(title="edge-llm"))

        for prompt in PROMPTS:
            await ask(prompt)
        save("chat.svg")
        await pilot.press("f2")
        await ask(LONG_PROMPT)
        await pilot.pause(1.0)
        save("inside.svg")


if __name__ == "__main__":
    asyncio.run(draw())
