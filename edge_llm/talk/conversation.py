"""From messages to a request: checked, made plain for a chat template, with the tools shown and the form of the answer."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from edge_llm.config import GenerationParams
from edge_llm.decoding.guided import check_grammar
from edge_llm.engine.engine import Engine
from edge_llm.engine.request import Request
from edge_llm.errors import ContextOverflow, InvalidTokenizer, UsageError
from edge_llm.files import shown
from edge_llm.strict_json import MAX_DEPTH, is_deeper, is_unicode
from edge_llm.talk.contents import LeftOut, chat_messages
from edge_llm.talk.history import fitted, has_calls
from edge_llm.talk.outcome import AnswerSyntax
from edge_llm.talk.tool_formats import after_thought
from edge_llm.talk.tools import ToolUse, control_token
from edge_llm.text.chat import encode_chat
from edge_llm.text.reasoning import Thinking

ROLES = ("system", "developer", "user", "assistant", "tool")
NO_TEMPLATE = "This model brings no chat template and may not be made for chatting; it gets plain `role: text` lines."
"""What a person should know before chatting with a model whose template is the default."""
_KEPT = ("name", "tool_call_id", "reasoning_content")
"""Fields of a message that a template may use."""


def conversation_request(
    engine: Engine,
    messages: Sequence[dict[str, Any]],
    params: GenerationParams,
    *,
    begun: bool = False,
    tools: ToolUse | None = None,
    variables: Mapping[str, Any] | None = None,
) -> tuple[Request, AnswerSyntax]:
    """The request that answers plain ``messages``, and how to read its answer.

    With ``begun`` the last message is the beginning of the answer.  A grammar in ``params`` is the form of what the model
    says where it calls none of ``tools``; it may think before.  ``variables`` go to the template.
    """
    given = dict(variables or {})
    if begun:
        given.pop("add_generation_prompt", None)  # clients say no for the message that goes on: here it is the answer's
        if not messages or messages[-1]["role"] != "assistant":
            raise UsageError("the last message must be the assistant's to be continued", param="messages")
        messages = [*messages[:-1], {name: value for name, value in messages[-1].items() if name != "tool_calls"}]
    request = _as_it_takes_them(
        engine, messages, tools, given, lambda found, given: engine.chat_request(found, params, given, begun=begun)
    )
    return _read(request, engine, tools)


def conversation_text(
    engine: Engine,
    messages: Sequence[dict[str, Any]],
    *,
    tools: ToolUse | None = None,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """What the template makes of plain ``messages``."""
    return _as_it_takes_them(engine, messages, tools, variables, engine.template.render)


def conversation_length(
    engine: Engine, messages: Sequence[dict[str, Any]], *, variables: Mapping[str, Any] | None = None, most: int
) -> int:
    """Tokens of the prompt for plain ``messages``, however small the context is; raises `ContextOverflow` above ``most``."""

    def length(found: list[dict[str, Any]], given: dict[str, Any]) -> int:
        return len(encode_chat(engine.template, engine.tokenizer, found, given, most=most))

    return _as_it_takes_them(engine, messages, None, variables, length)


Made = TypeVar("Made")


def _as_it_takes_them(
    engine: Engine,
    messages: Sequence[dict[str, Any]],
    tools: ToolUse | None,
    variables: Mapping[str, Any] | None,
    make: Callable[[list[dict[str, Any]], dict[str, Any]], Made],
) -> Made:
    """What ``make`` makes of ``messages`` and variables in the shape of the engine's template, with the tools shown.

    Where it refuses a history with calls all the same, they are spelled out.
    """
    shape, given, found = engine.template.shape, dict(variables or {}), list(messages)
    by_template = tools is not None and shape.tools
    if shape.needs_list and not by_template:
        given["tools"] = []
    explained = tools is not None and not by_template
    if tools is not None and found:
        if by_template:
            given["tools"] = list(tools.tools)
        else:
            found = tools.explained(found)
    with _messages_at_fault():
        try:
            return make(fitted(found, shape, tools=by_template, spelled=explained), given)
        except (UsageError, InvalidTokenizer) as error:
            if isinstance(error, ContextOverflow) or not has_calls(found):
                raise
            try:
                return make(fitted(found, shape, tools=by_template, spelled=True), given)
            except ContextOverflow:
                raise
            except (UsageError, InvalidTokenizer):
                raise error from None


@contextlib.contextmanager
def _messages_at_fault() -> Iterator[None]:
    """A template that fails here works (it was tried at import), so it is the messages that broke it."""
    try:
        yield
    except InvalidTokenizer as error:
        raise UsageError(str(error), param="messages") from None


def _read(request: Request, engine: Engine, tools: ToolUse | None) -> tuple[Request, AnswerSyntax]:
    """``request`` with the grammar of its whole answer, and what of it is looked for; how that is read."""
    tokenizer, answer, thinking = engine.tokenizer, request.params.grammar, request.thinking
    grammar = answer if tools is None else tools.grammar(answer, tokenizer)
    if grammar is not None:
        if thinking is Thinking.OPEN or (thinking is Thinking.FREE and engine.template.shape.thinks):
            behind = after_thought(grammar, control_token(tokenizer), opened=thinking is Thinking.OPEN)
            grammar = replace(behind, free=grammar.free)
        else:
            thinking = Thinking.RAW  # the form has no room for a thought
        check_grammar(grammar, tokenizer)
    syntax = AnswerSyntax(tokenizer, thinking, tools)
    once = None if tools is None or tools.parallel else syntax.enough
    params = replace(request.params, grammar=grammar)
    return replace(request, params=params, thinking=thinking, marks=syntax.marks, enough=once), syntax


def read_messages(messages: Any) -> list[dict[str, Any]]:
    """Messages in OpenAI's shape, as clients and programs write them, made plain.  Raises `UsageError`."""
    is_list = isinstance(messages, list | tuple) and all(isinstance(message, dict) for message in messages)
    return plain_messages(chat_messages(messages, LeftOut()) if is_list else messages)


def plain_messages(messages: Sequence[dict[str, Any]], param: str = "messages") -> list[dict[str, Any]]:
    """``messages`` with one string as content each, ``developer`` as ``system``, and tool arguments as objects."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise UsageError(f'{param} must be a list of {{"role": ..., "content": ...}}, got `{shown(messages, 40)}`', param=param)
    return [_plain_message(message, f"{param}[{index}]") for index, message in enumerate(messages)]


def _plain_message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise UsageError(f'{where} must be {{"role": ..., "content": ...}}, got `{shown(message, 40)}`', param=where)
    role = message.get("role")
    if role not in ROLES:
        raise UsageError(f"{where}.role must be one of {', '.join(ROLES)}, got `{shown(role, 40)}`", param=f"{where}.role")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise UsageError(f"{where}.tool_calls must be a list", param=f"{where}.tool_calls")
    content = message.get("content")
    if content is None and not (role == "assistant" and (calls or message.get("reasoning_content"))):
        raise UsageError(f"{where}.content is missing; give a string", param=f"{where}.content")
    plain = {"role": "system" if role == "developer" else role, "content": plain_text(content, f"{where}.content")}
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise UsageError(f"{where}.tool_call_id is missing", param=f"{where}.tool_call_id")
    for name in _KEPT:
        if (value := message.get(name)) is not None:
            if not isinstance(value, str):
                raise UsageError(f"{where}.{name} must be a string", param=f"{where}.{name}")
            plain[name] = value
    if calls:
        plain["tool_calls"] = [_plain_call(call, f"{where}.tool_calls[{at}]") for at, call in enumerate(calls)]
    return plain


def plain_text(content: Any, where: str) -> str:
    """The text of a content: a string, null, or a list of text parts (one per line)."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UsageError(f"{where} must be a string or a list of parts", param=where)
    return "\n".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    key = "refusal" if kind == "refusal" else "text"
    if kind not in ("text", "input_text", "output_text", "refusal") or not isinstance(part.get(key), str):
        raise UsageError(f"{where}: this model reads text only, not a part of type `{shown(kind, 40)}`", param=where)
    text: str = part[key]
    return text


def _plain_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise UsageError(f"{where}.function.name is missing", param=where)
    named = {"name": function["name"], "arguments": _plain_arguments(function.get("arguments"), where)}
    return {"id": str(call.get("id") or ""), "type": "function", "function": named}


def _plain_arguments(given: Any, where: str) -> dict[str, Any] | str:
    """Arguments of a call as an object; what is none, as a model may have written it, as the text it is."""
    value = given
    if isinstance(given, str):
        try:
            value = json.loads(given, strict=False) if given.strip() else {}
        except (ValueError, RecursionError):
            return given
    if value is None or value == "":
        return {}
    if is_deeper(value, MAX_DEPTH):  # the body's own bound does not see into a string
        if isinstance(given, str):
            return given
        raise UsageError(f"{where}.function.arguments is nested deeper than {MAX_DEPTH}", param=f"{where}.function.arguments")
    if not isinstance(value, dict):
        return given if isinstance(given, str) else json.dumps(value)
    return value if not isinstance(given, str) or "\\u" not in given else _whole_characters(value)


def _whole_characters(value: Any) -> Any:
    """``value``, JSON data, with U+FFFD for each half of a surrogate pair."""
    text = json.dumps(value, ensure_ascii=False)
    return value if is_unicode(text) else json.loads(re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text))
