"""A pytest plugin: what vLLM's own tests of its server import, without vLLM.

`tests.utils.RemoteOpenAIServer` starts `edge-llm serve`; tokenizers are those of the model that stands in for all others.  Any
other name of the packages `vllm` and `torch` is there, and can do nothing: a test that uses one tells of it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from flags import arguments

SILENT = ("vllm", "torch", "schemathesis", "openai_harmony", "fastapi")
"""Packages of which every name can be imported."""
SECONDS = 180.0
"""Most that a server may take until it answers."""


class NotHere(Exception):
    """What a test wants of vLLM itself."""


class _Nothing(type):
    """A class in place of one that is not here: it may stand in lists of parameters, and cannot be used."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing(f"{cls.__name__}.{name}")

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise NotHere(f"{cls.__name__} is vLLM's own")


def _nothing(name: str) -> Any:
    return _Nothing(name, (Exception,), {})


class _Silent(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing(f"{self.__name__}.{name}")


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in SILENT else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Silent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_known().get(module.__name__, {}))


def _known() -> dict[str, dict[str, Any]]:
    """The few names that do something, by their modules."""
    numbers = {"iinfo": lambda kind: SimpleNamespace(min=-(2**63), max=2**63 - 1), "long": int}
    return {
        "torch": numbers | {"cuda": SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)},
        "vllm.config": {"ModelConfig": lambda **_: SimpleNamespace(get_vocab_size=lambda: len(tokenizer()))},
        "vllm.model_executor.model_loader.weight_utils": {"download_weights_from_hf": lambda name, **_: name},
        "vllm.tokenizers": {"get_tokenizer": tokenizer},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_rocm=lambda: False, is_cuda=lambda: False)},
        "vllm.utils.network_utils": {"get_open_port": open_port},
        "vllm.transformers_utils.repo_utils": {"hf_api": lambda: SimpleNamespace(snapshot_download=lambda **_: "not/here")},
    }


def tokenizer(*_: Any, **__: Any) -> Any:
    """The tokenizer of the model that stands in."""
    from transformers import PreTrainedTokenizerFast

    folder = Path(os.environ["VLLM_STAND_IN_TOKENIZER"])
    said = json.loads((folder / "tokenizer_config.json").read_text())
    named = {name: said[name] for name in ("bos_token", "eos_token", "unk_token", "pad_token") if name in said}
    template = (folder / "chat_template.jinja").read_text()
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), chat_template=template, **named)


def open_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class RemoteOpenAIServer:
    """`edge-llm serve` with the model that stands in, in a process of its own."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model: str, vllm_serve_args: list[str], *, env_dict: dict[str, str] | None = None, **_: Any) -> None:
        self.host, self.port = "127.0.0.1", open_port()
        self.uds, self.show_hidden_metrics = None, False
        found = arguments(model, list(vllm_serve_args), self.port, env_dict or {})
        environment = os.environ | {"PYTHONPATH": os.environ["EDGE_LLM_PYTHONPATH"]}
        self._log = Path(os.environ["VLLM_SUITE_LOG"]).open("ab")  # noqa: SIM115 - the server's, until it ends
        self._log.write(f"\nedge-llm {' '.join(found)}\n".encode())
        self._log.flush()
        command = [os.environ["EDGE_LLM_PYTHON"], "-m", "edge_llm", *found]
        self.proc = subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log)
        self._wait()

    def _wait(self) -> None:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            if self.proc.poll() is not None:
                raise RuntimeError(f"the server has ended: {self.proc.returncode}")
            try:
                with urllib.request.urlopen(f"{self.url_root}/health", timeout=5) as reply:
                    if reply.status == 200:
                        return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("the server does not answer")

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.proc.terminate()
        try:
            self.proc.wait(20)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
        self._log.close()

    @property
    def url_root(self) -> str:
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts: str) -> str:
        return "/".join([self.url_root, *parts])

    def get_client(self, **options: Any) -> Any:
        return self._client("openai", "OpenAI", "/v1", options)

    def get_async_client(self, **options: Any) -> Any:
        return self._client("openai", "AsyncOpenAI", "/v1", options)

    def get_client_anthropic(self, **options: Any) -> Any:
        return self._client("anthropic", "Anthropic", "", options)

    def get_async_client_anthropic(self, **options: Any) -> Any:
        return self._client("anthropic", "AsyncAnthropic", "", options)

    def _client(self, package: str, name: str, path: str, options: dict[str, Any]) -> Any:
        kind = getattr(__import__(package), name)
        usual = {"base_url": self.url_root + path, "api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": 120}
        return kind(**usual | options)


def _utils() -> ModuleType:
    """The module `tests.utils`."""
    found = _Silent("tests.utils")
    vars(found).update({
        "RemoteOpenAIServer": RemoteOpenAIServer, "RemoteVLLMServer": RemoteOpenAIServer, "ROCM_ENV_OVERRIDES": {},
        "ROCM_EXTRA_ARGS": [], "large_gpu_mark": lambda **_: (lambda test: test),
        "multi_gpu_test": lambda **_: (lambda test: test), "create_new_process_for_each_test": lambda *_: (lambda test: test),
    })  # fmt: skip
    return found


sys.meta_path.insert(0, _Finder())
sys.modules["tests.utils"] = _utils()
