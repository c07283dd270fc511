"""The output items of a response: thoughts, messages and calls, whole or as they grow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from edge_llm.server.shapes import new_id
from edge_llm.talk.outcome import Outcome
from edge_llm.talk.pieces import AnswerPiece, CallBegun, Thought

CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Kinds of items that are calls, and where they have what they are called with."""


@dataclass
class OutputItem:
    """One output item as it grows: a thought, a message or a call."""

    kind: str
    id: str
    call_id: str = ""
    name: str = ""
    text: str = ""
    status: str = "in_progress"
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def call(cls, call_id: str, name: str, customs: frozenset[str], text: str = "") -> OutputItem:
        """A call of a function or of one of the ``customs``."""
        kind = "custom_tool_call" if name in customs else "function_call"
        return cls(kind, new_id("ctc_" if name in customs else "fc_"), call_id, name, text)

    @classmethod
    def of(cls, piece: AnswerPiece, customs: frozenset[str]) -> OutputItem:
        """The item that begins with ``piece``."""
        if isinstance(piece, CallBegun):
            return cls.call(piece.id, piece.name, customs)
        kind = kind_of(piece)
        return cls(kind, new_id("rs_" if kind == "reasoning" else "msg_"))

    @property
    def begun(self) -> dict[str, Any]:
        """The item before its content."""
        head = {"id": self.id, "type": self.kind, "status": self.status}
        if self.kind in CALLS:
            return head | {"call_id": self.call_id, "name": self.name, CALLS[self.kind]: ""}
        return head | ({"summary": [], "content": []} if self.kind == "reasoning" else {"role": "assistant", "content": []})

    @property
    def done(self) -> dict[str, Any]:
        """The item with its content."""
        content = {CALLS[self.kind]: self.text} if self.kind in CALLS else {"content": [self.content_part(self.text)]}
        return self.begun | content

    def content_part(self, text: str) -> dict[str, Any]:
        """The item's one part of content."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self.logprobs if text else []}


def output_items(outcome: Outcome, customs: frozenset[str], likely: list[dict[str, Any]]) -> list[OutputItem]:
    """The output items of a whole answer, whose text has the log-probabilities ``likely``.

    An answer without anything is an empty message.
    """
    items = [OutputItem("reasoning", new_id("rs_"), text=outcome.thought)] if outcome.thought else []
    if outcome.said or not (items or outcome.calls):
        items.append(OutputItem("message", new_id("msg_"), text=outcome.said, logprobs=likely))
    items += [OutputItem.call(call.id, call.name, customs, call.arguments) for call in outcome.calls]
    for item in items:
        item.status = "completed"
    if outcome.reason == "length":
        items[-1].status = "incomplete"
    return items


def more_of(item: OutputItem, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    """What an event of ``item`` has beside its text."""
    return {"logprobs": logprobs} if item.kind == "message" else {}


def kind_of(piece: AnswerPiece) -> str:
    """The kind of the item that ``piece``, which is of no call, belongs to."""
    return "reasoning" if isinstance(piece, Thought) else "message"
