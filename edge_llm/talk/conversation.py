"""From messages to a request: checked, made plain for a chat template, with the tools shown and the form of the answer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edge_llm.config import GenerationParams
from edge_llm.decoding.guided import check_grammar
from edge_llm.engine.engine import Engine
from edge_llm.engine.request import Request
from edge_llm.errors import InvalidTokenizer, UsageError
from edge_llm.files import shown
from edge_llm.strict_json import MAX_DEPTH, is_deeper
from edge_llm.talk.outcome import AnswerSyntax
from edge_llm.talk.reasoning import CLOSE, OPEN
from edge_llm.talk.tool_formats import after_thought
from edge_llm.talk.tools import ToolUse, control_token

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
    messages, prefix, variables = list(messages), "", dict(variables or {})
    if begun:
        variables.pop("add_generation_prompt", None)  # clients say no for the message that goes on: here it is the answer's
        if not messages or messages[-1]["role"] != "assistant":
            raise UsageError("the last message must be the assistant's to be continued", param="messages")
        prefix, messages = messages[-1]["content"], messages[:-1]
    messages, given = _with_tools(engine, messages, tools, variables)
    with _messages_at_fault():
        request = engine.chat_request(messages, params, given, begun=prefix)
    syntax = AnswerSyntax.of(engine, request, tools)
    return _guided(request, syntax), syntax


def conversation_text(
    engine: Engine, messages: list[dict[str, Any]], *, tools: ToolUse | None = None, variables: Mapping[str, Any] | None = None
) -> str:
    """What the template makes of plain ``messages``."""
    messages, given = _with_tools(engine, messages, tools, variables)
    with _messages_at_fault():
        return engine.template.render(messages, given)


def behind_thought(
    engine: Engine, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Plain ``messages`` whose last one, the beginning of an answer, closes the thought that a template opens before it."""
    messages, begun = list(messages), messages[-1]["content"]
    if OPEN not in engine.template.source or OPEN in begun or CLOSE in begun:
        return messages
    if not conversation_text(engine, messages[:-1], variables=variables).rstrip().endswith(OPEN):
        return messages
    return [*messages[:-1], messages[-1] | {"content": f"\n{CLOSE}\n\n{begun}"}]


def _with_tools(
    engine: Engine, messages: list[dict[str, Any]], tools: ToolUse | None, variables: Mapping[str, Any] | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Messages and variables that show the model its tools."""
    given = dict(variables or {})
    if tools is None or not messages:
        return messages, given
    messages, shown_tools = tools.shown(messages, engine.template)
    return messages, given | shown_tools


@contextlib.contextmanager
def _messages_at_fault() -> Iterator[None]:
    """A template that fails here works (it was tried at import), so it is the messages that broke it."""
    try:
        yield
    except InvalidTokenizer as error:
        raise UsageError(str(error), param="messages") from None


def _guided(request: Request, syntax: AnswerSyntax) -> Request:
    """``request`` with the grammar of its whole answer: calls or the form that is asked for, behind a thought."""
    tokenizer, tools, answer = syntax.tokenizer, syntax.tools, request.params.grammar
    grammar = answer if tools is None else tools.grammar(answer, tokenizer)
    if grammar is None:
        return request
    if syntax.thinks:
        grammar = replace(after_thought(grammar, control_token(tokenizer), opened=syntax.opened), free=grammar.free)
    check_grammar(grammar, tokenizer)
    return replace(request, params=replace(request.params, grammar=grammar))


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
    if content is None and not (role == "assistant" and calls):
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
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise UsageError(f"{where}.function.arguments is not JSON", param=f"{where}.function.arguments") from None
    if not isinstance(arguments, dict):
        raise UsageError(f"{where}.function.arguments must be a JSON object", param=f"{where}.function.arguments")
    if is_deeper(arguments, MAX_DEPTH):  # the body's own bound does not see into a string
        raise UsageError(f"{where}.function.arguments is nested deeper than {MAX_DEPTH}", param=f"{where}.function.arguments")
    named = {"name": function["name"], "arguments": arguments}
    return {"id": str(call.get("id") or ""), "type": "function", "function": named}
