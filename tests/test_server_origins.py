"""Pages of other origins: the headers of the official clients pass a browser's question, and only listed origins get a yes."""

import contextlib
import http.server
import threading

import anthropic
import httpx
import openai
import pytest
from serving import HandService, client_of, hosted, serving

from edge_llm.server.guards import Access

PAGE = "https://chat.example"
ASK = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def listed(engine):
    with client_of(hosted(HandService(), engine), origins=(PAGE, "https://Slash.example/")) as client:
        yield client


@pytest.fixture(scope="module")
def everyone(engine):
    with client_of(hosted(engine=engine), origins=("*",)) as client:
        yield client


@contextlib.contextmanager
def recorder():
    """The address of a server that refuses everything, and the names of all headers that it was sent."""
    names = set()

    class Refuse(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            names.update(name.lower() for name in self.headers)
            self.rfile.read(int(self.headers["content-length"]))
            self.send_error(500)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuse)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", names
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def sent_by_the_clients():
    """Names of the headers that the official clients send, with those of helpers, projects and beta features."""
    with recorder() as (url, names):
        chat = openai.OpenAI(api_key="k", organization="o", project="p", base_url=f"{url}/v1", max_retries=0)
        claude = anthropic.Anthropic(api_key="k", base_url=url, max_retries=0)
        for work in (
            lambda: chat.chat.completions.create(model="m", messages=ASK, timeout=9),
            lambda: chat.chat.completions.stream(model="m", messages=ASK).__enter__(),
            lambda: claude.messages.create(model="m", messages=ASK, max_tokens=1),
            lambda: claude.beta.messages.create(model="m", messages=ASK, max_tokens=1, betas=["x"]),
        ):
            with pytest.raises((openai.APIError, anthropic.APIError)):
                work()
    return names


def test_a_page_may_send_the_headers_of_the_official_clients(listed):
    """HTTP | all | `--allow-origin`: a preflight allows the headers of the official SDKs, and exposes ours."""
    wanted = sent_by_the_clients()
    assert {"x-stainless-lang", "openai-organization", "anthropic-beta", "authorization"} <= wanted
    question = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": ",".join(wanted)}
    answer = listed.options("/v1/chat/completions", headers=question)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
    assert set(answer.headers["access-control-allow-headers"].split(", ")) == wanted
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "x-edge-llm-ignored" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [("X-A, x-b", "X-A, x-b"), ("x a, \x7f, x:y, ok", "ok"), ("", "authorization,"), ("x" * 200, "authorization,")],
)
def test_only_names_of_headers_are_repeated(listed, asked, allowed):
    answer = listed.options("/", headers={"Origin": PAGE, "Access-Control-Request-Headers": asked})
    assert answer.headers["access-control-allow-headers"].startswith(allowed)


@pytest.mark.parametrize(
    ("origin", "readers"), [(PAGE, PAGE), ("https://slash.example", "https://slash.example"), ("https://other.example", None)]
)
def test_only_listed_pages_are_answered(listed, origin, readers):
    answer = listed.get("/version", headers={"Origin": origin})
    assert (answer.status_code, answer.headers.get("access-control-allow-origin")) == (200 if readers else 403, readers)


@pytest.mark.parametrize(
    ("origin", "good"),
    [
        ("http://localhost", True), ("http://127.0.0.1:3000", True), ("https://[::1]:8080", True),
        ("http://localhost.evil.com", False), ("http://notlocalhost", False), ("http://localhost:1@evil.com", False),
    ],
)  # fmt: skip
def test_localhost_is_every_port_of_this_machine(origin, good):
    """llama.cpp | all | `--allow-origin localhost` lets pages of this machine in, whatever their port, and no other."""
    assert Access(origins=frozenset({"localhost"})).readers(origin) == (origin if good else None)


@pytest.mark.parametrize("origin", [PAGE, "https://other.example", "null", "chrome-extension://abc"])
def test_a_star_is_every_page(everyone, origin):
    """HTTP | all | `--allow-origin '*'` lets every page in; names in the Host header are checked all the same."""
    body = {"messages": ASK, "max_tokens": 1, "verbosity": "low"}
    for answer in (
        everyone.options("/v1/models", headers={"Origin": origin, "Access-Control-Request-Headers": "x-stainless-os"}),
        everyone.post("/v1/chat/completions", json=body, headers={"Origin": origin, "Sec-Fetch-Site": "cross-site"}),
    ):
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers
    assert everyone.get("/version", headers={"Origin": origin, "Host": "evil.com"}).status_code == 403


def test_without_a_list_no_page_of_others_is_let_in(engine):
    with serving(hosted(HandService(), engine)) as url:
        assert httpx.get(f"{url}/version", headers={"Origin": "*"}).status_code == 403


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/json"}, {"Content-Type": "text/plain"}])
@pytest.mark.parametrize("path", ["/v1/nothing", "/apis/chat", "/v1/chat/completions/x", "/%1b[31m", "/v1/messages/batches"])
def test_an_unknown_post_is_404_with_its_path(listed, path, headers):
    """HTTP | all | A POST to a path that is not there is 404 and names it, whatever its type."""
    answer = listed.post(path, content=b"{}", headers=headers)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 404
    assert f"POST {path}".replace("%1b", "\\x1b") in message
