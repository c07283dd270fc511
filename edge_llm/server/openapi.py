"""GET /openapi.json and /docs: what can be asked, made from the routes, the bodies and the table of fields."""

from __future__ import annotations

import base64
import hashlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse
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
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}"
    "code{font:13px/1.4 ui-monospace,monospace}summary{cursor:pointer;padding:.4rem 0}"
    "table{border-collapse:collapse;width:100%}"
    "td,th{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0;border-top:1px solid #ddd}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}td,th{border-color:#444}a{color:#8bf}}"
)
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class Operation:
    """One thing that can be asked."""

    method: str
    path: str
    summary: str
    body: type[Body] | None

    @property
    def title(self) -> str:
        return f"{self.method.upper()} {self.path}"

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
        Operation(method.lower(), path, _summary(route), bodies.get(route.endpoint))
        for path, route in found
        if f"/v1{path}" not in below
        for method in sorted((route.methods or set()) - {"HEAD"})
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
    }


async def openapi(request: Request) -> JSONResponse:
    """The OpenAPI 3.1 document of this server."""
    return JSONResponse(document(operations(request.app.routes, request.app.state.bodies)))


async def docs(request: Request) -> HTMLResponse:
    """The same for people: a page that runs nothing and asks nobody."""
    return HTMLResponse(page(operations(request.app.routes, request.app.state.bodies)), headers=HEADERS)


def page(found: Sequence[Operation]) -> str:
    """The page of ``found``."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>edge-llm</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style><h1>edge-llm {edge_llm.__version__}</h1>'
        '<p>What this server answers. The same as <a href="openapi.json">OpenAPI</a>. Fields are honoured; or they are hints, '
        "which change nothing and are named in <code>x-edge-llm-ignored</code>; or they are refused with their name.</p>"
        + "".join(map(_section, found))
        + "</html>"
    )


def _section(one: Operation) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code><td>{how}<td>{_marked(note)}" for name, how, note in one.fields()
    )
    table = f"<table><tr><th>field<th>is<th>{rows}</table>" if rows else ""
    return f"<details><summary><code>{escape(one.title)}</code> {_marked(one.summary)}</summary>{table}</details>"


def _marked(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _routes(routes: Sequence[BaseRoute], before: str = "") -> Iterator[tuple[str, Route]]:
    for route in routes:
        if isinstance(route, Mount):
            yield from _routes(route.routes, before + route.path)
        elif isinstance(route, Route):
            yield before + route.path, route


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
    answers: dict[str, Any] = {"application/json": {}}
    if one.body is not None and "stream" in one.body.model_fields:
        answers["text/event-stream"] = {}
    found: dict[str, Any] = {
        "summary": one.summary,
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
