"""The routes, and what stands before them."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Mount, Route, Router

from edge_llm.errors import EdgeLLMError
from edge_llm.server.anthropic import CountBody, MessagesBody, count_tokens, messages
from edge_llm.server.chat import ChatBody, chat_completions, chat_tokens
from edge_llm.server.completions import CompletionBody, completions
from edge_llm.server.docs_page import docs
from edge_llm.server.embeddings import EmbeddingBody, embeddings
from edge_llm.server.faces import on_error, on_unknown_route
from edge_llm.server.guards import Access, Guards
from edge_llm.server.kept import input_items, kept_response
from edge_llm.server.llama_completions import InfillBody, NativeBody, either_completion, infill, native_completion
from edge_llm.server.llama_cpp import RerankBody, llama_models, rerank, slot_action, slots
from edge_llm.server.models import OneModel, list_models, load_model, one_model, unload_model
from edge_llm.server.ollama.answering import chat, generate
from edge_llm.server.ollama.chat import ChatBody as OllamaChatBody
from edge_llm.server.ollama.embed import EmbedBody, EmbeddingsBody, embed
from edge_llm.server.ollama.embed import embeddings as ollama_embeddings
from edge_llm.server.ollama.generate import GenerateBody
from edge_llm.server.ollama.known import ps, root, show, tags
from edge_llm.server.ollama.known import version as ollama_version
from edge_llm.server.ollama.options import ShowBody
from edge_llm.server.ollama.pull import PullBody, pull
from edge_llm.server.ollama.stored import CopyBody, blob, copy_model, create, delete, push
from edge_llm.server.openapi import Bodies, openapi
from edge_llm.server.page import page
from edge_llm.server.pool import ModelPool
from edge_llm.server.responses import ResponsesBody, input_tokens, responses
from edge_llm.server.status import health, metrics, props, version
from edge_llm.server.stored import ResponseStore
from edge_llm.server.text import (
    DetokenizeBody,
    TemplateBody,
    TokenizeBody,
    apply_template,
    detokenize,
    tokenize,
    tokenizer_info,
)

API = [
    Route("/chat/completions", chat_completions, methods=["POST"]),
    Route("/chat/completions/input_tokens", chat_tokens, methods=["POST"]),
    Route("/completions", completions, methods=["POST"]),
    Route("/embeddings", embeddings, methods=["POST"]),
    Route("/rerank", rerank, methods=["POST"]),
    Route("/responses", responses, methods=["POST"]),
    Route("/responses/input_tokens", input_tokens, methods=["POST"]),
    Route("/responses/{id}", kept_response, methods=["GET", "DELETE"]),
    Route("/responses/{id}/input_items", input_items, methods=["GET"]),
    Route("/messages", messages, methods=["POST"]),
    Route("/messages/count_tokens", count_tokens, methods=["POST"]),
    Route("/models", list_models),
    Route("/models/load", load_model, methods=["POST"]),
    Route("/models/unload", unload_model, methods=["POST"]),
    Route("/models/{name:path}", one_model),
]
"""Below /v1, and without it for clients whose base address lacks it."""

LLAMA_CPP = [
    Route("/completion", native_completion, methods=["POST"]),
    Route("/completions", either_completion(CompletionBody), methods=["POST"]),
    Route("/infill", infill, methods=["POST"]),
    Route("/models", llama_models),
    Route("/slots", slots),
    Route("/slots/{id:int}", slot_action, methods=["POST"]),
]
"""llama.cpp's own, before those of `API` that have the same path without /v1."""

OLLAMA_API = [
    Route("/chat", chat, methods=["POST"]),
    Route("/generate", generate, methods=["POST"]),
    Route("/embed", embed, methods=["POST"]),
    Route("/embeddings", ollama_embeddings, methods=["POST"]),
    Route("/tags", tags),
    Route("/ps", ps),
    Route("/version", ollama_version),
    Route("/show", show, methods=["POST"]),
    Route("/pull", pull, methods=["POST"]),
    Route("/copy", copy_model, methods=["POST"]),
    Route("/delete", delete, methods=["DELETE"]),
    Route("/create", create, methods=["POST"]),
    Route("/push", push, methods=["POST"]),
    Route("/blobs/{digest:path}", blob, methods=["POST", "HEAD"]),
]
"""Ollama's, below /api."""

ROUTES = [
    Route("/", root),
    Route("/web/{name:path}", page),
    Route("/health", health),
    Route("/ping", health, methods=["GET", "POST"]),
    Route("/metrics", metrics),
    Route("/props", props),
    Route("/openapi.json", openapi),
    Route("/docs", docs),
    Route("/version", version),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/tokenizer_info", tokenizer_info),
    Route("/detokenize", detokenize, methods=["POST"]),
    Route("/apply-template", apply_template, methods=["POST"]),
    Mount("/api", app=Router(OLLAMA_API, redirect_slashes=False)),
    Mount("/v1", app=Router([Route("/health", health), *API], redirect_slashes=False)),
    *LLAMA_CPP,
    *API,
]

BODIES: Bodies = {
    chat_completions: ChatBody, chat_tokens: ChatBody, completions: CompletionBody, embeddings: EmbeddingBody,
    rerank: RerankBody, native_completion: NativeBody, infill: InfillBody,
    responses: ResponsesBody, input_tokens: ResponsesBody, messages: MessagesBody, count_tokens: CountBody,
    chat: OllamaChatBody, generate: GenerateBody, embed: EmbedBody, ollama_embeddings: EmbeddingsBody, show: ShowBody,
    pull: PullBody, copy_model: CopyBody, delete: ShowBody,
    tokenize: TokenizeBody, detokenize: DetokenizeBody, apply_template: TemplateBody,
    load_model: OneModel, unload_model: OneModel,
}  # fmt: skip
"""What each of them reads, for the documents."""


def create_app(pool: ModelPool, access: Access | None = None) -> Starlette:
    """The server of ``pool``'s models for whom ``access`` lets in; an ASGI application."""
    app = Starlette(
        routes=ROUTES,
        middleware=[Middleware(Guards, access=access or Access(), pool=pool)],
        # the guards answer what is left
        exception_handlers={404: on_unknown_route, HTTPException: on_error, EdgeLLMError: on_error},
    )
    app.router.redirect_slashes = False
    app.state.pool = pool
    app.state.responses = ResponseStore()
    app.state.bodies = BODIES
    return app
