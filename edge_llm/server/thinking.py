"""How a request says whether and how hard the model is to think: one wish, in the fields of several APIs."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from edge_llm.server.schemas import Body
from edge_llm.talk.wish import Setting, Wish, not_understood, wish_of


class Thinks(Body):
    """A request that may say how the model is to think; of several fields that say it the first counts."""

    reasoning_effort: str | None = Field(None, max_length=64)
    """OpenAI's."""
    reasoning: Setting = None
    """OpenAI's responses, and OpenRouter's."""
    thinking: Setting = None
    """Anthropic's, and many others' since."""
    think: bool | str | None = None
    """Ollama's."""
    enable_thinking: bool | None = None
    """Qwen's."""
    thinking_token_budget: int | None = Field(None, ge=-1)
    """vLLM's; -1 is as many as the model wants, as with the next ones."""
    thinking_budget: int | None = Field(None, ge=-1)
    """Qwen's service's."""
    reasoning_budget: int | None = Field(None, ge=-1)
    """llama.cpp's."""

    def wish(self) -> Wish | None:
        """What the request asks for; None leaves it to the model.  Raises `UsageError`."""
        return next((wish for name, setting in self.settings().items() if (wish := wish_of(setting, name)) is not None), None)

    def settings(self) -> dict[str, Setting]:
        """What was said, by its field, the first that counts first."""
        return {name: getattr(self, name) for name in Thinks.model_fields if name not in _BUDGETS}

    def thinking_variables(self, template: str) -> dict[str, Any]:
        """What the chat template ``template`` is told of it."""
        wish = self.wish()
        return {} if wish is None else wish.variables(template)

    def think_tokens(self, template: str) -> int | None:
        """Tokens behind which a thought is closed; None leaves it to the model."""
        given = next((value for name in _BUDGETS if (value := getattr(self, name)) is not None), None)
        if given is not None:
            return None if given == -1 else given
        wish = self.wish()
        return wish.most_tokens(template) if wish is not None and wish.on else None

    def ignored(self, template: str = "") -> list[str]:
        wish = self.wish()
        names = super().ignored(template)
        for name, setting in self.settings().items():
            names += not_understood(setting, name)
            found = wish_of(setting, name)
            if found is not None and not (found == wish and found.fulfilled(template)):
                names.append(name)
        return names


_BUDGETS = ("thinking_token_budget", "thinking_budget", "reasoning_budget")
"""Fields that are numbers of tokens; the first that is given counts, before those with a budget inside."""
