"""Who may talk to the server: keys, Host, Origin, content types, sizes; every route, before any work."""

import asyncio
import contextlib
import hashlib
import http.client
import json
import re
import resource
import select
import socket
import threading
import time

import httpx
import pytest
from serving import HandService, client_of, hosted, serving
from starlette.exceptions import HTTPException

from edge_llm.errors import Unavailable, UsageError
from edge_llm.server import limits, page
from edge_llm.server.app import API, ROUTES
from edge_llm.server.connection import Connection
from edge_llm.server.guards import OPEN_PATHS, Access, _bounded
from edge_llm.server.run import ServeOptions, access_for, listen

pytestmark = pytest.mark.thorough(file=16)

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
HTML = {"Accept": "text/html"}
POSTS = [route.path for route in ROUTES if "POST" in (getattr(route, "methods", None) or ()) and route.path != "/ping"]
GETS = [route.path for route in ROUTES if "GET" in (getattr(route, "methods", None) or ())]


@pytest.fixture(scope="module")
def open_client(engine):
    with client_of(hosted(engine=engine), origins=("https://chat.example",)) as client:
        yield client


@pytest.fixture(scope="module")
def locked(engine):
    service = HandService()
    with client_of(hosted(service, engine), keys=("right", "also right")) as client:
        yield client, service


# ---- keys


@pytest.mark.parametrize("path", [*POSTS, *["/v1" + route.path for route in API if "POST" in route.methods]])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "right"}, {"x-api-key": ""}])
def test_no_route_works_without_the_key(locked, path, headers):
    """HTTP | all | With a key set, a missing or wrong one is 401 `invalid_api_key`."""
    client, service = locked
    response = client.post(path, json=CHAT, headers=headers)
    assert response.status_code == 401
    assert response.json()["error"].get("code", "invalid_api_key") == "invalid_api_key"
    assert service.streams == []


@pytest.mark.parametrize("path", [path for path in GETS if "{" not in path])
def test_only_the_page_and_the_health_are_open(locked, path):
    client, _ = locked
    assert (client.get(path).status_code == 200) == (path in OPEN_PATHS)


@pytest.mark.parametrize(
    "headers",
    [{"Authorization": "Bearer right"}, {"authorization": "bearer also right"}, {"x-api-key": "right"}, {"api-key": "right"}],
)
def test_any_of_the_keys_in_any_of_the_usual_headers_works(locked, headers):
    """HTTP | all | Keys are read from `Authorization: Bearer`, `x-api-key` and `api-key`."""
    client, _ = locked
    assert client.get("/v1/models", headers=headers).status_code == 200


def test_without_keys_every_key_is_welcome(open_client):
    assert open_client.get("/v1/models", headers={"Authorization": "Bearer anything"}).status_code == 200


def test_a_key_beyond_ascii_is_just_wrong():
    assert not Access(("right",)).knows_key("rïght")
    assert not Access(("right",)).knows_key(None)


# ---- web pages

HOSTS = {
    "localhost": True, "localhost:{port}": True, "127.0.0.1:{port}": True, "[::1]:{port}": True, "LOCALHOST": True,
    "0.0.0.0": False, "evil.com": False, "evil.com:{port}": False, "localhost.evil.com": False, "127.0.0.1.nip.io": False,
    "": False, "localhost.": False, "localhost:": False, "127.0.0.1@evil.com": False, "127.0.0.1:80:80": False,
}  # fmt: skip
ORIGINS = {
    None: True, "{same}": True, "https://chat.example": True, "null": False, "http://evil.com": False, "file://": False,
    "chrome-extension://abc": False, "https://chat.example.evil.com": False, "http://chat.example": False,
}  # fmt: skip


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("host", HOSTS)
def test_only_own_hosts_and_listed_origins_reach_a_handler(open_client, host, origin):
    """HTTP | all | Host and Origin are compared with exact lists (DNS rebinding, foreign pages)."""
    port = open_client.base_url.port
    headers = {"Host": host.format(port=port)}
    if origin is not None:
        headers["Origin"] = origin.format(same=f"http://{headers['Host']}")
    good = HOSTS[host] and ORIGINS[origin]
    for method, path in (("GET", "/version"), ("OPTIONS", "/v1/models"), ("POST", "/tokenize")):
        sent = {"content": "hi"} if method == "POST" else None
        response = open_client.request(method, path, headers=headers, json=sent)
        assert (response.status_code == 200) == good, (method, response.text)
        allowed = response.headers.get("access-control-allow-origin")
        assert allowed == ("https://chat.example" if origin == "https://chat.example" else None)
        assert "access-control-allow-credentials" not in response.headers
        assert "access-control-allow-private-network" not in response.headers


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-origin", 200), ("none", 200)])
def test_a_browser_that_says_cross_site_is_believed(open_client, site, status):
    assert open_client.get("/version", headers={"Sec-Fetch-Site": site}).status_code == status


def raw(client, data, seconds=60.0):
    """What the server answers to ``data`` before it closes or goes silent."""
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=seconds) as connection:
        connection.sendall(data)
        found = b""
        try:
            while piece := connection.recv(65536):
                found += piece
                if b"\r\n\r\n" in found:
                    break
        except TimeoutError:
            pass
        return found


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("GET /health HTTP/1.0", "", 200), ("HEAD /health HTTP/1.0", "", 200), ("GET /v1/health/ HTTP/1.0", "", 200),
        ("OPTIONS / HTTP/1.0", "", 200), ("OPTIONS /health HTTP/1.0", "User-Agent: check\r\n", 200),
        ("GET / HTTP/1.0", "", 403), ("GET /version HTTP/1.0", "", 403), ("POST /health HTTP/1.0", "", 403),
        ("GET /health HTTP/1.0", "Host: evil.com\r\n", 403), ("OPTIONS / HTTP/1.0", "Host: evil.com\r\n", 403),
        ("GET /health HTTP/1.0", "Origin: http://evil.com\r\n", 403), ("GET /health HTTP/1.0", "Host: localhost\r\n", 200),
        ("GET /health HTTP/1.0", "Origin: null\r\n", 403), ("GET /health HTTP/1.1", "", 400),
    ],
)  # fmt: skip
def test_a_probe_of_http_1_0_needs_no_host(open_client, line, headers, status):
    """HTTP | health | A supervisor's HTTP/1.0 probe without Host (HAProxy's) sees `/health`; nothing else is open to it."""
    answer = raw(open_client, f"{line}\r\n{headers}\r\n".encode())
    assert answer.split()[1] == str(status).encode(), answer


@pytest.mark.parametrize("second", ["localhost", "evil.com"])
def test_two_hosts_are_refused(open_client, second):
    answer = raw(open_client, f"GET /version HTTP/1.1\r\nHost: localhost\r\nHost: {second}\r\n\r\n".encode())
    assert answer.split(b" ")[1] in (b"400", b"403")


# ---- transport


@pytest.mark.parametrize(
    "content_type",
    [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json5",
     "application/json; charset=utf-16", "text/plain; application/json"],
)  # fmt: skip
def test_a_post_that_a_page_could_send_unasked_is_415(open_client, content_type):
    """HTTP | all | A POST must say `Content-Type: application/json`."""
    headers = {} if content_type is None else {"Content-Type": content_type}
    response = open_client.post("/v1/chat/completions", content=b'{"messages": []}', headers=headers)
    assert (response.status_code, response.json()["error"]["type"]) == (415, "invalid_request_error")


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"]
)
def test_json_in_utf8_is_read(open_client, content_type):
    response = open_client.post("/tokenize", content=b'{"content": "x"}', headers={"Content-Type": content_type})
    assert response.status_code == 200


def test_a_compressed_body_is_not_unpacked(open_client):
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert open_client.post("/tokenize", content=b"\x1f\x8b", headers=headers).status_code == 415


def body_of(size):
    return b'{"user": "' + b" " * (size - 12) + b'"}'


@pytest.mark.parametrize(("extra", "status"), [(0, 200), (1, 413)])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_may_be_as_long_as_its_limit(open_client, extra, status, chunked):
    """HTTP | all | A body past its limit is 413, told by its length or by its bytes."""
    data = body_of(limits.MIN_BODY_BYTES + extra)
    assert len(data) == limits.MIN_BODY_BYTES + extra
    sent = iter([data[:1000], data[1000:]]) if chunked else data
    response = open_client.post("/v1/completions", content=sent, headers={"Content-Type": "application/json"})
    assert response.status_code == status


def test_a_body_of_gigabytes_is_refused_unread(open_client):
    head = (
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10000000000\r\n\r\n"
    )
    assert b" 413 " in raw(open_client, head).split(b"\r\n")[0], "though nothing of it comes"


def test_a_long_context_allows_a_long_body():
    assert limits.body_bytes(None) == limits.body_bytes(1024) == 4 << 20
    assert limits.body_bytes(1 << 20) == 8 << 20


def header_lines(count, size=1):
    return b"".join(b"x-%d: %s\r\n" % (n, b"a" * size) for n in range(count))


@pytest.mark.parametrize(("count", "size", "good"), [(99, 1, True), (100, 1, False), (1, 15 << 10, True), (1, 16 << 10, False)])
def test_headers_have_a_limit(open_client, count, size, good):
    answer = raw(open_client, b"GET /version HTTP/1.1\r\nHost: localhost\r\n" + header_lines(count, size) + b"\r\n")
    assert answer.split(b" ")[1] in ((b"200",) if good else (b"431", b"400"))


def test_a_header_without_end_is_cut_off(open_client):
    assert b" 400 " in raw(open_client, b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"a" * (1 << 17)).split(b"\r\n")[0]


# ---- slowness

TOKENIZE = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture
def hurried(engine, monkeypatch):
    """A server with little patience."""
    for name in ("HEADER_SECONDS", "BODY_SECONDS", "IDLE_SECONDS", "READER_SECONDS"):
        monkeypatch.setattr(limits, name, 0.4)
    monkeypatch.setattr(limits, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(limits, "BODY_BYTES_PER_SECOND", 1000)
    monkeypatch.setattr(limits, "READER_BYTES_PER_SECOND", 1 << 30)
    with client_of(hosted(HandService(), engine)) as client:
        yield client


def until_closed(connection, seconds=60.0):
    """All that comes before the server closes ``connection``; fails if it does not."""
    connection.settimeout(seconds)
    found = b""
    try:
        while piece := connection.recv(1 << 16):
            found += piece
    except ConnectionResetError:
        pass
    return found


def connected(client):
    return socket.create_connection((client.base_url.host, client.base_url.port), timeout=60)


def test_a_request_that_stops_anywhere_ends_its_connection(hurried):
    """Every beginning of three requests in a row, and then silence."""
    body = b'{"content": "hi"}'
    whole = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n" + TOKENIZE % len(body) + body + TOKENIZE % 1000 + body
    connections = []
    for length in range(0, len(whole) + 1, 3):
        connections.append(connected(hurried))
        connections[-1].sendall(whole[:length])
    for connection in connections:
        until_closed(connection)


@pytest.mark.parametrize("before", [b"", b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"])
@pytest.mark.parametrize(
    "slow", [b"GET /version HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 9999, TOKENIZE % 9999 + b" " * 9999]
)
def test_a_trickle_is_408_in_the_first_request_and_in_the_next(hurried, before, slow):
    """HTTP | all | Headers have 10 s; a body 30 s and one more per 2,048 bytes: 408, and the connection is closed."""
    head = len(TOKENIZE) if b"POST" in slow else 40
    with connected(hurried) as connection:
        connection.sendall(before + slow[:head])
        sent = head
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while not select.select([connection], [], [], 0.02)[0] or b"408" not in connection.recv(1 << 16):
                connection.sendall(slow[sent : sent + 1])
                sent += 1
                assert sent < head + 400, "the trickle goes on"
        assert sent > head + 2, "it was waited for"


def test_a_silent_connection_is_closed_without_a_word(hurried):
    with connected(hurried) as connection:
        assert until_closed(connection) == b""


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nHost: loc", TOKENIZE % 10 + b"{"])
def test_what_does_not_come_is_408_in_json(hurried, head):
    with connected(hurried) as connection:
        connection.sendall(head)
        answer = until_closed(connection)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


class Ahead(asyncio.SelectorEventLoop):
    """An event loop that waits for no time: where it would, its clock goes ahead."""

    def __init__(self):
        super().__init__()
        self._ahead, wait = 0.0, self._selector.select

        def select(timeout):
            self._ahead += timeout or 0.0
            return wait(0)

        self._selector.select = select

    def time(self):
        return self._ahead


@pytest.mark.parametrize(
    ("size", "pause", "comes"),
    [(2048, 0.9, True), (1 << 16, 29.0, True), (1, 0.01, True), (1 << 16, 31.0, False), (1, 0.2, False), (2048, 1.2, False)],
)
def test_a_slow_honest_upload_survives_and_a_trickle_does_not(size, pause, comes):
    """A thousand pieces of ``size`` bytes, each ``pause`` seconds behind the one before."""

    async def upload():
        left = 1000

        async def receive():
            nonlocal left
            await asyncio.sleep(pause)
            left -= 1
            return {"type": "http.request", "body": b"a" * size, "more_body": left > 0}

        receive_bounded = _bounded(receive, 1 << 30)
        while left:
            await receive_bounded()

    with asyncio.Runner(loop_factory=Ahead) as runner:
        if comes:
            runner.run(upload())
        else:
            with pytest.raises(HTTPException, match="too slowly"):
                runner.run(upload())


def test_a_body_behind_an_early_answer_is_not_read_for_ever(hurried):
    with connected(hurried) as connection:
        connection.sendall((TOKENIZE % 10**9).replace(b"/tokenize", b"/nothing"))
        assert connection.recv(1 << 16)[9:12] in (b"404", b"413")
        end = time.monotonic() + 60
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while time.monotonic() < end:
                connection.sendall(b"a")
                time.sleep(0.02)


@pytest.fixture
def left(monkeypatch):
    """Set when the server has left a client that does not read."""
    happened, usual = threading.Event(), Connection._reader_is_gone

    def reader_is_gone(connection, now):
        gone = usual(connection, now)
        if gone:
            happened.set()
        return gone

    monkeypatch.setattr(Connection, "_reader_is_gone", reader_is_gone)
    return happened


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("closing", [False, True])
def test_who_does_not_read_its_answer_is_left(hurried, left, closing):
    body = json.dumps({"content": "a b " * 400_000, "with_pieces": True}).encode()
    head = TOKENIZE % len(body)
    with connected(hurried) as connection:
        connection.sendall((head.replace(b"Host", b"Connection: close\r\nHost") if closing else head) + body)
        begun = connection.recv(4096)
        assert begun.startswith(b"HTTP/1.1 200 ")
        assert left.wait(60)
        found = until_closed(connection)
        assert not found.endswith(b"0\r\n\r\n"), "the rest was kept for who does not read"


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"GET /\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n\r\n\r\n",
     b"nonsense\r\n\r\n",
     b"GET /version HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
     b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
     b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
     b"ffffffffffffffff\r\n{}"],
)  # fmt: skip
def test_what_is_not_http_does_no_harm(open_client, data):
    raw(open_client, data, seconds=0.3)
    assert open_client.get("/health").status_code == 200


@pytest.mark.parametrize("wait", [0.0, 0.2])
@pytest.mark.parametrize("line", [b"POST /tokenize", b"POST /nothing", b"POST /version", b"HEAD /version", b"HEAD /tokenize"])
def test_a_body_that_breaks_the_protocol_leaves_no_traceback(open_client, caplog, line, wait):
    """Before, while and after the route answers."""
    head = b"%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" % line
    with connected(open_client) as connection:
        connection.sendall(head + b"1\r\n{\r\n")
        time.sleep(wait)
        connection.sendall(b"nonsense\r\n")
        assert until_closed(connection)[:12] in (b"HTTP/1.1 200", b"HTTP/1.1 400", b"HTTP/1.1 404", b"HTTP/1.1 405")
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("path", ["//v1/models", "/v1/../health", "/%2e%2e/health", "/%00", "/v2/models", "/v1", "/x" * 4000])
def test_an_unknown_path_is_404_in_json(open_client, path):
    """HTTP | all | Unknown routes and wrong methods are JSON errors (404, 405 with Allow)."""
    connection = http.client.HTTPConnection(open_client.base_url.host, open_client.base_url.port)
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    assert response.status == 404
    assert b'"not_found_error"' in body and b"below /v1/ there are: chat/completions, " in body


@pytest.mark.parametrize(
    ("method", "path", "use"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("GET", "/v1/messages", "POST"),
        ("PUT", "/v1/models", "GET"),
        ("DELETE", "/health", "GET"),
    ],
)
def test_a_wrong_method_is_405_with_what_is_allowed(open_client, method, path, use):
    response = open_client.request(method, path)
    assert response.status_code == 405
    assert use in response.headers["allow"]
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"] == f"there is no `{method} {path}` here; use {use}"


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/v1/models/", "/models/an/alias", "/v1/models/an/alias"])
def test_paths_work_with_and_without_v1_and_slash(open_client, path):
    """HTTP | all | `/v1/...` and `/...`, with or without a trailing slash; HEAD and OPTIONS everywhere."""
    assert open_client.get(path).status_code == 200
    assert open_client.head(path).status_code == 200
    assert open_client.options(path).status_code == 200


def test_a_hundred_pipelined_requests_are_all_answered(open_client):
    data = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100
    with socket.create_connection((open_client.base_url.host, open_client.base_url.port), timeout=60) as connection:
        connection.sendall(data)
        found = b""
        while found.count(b"HTTP/1.1 200") < 100:
            found += connection.recv(65536)


@pytest.fixture
def many_files():
    """Room for both ends of five hundred connections in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 2048:
        pytest.skip(f"a process may have only {hard} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048 if 0 <= soft < 2048 else soft, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_five_hundred_idle_connections_do_not_stop_the_next_one(many_files, open_client):
    address = (open_client.base_url.host, open_client.base_url.port)
    idle = [socket.create_connection(address) for _ in range(500)]
    assert open_client.get("/health").status_code == 200
    for connection in idle:
        connection.close()


# ---- the page


def test_the_page_can_run_nothing_but_its_own_files(open_client):
    """HTTP | page | The chat page at / is a folder of files whose content policy allows these alone."""
    response = open_client.get("/", headers={"Accept": "text/html"})
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    named = re.findall(r'(?:src|href)="([^"#]+)"', response.text)
    assert {f"/{name}" for name in named} < page.PATHS
    assert not re.search(r"<style|style=|<script>|\son\w+=", response.text)


def test_the_page_is_made_of_its_own_files():
    """What a file of ours imports is there; none writes HTML, runs text, or names another address."""
    for path in (file for file in page.FOLDER.glob("*.*") if file.suffix != ".svg"):
        text = path.read_text()
        for name in re.findall(r'(?:from|import) "(\./[^"]+)"', text):
            assert (page.FOLDER / name).is_file(), f"{path.name}: {name}"
        writes = ("innerHTML", "outerHTML =", "insertAdjacentHTML", "document.write")
        for mark in (*writes, "eval(", "new Function", "@import", "url("):
            assert mark not in text, f"{path.name}: {mark}"
        addresses = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not addresses, f"{path.name}: {addresses}"
        assert text.count("\n") <= 400, path.name


def test_other_peoples_files_of_the_page_are_as_they_published_them():
    """Each is named with version, license and checksum; its license text lies beside it."""
    listed = (page.FOLDER / "vendor" / "README.md").read_text()
    files = sorted(path for path in (page.FOLDER / "vendor").iterdir() if path.suffix == ".js")
    assert len(files) == listed.count("sha256")
    for path in files:
        assert hashlib.sha256(path.read_bytes()).hexdigest() in listed, path.name
        assert (path.parent / f"{path.stem}.LICENSE").is_file()


def test_a_file_of_the_page_is_sent_once(locked):
    """HTTP | page | The page's files come without a key, as what they are, and again only when they have changed."""
    client, _ = locked
    for path in page.PATHS:
        response = client.get(path, headers=HTML)
        assert response.status_code == 200, path
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-content-type-options"] == "nosniff"
        kind = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "/": "text/html"}[path.rpartition(".")[2]]
        assert response.headers["content-type"].startswith(kind)
        tag = response.headers["etag"]
        for known in (tag, f"W/{tag}", f'"x", {tag}'):
            again = client.get(path, headers=HTML | {"If-None-Match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert client.get(path, headers=HTML | {"If-None-Match": '"x"'}).status_code == 200


@pytest.mark.parametrize(
    "path", ["/web", "/web/vendor", "/web/nothing.js", "/web/vendor/README.md", "/web/../page.py", "/web/%2e%2e/page.py"]
)
def test_there_is_nothing_else_below_the_page(open_client, locked, path):
    assert open_client.get(path).status_code == 404
    assert locked[0].get(path).status_code == 401


# ---- listening


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_wide_bind_needs_a_key(host):
    with pytest.raises(UsageError, match="api-key"):
        listen(ServeOptions(host=host, port=0))


def test_more_names_can_be_allowed():
    access = access_for(ServeOptions(hosts=("Box.local",), origins=("https://a.example",)))
    assert "box.local" in access.hosts
    assert access.origins == {"https://a.example"}


def test_a_wide_bind_with_a_key_knows_this_machine_by_its_addresses():
    access = access_for(ServeOptions(host="0.0.0.0", keys=("k",)))
    assert {"localhost", "127.0.0.1", "[::1]"} <= access.hosts
    assert "0.0.0.0" not in access.hosts


def test_a_busy_port_is_refused(engine):
    with serving(hosted(HandService(), engine)) as url, pytest.raises(Unavailable, match="choose another with --port"):
        listen(ServeOptions(port=httpx.URL(url).port))


def test_small_answers_are_sent_without_delay(open_client):
    def seconds():
        started = time.perf_counter()
        open_client.get("/version")
        return time.perf_counter() - started

    soon = any(seconds() < 0.03 for _ in range(300))  # on a busy machine not all are
    assert soon, "40 ms is what two pieces take when the second waits for the first one's receipt"


def test_ipv6_loopback_works(engine):
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        listen(ServeOptions(host="::1", port=0)).close()
    except UsageError:
        pytest.skip("no IPv6 loopback here")
    assert "[::1]" in access_for(ServeOptions(host="::1")).hosts
