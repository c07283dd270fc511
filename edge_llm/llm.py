"""The Python face.

    from edge_llm import LLM

    llm = LLM("builtin")
    print(llm.chat([{"role": "user", "content": "Who are you?"}]))
    for piece in llm.stream("Once upon a time", max_tokens=60):
        print(piece, end="", flush=True)
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.decoding.defaults import with_overrides
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.opening.load import load_engine
from edge_llm.talk.conversation import conversation_request, read_messages
from edge_llm.talk.outcome import Outcome


class LLM:
    """A model loaded from a bundle name or path; ``options`` are the fields of `RuntimeConfig`.

    ``lora=["poet=FOLDER", ...]`` loads adapters beside it, which `adapted` gives.  Any number of streams may be open and any
    number of threads may ask: each gets the answer that it gets alone.
    """

    def __init__(self, model: str | Path | None = None, **options: Any) -> None:
        self.engine = load_engine(model, RuntimeConfig(**_known(RuntimeConfig, options)))

    def adapted(self, name: str) -> LLM:
        """The same model with its adapter ``name``: answers of both are computed together.  Raises `UsageError`."""
        engine = self.engine.adapted.get(name)
        if engine is None:
            known = ", ".join(f"`{shown(one)}`" for one in self.engine.adapted) or "none"
            raise UsageError(f"no adapter `{shown(name)}`; there are: {known}", param="lora")
        llm = copy.copy(self)
        llm.engine = engine
        return llm

    def generate(self, prompt: str, *, parse_special: bool = True, **params: Any) -> str:
        """Continue ``prompt``; ``params`` are the fields of `GenerationParams` over the defaults of `run` and the chat.

        ``temperature=0`` is greedy, which a model is by default only where its author says so.  What spells a control token
        is one; with ``parse_special=False`` it is text.
        """
        request = self.engine.text_request(prompt, self._params(params), parse_special=parse_special)
        return self.engine.answer(request).text

    def stream(self, prompt: str, *, parse_special: bool = True, **params: Any) -> Iterator[str]:
        """Continue ``prompt`` piece by piece, as `generate` does."""
        request = self.engine.text_request(prompt, self._params(params), parse_special=parse_special)
        for delta in self.engine.stream(request):
            if delta.text:
                yield delta.text

    def chat(self, messages: Sequence[dict[str, Any]], **params: Any) -> str:
        """Answer ``messages`` ({"role": ..., "content": ...}) through the model's chat template, without its thoughts."""
        return self.reply(messages, **params).said

    def reply(self, messages: Sequence[dict[str, Any]], **params: Any) -> Outcome:
        """Answer ``messages``: what the model thought (``thought``), what it says (``said``), and how it ended (``reason``)."""
        request, syntax = conversation_request(self.engine, read_messages(messages), self._params(params))
        return syntax.outcome(self.engine.answer(request))

    def _params(self, changes: dict[str, Any]) -> GenerationParams:
        return with_overrides(self.engine.defaults, **_known(GenerationParams, changes))


def _known(kind: type, options: dict[str, Any]) -> dict[str, Any]:
    names = [field.name for field in fields(kind)]
    for option in options:
        if option not in names:
            raise UsageError(f"unknown option `{option}`; there are: {', '.join(names)}", param=option)
    return options
