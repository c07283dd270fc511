"""Models that a server loads when they are asked for: waits, room, idle time, and never another model's answer."""

import json
import math
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from scripted_engine import scripted
from serving import client_of, serving
from test_server_run import served

from edge_llm.config import RuntimeConfig
from edge_llm.engine.service import BatchingService
from edge_llm.errors import CorruptBundle, EdgeLLMError, ModelNotFound, UsageError
from edge_llm.opening.ledger import Ledger, MemoryNeeds
from edge_llm.paths import builtin_bundle, bundle_path
from edge_llm.providers.base import Wanted
from edge_llm.providers.remote import RemoteCatalogue
from edge_llm.server import limits
from edge_llm.server.keep_alive import keep_alive_seconds
from edge_llm.server.on_demand import OnDemandPool
from edge_llm.server.shelf import ImportedModels, SizedModel

pytestmark = pytest.mark.thorough(file=5)

SIZE = 100
ASK = {"messages": [{"role": "user", "content": "who are you"}]}


class ScriptedShelf:
    """Models that say their names; a gate may hold up the loading of one, and one named `broken` cannot be loaded."""

    def __init__(self, engine, names="abc", size=SIZE):
        self._engine, self._names, self._size = engine, (*names, "broken", "large"), size
        self.loads = []
        self.gates = {}

    def names(self):
        return self._names

    def default(self):
        return self._names[0]

    def plan(self, name):
        return SizedModel(name, MemoryNeeds(weights=SIZE * 50 if name == "large" else self._size))

    def unknown(self, name):
        return ModelNotFound(f"no model `{name}` here", model=name)

    def load(self, name, progress):
        self.loads.append(name)
        progress("weights", 1, 4)
        if name in self.gates:
            self.gates[name].wait(300)
            progress("weights", 4, 4)
        if name == "broken":
            raise CorruptBundle("this bundle is broken")
        engine = scripted(self._engine, f"I am {name} and nobody else, whatever you think of it.")
        engine.runner.site = self._engine.runner.site
        return engine, BatchingService(engine)


@pytest.fixture
def shelf(engine):
    return ScriptedShelf(engine)


def pool_of(shelf, room=2, **options):
    return OnDemandPool(shelf, Ledger(main=room * SIZE), **options)


def said(client, name, **more):
    """What the model ``name`` says, whole."""
    found = client.post("/v1/chat/completions", json=ASK | {"model": name} | more)
    assert found.status_code == 200, found.text
    assert found.headers["x-edge-llm-model"] == name
    return found.json()["choices"][0]["message"]["content"]


def streamed(client, name, on_comment=lambda: None):
    """What the model ``name`` says in a stream; ``on_comment`` is called for each comment among the events."""
    data = []
    with client.stream("POST", "/v1/chat/completions", json=ASK | {"model": name, "stream": True}) as reply:
        for line in reply.iter_lines():
            if line[:1] == ":":
                on_comment()
            if line.startswith("data: {"):
                data.append(json.loads(line[6:]))
    return "".join(one["choices"][0]["delta"].get("content") or "" for one in data)


def states(client):
    return {one["id"]: one["status"]["value"] for one in client.get("/v1/models").json()["data"]}


def until(state):
    """Wait for what ``state`` tells."""
    end = time.monotonic() + 120
    while not state():
        assert time.monotonic() < end, "it never comes"
        time.sleep(0.005)


def test_a_model_is_loaded_by_the_request_that_names_it(shelf):
    """HTTP | models | Without a model, `serve` loads the one that a request names; `/v1/models` has `status` and its size."""
    with client_of(pool_of(shelf, room=3)) as client:
        assert set(states(client).values()) == {"unloaded"}
        assert client.get("/health").json() == {"status": "ok"}
        for name in "abab":
            assert said(client, name).startswith(f"I am {name} ")
        assert shelf.loads == ["a", "b"]
        assert states(client) == {"a": "loaded", "b": "loaded", "c": "unloaded", "broken": "unloaded", "large": "unloaded"}
        listed = client.get("/v1/models/a").json()
        assert (listed["status"]["memory_bytes"], listed["max_model_len"]) == (SIZE, 1024)
        assert client.post("/v1/chat/completions", json=ASK).headers["x-edge-llm-model"] == "b"  # used last


def test_least_recently_used_models_make_room(shelf):
    """HTTP | models | Under a budget that holds two of three, the one that was used longest ago is unloaded for the third."""
    with client_of(pool_of(shelf)) as client:
        for name in "abac":
            assert said(client, name).startswith(f"I am {name} ")
        assert shelf.loads == ["a", "b", "c"]
        assert {name for name, state in states(client).items() if state == "loaded"} == {"a", "c"}


def test_a_model_that_never_fits_says_both_sizes(engine):
    """HTTP | models | A model that the budget cannot hold is a 400 with both sizes, and unloads nothing."""
    shelf = ScriptedShelf(engine)
    with client_of(pool_of(shelf)) as client:
        said(client, "a")
        found = client.post("/v1/chat/completions", json=ASK | {"model": "large"})
        assert (found.status_code, found.json()["error"]["code"]) == (400, "out_of_memory")
        assert "`large` takes 0 MiB and the memory for models is 0 MiB" in found.json()["error"]["message"]
        assert states(client)["a"] == "loaded"


def test_a_model_that_cannot_be_loaded_leaves_the_others(shelf):
    """HTTP | models | A model that cannot be loaded is an error each time; others answer, and its memory is free again."""
    with client_of(pool_of(shelf)) as client:
        said(client, "a")
        for _ in range(2):
            found = client.post("/v1/chat/completions", json=ASK | {"model": "broken"})
            assert (found.status_code, found.json()["error"]["code"]) == (500, "corrupt_bundle")
        assert said(client, "b").startswith("I am b ")
        assert shelf.loads == ["a", "broken", "broken", "b"]
        assert [state for state in states(client).values() if state == "loaded"] == ["loaded"] * 2


def test_an_unknown_name_is_404(shelf):
    """HTTP | models | Where several models are served, a name that none has is 404 `model_not_found`."""
    with client_of(pool_of(shelf)) as client:
        for more in ({}, {"stream": True}):
            found = client.post("/v1/chat/completions", json=ASK | {"model": "gpt-4o"} | more)
            assert (found.status_code, found.json()["error"]["code"]) == (404, "model_not_found")
        assert client.get("/v1/models/gpt-4o").status_code == 404


def test_idle_models_go(shelf):
    """HTTP | models | `keep_alive` of a request says how long its model stays: 0 not at all, `5m`, -1 for ever."""
    with client_of(pool_of(shelf)) as client:
        said(client, "a", keep_alive=0)
        until(lambda: states(client)["a"] == "unloaded")
        said(client, "a", keep_alive="10m")
        stays = client.get("/v1/models/a").json()["status"]["until"] - time.time()
        assert 500 < stays <= 600
        said(client, "a", keep_alive=-1)
        assert "until" not in client.get("/v1/models/a").json()["status"]
        found = client.post("/v1/chat/completions", json=ASK | {"model": "a", "keep_alive": "soon"})
        assert (found.status_code, found.json()["error"]["param"]) == (400, "keep_alive")


def test_models_are_loaded_and_unloaded_by_name(shelf):
    """HTTP | models | POST /models/load and /models/unload; a model that is not loaded is `success`: false."""
    with client_of(pool_of(shelf)) as client:
        assert client.post("/models/load", json={"model": "b"}).json() == {"success": True}
        assert states(client)["b"] == "loaded"
        assert client.post("/models/unload", json={"model": "b"}).json() == {"success": True}
        assert states(client)["b"] == "unloaded"
        assert client.post("/models/unload", json={"model": "b"}).json() == {"success": False}
        assert client.post("/models/unload", json={"model": "nobody"}).status_code == 404


def test_requests_wait_while_a_model_loads(shelf, monkeypatch):
    """HTTP | models | While a model loads, requests for it wait; a stream begins, and is kept alive by comments."""
    monkeypatch.setattr(limits, "KEEP_ALIVE_SECONDS", 0.05)
    gate = shelf.gates["a"] = threading.Event()
    with client_of(pool_of(shelf)) as client, ThreadPoolExecutor(4) as others:
        waited = [threading.Event() for _ in range(2)]
        streams = [others.submit(streamed, client, "a", event.set) for event in waited]
        whole = others.submit(said, client, "a")
        until(lambda: states(client)["a"] == "loading")
        assert client.get("/v1/models/a").json()["status"]["progress"] == {"stage": "weights", "done": 1, "total": 4}
        assert said(client, "b").startswith("I am b ")  # nobody else is held up
        assert all(event.wait(120) for event in waited)
        gate.set()
        assert whole.result().startswith("I am a ")
        assert [stream.result() for stream in streams] == [whole.result()] * 2
        assert shelf.loads == ["a", "b"]


def test_a_wait_has_an_end(shelf, monkeypatch):
    """HTTP | models | A request that has waited long for its model is 503 with the progress and Retry-After."""
    gate = shelf.gates["a"] = threading.Event()
    with client_of(pool_of(shelf)) as client, ThreadPoolExecutor(1) as others:
        first = others.submit(said, client, "a")
        until(lambda: "progress" in (status := client.get("/v1/models/a").json()["status"]) and status["progress"]["done"])
        monkeypatch.setattr(limits, "LOAD_SECONDS", 0.1)
        found = client.post("/v1/chat/completions", json=ASK | {"model": "a"})
        gate.set()
        assert found.status_code == 503 and "retry-after" in found.headers
        assert "`a` is still loading (weights 25%)" in found.json()["error"]["message"]
        assert first.result().startswith("I am a ")


def test_a_late_stream_tells_its_error_in_the_stream(shelf, monkeypatch):
    monkeypatch.setattr(limits, "KEEP_ALIVE_SECONDS", 0.02)
    gate = shelf.gates["broken"] = threading.Event()
    with client_of(pool_of(shelf)) as client:
        with client.stream("POST", "/v1/chat/completions", json=ASK | {"model": "broken", "stream": True}) as reply:
            gate.set()  # it has begun
            lines = [line for line in reply.iter_lines() if line and line[0] != ":"]
        assert json.loads(lines[0][6:])["error"]["code"] == "corrupt_bundle"
        assert lines[1:] == ["data: [DONE]"]


def test_a_stream_that_began_before_its_model_was_there_names_it(shelf, monkeypatch):
    """HTTP | models | `x-edge-llm-model` is in the answer of a stream that began while its model was loaded, too."""
    monkeypatch.setattr(limits, "KEEP_ALIVE_SECONDS", 0.02)
    gate = shelf.gates["a"] = threading.Event()
    with client_of(pool_of(shelf)) as client:
        with client.stream("POST", "/v1/chat/completions", json=ASK | {"model": "a", "stream": True}) as reply:
            assert reply.headers["x-edge-llm-model"] == "a"
            gate.set()
            chunks = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: {")]
            assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks).startswith("I am a ")
        assert "x-edge-llm-model" not in client.post("/v1/chat/completions", json=ASK | {"model": "broken"}).headers


def test_slots_and_metrics_of_several_models(shelf):
    """HTTP | models | `/slots` has those of all loaded models, `/metrics` a label `model`; neither loads one."""
    pool = pool_of(shelf, room=3)
    pool.tags = ("small",)
    with client_of(pool) as client:
        assert client.get("/slots").json() == client.get("/slots?model=a").json() == []
        assert "llamacpp" not in client.get("/metrics").text
        for name in "ab":
            said(client, name)
        slots = client.get("/slots").json()
        assert [slot["id"] for slot in slots] == [*range(len(slots))]
        assert [slot["model"] for slot in slots] == ["a"] * (len(slots) // 2) + ["b"] * (len(slots) // 2)
        assert {slot["model"] for slot in client.get("/slots?model=b").json()} == {"b"}
        assert client.get("/slots?model=nobody").status_code == 404
        assert client.get("/slots?model=c").json() == []
        lines = client.get("/metrics").text.splitlines()
        for name in ("llamacpp:tokens_predicted_total", "edge_llm_tokens_predicted_total", "edge_llm_requests_processing"):
            assert sum(line.startswith(f"# TYPE {name} ") for line in lines) == 1
            assert {f'{name}{{model="{one}"}}' for one in "ab"} <= {line.split()[0] for line in lines}
        assert {tuple(one["tags"]) for one in client.get("/models").json()["data"]} == {("small",)}
        assert shelf.loads == ["a", "b"]


def test_a_chat_with_a_server_opens_a_model_there(shelf):
    """Its rows say what is loaded; a model that is not is loaded when it is chosen, and told from one that never fits."""
    gate = shelf.gates["b"] = threading.Event()
    seen = []

    def progress(*step):
        seen.append(step)
        gate.set()

    with serving(pool_of(shelf)) as url:
        catalogue = RemoteCatalogue(url)
        assert {row.is_unloaded for row in catalogue.rows()} == {True}
        opened = catalogue.open(Wanted("b"), progress)
        assert (opened.facts.name, opened.facts.context, shelf.loads) == ("b", 1024, ["b"])
        assert seen and {step[0] for step in seen} == {"the server loads it"}
        assert catalogue.open(Wanted(None), progress).facts.name == "b"
        for name, kind, words in (("large", UsageError, "takes"), ("broken", EdgeLLMError, "this bundle is broken")):
            with pytest.raises(kind, match=words):
                catalogue.open(Wanted(name), progress)
        assert shelf.loads == ["b", "broken"]


def test_a_client_that_leaves_while_loading_costs_nobody_anything(shelf):
    """HTTP | models | A client that leaves while its model waits for memory asks for nothing any more: no model goes for it."""
    gate = shelf.gates["b"] = threading.Event()
    with client_of(pool_of(shelf, room=1)) as client, ThreadPoolExecutor(2) as others:
        waiting = others.submit(said, client, "b")
        until(lambda: shelf.loads == ["b"])
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/chat/completions", json=ASK | {"model": "a"}, timeout=httpx.Timeout(60, read=0.2))
        until(lambda: states(client)["a"] == "unloaded")
        gate.set()
        assert waiting.result().startswith("I am b ")
        assert (shelf.loads, states(client)["b"]) == (["b"], "loaded")


@pytest.mark.parametrize(("streams", "names"), [(48, "abc"), pytest.param(128, "abc", marks=pytest.mark.thorough)])
def test_streams_over_more_models_than_fit(engine, streams, names):
    """HTTP | models | Many streams over three models under a budget for two: each ends once, with its own model's words."""
    shelf = ScriptedShelf(engine, names)
    with client_of(pool_of(shelf)) as client, ThreadPoolExecutor(streams) as others:
        asked = [names[number % len(names)] for number in range(streams)]
        found = list(others.map(lambda name: streamed(client, name), asked))
        assert found == [f"I am {name} and nobody else, whatever you think of it." for name in asked]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("5m", 300), ("1h30m", 5400), ("90", 90), (90, 90), (0, 0), ("0", 0), ("1.5s", 1.5), ("500ms", 0.5), (-1, math.inf),
     ("-1", math.inf), ("-1m", math.inf), (1e300, math.inf), ("24h", 86400)],
)  # fmt: skip
def test_times_as_people_write_them(given, seconds):
    assert keep_alive_seconds(given) == seconds


@pytest.mark.parametrize("given", ["", "soon", "5 m", "m5", "5x", "5m3", "nan", "inf", "1e9", "9" * 500])
def test_what_is_no_time_is_refused(given):
    with pytest.raises(UsageError):
        keep_alive_seconds(given)


def test_imported_models_are_a_shelf():
    for name in ("qwen-small", "qwen-large", "other"):
        bundle_path(name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(builtin_bundle(), bundle_path(name))
    whole = ImportedModels(lambda *_: None, RuntimeConfig(threads=1, context=1 << 20))
    shelf = ImportedModels(lambda *_: None, RuntimeConfig(threads=1, memory="50%"))
    assert list(shelf.names()) == ["other", "qwen-large", "qwen-small", "builtin"]
    assert 0 < shelf.plan("other").memory.weights < whole.plan("other").memory.weights
    assert whole.plan("other").memory.pages > 0
    assert "did you mean `qwen-small`" in str(shelf.unknown("Qwen-Smal"))
    assert "`edge-llm import SOURCE`" in str(shelf.unknown("zzz"))


def test_properties_of_no_model_load_none(shelf):
    """llama.cpp | /props | of a server of every model, without `?model=`: its role, and no model is loaded for it."""
    with client_of(pool_of(shelf)) as client:
        assert said(client, "a") and shelf.loads == ["a"]
        found = client.get("/props").json()
        assert (found["role"], found["default_generation_settings"]) == ("router", {"params": {}, "n_ctx": 0})
        assert client.get("/props?model=b").json()["model"] == "b"
        assert shelf.loads == ["a", "b"]


def test_serve_without_a_model_serves_all_of_them():
    bundle_path("mine").parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(builtin_bundle(), bundle_path("mine"))
    options = ["--kv-memory", "8MiB", "--ctx", "100000"]  # each has its own context then
    options += ["--verbose", "--tag", "small", "--seed", "1", "--temperature", "0", "--chat-template", "chatml"]
    with served(*options, model=None) as (_, url), httpx.Client(base_url=url, timeout=60) as client:
        assert states(client) == {"mine": "unloaded", "builtin": "unloaded"}
        body = {"prompt": "Hello", "max_tokens": 4, "temperature": 0}
        texts = [client.post("/v1/completions", json=body | {"model": name}).json() for name in ("mine", "builtin")]
        assert texts[0]["choices"][0]["text"] == texts[1]["choices"][0]["text"]
        assert states(client) == {"mine": "loaded", "builtin": "loaded"}
        metrics = client.get("/metrics").text
        assert 'edge_llm_requests_total{model="mine",outcome="completed"} 1' in metrics
        props = client.get("/props?model=mine").json()
        assert (props["model"], props["default_generation_settings"]["params"]["temperature"]) == ("mine", 0)
        assert "<|im_start|>" in props["chat_template"]
        shown = client.post("/v1/chat/completions", json=ASK | {"model": "mine", "max_tokens": 1}).json()["__verbose"]
        assert "<|im_start|>user\n" in shown["prompt"]
        assert [one["tags"] for one in client.get("/models").json()["data"]] == [["small"]] * 2
        assert client.post("/v1/models/unload", json={"model": "mine"}).json() == {"success": True}
        assert states(client) == {"mine": "unloaded", "builtin": "loaded"}
