"""What the server says of itself: the document and the page of its routes, and the table of fields behind both."""

import re
import sys
from pathlib import Path

import pytest
from serving import HandService, client_of, end, hosted
from starlette.routing import Mount
from test_server_stream import play

from edge_llm.engine.request import Delta
from edge_llm.server.app import API, BODIES, ROUTES
from edge_llm.server.docs_page import ORDER
from edge_llm.server.fields import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES
from edge_llm.server.openapi import HONOURED, operations
from edge_llm.server.schemas import IGNORED_HEADER

ROOT = Path(__file__).resolve().parents[1]
ASK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
TABLES = {
    "chat/completions": (CHAT, ASK), "completions": (COMPLETIONS, {"prompt": "x", "max_tokens": 1}),
    "responses": (RESPONSES, {"input": "x", "max_output_tokens": 1}), "messages": (MESSAGES, ASK),
    "embeddings": (EMBEDDINGS, {"input": "x"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def http(engine):
    with client_of(hosted(engine=engine), keys=("secret",)) as client:
        yield client


@pytest.fixture(scope="module")
def document(http):
    return http.get("/openapi.json").json()  # without a key


def reachable(routes, before=""):
    for route in routes:
        if isinstance(route, Mount):
            yield from reachable(route.routes, before + route.path)
        else:
            yield before + route.path, route


def test_answers_are_what_the_document_says(document, http):
    """HTTP | openapi.json | The media types of answers are said, and the API that a route belongs to."""
    for path in ("/metrics", "/docs", "/openapi.json", "/version", "/v1/models"):
        reply = http.get(path, headers={"Authorization": "Bearer secret"})
        kinds = document["paths"][path]["get"]["responses"]["200"]["content"]
        assert [reply.headers["content-type"].partition(";")[0]] == [*kinds]
    for path, stream in (("/api/chat", "application/x-ndjson"), ("/v1/messages", "text/event-stream")):
        assert [*document["paths"][path]["post"]["responses"]["200"]["content"]] == ["application/json", stream]
    used = {tag for path in document["paths"].values() for one in path.values() for tag in one["tags"]}
    assert used == {one["name"] for one in document["tags"]} == {*ORDER}


def references(value):
    if isinstance(value, dict):
        yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


def test_the_document_names_every_route_and_what_it_reads(document):
    """HTTP | openapi.json | OpenAPI 3.1 of all routes, made of the bodies themselves; it needs no key."""
    assert document["openapi"] == "3.1.0"
    for path, route in reachable(ROUTES):
        methods = {method.lower() for method in route.methods if method != "HEAD" or "GET" not in route.methods}
        listed = [document["paths"].get(start + re.sub(r":\w+}", "}", path), {}) for start in ("", "/v1")]
        assert any(methods <= {*found} for found in listed), path
    for route in API:
        path = "/v1" + re.sub(r":\w+}", "}", route.path)
        for method in route.methods - {"HEAD"}:
            operation = document["paths"][path][method.lower()]
            assert operation["summary"] and ("requestBody" in operation) == (method == "POST")
            assert [one["name"] for one in operation.get("parameters", [])] == re.findall(r"{(\w+)", path)
    ids = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(ids) == len({*ids})
    assert not any(path == "/chat/completions" for path in document["paths"])


def test_all_references_lead_somewhere(document):
    found = {*references(document)}
    assert found and all(one.removeprefix("#/components/schemas/") in document["components"]["schemas"] for one in found)


def test_schemas_take_what_the_server_takes(document):
    jsonschema = pytest.importorskip("jsonschema")
    schemas = {"components": document["components"]}
    for path, (_, body) in TABLES.items():
        operation = document["paths"][f"/v1/{path}"]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        jsonschema.validate(body | {"model": "builtin", "of_no_api": 1}, schema | schemas)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(body | {"model": 5}, schema | schemas)


def test_the_page_runs_nothing_and_asks_nobody(http):
    """HTTP | docs | A page of all routes and fields, without a script or an outside request; it needs no key."""
    reply = http.get("/docs")
    assert reply.status_code == 200 and "script-src" not in reply.headers["content-security-policy"]
    assert reply.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
    assert not re.search(r"<script|https?://|//\w|\son\w+=", reply.text)
    for one in operations(API, BODIES):
        assert f">/v1{re.sub(r':[a-z]+}', '}', one.path)}<" in reply.text
    assert "previous_response_id" in reply.text and "x-edge-llm-ignored" in reply.text


@pytest.mark.parametrize("path", TABLES)
def test_the_table_is_what_the_server_does(engine, path):
    """HTTP | all | Each hint of the table of fields is named in the header; each refused field is a 400, but idle values."""
    rules, body = TABLES[path]
    declared = next(one.body for one in operations(API, BODIES) if one.path == f"/{path}").model_fields
    hints = [rule.name for rule in rules if rule.name not in declared and not rule.is_refused]
    service = HandService()
    with client_of(hosted(service, engine)) as client:
        if path != "embeddings":
            play(service, Delta("x", (1,)), end())
            idle = {rule.name: rule.idle[-1] for rule in rules if rule.name not in declared and rule.idle}
            reply = client.post(f"/v1/{path}", json=body | dict.fromkeys(hints, "x") | idle)
            assert reply.status_code == 200, reply.text
            named = reply.headers[IGNORED_HEADER]
            assert all(name in named for name in hints[:16]) and (len(hints) <= 16 or f"{len(hints) - 16} more" in named)
        for name in (rule.name for rule in rules if rule.name not in declared and rule.is_refused):
            reply = client.post(f"/v1/{path}", json=body | {name: "of no use"})
            assert reply.status_code == 400 and name in reply.json()["error"]["message"]


def test_the_table_in_the_documents_is_true():
    sys.path.insert(0, str(ROOT / "assets"))
    try:
        from api_table import PAGE, api_page
    finally:
        sys.path.pop(0)
    assert PAGE.read_text() == api_page(), "run `python assets/api_table.py --write`"


def test_no_field_is_said_twice():
    for one in operations(API, BODIES):
        names = [name for name, how, _ in one.fields()]
        assert len(names) == len({*names})
        assert [how for _, how, _ in one.fields()][:1] in ([], [HONOURED])
