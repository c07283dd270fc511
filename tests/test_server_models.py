"""What the server says of its models and of requests, in the shapes of several APIs."""

import anthropic
import httpx
import openai
import pytest
from serving import client_of, hosted

from edge_llm.server.host import ModelHost

ASK = [{"role": "user", "content": "Tell me a story"}]
COLD = {"max_tokens": 8, "temperature": 0}


def test_a_model_tells_its_context_and_what_it_can(url, engine):
    """HTTP | models | `/v1/models/ID`: `context_length`, `capabilities` and `meta` of the model."""
    found = httpx.get(f"{url}/v1/models/builtin").json()
    assert found["context_length"] == found["max_model_len"] == engine.runner.context
    capabilities = found["capabilities"]
    assert capabilities["completion"] and capabilities["structured_outputs"] and not capabilities["vision"]
    assert capabilities["chat"] == (not engine.template.is_default)


def test_anthropic_s_client_lists_models(url):
    """anthropic | models | `models.list()` and `.retrieve()`: Anthropic's shape where `anthropic-version` is sent."""
    claude = anthropic.Anthropic(base_url=url, api_key="x", max_retries=0)
    page = claude.models.list()
    assert not page.has_more and page.first_id == page.data[0].id
    for model in page:
        assert (model.type, model.display_name) == ("model", model.id)
        assert claude.models.retrieve(model.id) == model and model.created_at.year > 2000


def test_requests_have_ids(url):
    """openai, anthropic | all | `x-request-id` and `request-id`: the client's own id, or a new one; errors have one, too."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
    reply = client.chat.completions.create(model="builtin", messages=ASK, **COLD)
    assert reply._request_id.startswith("req_")
    claude = anthropic.Anthropic(base_url=url, api_key="x", max_retries=0)
    assert claude.messages.create(model="builtin", messages=ASK, max_tokens=2)._request_id.startswith("req_")
    own = httpx.get(f"{url}/v1/nothing", headers={"x-request-id": "mine-1"})
    assert (own.status_code, own.headers["x-request-id"], own.headers["request-id"]) == (404, "mine-1", "mine-1")
    odd = httpx.get(f"{url}/health", headers={"x-request-id": "a b" * 100})
    assert odd.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_ping_is_health(engine, method):
    """HTTP | ping | `/ping` (SageMaker, vLLM) is `/health`."""
    with client_of(hosted(engine=engine), keys=("k",)) as client:
        assert client.request(method, "/ping").json() == {"status": "ok"}
    with client_of(ModelHost(("x",))) as client:  # it loads
        assert client.request(method, "/ping").status_code == 503


def test_a_continued_message_comes_back_whole(client):
    """openai | chat | vLLM's `echo` with `continue_final_message`: the message's beginning, then the rest of it."""
    messages = [*ASK, {"role": "assistant", "content": "Once upon a time"}]
    goes_on = {"continue_final_message": True, "add_generation_prompt": False}

    def ask(**fields):
        return client.chat.completions.create(model="builtin", messages=messages, extra_body=goes_on | fields, **COLD)

    rest, whole = (ask(echo=echo).choices[0].message.content for echo in (False, True))
    assert whole == "Once upon a time" + rest
    body = goes_on | {"echo": True}
    stream = client.chat.completions.create(model="builtin", messages=messages, stream=True, extra_body=body, **COLD)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == whole
