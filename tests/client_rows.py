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


@row(*OLLAMA, "generate: suffix", refused="the built-in model has no tokens for gaps")
def _(url):
    refused_by_name(lambda: ollama_client(url).generate(MODEL, "a", suffix="b"), "fills no gaps")


@row("LiteLLM", "litellm", "openai/, anthropic/, hosted_vllm/, lm_studio/")
def _(url):
    import litellm

    for kind, base in (("openai", "/v1"), ("anthropic", ""), ("hosted_vllm", "/v1"), ("lm_studio", "/v1")):
        asked = {"model": f"{kind}/{MODEL}", "messages": ASK, "api_base": url + base, "api_key": "none", "max_tokens": 12}
        assert litellm.completion(**asked).choices[0].message.content
        assert "".join(one.choices[0].delta.content or "" for one in litellm.completion(**asked, stream=True))


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


@row("LangChain", "langchain_openai", "ChatOpenAI: invoke, stream, tools, responses; embeddings")
def _(url):
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    usual = {"model": MODEL, "base_url": f"{url}/v1", "api_key": "none"}
    chat = ChatOpenAI(**usual, temperature=0, max_tokens=12)
    whole = chat.invoke("Tell me a story").content
    assert "".join(piece.content for piece in chat.stream("Tell me a story")) == whole
    calling = ChatOpenAI(**usual, max_tokens=60).bind_tools([weather], tool_choice="weather")
    assert calling.invoke("Rome?").tool_calls[0]["name"] == "weather"
    follows = ChatOpenAI(**usual, max_tokens=12, use_responses_api=True, use_previous_response_id=True)
    first = follows.invoke("Tell me a story")
    assert follows.invoke([("user", "Tell me a story"), first, ("user", "And then?")]).text
    assert len(OpenAIEmbeddings(**usual, check_embedding_ctx_length=False).embed_documents(["one", "two"])) == 2


@row("LangChain", "langchain_anthropic", "ChatAnthropic: invoke, stream")
def _(url):
    from langchain_anthropic import ChatAnthropic

    chat = ChatAnthropic(model=MODEL, base_url=url, api_key="none", temperature=0, max_tokens=12)
    whole = chat.invoke("Tell me a story").content
    pieces = [piece.content for piece in chat.stream("Tell me a story")]
    assert "".join(one if isinstance(one, str) else one[0].get("text", "") for one in pieces if one) == whole


@row("LlamaIndex", "llama_index.llms.openai_like", "OpenAILike: complete, stream_chat")
def _(url):
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(model=MODEL, api_base=f"{url}/v1", api_key="none", is_chat_model=True, max_tokens=12, temperature=0)
    assert llm.complete("Tell me a story").text
    assert list(llm.stream_chat([ChatMessage(role="user", content="Tell me a story")]))[-1].message.content


@row("instructor", "instructor", "tools, JSON schema")
def _(url):
    import instructor
    from openai import OpenAI

    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(OpenAI(base_url=f"{url}/v1", api_key="none"), mode=mode)
        asked = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 60, "max_retries": 0}
        assert client.chat.completions.create(response_model=city_model(), **asked).city in ("Rome", "Oslo")


def city_model():
    """A form whose every answer is short."""
    from typing import Literal

    from pydantic import create_model

    return create_model("City", city=(Literal["Rome", "Oslo"], ...))


@row("pydantic-ai", "pydantic_ai.models.openai", "chat, responses, native output")
def _(url):
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    short = {"max_tokens": 40, "temperature": 0}
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        assert Agent(kind(MODEL, provider=provider), model_settings=short).run_sync("Tell me a story").output
    agent = Agent(OpenAIChatModel(MODEL, provider=provider), output_type=NativeOutput(city_model()), model_settings=short)
    assert agent.run_sync("Where?").output.city in ("Rome", "Oslo")


@row("openai-agents", "agents", "chat model, responses model")
def _(url):
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        settings = ModelSettings(temperature=0, max_tokens=200)
        agent = Agent(name="a", model=kind(model=MODEL, openai_client=client), model_settings=settings)
        assert Runner.run_sync(agent, "Tell me a story").final_output


@row("smolagents", "smolagents", "OpenAIModel")
def _(url):
    from smolagents import OpenAIModel

    model = OpenAIModel(model_id=MODEL, api_base=f"{url}/v1", api_key="none", max_tokens=12)
    assert model([{"role": "user", "content": [{"type": "text", "text": "Tell me a story"}]}]).content


@row("DSPy", "dspy", "LM")
def _(url):
    import dspy

    assert dspy.LM(f"openai/{MODEL}", api_base=f"{url}/v1", api_key="none", max_tokens=12, cache=False)("Tell me a story")


@row("Haystack", "haystack", "OpenAIChatGenerator")
def _(url):
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.utils import Secret

    made = OpenAIChatGenerator(
        api_key=Secret.from_token("none"), model=MODEL, api_base_url=f"{url}/v1", generation_kwargs={"max_tokens": 12}
    )
    assert made.run([ChatMessage.from_user("Tell me a story")])["replies"][0].text


@row("llm", "llm", "a model of OpenAI's kind")
def _(url):
    from llm.default_plugins.openai_models import Chat

    made = Chat("local", model_name=MODEL, api_base=f"{url}/v1")
    assert made.prompt("Tell me a story", stream=False, max_tokens=12, key="none").text()


@row("LangGraph", "langgraph.prebuilt", "ReAct agent")
def _(url):
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    chat = ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key="none", temperature=0, max_tokens=12)
    assert create_react_agent(chat, [weather]).invoke({"messages": [("user", "Tell me a story")]})["messages"][-1].content


@row("LlamaIndex", "llama_index.llms.ollama", "Ollama: complete, stream_chat")
def _(url):
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.ollama import Ollama

    llm = Ollama(model=MODEL, base_url=url, request_timeout=60, additional_kwargs=SHORT)
    assert llm.complete("Tell me a story").text
    assert list(llm.stream_chat([ChatMessage(role="user", content="Tell me a story")]))[-1].message.content


@row("MCP", "fastmcp", "tools of a server: listed, called by force, answered")
def _(url):
    import asyncio

    import fastmcp
    from openai import OpenAI

    server = fastmcp.FastMCP("weather")
    server.tool(weather)

    async def loop():
        async with fastmcp.Client(server) as tools:
            (tool,) = await tools.list_tools()
            offered = [{"type": "function", "function": {"name": tool.name, "parameters": tool.inputSchema}}]
            client = OpenAI(base_url=f"{url}/v1", api_key="none")
            asked = {"model": MODEL, "tools": offered, "temperature": 0}
            answer = client.chat.completions.create(messages=ASK, tool_choice="required", max_tokens=200, **asked)
            said = answer.choices[0].message
            (call,) = said.tool_calls
            found = await tools.call_tool(call.function.name, json.loads(call.function.arguments))
            result = {"role": "tool", "tool_call_id": call.id, "content": str(found.data)}
            messages = [*ASK, said.model_dump(exclude_none=True), result]
            return client.chat.completions.create(messages=messages, max_tokens=12, **asked).choices[0].message

    assert asyncio.run(loop()).content is not None


JAVASCRIPT = (
    ("ollama (JavaScript)", "ollama", "ollama", "list, show, chat, generate, embed", ""),
    ("ollama (JavaScript)", "ollama", "ollama-suffix", "generate: suffix", "the built-in model has no tokens for gaps"),
    ("openai (JavaScript)", "openai", "openai", "chat, stream, responses, embeddings", ""),
    ("anthropic (JavaScript)", "@anthropic-ai/sdk", "@anthropic-ai/sdk", "messages, stream, count", ""),
    ("AI SDK", "@ai-sdk/openai-compatible", "ai: openai-compatible", "openai-compatible: text, stream, second turn", ""),
    ("AI SDK", "@ai-sdk/openai", "ai: openai", "openai: responses and chat, second turn", ""),
    ("AI SDK", "@ai-sdk/anthropic", "ai: anthropic", "anthropic: text, stream, second turn", ""),
    ("AI SDK", "ollama-ai-provider-v2", "ai: ollama", "ollama: text, stream, second turn", ""),
    ("LangChain (JavaScript)", "@langchain/ollama", "@langchain/ollama", "ChatOllama, OllamaEmbeddings", ""),
    ("Continue", "@continuedev/openai-adapters", "continue", "ollama, openai, llama.cpp, lmstudio, vllm", ""),
    ("Continue", "@continuedev/openai-adapters", "continue-fim", "fim", "Mistral's route; gaps are `suffix` of completions"),
)
"""(client, package, row of client_scripts/javascript.mjs, feature, why it is refused or "")."""
_AGENTS = "`tests/test_agent_command_lines.py`"
_WEBUI = "`tests/client_scripts/open_webui_routers.py URL MODEL`"
BY_HAND = (
    ("Claude Code", "four turns with tools", "", _AGENTS),
    ("Codex CLI", "four turns with tools", "", _AGENTS),
    ("openai (Python)", "chat, completions, responses, embeddings, models", "", "`pytest tests/test_server_*.py`"),
    ("openai (Python)", "images, audio, files, background", "no model here does that", "`tests/test_server_bodies.py`"),
    ("anthropic (Python)", "messages, stream, tools, thinking, count_tokens", "", "`pytest tests/test_server_*.py`"),
    ("anthropic (Python)", "tools that its server runs", "left out and named", "`tests/test_server_agents.py`"),
    ("Continue", "`cn` with the providers ollama and openai", "", "by hand: `cn -p Hi --config config.yaml`"),
    ("Continue", "the editor's own ollama provider: chat, tools, embed, list", "", "by hand: `@continuedev/core`"),
    ("Open WebUI", "Ollama and OpenAI connections; titles", "", _WEBUI),
    ("Open WebUI", "Ollama: create, images", "models are imported here; none sees", _WEBUI),
    ("aider", "chat and edits", "", "by hand: [deploy.md](deploy.md)"),
    ("lm-eval", "local-completions: generation and log-likelihood", "", "`tests/test_server_scores.py`; by hand: `lm_eval`"),
    ("opencode", "chat completions with tools", "", "by hand, at an earlier state"),
    ("Cline CLI", "provider openai, with tools", "", "by hand, at an earlier state"),
    ("guidellm", "a benchmark of chats", "", "by hand, at an earlier state"),
)
"""(client, feature, why it is refused or "", how it is tried): what needs more than a package."""
NOT_TRIED = (
    ("Qwen Code", "its mode without a terminal ends before any request"),
    ("Crush, goose, aichat, mods", "their packages fetch programs from elsewhere"),
    ("vLLM's `bench serve`", "a package of gigabytes; it asks `/v1/completions`"),
)
"""(client, why nobody has tried it)."""
