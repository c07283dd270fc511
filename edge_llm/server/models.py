"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from edge_llm.decoding.defaults import sampling
from edge_llm.models import describe
from edge_llm.server.host import ModelHost
from edge_llm.server.lending import pool_of
from edge_llm.server.pool import ModelPool, ModelStatus


async def list_models(request: Request) -> JSONResponse:
    """Every name that a request may give; answers while models are loading, too."""
    pool = pool_of(request)
    return JSONResponse({"object": "list", "data": [_entry(pool, one, name) for one in pool.models() for name in one.names]})


async def one_model(request: Request) -> JSONResponse:
    """What is known of one name."""
    pool, name = pool_of(request), request.path_params["name"]
    found = next((one for one in pool.models() if name in one.names), None)
    if found is None:
        raise pool.unknown(name)
    return JSONResponse(_entry(pool, found, name))


def _entry(pool: ModelPool, model: ModelStatus, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": name, "object": "model", "created": pool.created, "owned_by": "edge-llm"}
    entry["status"] = {"value": model.state}
    return entry if model.host is None or not model.host.ready else entry | _facts(model.host)


def _facts(host: ModelHost) -> dict[str, Any]:
    """What is known of a model that is loaded."""
    engine, entry = host.engine, dict[str, Any]()
    entry["max_model_len"] = engine.runner.context
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
    }
    return entry
