"""The body of a request that has messages in OpenAI's shape, and words for the chat template."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from pydantic import Field

from edge_llm.errors import UsageError
from edge_llm.server import limits
from edge_llm.server.offers import Offer, chat_offer
from edge_llm.server.thinking import Thinks
from edge_llm.talk.contents import LeftOut, chat_messages
from edge_llm.talk.conversation import plain_text, read_messages
from edge_llm.text.chat import with_system

_OWN_VARIABLES = ("add_generation_prompt", "tools")
"""Variables of the template that have fields of their own."""


class Conversation(Thinks):
    """A request with messages in OpenAI's shape, and words for the chat template."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=limits.MESSAGES)
    system: str | list[Any] | None = None
    tools: list[dict[str, Any]] | None = Field(None, max_length=limits.TOOLS)
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def plain(self) -> list[dict[str, Any]]:
        """The messages, made plain, behind what ``system`` says."""
        messages = read_messages(self.messages)
        return messages if self.system is None else with_system(messages, before=plain_text(self.system, "system"))

    @cached_property
    def offer(self) -> Offer:
        """The tools that may be called.  Raises `UsageError`."""
        return chat_offer(self.tools or [], getattr(self, "tool_choice", None))

    def left_out(self) -> Sequence[str]:
        chat_messages(self.messages, found := LeftOut())
        return (*found.names, *self.offer.left_out)

    def variables(self, template: str) -> dict[str, Any]:
        """What the template gets beside the messages; ``chat_template_kwargs`` have the last word."""
        given = self.chat_template_kwargs or {}
        for name in _OWN_VARIABLES:
            if name in given:
                raise UsageError(f"the template variable `{name}` cannot be set", param="chat_template_kwargs")
        return self.thinking_variables(template) | given | {"add_generation_prompt": self.add_generation_prompt is not False}
