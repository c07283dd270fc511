"""What the bodies of `chat` and `generate` have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from edge_llm.config import GenerationParams, Grammar
from edge_llm.engine.engine import Engine
from edge_llm.engine.request import Request
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.server import limits
from edge_llm.server.fields import Rule, hint, refusals, refused
from edge_llm.server.ollama.options import Asked, Options
from edge_llm.server.thinking import Thinks
from edge_llm.talk.formats import checked_grammar
from edge_llm.text.tokenizer import Tokenizer


class Generating(Asked, Thinks):
    """A request that a model answers with text, streamed unless it says no."""

    stream: Annotated[bool, BeforeValidator(lambda given: True if given is None else given)] = True
    format: str | dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=limits.TOP_LOGPROBS)

    rules: ClassVar[Sequence[Rule]] = (refused("images", [], note="no model here sees them"), hint("shift"))
    cannot: ClassVar[Mapping[str, tuple[Any, ...]]] = refusals(rules)

    @property
    def begins(self) -> bool:
        """Whether there is something to answer: a request without loads the model, or unloads it."""
        raise NotImplementedError

    def nothing(self) -> dict[str, Any]:
        """What stands in the answer to a request without."""
        raise NotImplementedError

    @property
    def is_streamed(self) -> bool:
        """Whether the answer comes as a stream."""
        return self.stream and self.begins

    @property
    def chosen(self) -> Options:
        """The options."""
        return self.options or Options.model_validate({})

    def params(self, engine: Engine) -> GenerationParams:
        """How ``engine`` is to choose tokens."""
        params = self.chosen.params(engine.served, engine.config.vocab_size)
        counted = (self.top_logprobs or 0) if self.logprobs else None
        thought = self.think_tokens(engine.template.source)
        return replace(params, logprobs=counted, grammar=self._grammar(engine.tokenizer), think_tokens=thought)

    def within(self, request: Request, engine: Engine) -> Request:
        """``request`` in as many tokens as the options allow; raises `ContextOverflow`."""
        return self.chosen.within(request, engine.runner.context)

    def _grammar(self, tokenizer: Tokenizer) -> Grammar | None:
        """What the answer must look like."""
        if self.format is None or self.format == "":
            return None
        if isinstance(self.format, dict):
            grammar = Grammar("json_schema", json.dumps(self.format, ensure_ascii=False))
        elif self.format == "json":
            grammar = Grammar("json_object")
        else:
            raise UsageError(f"format must be `json` or a JSON schema, got `{shown(self.format, 40)}`", param="format")
        return checked_grammar({"format": grammar}, tokenizer)

    def ignored(self, template: str = "") -> list[str]:
        return super().ignored(template) + (["top_logprobs"] if self.top_logprobs and not self.logprobs else [])
