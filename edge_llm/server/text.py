"""POST /tokenize, /detokenize and /apply-template, GET /tokenizer_info: what the model reads."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge_llm.config import GenerationParams
from edge_llm.errors import UsageError
from edge_llm.server import limits
from edge_llm.server.conversation import Conversation
from edge_llm.server.host import ModelHost
from edge_llm.server.lending import lend, pool_of, prepared
from edge_llm.server.schemas import NamesModel, check_tokens, ignored_header
from edge_llm.talk.contents import LeftOut, chat_messages
from edge_llm.talk.conversation import conversation_request, conversation_text
from edge_llm.talk.tools import ToolUse


class TextBody(NamesModel):
    """A request about what the model reads."""


class TemplateBody(Conversation, TextBody):
    """Messages for the chat template."""


class TokenizeBody(TextBody):
    """A text in llama.cpp's or vLLM's name for it."""

    content: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = Field(None, min_length=1, max_length=limits.MESSAGES)
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[dict[str, Any]] | None = Field(None, max_length=limits.TOOLS)
    chat_template_kwargs: dict[str, Any] | None = None

    def left_out(self) -> Sequence[str]:
        chat_messages(self.messages or [], found := LeftOut())
        return found.names


class DetokenizeBody(TextBody):
    """Token ids."""

    tokens: list[int]


async def tokenize(request: Request) -> Response:
    """Token ids of a text, or of messages as the model would read them."""
    return await _answer(request, TokenizeBody, _tokenize)


async def tokenizer_info(request: Request) -> JSONResponse:
    """What a client needs of the tokenizer beside `/tokenize`, in vLLM's names: evaluations count and cut with it."""
    engine = (await lend(request, request.query_params.get("model"))).engine
    tokenizer = engine.tokenizer
    return JSONResponse(
        {
            "tokenizer_class": "edge-llm",
            "bos_token": tokenizer.bos_text or None,
            "eos_token": tokenizer.eos_text or None,
            "pad_token": None,
            "add_bos_token": tokenizer.add_bos,
            "vocab_size": tokenizer.vocab_size,
            "model_max_length": engine.runner.context,
            "chat_template": engine.template.source,
        }
    )


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    return await _answer(request, DetokenizeBody, _detokenize)


async def apply_template(request: Request) -> Response:
    """The prompt that the chat template makes of messages."""
    return await _answer(request, TemplateBody, _apply_template)


Text = TypeVar("Text", bound=TextBody)


async def _answer(request: Request, kind: type[Text], work: Callable[[ModelHost, Text], dict[str, Any]]) -> Response:
    def made(host: ModelHost, body: Text) -> tuple[dict[str, Any], dict[str, str]]:
        return work(host, body), ignored_header(body.ignored(host.engine.template.source))

    found, headers = await prepared(request, kind, made)
    return await pool_of(request).workshop.reply(request, lambda: found, headers)


_OF_MESSAGES = {"messages", "add_generation_prompt", "tools", "chat_template_kwargs"}


def _tokenize(host: ModelHost, body: TokenizeBody) -> dict[str, Any]:
    """The answer, its lists as iterators: they can have millions of items."""
    engine = host.engine
    if body.messages is not None:
        asked = TemplateBody.model_validate(body.model_dump(include=_OF_MESSAGES))
        messages, variables = host.checked(asked.plain()), asked.variables(engine.template.source)
        begun, tools = bool(body.continue_final_message), ToolUse.of(asked.offer.functions, None, None, engine)
        prompt, _ = conversation_request(
            engine, messages, GenerationParams(), begun=begun, tools=tools, variables=variables
        )
        tokens = list(prompt.prompt)
    else:
        text = body.content if body.content is not None else body.prompt
        if text is None:
            raise UsageError("content is missing; give a text", param="content")
        add = body.add_special if body.add_special is not None else body.add_special_tokens
        tokens = engine.tokenizer.encode(
            text, add_bos=bool(add) and engine.tokenizer.add_bos, parse_special=bool(body.parse_special)
        )
    ids = array("i", tokens)
    found: dict[str, Any] = {"tokens": iter(ids), "count": len(ids), "max_model_len": engine.runner.context}
    if body.with_pieces:
        found["tokens"] = ({"id": token, "piece": engine.tokenizer.token_string(token)} for token in ids)
    strings = (engine.tokenizer.token_text(token) for token in ids)
    return found | {"token_strs": strings if body.return_token_strs else None}


def _detokenize(host: ModelHost, body: DetokenizeBody) -> dict[str, Any]:
    engine = host.engine
    text = engine.tokenizer.decode(check_tokens(body.tokens, engine.config.vocab_size, "tokens"), skip_special=False)
    return {"content": text, "prompt": text}


def _apply_template(host: ModelHost, body: TemplateBody) -> dict[str, Any]:
    messages, variables = body.plain(), body.variables(host.engine.template.source)
    tools = ToolUse.of(body.offer.functions, None, None, host.engine)
    return {"prompt": conversation_text(host.engine, messages, tools=tools, variables=variables)}
