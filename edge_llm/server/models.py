"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse

from edge_llm.decoding.defaults import sampling
from edge_llm.engine.engine import Engine
from edge_llm.models import describe
from edge_llm.server import limits
from edge_llm.server.host import ModelHost
from edge_llm.server.lending import kept, lend, pool_of, read_body
from edge_llm.server.pool import ModelPool, ModelStatus
from edge_llm.server.schemas import NamesModel
from edge_llm.talk.wish import Wish


async def list_models(request: Request) -> JSONResponse:
    """Every name that a request may give; answers while models are loading, too."""
    pool = pool_of(request)
    entries = [model_entry(pool, one, name) for one in pool.models() for name in one.names]
    return JSONResponse(_listed(request, entries))


class OneModel(NamesModel):
    """A request about one model."""

    model: str = Field(max_length=limits.MODEL_CHARACTERS)


async def load_model(request: Request) -> JSONResponse:
    """Load a model, as the first request for it would; answers when it is loaded."""
    body = await read_body(request, OneModel.parse)
    await lend(request, body.model, kept(body))
    return JSONResponse({"success": True})


async def unload_model(request: Request) -> JSONResponse:
    """Unload a model when the answers under way have ended; `success` is whether it was loaded and is not any more."""
    body = await read_body(request, OneModel.parse)
    return JSONResponse({"success": await pool_of(request).unload(body.model)})


async def one_model(request: Request) -> JSONResponse:
    """What is known of one name."""
    pool, name = pool_of(request), request.path_params["name"]
    found = next((one for one in pool.models() if name in one.names), None)
    if found is None:
        raise pool.unknown(name)
    return JSONResponse(_shaped(request, model_entry(pool, found, name)))


def _listed(request: Request, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The list of ``entries`` in the shape of the API whose client sent ``request``."""
    data = [_shaped(request, entry) for entry in entries]
    if _VERSION not in request.headers:
        return {"object": "list", "data": data}
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return {"data": data, "has_more": False, **ends}


def _shaped(request: Request, entry: dict[str, Any]) -> dict[str, Any]:
    """``entry`` in the same way."""
    if _VERSION not in request.headers:
        return entry
    created = datetime.fromtimestamp(entry["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    most = entry.get("max_model_len")
    limits = {} if most is None else {"max_input_tokens": most, "max_tokens": most}
    return {"type": "model", "id": entry["id"], "display_name": entry["id"], "created_at": created, **limits}


_VERSION = "anthropic-version"
"""The header that Anthropic's clients send, and no others."""


def capabilities(engine: Engine) -> dict[str, bool]:
    """What can be asked of ``engine``'s model."""
    template, writes = engine.template, not engine.is_encoder
    return {
        "completion": writes,
        "chat": writes and not template.is_default,
        "tools": writes,
        "native_tools": template.shape.tools,
        "thinking": writes and (template.shape.thinks or Wish(True).fulfilled(template.source)),
        "structured_outputs": writes,
        "logprobs": writes,
        "embeddings": True,
        "vision": False,
        "audio": False,
    }


def model_entry(pool: ModelPool, model: ModelStatus, name: str) -> dict[str, Any]:
    """What is told of ``model`` by one ``name`` of it."""
    entry: dict[str, Any] = {"id": name, "object": "model", "created": pool.created, "owned_by": "edge-llm"}
    if model.parent:
        entry["parent"] = model.parent
    entry["status"] = {"value": model.state}
    if model.state == "loading":
        stage, done, total = model.progress
        entry["status"]["progress"] = {"stage": stage, "done": done, "total": total}
    if model.nbytes is not None:
        entry["status"]["memory_bytes"] = model.nbytes
    if model.until is not None:
        entry["status"]["until"] = round(model.until, 3)
    return entry if model.host is None or not model.host.ready else entry | _facts(model.host)


def _facts(host: ModelHost) -> dict[str, Any]:
    """What is known of a model that is loaded."""
    engine, entry = host.engine, dict[str, Any]()
    entry["max_model_len"] = entry["context_length"] = engine.runner.context
    entry["capabilities"] = capabilities(engine)
    entry["sampling"] = {"people": sampling(engine.defaults), "clients": sampling(engine.served)}
    entry["architecture"] = {"input_modalities": ["text"], "output_modalities": ["text"]}
    entry["meta"] = {
        "n_ctx": engine.runner.context,
        "n_ctx_train": engine.config.context,
        "n_params": describe(engine.config).parameters,
        "size": engine.facts.weights_bytes,
        "precision": engine.facts.precision,
        "bits_per_weight": engine.facts.bits_per_weight,
        "n_embd": engine.config.hidden_size,
        "n_vocab": engine.config.vocab_size,
        **asdict(engine.runner.site),
        "plan": engine.plan,
    }
    return entry
