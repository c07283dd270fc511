"""What agents put into conversations beside plain text, in the shapes of all APIs: what reaches the model, what does not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from edge_llm.errors import UsageError
from edge_llm.files import shown

_TEXTS = ("text", "input_text", "output_text", "refusal", "reasoning_text", "summary_text")
_PICTURES = ("image", "image_url", "input_image")
_NOTHING: tuple[Any, ...] = (None, False, "", [], {})
"""Values that ask for nothing."""
_LABELS = frozenset(("id", "index", "object", "phase", "signature", "status", "type"))
"""Fields that only say what the rest of an object is, or where it came from."""
_OF_A_TEXT = _LABELS | {"text", "refusal", "annotations", "citations", "logprobs"}
_OF_A_MESSAGE = _LABELS | {
    "role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "reasoning_details", "refusal",
}  # fmt: skip


class LeftOut:
    """Names of what does not reach the model, each once."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    @property
    def names(self) -> list[str]:
        return list(self._names)

    def add(self, name: str) -> None:
        self._names[name] = None

    def beside(self, known: Collection[str], given: Mapping[str, Any], where: str) -> None:
        """Fields of ``given`` that are not ``known`` and ask for something."""
        for name, value in given.items():
            if name not in known and name not in _LABELS and value not in _NOTHING:
                self.add(f"{where}.{name}")


def texts_of(content: Any, where: str, field: str, left_out: LeftOut) -> Any:
    """``content`` with its documents and search results as parts of text.

    ``where`` is its place in errors, ``field`` in the names of what is left out.  Raises `UsageError`.
    """
    if not isinstance(content, list):
        return content
    return [text_of(part, f"{where}[{at}]", field, left_out) for at, part in enumerate(content)]


def result_of(content: Any, where: str, field: str, left_out: LeftOut) -> Any:
    """What a tool gave, with parts of text only: one that is none says that it was left out.  Raises `UsageError`."""
    if not isinstance(content, list):
        return content
    return [_result_part(part, f"{where}[{at}]", field, left_out) for at, part in enumerate(content)]


def chat_messages(messages: Sequence[dict[str, Any]], left_out: LeftOut) -> list[dict[str, Any]]:
    """Messages in OpenAI's shape with texts as contents, thoughts as `reasoning_content`, and functions as calls."""
    return [_chat_message(message, f"messages[{at}].content", left_out) for at, message in enumerate(messages)]


def without_old_thoughts(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """``messages`` without what was thought before the last one of the user, as the APIs that keep thoughts apart have it."""
    last = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=-1)
    found = [
        {name: value for name, value in message.items() if at > last or name != "reasoning_content"}
        for at, message in enumerate(messages)
    ]
    return [message for message, given in zip(found, messages, strict=True) if message == given or not _is_empty(message)]


def thought_of(parts: Any) -> str:
    """The text of a thought's ``parts``; empty for what has none to read."""
    found = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "\n".join(text for text in found if isinstance(text, str))


def _is_empty(message: Mapping[str, Any]) -> bool:
    return message["role"] == "assistant" and not message.get("content") and not message.get("tool_calls")


def _chat_message(message: dict[str, Any], where: str, left_out: LeftOut) -> dict[str, Any]:
    left_out.beside(_OF_A_MESSAGE, message, "messages")
    found, content = dict(message), message.get("content")
    if message.get("role") == "tool" and isinstance(content, list):
        found["content"] = result_of(content, where, "messages.content", left_out)
    else:
        found["content"] = texts_of(message.get("refusal") if content is None else content, where, "messages.content", left_out)
    named = message.get("reasoning")  # OpenRouter's and vLLM's name for it
    if named is not None and not isinstance(named, str):
        left_out.add("messages.reasoning")
        named = None
    if thought := message.get("reasoning_content") or named or thought_of(message.get("reasoning_details")):
        found["reasoning_content"] = thought
    if isinstance(calls := message.get("tool_calls"), list):
        found["tool_calls"] = [_function_call(call) for call in calls]
    return found


def _function_call(call: Any) -> Any:
    """A call of a custom tool as one of a function; others as they are."""
    custom = call.get("custom") if isinstance(call, dict) and call.get("type") == "custom" else None
    return custom_call(call.get("id"), custom.get("name"), custom.get("input")) if isinstance(custom, dict) else call


def custom_call(call_id: Any, name: Any, text: Any) -> dict[str, Any]:
    """A call of a tool that takes one text, as a call of a function."""
    return {"id": call_id, "function": {"name": name, "arguments": {"input": text if isinstance(text, str) else ""}}}


def text_of(part: Any, where: str, field: str, left_out: LeftOut) -> Any:
    """``part`` of a content; a document or a result of a search as a part of text.  Raises `UsageError`."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXTS:
        left_out.beside(_OF_A_TEXT, part, field)
    elif kind == "document":
        left_out.beside(("source", "title", "context"), part, field)
        return _as_text(part.get("title"), part.get("context"), _document(part.get("source"), where))
    elif kind == "search_result":
        left_out.beside(("source", "title", "content"), part, field)
        return _as_text(part.get("title"), part.get("source"), _lines(part.get("content"), f"{where}.content"))
    return part


def _as_text(*texts: Any) -> dict[str, Any]:
    return {"type": "text", "text": "\n".join(text for text in texts if isinstance(text, str) and text)}


def _document(source: Any, where: str) -> str:
    """The text of a document."""
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "text" and isinstance(source.get("data"), str):
        return str(source["data"])
    if kind == "content":
        return _lines(source.get("content"), f"{where}.source.content")
    raise UsageError(f"{where}.source of type `{shown(kind, 40)}` is not read here; send the document's text", param=where)


def _result_part(part: Any, where: str, field: str, left_out: LeftOut) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind in (*_TEXTS, "document", "search_result"):
        return text_of(part, where, field, left_out)
    left_out.add(f"{field}.{kind}")
    return _as_text("[picture left out]" if kind in _PICTURES else f"[{shown(kind, 40)} left out]")


def _lines(content: Any, where: str) -> str:
    """The text of a document's content."""
    parts = [{"text": content}] if isinstance(content, str) else content
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts] if isinstance(parts, list) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{where} must be a string or a list of parts of text", param=where)
    return "\n".join(map(str, texts))
