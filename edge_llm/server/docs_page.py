"""GET /docs: what /openapi.json says, for people: a page that runs nothing and asks nobody."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse

import edge_llm
from edge_llm.server.openapi import Operation, operations
from edge_llm.server.page import FOLDER

ORDER = ("OpenAI", "Models", "Anthropic", "Ollama", "llama.cpp", "Text", "Server")
_STYLE = (FOLDER / "docs.css").read_text()
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


async def docs(request: Request) -> HTMLResponse:
    """The same for people: a page that runs nothing and asks nobody."""
    found = operations(request.app.routes, request.app.state.bodies)
    return HTMLResponse(page(found, request.url.netloc), headers=HEADERS)


def page(found: Sequence[Operation], address: str) -> str:
    """The page of ``found``, which a server at ``address`` (host and port) answers."""
    tags = [tag for tag in ORDER if any(one.tag == tag for one in found)]
    links = "".join(f'<a href="#{_name(tag)}">{tag}</a>' for tag in tags)
    ask = """curl %s/v1/chat/completions --json '{"messages": [{"role": "user", "content": "Hello"}]}'"""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>edge-llm: the API</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
        f"<h1>edge-llm <small>{edge_llm.__version__}</small></h1><p>What this server answers, as "
        '<a href="openapi.json">openapi.json</a> has it for programs. Where it asks for a key, send '
        f"<code>Authorization: Bearer KEY</code>.</p><pre tabindex=0>{escape(ask % address)}</pre>"
        "<p>Fields are honoured; or they are hints, which change nothing and are named in the answer's header "
        "<code>x-edge-llm-ignored</code>; or they are refused with their name.</p>"
        f'<nav aria-label="Parts">{links}</nav>'
        + "".join(_part(tag, [one for one in found if one.tag == tag]) for tag in tags)
        + "</body></html>"
    )


def _name(tag: str) -> str:
    return re.sub(r"\W", "", tag.lower())


def _part(tag: str, found: Sequence[Operation]) -> str:
    return f'<h2 id="{_name(tag)}">{tag}</h2><section>{"".join(map(_row, found))}</section>'


def _row(one: Operation) -> str:
    path = re.sub(r":\w+\}", "}", one.path)
    head = f"<b>{one.method.upper()}</b><code>{escape(path)}</code><span>{_marked(one.summary)}</span>"
    fields = "".join(
        f'<tr class="{how}"><td><code>{escape(name)}</code><td>{how}<td>{_marked(note)}' for name, how, note in one.fields()
    )
    if not fields:
        return f'<div class="plain">{head}</div>'
    return f"<details><summary>{head}</summary><table><tr><th>field<th>is<th>{fields}</table></details>"


def _marked(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))
