"""Open WebUI's own routers for Ollama and OpenAI, unmodified, against a server.

    pip install --no-deps open-webui, and what its routers import (FastAPI, aiohttp, SQLAlchemy, ...), in an environment apart
    python open_webui_routers.py http://127.0.0.1:8080 MODEL

Prints PASS or FAIL for each route, and ends with 1 where one fails.  Packages of Open WebUI that its routers import and do not
use here (retrieval and the like) need not be installed.  Its settings and its database are replaced: there is one user, an
administrator, with one connection of each kind.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

UNUSED = (
    "black", "chromadb", "ftfy", "langchain_classic", "langchain_core", "langchain_text_splitters", "ldap3", "markdownify",
    "mcp", "numpy", "opentelemetry", "pandas", "playwright", "pycrdt", "sentence_transformers", "starlette_compress",
    "tiktoken", "torch", "transformers", "youtube_transcript_api",
)  # fmt: skip


class _Unused(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else MagicMock(name=name)


class _Finder(MetaPathFinder, Loader):
    """Stands behind all others: a package that is installed is itself."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in UNUSED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Unused(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def application(base: str) -> Any:
    """Its routers in an application with one connection to ``base`` of each kind."""
    from fastapi import FastAPI
    from open_webui.routers import ollama, openai
    from open_webui.utils.auth import get_admin_user, get_verified_user

    settings = {
        "ollama.enable": True, "ollama.base_urls": [base], "ollama.api_configs": {},
        "openai.enable": True, "openai.api_base_urls": [f"{base}/v1"], "openai.api_keys": ["none"], "openai.api_configs": {},
    }  # fmt: skip

    async def get(name: str, default: Any = None) -> Any:
        return settings.get(name, default)

    async def get_many(*names: str) -> dict[str, Any]:
        return {name: settings.get(name) for name in names}

    async def nothing(*_: Any, **__: Any) -> None:
        return None

    user = SimpleNamespace(id="1", role="admin", name="a", email="a@b", model_dump=dict)
    app = FastAPI()
    for router, prefix in ((ollama, "/ollama"), (openai, "/openai")):
        router.Config = SimpleNamespace(get=get, get_many=get_many)
        router.check_model_access = router.publish_event = router.publish_model_provider_request_failed = nothing
        router.Models.get_model_by_id = nothing
        app.include_router(router.router, prefix=prefix)
    app.dependency_overrides |= {get_verified_user: lambda: user, get_admin_user: lambda: user}
    return app


def requests(base: str, model: str) -> list[tuple[str, str, Any, int, str]]:
    """(method, path, body, status, what the answer has)."""
    tagged, ask = f"{model}:latest", [{"role": "user", "content": "Say hello"}]
    options = {"temperature": 0.5, "num_predict": 12, "top_k": 40, "repeat_penalty": 1.1, "num_ctx": 2048, "num_gpu": 1}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    chat = {"model": tagged, "messages": ask, "options": options}
    plain = {"model": model, "messages": ask, "max_tokens": 12}
    usage = {"include_usage": True}
    seen = [{"role": "user", "content": "x", "images": ["aGk="]}]
    title = [{"role": "user", "content": 'Write a title. JSON format: {"title": "..."}'}]
    return [
        ("POST", "/ollama/verify", {"url": base, "key": ""}, 200, "version"),
        ("GET", "/ollama/api/tags", None, 200, tagged), ("GET", "/ollama/api/tags/0", None, 200, tagged),
        ("GET", "/ollama/api/ps", None, 200, "models"), ("GET", "/ollama/api/version", None, 200, "version"),
        ("POST", "/ollama/api/show", {"model": tagged}, 200, "capabilities"),
        ("POST", "/ollama/api/chat", chat | {"stream": True, "keep_alive": "5m"}, 200, '"done":true'),
        ("POST", "/ollama/api/chat", chat | {"stream": False, "think": False}, 200, "content"),
        ("POST", "/ollama/api/chat", chat | {"stream": True, "tools": [tool]}, 200, '"done":true'),
        ("POST", "/ollama/api/chat", chat | {"stream": False, "format": "json"}, 200, "content"),
        ("POST", "/ollama/api/chat", {"model": tagged, "messages": title, "stream": False, "options": options}, 200, "content"),
        ("POST", "/ollama/api/chat", chat | {"stream": False, "messages": seen}, 400, "images"),
        ("POST", "/ollama/api/generate", {"model": tagged, "prompt": "Hi", "stream": False}, 200, "response"),
        ("POST", "/ollama/api/embed", {"model": tagged, "input": ["a", "b"]}, 200, "embeddings"),
        ("POST", "/ollama/api/embeddings", {"model": tagged, "prompt": "a"}, 200, "embedding"),
        ("POST", "/ollama/api/pull", {"model": tagged}, 200, "success"),
        ("POST", "/ollama/api/create", {"model": "new", "from": tagged}, 501, "created"),
        ("POST", "/ollama/v1/chat/completions", plain | {"model": tagged, "stream": True}, 200, "[DONE]"),
        ("POST", "/ollama/v1/completions", {"model": tagged, "prompt": "Hi", "max_tokens": 5}, 200, "text"),
        ("POST", "/openai/verify", {"url": f"{base}/v1", "key": "none"}, 200, model),
        ("GET", "/openai/models", None, 200, model), ("GET", "/openai/models/0", None, 200, model),
        ("POST", "/openai/chat/completions", plain | {"stream": True, "stream_options": usage}, 200, "[DONE]"),
        ("POST", "/openai/chat/completions", plain | {"stream": False, "tools": [tool]}, 200, "choices"),
        ("POST", "/openai/chat/completions", plain | {"messages": title}, 200, "choices"),
        ("POST", "/openai/responses", {"model": model, "input": "hi", "max_output_tokens": 5}, 200, "output"),
        ("POST", "/ollama/api/unload", {"name": tagged, "model": tagged}, 200, "true"),
    ]  # fmt: skip


async def main(base: str, model: str) -> int:
    """Send them all."""
    import httpx

    failed = 0
    transport = httpx.ASGITransport(app=application(base))
    async with httpx.AsyncClient(transport=transport, base_url="http://open-webui", timeout=300) as client:
        for method, path, body, status, word in requests(base, model):
            answer = await client.request(method, path, json=body)
            good = answer.status_code == status and word in answer.text
            failed += not good
            print("PASS" if good else "FAIL", method, path, answer.status_code, "" if good else answer.text[:300])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.meta_path.append(_Finder())
    sys.exit(asyncio.run(main(*sys.argv[1:3])))
