"""GET /openapi.json: what can be asked, made from the routes, the bodies and the table of fields."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Mount, Route

import edge_llm
from edge_llm.server.fields import NOTES, Rule
from edge_llm.server.schemas import Body

Bodies = Mapping[Callable[..., Any], type[Body]]
"""What each endpoint reads."""
HONOURED, HINT, REFUSED = "honoured", "hint", "refused"
_SCHEMAS = "#/components/schemas/{model}"
_SECRET: list[dict[str, list[str]]] = [{"bearer": []}, {"header": []}, {}]
_ERROR = {"type": "object", "properties": {"error": {"type": "object"}}}
_TAGS = {
    "/v1/messages": "Anthropic", "/v1/rerank": "llama.cpp", "/v1/health": "Server", "/v1/models": "Models", "/v1": "OpenAI",
    "/api": "Ollama", "/completion": "llama.cpp", "/infill": "llama.cpp", "/slots": "llama.cpp", "/props": "llama.cpp",
    "/tokenize": "Text", "/detokenize": "Text", "/tokenizer_info": "Text", "/apply-template": "Text",
}  # fmt: skip
"""Whose routes begin with what, the first that fits; others are the server's own."""
_KINDS = {"PlainTextResponse": "text/plain", "HTMLResponse": "text/html"}
"""Media types of answers that are no JSON, by what an endpoint returns."""


@dataclass(frozen=True)
class Operation:
    """One thing that can be asked."""

    method: str
    path: str
    summary: str
    body: type[Body] | None
    kind: str = "application/json"
    """Media type of the answer."""

    @property
    def title(self) -> str:
        return f"{self.method.upper()} {self.path}"

    @property
    def tag(self) -> str:
        """Whose API it belongs to."""
        return next((tag for start, tag in _TAGS.items() if f"{self.path}/".startswith(f"{start}/")), "Server")

    def fields(self) -> list[tuple[str, str, str]]:
        """(name, `HONOURED`, `HINT` or `REFUSED`, note) of every field that is known."""
        if self.body is None:
            return []
        declared, rules = self.body.model_fields, self.body.rules
        found = [(name, HONOURED, NOTES.get(name, "")) for name in sorted(declared)]
        found += [(rule.name, HINT, rule.note) for rule in _others(rules, declared) if not rule.is_refused]
        return found + [(rule.name, REFUSED, _refusal(rule)) for rule in _others(rules, declared) if rule.is_refused]


def operations(routes: Sequence[BaseRoute], bodies: Bodies) -> list[Operation]:
    """Everything that ``routes`` answer; what is there below /v1 is not listed without it, too."""
    found = [*_routes(routes)]
    below = {path for path, _ in found}
    return [
        Operation(method.lower(), path, _summary(route), bodies.get(route.endpoint), _kind(path, route))
        for path, route in found
        if f"/v1{path}" not in below
        for method in sorted(_methods(route))
    ]


def document(found: Sequence[Operation]) -> dict[str, Any]:
    """The OpenAPI document of ``found``."""
    models = {one.body for one in found if one.body is not None}
    schemas: dict[str, Any] = {}
    for model in sorted(models, key=lambda model: model.__name__):
        schema = model.model_json_schema(ref_template=_SCHEMAS)
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = _told(schema, model)
    paths: dict[str, dict[str, Any]] = {}
    for one in found:
        paths.setdefault(re.sub(r":\w+\}", "}", one.path), {})[one.method] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "edge-llm", "version": edge_llm.__version__, "summary": "A local language model."},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": _SECRET,
        "tags": [{"name": tag} for tag in dict.fromkeys(one.tag for one in found)],
    }


async def openapi(request: Request) -> JSONResponse:
    """The OpenAPI 3.1 document of this server."""
    return JSONResponse(document(operations(request.app.routes, request.app.state.bodies)))


def _routes(routes: Sequence[BaseRoute], before: str = "") -> Iterator[tuple[str, Route]]:
    for route in routes:
        if isinstance(route, Mount):
            yield from _routes(route.routes, before + route.path)
        elif isinstance(route, Route):
            yield before + route.path, route


def _methods(route: Route) -> set[str]:
    """What ``route`` answers; a GET answers HEAD without saying so."""
    methods = route.methods or set()
    return methods - {"HEAD"} if "GET" in methods else methods


def _kind(path: str, route: Route) -> str:
    if path.startswith("/web/"):
        return "*/*"
    return "text/html" if path == "/" else _KINDS.get(route.endpoint.__annotations__.get("return", ""), "application/json")


def _summary(route: Route) -> str:
    return (inspect.getdoc(route.endpoint) or route.name).splitlines()[0]


def _others(rules: Sequence[Rule], declared: Mapping[str, Any]) -> list[Rule]:
    return sorted((rule for rule in rules if rule.name not in declared), key=lambda rule: rule.name)


def _refusal(rule: Rule) -> str:
    idle = ", ".join(f"`{value}`".lower() for value in rule.idle)
    return "; ".join(part for part in (rule.note, f"{idle} is taken" if idle else "") if part)


def _told(schema: dict[str, Any], model: type[Body]) -> dict[str, Any]:
    """``schema`` of ``model`` with the notes of the table."""
    for name, of in schema["properties"].items():
        of.pop("title", None)
        of |= {"description": NOTES[name]} if name in NOTES else {}
    others = _others(model.rules, model.model_fields)
    hints = {rule.name: {"description": f"Without effect. {rule.note}".strip()} for rule in others if not rule.is_refused}
    refusals = {rule.name: _refusal(rule) for rule in others if rule.is_refused}
    return schema | {"properties": schema["properties"] | hints, "x-edge-llm-refused": refusals}


def _operation(one: Operation) -> dict[str, Any]:
    answers: dict[str, Any] = {one.kind: {}}
    if one.body is not None and "stream" in one.body.model_fields:
        answers["application/x-ndjson" if one.tag == "Ollama" else "text/event-stream"] = {}
    found: dict[str, Any] = {
        "summary": one.summary,
        "tags": [one.tag],
        "operationId": re.sub(r"\W+", "_", one.title.lower()).strip("_"),
        "responses": {
            "200": {"description": "The answer.", "content": answers},
            "default": {"description": "An error.", "content": {"application/json": {"schema": _ERROR}}},
        },
    }
    if names := re.findall(r"\{(\w+)", one.path):
        found["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    if one.body is not None:
        schema = {"$ref": _SCHEMAS.format(model=one.body.__name__)}
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return found
