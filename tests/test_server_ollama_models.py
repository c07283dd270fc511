"""Models that Ollama's clients bring, copy and delete: progress by lines, names, and what is refused."""

import json
from threading import Event

import pytest
from serving import client_of, hosted

from edge_llm.errors import EdgeLLMError
from edge_llm.paths import models_folder
from edge_llm.progress import Step
from edge_llm.server import limits
from edge_llm.server.ollama import pull as pulling

pytestmark = pytest.mark.thorough(file=3)

STEPS = [Step("download", 5, 10), Step("layers", 1, 2)]


class Fetched:
    """An import that is played."""

    made = ()

    def __init__(self, source, error=None, wait=None):
        self.source, self._error, self._wait = source, error, wait
        self.cancelled = False

    def __iter__(self):
        yield from STEPS
        if self._wait is not None:
            self._wait.wait(60)
        if self._error is not None:
            raise self._error

    def cancel(self):
        self.cancelled = True
        if self._wait is not None:
            self._wait.set()


@pytest.fixture
def http(engine):
    with client_of(hosted(engine=engine)) as client:
        yield client


def lines(response):
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(one) for one in response.text.splitlines()]


def names():
    folder = models_folder()
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_a_pull_tells_how_far_it_is(http, monkeypatch):
    """HTTP | ollama | `/api/pull` of a short name or a hub id tells by lines how far it is; the last one is `success`."""
    asked = []
    monkeypatch.setattr(pulling, "fetch", lambda source: asked.append(Fetched(source)) or asked[-1])
    first, download, layers, last = lines(http.post("/api/pull", json={"model": "qwen3:0.6b"}))
    assert first == {"status": "pulling manifest"} and last == {"status": "success"}
    assert (download["completed"], download["total"], download["digest"]) == (5, 10, "Qwen/Qwen3-0.6B")
    assert "layers 1 of 2" in layers["status"]
    assert http.post("/api/pull", json={"name": "hf.co/org/tiny:Q4_K_M", "stream": False}).json() == {"status": "success"}
    assert [one.source for one in asked] == ["Qwen/Qwen3-0.6B", "org/tiny:Q4_K_M"]


def test_a_pull_that_fails_says_why(http, monkeypatch):
    """HTTP | ollama | A pull that fails ends with a line `{"error": text}`, or with a status where it is not streamed."""
    monkeypatch.setattr(pulling, "fetch", lambda source: Fetched(source, EdgeLLMError("no space is left")))
    assert lines(http.post("/api/pull", json={"model": "org/tiny"}))[-1] == {"error": "no space is left"}
    response = http.post("/api/pull", json={"model": "org/tiny", "stream": False})
    assert (response.status_code, response.json()) == (500, {"error": "no space is left"})


def test_what_is_here_is_no_work(http):
    for name in ("builtin", "builtin:latest"):
        told = lines(http.post("/api/pull", json={"model": name}))
        assert [line["status"] for line in told] == ["pulling manifest", "success"]


@pytest.mark.parametrize(
    "name", ["qwen3:999b", "nonsense", "/etc", "../x", "./builtin", "a/b/c", "file:///etc", "org/tiny:odd tag"]
)
def test_a_name_is_never_a_path(http, name):
    """HTTP | ollama | What can be pulled is on a hub: a path is 404, like an unknown name, with names that are near."""
    response = http.post("/api/pull", json={"model": name})
    assert response.status_code in (400, 404) and list(response.json()) == ["error"]
    if name == "qwen3:999b":
        assert "qwen3:0.6b" in response.json()["error"]


def test_few_are_pulled_at_a_time(http, monkeypatch):
    """HTTP | ollama | More than two pulls at a time are 429; a client that leaves stops its own, which is resumed later."""
    made = []
    monkeypatch.setattr(pulling, "fetch", lambda source: made.append(Fetched(source, wait=Event())) or made[-1])
    streams = [http.stream("POST", "/api/pull", json={"model": f"org/tiny{at}"}) for at in range(limits.PULLS)]
    read = [stream.__enter__().iter_lines() for stream in streams]  # kept: an iterator that goes takes its connection along
    assert [json.loads(next(one)) for one in read] == [{"status": "pulling manifest"}] * limits.PULLS
    assert http.post("/api/pull", json={"model": "org/more"}).status_code == 429
    for stream in streams:
        stream.__exit__(None, None, None)
    assert all(one._wait.wait(60) for one in made) and all(one.cancelled for one in made)


def test_a_copy_is_a_model_of_its_own(http):
    """HTTP | ollama | `/api/copy` gives a model a second name, `/api/delete` removes it; neither takes paths."""
    assert http.post("/api/copy", json={"source": "builtin:latest", "destination": "mine:8b"}).status_code == 200
    assert names() == ["mine-8b"]
    assert http.post("/api/copy", json={"source": "builtin", "destination": "mine-8b"}).status_code == 400
    assert http.request("DELETE", "/api/delete", json={"name": "mine-8b:latest"}).status_code == 200
    assert names() == []


@pytest.mark.parametrize(
    ("body", "status"),
    [({"model": "builtin"}, 400), ({"model": "an/alias"}, 400), ({"model": "other"}, 404), ({"model": "../x"}, 400), ({}, 400)],
)
def test_what_cannot_be_deleted(http, body, status):
    """HTTP | ollama | The model that is served, and the built-in one, cannot be deleted; an unknown one is 404."""
    response = http.request("DELETE", "/api/delete", json=body)
    assert response.status_code == status and list(response.json()) == ["error"]


@pytest.mark.parametrize("body", [{"source": "other", "destination": "x"}, {"source": "../builtin", "destination": "x"}])
def test_what_is_not_here_cannot_be_copied(http, body):
    assert http.post("/api/copy", json=body).status_code == 404
    assert http.post("/api/copy", json={"source": "builtin", "destination": "../x"}).status_code == 400
    assert names() == []
