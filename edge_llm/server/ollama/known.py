"""GET /api/tags, /api/ps and /api/version, POST /api/show: which models there are, and what is known of each."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

import edge_llm
from edge_llm.config import ModelConfig
from edge_llm.decoding.defaults import generation_defaults, sampling
from edge_llm.errors import EdgeLLMError
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.manifest import MANIFEST
from edge_llm.models import describe
from edge_llm.opening.library import InstalledModel, installed
from edge_llm.paths import find_bundle
from edge_llm.server.lending import pool_of, read_body
from edge_llm.server.ollama.lent import own_name, tagged
from edge_llm.server.ollama.options import ShowBody
from edge_llm.server.ollama.shapes import NEVER, written
from edge_llm.server.page import page
from edge_llm.server.pool import ModelStatus
from edge_llm.server.schemas import ignored_header
from edge_llm.talk.wish import Wish
from edge_llm.text.infill import infill_tokens
from edge_llm.text.template_files import DEFAULT_TEMPLATE, read_templates
from edge_llm.text.tokenizer import Tokenizer

SPOKEN_VERSION = "0.12.6"
"""The version of Ollama whose API this is: clients look whether it is new enough for them."""


async def root(request: Request) -> Response:
    """The chat page for a browser, and for Ollama's clients the words by which they know that somebody is there."""
    if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        return await page(request)
    return PlainTextResponse("Ollama is running", headers={"Vary": "Accept"})


async def version(request: Request) -> JSONResponse:
    """Which API this is, and which program."""
    return JSONResponse({"version": SPOKEN_VERSION, "edge_llm": edge_llm.__version__})


async def tags(request: Request) -> JSONResponse:
    """Every model that may be asked for, by each of its names."""
    pool = pool_of(request)
    models = pool.models()
    known = await asyncio.to_thread(lambda: [_known(model) for model in models])
    rows = [_row(name, one, model.parent) for model, one in zip(models, known, strict=True) for name in model.names]
    return JSONResponse({"models": rows})


async def ps(request: Request) -> JSONResponse:
    """The models that are loaded, how large each is, and until when it stays."""
    pool = pool_of(request)
    models = [model for model in pool.models() if model.host is not None and model.host.ready]
    known = await asyncio.to_thread(lambda: [_known(model) for model in models])
    return JSONResponse({"models": [_loaded(model, one) for model, one in zip(models, known, strict=True)]})


async def show(request: Request) -> JSONResponse:
    """What is known of a model: its family, sizes, template, parameters and capabilities."""
    pool = pool_of(request)
    body = await read_body(request, ShowBody.parse)
    own = pool.find(await own_name(request, body.named))
    model = next(model for model in pool.models() if own in model.names)
    found = await pool.workshop.work(request, partial(_shown, model))
    return JSONResponse(found, headers=ignored_header(body.ignored()))


@dataclass(frozen=True)
class _Known:
    """What is known of a model."""

    config: ModelConfig | None = None
    parameters: int = 0
    size: int = 0
    """Bytes of all its files, or of its weights where those are not known."""
    precision: str = ""
    template: str = ""
    sampling: Mapping[str, Any] | None = None
    """How its author wants answers sampled."""
    modified: float = 0.0
    """When it was imported, in seconds since 1970."""
    digest: str = ""
    """Of its manifest, which has checksums of all the rest."""


def _known(model: ModelStatus) -> _Known:
    """From its bundle, or where it is no model by name from the engine that has it loaded."""
    try:
        if not model.parent:  # what an adapter is called may be a model's name here
            return _on_disk(find_bundle(model.names[0]))
    except EdgeLLMError:
        pass
    return _in_memory(model)


def _on_disk(folder: Path) -> _Known:
    with open_bundle(folder) as bundle:
        facts: InstalledModel = installed(folder.name, bundle)
        defaults = generation_defaults(bundle.generation_config)
        template = read_templates(folder).usual or DEFAULT_TEMPLATE
    manifest = folder / MANIFEST
    digest = hashlib.sha256(manifest.read_bytes()).hexdigest()
    return _Known(
        bundle.config, facts.parameters, facts.nbytes, facts.precision, template, sampling(defaults.served),
        manifest.stat().st_mtime, digest,
    )  # fmt: skip


def _in_memory(model: ModelStatus) -> _Known:
    if model.host is None or not model.host.ready:
        return _Known()
    engine = model.host.engine
    config, facts = engine.config, engine.facts
    digest = hashlib.sha256(repr((model.names[0], config, facts)).encode()).hexdigest()
    return _Known(
        config, describe(config).parameters, facts.weights_bytes, facts.precision, engine.template.source,
        sampling(engine.served), 0.0, digest,
    )  # fmt: skip


def _row(name: str, known: _Known, parent: str = "") -> dict[str, Any]:
    called = tagged(name)
    return {
        "name": called,
        "model": called,
        "modified_at": written(known.modified),
        "size": known.size,
        "digest": known.digest,
        "details": _details(known, parent),
    }


def _details(known: _Known, parent: str) -> dict[str, Any]:
    family = known.config.family if known.config else ""
    return {
        "parent_model": parent,
        "format": "edge-llm",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _short(known.parameters),
        "quantization_level": known.precision.upper(),
    }


def _short(parameters: int) -> str:
    """`494.03M`, `1.5B`, as Ollama has it."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if parameters >= size:
            return f"{parameters / size:.4g}{unit}"
    return str(parameters)


def _loaded(model: ModelStatus, known: _Known) -> dict[str, Any]:
    row = _row(model.names[0], known, model.parent)
    del row["modified_at"]
    until = NEVER if model.until is None else written(model.until)
    context = model.host.context if model.host is not None else None
    return row | {"size": model.nbytes or known.size, "size_vram": 0, "expires_at": until, "context_length": context}


def _shown(model: ModelStatus) -> dict[str, Any]:
    known = _known(model)
    fills = _fills_gaps(model, known)
    parameters = [f"{name:<30} {value}" for name, value in (known.sampling or {}).items() if isinstance(value, int | float)]
    return {
        "license": "",
        "modelfile": f"# imported by edge-llm\nFROM {model.parent or model.names[0]}\n",
        "parameters": "\n".join(parameters),
        "template": (_SUFFIX if fills else "") + known.template,
        "system": "",
        "details": _details(known, model.parent),
        "model_info": _info(known),
        "capabilities": [*_capabilities(known), *(["insert"] if fills else [])],
        "modified_at": written(known.modified or time.time()),
    }


_SUFFIX = "{# .Suffix #}"
"""A comment before the template of a model that fills gaps: Continue looks whether Ollama's word for that is there."""


def _fills_gaps(model: ModelStatus, known: _Known) -> bool:
    """Whether its tokenizer has tokens for `suffix`."""
    if model.host is not None and model.host.ready:
        return infill_tokens(model.host.engine.tokenizer) is not None
    if known.config is None:
        return False
    return infill_tokens(Tokenizer.from_folder(find_bundle(model.names[0]), known.config.vocab_size)) is not None


def _capabilities(known: _Known) -> list[str]:
    """What requests may ask of it: tools are explained to a model whose template knows none."""
    if known.config is not None and describe(known.config).is_encoder:
        return ["embedding"]
    thinks = Wish(True).fulfilled(known.template)
    return ["completion", "tools", *(["thinking"] if thinks else [])]


def _info(known: _Known) -> dict[str, Any]:
    """Sizes in GGUF's names."""
    config = known.config
    if config is None:
        return {}
    decoder = describe(config)
    attention = decoder.attentions[0]
    family = config.family
    return {
        "general.architecture": family,
        "general.parameter_count": known.parameters,
        f"{family}.context_length": config.context,
        f"{family}.embedding_length": config.hidden_size,
        f"{family}.block_count": len(decoder.layers),
        f"{family}.attention.head_count": attention.heads,
        f"{family}.attention.head_count_kv": attention.kv_heads,
        f"{family}.vocab_size": config.vocab_size,
    }
