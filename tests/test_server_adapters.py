"""Adapters that requests name as models: `serve MODEL --lora name=FOLDER`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from adapter_files import pairs, write_adapter
from model_files import random_tensors, tiny_config, write_model
from serving import client_of

from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.engine.service import BatchingService
from edge_llm.opening.load import load_engine
from edge_llm.server.host import ModelHost
from edge_llm.server.pool import ModelPool

NAMES = "base", "a", "b"
COLD = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A strict server of a tiny model and two adapters."""
    folder = tmp_path_factory.mktemp("served")
    import_model(write_model(folder / "source", tiny_config("llama")), target=folder / "base", fold=False, turn=0)
    tensors = random_tensors(tiny_config("llama"))
    texts = [f"{name}={write_adapter(folder / name, pairs(tensors, seed=seed))}" for seed, name in enumerate("ab")]
    engine = load_engine(folder / "base", RuntimeConfig(threads=1, lora=tuple(texts)))
    host = ModelHost(["base", "also"], beside=[ModelHost(["a"]), ModelHost(["b"])])
    host.start(engine, BatchingService(engine, queue_limit=64))
    with client_of(ModelPool(host, strict=True)) as client:
        yield client


def completion(client: httpx.Client, model: str, **more: Any) -> dict[str, Any]:
    reply = client.post("/v1/completions", json={"model": model, "prompt": "Once upon a time", **COLD, **more})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def test_models_list_adapters_with_their_parent(client: httpx.Client) -> None:
    """HTTP | models | adapters of `--lora` are models, with the model that they are added to as `parent`."""
    entries = {one["id"]: one for one in client.get("/v1/models").json()["data"]}
    assert {name: one.get("parent") for name, one in entries.items()} == {"base": None, "also": None, "a": "base", "b": "base"}
    assert entries["a"]["context_length"] == entries["base"]["context_length"]
    assert client.get("/v1/models/b").json()["parent"] == "base"
    assert client.get("/props", params={"model": "a"}).json()["model"] == "a"


def test_ollama_lists_them(client: httpx.Client) -> None:
    """HTTP | Ollama's tags and show | adapters are models, with `parent_model`."""
    rows = {row["name"]: row["details"]["parent_model"] for row in client.get("/api/tags").json()["models"]}
    assert rows == {"base:latest": "", "also:latest": "", "a:latest": "base", "b:latest": "base"}
    assert client.post("/api/show", json={"model": "a"}).json()["details"]["parent_model"] == "base"
    said = client.post("/api/generate", json={"model": "a", "prompt": "Once upon a time", "raw": True, "stream": False,
                                              "options": {"temperature": 0, "num_predict": 12}})  # fmt: skip
    assert said.json()["model"] == "a"
    assert client.request("DELETE", "/api/delete", json={"model": "a"}).status_code == 400


def test_requests_of_all_names_at_once_get_what_each_gets_alone(client: httpx.Client) -> None:
    """HTTP | completions | `model` names an adapter; requests with other adapters and none share the steps."""
    alone = {name: completion(client, name) for name in NAMES}
    texts = {name: one["choices"][0]["text"] for name, one in alone.items()}
    assert len(set(texts.values())) == 3
    assert {name: one["model"] for name, one in alone.items()} == {name: name for name in NAMES}
    found: list[tuple[str, str]] = []

    def ask(name: str) -> None:
        found.append((name, completion(client, name)["choices"][0]["text"]))

    threads = [threading.Thread(target=ask, args=[name]) for name in NAMES * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(4 * [*texts.items()])


def test_unknown_names_list_them(client: httpx.Client) -> None:
    """HTTP | all | a name that nothing here has: 404 that lists the adapters, too."""
    reply = client.post("/v1/completions", json={"model": "c", "prompt": "x"})
    assert reply.status_code == 404
    assert "base, also, a, b" in reply.json()["error"]["message"]


def test_vectors_depend_on_the_adapter(client: httpx.Client) -> None:
    """HTTP | embeddings | `model` names an adapter."""
    vectors = {
        name: client.post("/v1/embeddings", json={"model": name, "input": "a text"}).json()["data"][0]["embedding"]
        for name in NAMES
    }
    assert vectors["base"] != vectors["a"] != vectors["b"]


def test_metrics_have_the_names(client: httpx.Client) -> None:
    """HTTP | metrics | what is counted of an adapter has its name."""
    completion(client, "a")
    lines = client.get("/metrics").text.splitlines()
    counted = {line.partition(" ")[0]: line.rpartition(" ")[2] for line in lines if "tokens_predicted_total" in line}
    assert int(counted['edge_llm_tokens_predicted_total{model="a"}']) >= 12
    assert 'edge_llm_tokens_predicted_total{model="base"}' in counted


def test_a_prefix_is_that_of_one_name(client: httpx.Client) -> None:
    """HTTP | completions | what is kept of a prompt serves the same adapter only."""
    prompt = "it was a dark and stormy night, and nobody had closed the window. " * 2

    def cached(name: str) -> int:
        usage = completion(client, name, prompt=prompt)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [cached(name) for name in NAMES] == [0, 0, 0]
    again = [cached(name) for name in NAMES]
    assert min(again) > 0
