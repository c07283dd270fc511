"""Calls of tools and their results as plain text: for templates that know none, and for summaries."""

from __future__ import annotations

import json
from typing import Any

from edge_llm.talk.tool_formats import HERMES


def spelled_out(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``messages`` with calls and their results as plain text, for a template that knows none."""
    plain: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            result = f"<tool_response>\n{message['content']}\n</tool_response>"
            if plain and plain[-1]["role"] == "user" and plain[-1]["content"].startswith("<tool_response>"):
                plain[-1] = {"role": "user", "content": f"{plain[-1]['content']}\n{result}"}
            else:
                plain.append({"role": "user", "content": result})
        elif calls := message.get("tool_calls"):
            texts = [message["content"], *(_call_text(call["function"]) for call in calls)]
            beside = {name: value for name, value in message.items() if name != "tool_calls"}  # such as its thought
            plain.append(beside | {"content": "\n".join(text for text in texts if text)})
        else:
            plain.append(message)
    return plain


def _call_text(function: dict[str, Any]) -> str:
    """``function`` as a model writes it; arguments that are text, as a model wrote them, stay as they are."""
    arguments, name = function["arguments"], json.dumps(function["name"], ensure_ascii=False)
    written = (arguments or "{}") if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{HERMES.opener}{{"name": {name}, "arguments": {written}}}{HERMES.closer}'
