"""Draw the README's pictures, as the app itself exports them: a chat with a real model, and the look inside.

    python assets/screenshots.py MODEL        an imported SmolLM2-135M-Instruct, or any other
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from edge_llm.chats.settings import ChatSettings
from edge_llm.chats.store import ChatStore
from edge_llm.config import RuntimeConfig
from edge_llm.providers.local import LocalCatalogue
from edge_llm.tui.app import ChatApp
from edge_llm.tui.options import ChatOptions

ASSETS = Path(__file__).parent
PROMPTS = ("What is the capital of France?", "Write a Python function that checks whether a word is a palindrome.")
LONG_PROMPT = "Please tell me, as well as you can: " + "what day comes after Monday, and what colour is the sky? " * 8
SECONDS = 120


async def draw(name: str, settings: ChatSettings, runtime: RuntimeConfig, prompts: Sequence[str], *, inside: bool) -> None:
    """Write the picture of that name: the chat after ``prompts``."""
    app = ChatApp(
        lambda: LocalCatalogue(runtime),
        lambda: (ChatStore.in_memory(), ""),
        ChatOptions(settings, resume=False),
    )
    async with app.run_test(size=(110, 28)) as pilot:
        if inside:
            await pilot.press("f2")
        for prompt in prompts:
            app.prompt.area.take(prompt)
            await pilot.press("enter")
            await pilot.pause(0.2)
            async with asyncio.timeout(SECONDS):
                while app.session.busy:
                    await pilot.pause(0.05)
            await pilot.pause(1.0)
        (ASSETS / name).write_text(app.export_screenshot(title="edge-llm"))


async def main(model: str) -> None:
    greedy = {"temperature": 0.0, "max_tokens": 200}
    await draw("chat.svg", ChatSettings(model=model, sampling=greedy), RuntimeConfig(), PROMPTS, inside=False)
    emulated = RuntimeConfig(device="emulated:310p")
    await draw("inside.svg", ChatSettings(sampling=greedy), emulated, (LONG_PROMPT,), inside=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
