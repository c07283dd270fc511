"""The routes, and what stands before them."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Mount, Route, Router

from edge_llm.errors import EdgeLLMError
from edge_llm.server.anthropic import count_tokens, messages
from edge_llm.server.chat import chat_completions
from edge_llm.server.completions import completions
from edge_llm.server.embeddings import embeddings
from edge_llm.server.faces import on_error, on_unknown_route
from edge_llm.server.guards import Access, Guards
from edge_llm.server.models import list_models, one_model
from edge_llm.server.page import page
from edge_llm.server.pool import ModelPool
from edge_llm.server.responses import responses
from edge_llm.server.status import health, metrics, props, version
from edge_llm.server.text import apply_template, detokenize, tokenize, tokenizer_info

API = [
    Route("/chat/completions", chat_completions, methods=["POST"]),
    Route("/completions", completions, methods=["POST"]),
    Route("/embeddings", embeddings, methods=["POST"]),
    Route("/responses", responses, methods=["POST"]),
    Route("/messages", messages, methods=["POST"]),
    Route("/messages/count_tokens", count_tokens, methods=["POST"]),
    Route("/models", list_models),
    Route("/models/{name:path}", one_model),
]
"""Below /v1, and without it for clients whose base address lacks it."""

ROUTES = [
    Route("/", page),
    Route("/health", health),
    Route("/metrics", metrics),
    Route("/props", props),
    Route("/version", version),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/tokenizer_info", tokenizer_info),
    Route("/detokenize", detokenize, methods=["POST"]),
    Route("/apply-template", apply_template, methods=["POST"]),
    Mount("/v1", app=Router([Route("/health", health), *API], redirect_slashes=False)),
    *API,
]


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
    return app
