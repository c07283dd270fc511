"""What clients do with this server, one row for each client and feature; `docs/clients.md` is made of these.

A function gets the server's address, imports its client, and raises where the feature does not work.
"""

import json

ROWS = []
"""(client, package to import, feature, why it is refused or "", what tries it)."""
MODEL = "builtin"
ASK = [{"role": "user", "content": "Tell me a story"}]
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
SHORT = {"num_predict": 12, "temperature": 0}


def row(client, package, feature, refused=""):
    """Enter a function as a row; one that is ``refused`` tries that the refusal says why."""

    def enter(function):
        ROWS.append((client, package, feature, refused, function))
        return function

    return enter


def weather(city: str) -> str:
    """Say the weather.

    Args:
      city: the city
    """
    return city


def ollama_client(url):
    import ollama

    return ollama.Client(url)


OLLAMA = ("ollama (Python)", "ollama")


@row(*OLLAMA, "list, show, ps")
def _(url):
    client = ollama_client(url)
    assert client.list().models[0].model == "builtin:latest" and client.ps().models[0].context_length
    assert client.show("builtin:latest").modelinfo["general.architecture"] == "llama"


@row(*OLLAMA, "chat, streamed and whole")
def _(url):
    client = ollama_client(url)
    whole = client.chat(MODEL, ASK, options=SHORT)
    pieces = list(client.chat(MODEL, ASK, options=SHORT, stream=True))
    assert "".join(piece.message.content for piece in pieces) == whole.message.content and pieces[-1].eval_count == 12


@row(*OLLAMA, "tools as functions")
def _(url):
    ollama_client(url).chat(MODEL, ASK, tools=[weather], options=SHORT)


@row(*OLLAMA, "format as a JSON schema")
def _(url):
    said = ollama_client(url).chat(MODEL, ASK, format=SCHEMA, options={"temperature": 0}).message.content
    assert json.loads(said)["city"] in ("Rome", "Oslo")


@row(*OLLAMA, "think, logprobs, keep_alive")
def _(url):
    found = ollama_client(url).chat(MODEL, ASK, think=True, logprobs=True, top_logprobs=2, keep_alive="5m", options=SHORT)
    assert len(found.logprobs) == 12 and len(found.logprobs[0].top_logprobs) == 2


@row(*OLLAMA, "generate: raw, system, context")
def _(url):
    client = ollama_client(url)
    first = client.generate(MODEL, "Hi", system="Be short.", options=SHORT)
    assert client.generate(MODEL, "And?", context=first.context, options=SHORT).done
    assert client.generate(MODEL, "Once", raw=True, options=SHORT).response


@row(*OLLAMA, "embed, embeddings")
def _(url):
    client = ollama_client(url)
    assert client.embed(MODEL, ["one", "two"]).embeddings[0] == client.embeddings(MODEL, "one").embedding


@row(*OLLAMA, "pull of what is here")
def _(url):
    assert [one.status for one in ollama_client(url).pull(MODEL, stream=True)][-1] == "success"


def refused_by_name(call, word):
    import ollama

    try:
        call()
    except ollama.ResponseError as error:
        assert word in error.error
    else:
        raise AssertionError("it was not refused")


@row(*OLLAMA, "images", refused="no model here sees them")
def _(url):
    ask = [{"role": "user", "content": "x", "images": ["aGk="]}]
    refused_by_name(lambda: ollama_client(url).chat(MODEL, ask), "images")


@row(*OLLAMA, "create, push", refused="models are imported here, and published by their authors")
def _(url):
    refused_by_name(lambda: ollama_client(url).create("x", from_=MODEL), "not created here")
    refused_by_name(lambda: ollama_client(url).push(MODEL), "not pushed from here")


@row("LiteLLM", "litellm", "ollama_chat/, ollama/")
def _(url):
    import litellm

    for kind in ("ollama_chat", "ollama"):
        answer = litellm.completion(model=f"{kind}/{MODEL}", messages=ASK, api_base=url, max_tokens=12)
        assert answer.choices[0].message.content


@row("LangChain", "langchain_ollama", "ChatOllama: invoke, stream; embeddings")
def _(url):
    from langchain_ollama import ChatOllama, OllamaEmbeddings

    chat = ChatOllama(model=MODEL, base_url=url, temperature=0, num_predict=12)
    whole = chat.invoke("Tell me a story").content
    assert "".join(piece.content for piece in chat.stream("Tell me a story")) == whole
    assert len(OllamaEmbeddings(model=MODEL, base_url=url).embed_documents(["one", "two"])) == 2


@row("LlamaIndex", "llama_index.llms.ollama", "Ollama: complete, stream_chat")
def _(url):
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.ollama import Ollama

    llm = Ollama(model=MODEL, base_url=url, request_timeout=60, additional_kwargs=SHORT)
    assert llm.complete("Tell me a story").text
    assert list(llm.stream_chat([ChatMessage(role="user", content="Tell me a story")]))[-1].message.content
