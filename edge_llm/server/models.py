"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from edge_llm.decoding.defaults import sampling
from edge_llm.models import describe
from edge_llm.server.host import ModelHost


async def list_models(request: Request) -> JSONResponse:
    """The names of the one model; answers while it is loading, too."""
    host: ModelHost = request.app.state.host
    return JSONResponse({"object": "list", "data": [_entry(host, name) for name in host.names]})


async def one_model(request: Request) -> JSONResponse:
    """What is known of one name."""
    host: ModelHost = request.app.state.host
    return JSONResponse(_entry(host, host.check_name(request.path_params["name"])))


def _entry(host: ModelHost, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": name, "object": "model", "created": host.created, "owned_by": "edge-llm"}
    if not host.ready:
        return entry | {"status": {"value": "loading"}}
    engine = host.engine
    entry["status"] = {"value": "loaded"}
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
