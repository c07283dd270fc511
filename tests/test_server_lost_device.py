"""A server whose card fails in the middle tells those who lost something by it, and goes on."""

import json

import pytest
from failing_device import FAILURE, NAME, add_failing_device
from model_files import tiny_config, write_model
from serving import client_of, hosted

from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.opening import carry_out
from edge_llm.opening.load import load_engine

pytestmark = pytest.mark.thorough(file=1)

PLACEMENTS = ("split", "card")
SAID = f"the device `{NAME}` failed: {FAILURE}"
BODY = {"prompt": [1, 2, 3, 4, 5], "max_tokens": 5, "ignore_eos": True, "temperature": 0}

@pytest.fixture(scope="module")
def fuse():
    return add_failing_device()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lost")
    write_model(folder / "source", tiny_config("llama"))
    return import_model(folder / "source", target=folder / "bundle")


def engine_of(folder, **runtime):
    return load_engine(folder, RuntimeConfig(threads=1, context=128, chunk=32, **runtime))



@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_server_tells_the_error_and_goes_on(folder, fuse, placement, stream):
    """HTTP | all | A card that fails ends the requests of that step with 503 `device_lost`; later ones run on the host."""
    with client_of(hosted(engine=engine_of(folder, device="host"))) as client:
        expected = client.post("/v1/completions", json=BODY).json()["choices"][0]["text"]
    fuse.set(None)
    engine = engine_of(folder, device=NAME, placement=placement)
    with client_of(hosted(engine=engine)) as client:
        meta = client.get("/v1/models").json()["data"][0]["meta"]
        assert (meta["device"], meta["placement"]) == (NAME, placement)
        fuse.set(12 if stream else 0)
        response = client.post("/v1/completions", json=BODY | {"stream": stream})
        error = error_of(response, stream)
        assert (error["code"], error["type"], error["message"].partition(";")[0]) == ("device_lost", "unavailable_error", SAID)
        again = client.post("/v1/completions", json=BODY)
        assert (again.status_code, again.json()["choices"][0]["text"]) == (200, expected)
        meta = client.get("/v1/models").json()["data"][0]["meta"]
        assert (meta["device"], meta["device_reason"], meta["placement"]) == ("host", SAID, "host")
        assert client.get("/health").json() == {"status": "ok"}
        assert "edge_llm_kv_pages_free" in client.get("/metrics").text


def error_of(response, stream):
    if not stream:
        assert (response.status_code, int(response.headers["retry-after"]) >= 1) == (503, True)
        return response.json()["error"]
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return json.loads(events[-2])["error"]


def test_a_server_whose_host_has_no_memory_says_so(folder, fuse, monkeypatch):
    """HTTP | all | If the host has no room for its model, requests are 500 `device_error`, and /health is 503 and says why."""
    monkeypatch.setattr(carry_out, "free_memory", lambda: 1000)
    fuse.set(0)
    engine = engine_of(folder, device=NAME)
    with client_of(hosted(engine=engine)) as client:
        assert client.post("/v1/completions", json=BODY).json()["error"]["code"] == "device_lost"
        for _ in range(2):
            response = client.post("/v1/completions", json=BODY)
            assert (response.status_code, response.json()["error"]["code"]) == (500, "device_error")
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "error")
        assert "nothing takes its place" in health.json()["error"]["message"]
        assert client.get("/metrics").status_code == client.get("/v1/models").status_code == 200
