"""GET /health, /metrics, /props and /version: what the server is and how it is."""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse

import edge_llm
from edge_llm.server import limits
from edge_llm.server.host import ModelHost
from edge_llm.server.lending import check_served, lend, pool_of
from edge_llm.server.llama_metrics import llama_lines
from edge_llm.server.llama_settings import generation_settings
from edge_llm.server.metrics import Counted, exposition
from edge_llm.server.problems import problem_of


async def health(request: Request) -> JSONResponse:
    """200 when requests are answered; 503 with the progress while the model loads, or with what keeps it from running."""
    host = pool_of(request).one
    if host is None:
        return JSONResponse({"status": "ok"})
    if host.ready and host.engine.refusal is not None:
        return JSONResponse({"status": "error", **problem_of(host.engine.refusal).openai()}, 503)
    if host.ready:
        return JSONResponse({"status": "ok"})
    stage, done, total = host.progress
    progress = {"stage": stage, "done": done, "total": total, "fraction": round(done / total, 4) if total else 0.0}
    return JSONResponse(
        {
            "status": "loading",
            "progress": progress,
            "error": {
                "message": "the model is still loading", "type": "unavailable_error", "param": None, "code": "unavailable",
            },
        },
        status_code=503,
        headers={"Retry-After": str(limits.RETRY_AFTER_SECONDS)},
    )  # fmt: skip


async def metrics(request: Request) -> PlainTextResponse:
    """Counters, gauges and histograms in Prometheus' text format."""
    check_served(request, "metrics")
    pool = pool_of(request)
    counted = pool.counted()
    text = exposition([Counted(label, found, {} if host is None else _gauges(host)) for label, found, host in counted])
    text += llama_lines([(label, host) for label, _, host in counted if host is not None])
    reply = PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")
    reply.raw_headers.append((b"Process-Start-Time-Unix", str(pool.created).encode()))  # llama.cpp's
    return reply


def _gauges(host: ModelHost) -> dict[str, float]:
    running, waiting = host.service.running, host.service.waiting
    return {
        "requests_processing": running,
        "requests_deferred": waiting,
        "num_requests_running": running,
        "num_requests_waiting": waiting,
        "preemptions": host.engine.batcher.preempted,
        **host.engine.runner.memory.state(),
        **_expert_gauges(host),
    }


def _expert_gauges(host: ModelHost) -> dict[str, float]:
    """What became of experts that come from flash; empty where none do."""
    experts = host.engine.runner.look().experts
    return {} if experts is None else {name: fact for name, fact in experts.facts.items() if fact is not None}


async def props(request: Request) -> JSONResponse:
    """How answers are sampled where a request says nothing, the model's chat template, and what one request may ask for.

    A server of every model tells this of the one that `?model=` names; without it, it says what it is, and loads none.
    """
    named = request.query_params.get("model")
    if pool_of(request).one is None and named is None:
        return JSONResponse(_ROUTER)
    host = await lend(request, named)
    engine = host.engine
    own = {name: value for name, value in asdict(engine.served).items() if value is not None}
    params = generation_settings(engine.served, ()) | own | {"stop_tokens": sorted(engine.served.stop_tokens)}
    return JSONResponse(
        {
            "model": host.names[0],
            "aliases": list(host.names[1:]),
            "n_ctx": engine.runner.context,
            "model_alias": host.names[-1],
            "model_path": host.names[0],
            "modalities": {"vision": False, "audio": False},
            "is_sleeping": False,
            "endpoint_slots": True,
            "endpoint_props": False,
            "endpoint_metrics": True,
            "default_generation_settings": {"n_ctx": engine.runner.context, "params": params},
            "chat_template": engine.template.source,
            "chat_template_is_default": engine.template.is_default,
            "bos_token": engine.tokenizer.bos_text,
            "eos_token": engine.tokenizer.eos_text,
            "total_slots": engine.batcher.most_running,
            "limits": {**limits_table(engine.runner.context), "parallel": engine.batcher.most_running},
            "plan": engine.plan,
            "build_info": f"edge-llm {edge_llm.__version__}",
        }
    )


_ROUTER = {
    "role": "router", "max_instances": 0, "models_autoload": True, "model_alias": "edge-llm", "model_path": "none",
    "default_generation_settings": {"params": {}, "n_ctx": 0}, "build_info": f"edge-llm {edge_llm.__version__}",
}  # fmt: skip
"""As llama.cpp's server says it where it serves many models, as many at a time as fit."""


def limits_table(context: int) -> dict[str, float]:
    """Every limit by its name."""
    named = {name.lower(): value for name, value in vars(limits).items() if name.isupper()}
    return {**named, "body_bytes": limits.body_bytes(context)}


async def version(request: Request) -> JSONResponse:
    """The version of edge-llm."""
    return JSONResponse({"version": edge_llm.__version__})
