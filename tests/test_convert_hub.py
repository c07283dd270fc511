"""Downloads against a local stub of the hub's HTTP interface; each pull runs in a process of its own environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from adapter_files import pairs, write_adapter
from model_files import random_tensors, tiny_config
from stub_hub import COMMIT, Stub, environment, hub_of, serving

from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.sources.hub import pull
from edge_llm.sources.hub_download import PIECE_BYTES

pytestmark = pytest.mark.thorough(file=5)

CONFIG = json.dumps(tiny_config("llama")).encode()
PULL = """
import sys
from edge_llm.sources.hub import pull
from edge_llm.errors import EdgeLLMError
seen = []
try:
    folder = pull(sys.argv[1], sys.argv[2] or None, lambda *step: seen.append(step))
except EdgeLLMError as error:
    print(type(error).__name__, error)
    sys.exit(1)
print(folder)
print(len(seen), seen[0], seen[-1])
"""


@pytest.fixture
def serve() -> Iterator[Callable[[Stub], Stub]]:
    with ExitStack() as servers:
        yield lambda stub: servers.enter_context(serving(stub))


@pytest.fixture
def hub(serve: Callable[[Stub], Stub]) -> Stub:
    weights = bytes(range(256)) * 40
    files = {"config.json": CONFIG, "tokenizer.json": b"{}", "model.safetensors": weights}
    extra = {"README.md": b"# no", "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"x", "flax.msgpack": b"x"}
    return serve(Stub(files | extra))


@dataclass
class Result:
    code: int
    out: str
    err: str
    home: Path

    @property
    def folder(self) -> Path:
        return Path(self.out.splitlines()[0])

    def leftovers(self) -> list[str]:
        """Files that are in the cache."""
        return [str(path.relative_to(self.home)) for path in self.home.rglob("*") if path.is_file()]


def run_pull(home: Path, endpoint: str, repository: str = "org/tiny", revision: str = "", **more: str) -> Result:
    done = subprocess.run(
        [sys.executable, "-c", PULL, repository, revision],
        env=environment(home, endpoint, **more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr, home)


def test_only_what_an_import_needs_is_downloaded(hub: Stub, tmp_path: Path) -> None:
    result = run_pull(tmp_path, hub.endpoint)
    assert result.code == 0, result.out + result.err
    assert result.folder.name == COMMIT
    assert sorted(path.name for path in result.folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (result.folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert not hub.asked("GET", "README") and not hub.asked("GET", ".bin")
    assert result.out.splitlines()[1].endswith(f"('download', {10242 + len(CONFIG)}, {10242 + len(CONFIG)})")
    # a second time nothing large is fetched again, and offline it is found by its name alone
    before = len(hub.asked("GET", "model.safetensors"))
    assert run_pull(tmp_path, hub.endpoint).code == 0
    assert len(hub.asked("GET", "model.safetensors")) == before
    offline = run_pull(tmp_path, "http://127.0.0.1:1", HF_HUB_OFFLINE="1")
    assert offline.folder == result.folder


def test_the_template_for_tools_is_downloaded(serve: Callable[[Stub], Stub], hub: Stub, tmp_path: Path) -> None:
    more = {"additional_chat_templates/tool_use.jinja": b"for tools", "additional_chat_templates/rag.jinja": b"no"}
    result = run_pull(tmp_path, serve(Stub(hub.files | more)).endpoint)
    assert result.code == 0, result.out + result.err
    assert [path.name for path in (result.folder / "additional_chat_templates").iterdir()] == ["tool_use.jinja"]


def test_shards_and_revisions(serve: Callable[[Stub], Stub], tmp_path: Path) -> None:
    shards = {f"model-0000{i}-of-00002.safetensors": bytes([i]) * 50 for i in (1, 2)}
    index = {"model.safetensors.index.json": b"{}"}
    stub = serve(Stub({"config.json": CONFIG, "consolidated.safetensors": b"x"} | index | shards, large=tuple(shards)))
    result = run_pull(tmp_path, stub.endpoint, revision="v1.0")
    assert sorted(path.name for path in result.folder.iterdir()) == sorted({"config.json"} | index.keys() | shards.keys())
    assert stub.asked("GET", "/revision/v1.0")
    assert run_pull(tmp_path, stub.endpoint, revision="v1.0", HF_HUB_OFFLINE="1").folder == result.folder


UNSUPPORTED = {
    "rwkv": ({"model_type": "rwkv"}, "the architecture `rwkv` does not run here; these do: bert, cohere2"),
    "quantized": ({"quantization_config": {"bits": 4}}, "the weights are quantized already"),
    "nonsense": ({"hidden_size": -5}, "hidden_size"),
    "large": ({"junk": "x" * (65 << 20)}, "more than 64 MiB"),
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
@pytest.mark.parametrize("verb", ["pull", "import", "run"])
def test_what_cannot_run_is_refused_before_its_weights_come(
    serve: Callable[[Stub], Stub], tmp_path: Path, kind: str, verb: str
) -> None:
    changes, said = UNSUPPORTED[kind]
    config = json.dumps(tiny_config("llama") | {"architectures": None} | changes).encode()
    stub = serve(Stub({"config.json": config, "tokenizer.json": b"{}", "model.safetensors": bytes(10240)}))
    more = ["hi", "--yes"] if verb == "run" else []
    around = environment(tmp_path / "cache", stub.endpoint, EDGE_LLM_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="0")
    command = [sys.executable, "-m", "edge_llm", verb, "org/tiny", *more]
    done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.splitlines()[-1].startswith("error: `org/tiny` cannot be run here: ") and said in done.stderr
    assert not stub.asked("GET", "model.safetensors") and not stub.asked("GET", "tokenizer.json")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "it leaves nothing"


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize(
    ("status", "error_code", "message"),
    [
        (404, "RepoNotFound", "no model `org/tiny`"),
        (401, "", "does not exist or is private"),
        (403, "GatedRepo", "is gated: accept its terms"),
        (404, "RevisionNotFound", "has no revision"),
        (403, "", "refused access"),
        (500, "", "answered 500"),
    ],
)
def test_refusals_are_one_clear_line_and_leave_nothing(
    hub: Stub, tmp_path: Path, status: int, error_code: str, message: str
) -> None:
    hub.status, hub.error_code = status, error_code
    result = run_pull(tmp_path, hub.endpoint)
    assert result.code == 1
    assert result.out.startswith("HubError") and message in result.out
    assert result.out.count("\n") == 1 and "Traceback" not in result.out + result.err
    assert not (tmp_path / "hub" / "models--org--tiny").exists()


def test_no_network_and_offline(tmp_path: Path) -> None:
    result = run_pull(tmp_path, "http://127.0.0.1:9")
    assert result.code == 1
    assert result.out.startswith("HubError cannot download `org/tiny`") and result.out.count("\n") == 1
    assert result.leftovers() == []
    result = run_pull(tmp_path, "http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    assert result.code == 1
    assert "HF_HUB_OFFLINE forbids" in result.out and result.out.count("\n") == 1
    assert result.leftovers() == []


def test_nonsense_from_the_hub(serve: Callable[[Stub], Stub], hub: Stub, tmp_path: Path) -> None:
    hub.sha = "../../../etc"
    assert "names the commit" in run_pull(tmp_path, hub.endpoint).out
    for name, message in (("pytorch_model.bin", "can run code"), ("a.txt", "no model.saf")):
        stub = serve(Stub({"config.json": b"{}", name: b"x"}))
        result = run_pull(tmp_path, stub.endpoint)
        assert result.out.startswith("UnsupportedModel") and message in result.out
    assert not (tmp_path / "hub" / "models--org--tiny").exists()


def test_damaged_file_is_refused_and_fetched_again(hub: Stub, tmp_path: Path) -> None:
    hub.sha256 = "0" * 64
    result = run_pull(tmp_path, hub.endpoint)
    assert "arrived damaged" in result.out
    hub.sha256 = ""
    assert run_pull(tmp_path, hub.endpoint).code == 0


def test_cut_connection_goes_on_where_it_stopped(hub: Stub, tmp_path: Path) -> None:
    weights = hub.files["model.safetensors"] = os.urandom(1000) * 1_500
    hub.cut = PIECE_BYTES + 100_000
    result = run_pull(tmp_path, hub.endpoint)
    assert (result.folder / "model.safetensors").read_bytes() == weights
    assert any("range" in headers for headers in hub.asked("GET", "model.safetensors"))


def test_killed_process_goes_on_where_it_stopped(hub: Stub, tmp_path: Path) -> None:
    weights = hub.files["model.safetensors"] = os.urandom(1000) * 1_500
    hub.stall = PIECE_BYTES + 100_000
    process = subprocess.Popen(
        [sys.executable, "-c", PULL, "org/tiny", ""],
        env=environment(tmp_path, hub.endpoint),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size >= PIECE_BYTES for path in tmp_path.rglob("*.incomplete")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    hub.stall = 0
    result = run_pull(tmp_path, hub.endpoint)
    assert (result.folder / "model.safetensors").read_bytes() == weights
    assert any(headers.get("range", "") > "bytes=1" for headers in hub.asked("GET", "model.safetensors"))
    assert not list(tmp_path.rglob("*.incomplete"))


def test_import_from_the_hub(serve: Callable[[Stub], Stub], tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    stub = serve(hub_of(tiny_model("qwen2", shards=2)))
    script = "from edge_llm.convert.importer import import_model; print(import_model('org/tiny'))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(tmp_path / "hf", stub.endpoint, EDGE_LLM_HOME=str(tmp_path / "home")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with open_bundle(Path(done.stdout.strip())) as bundle:
        assert bundle.folder.name == "tiny"
        assert bundle.manifest["source"]["path"] == f"org/tiny@{COMMIT}"
        assert bundle.float_source() is not None
        bundle.verify()


def test_an_adapter_comes_from_the_hub(
    serve: Callable[[Stub], Stub], tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "a", pairs(random_tensors(tiny_config("llama"))))
    for name in ("README.md", "tokenizer.json", "training_args.bin"):
        (adapter / name).write_bytes(b"{}")
    stub = serve(hub_of(adapter, "org/lora"))
    command = [sys.executable, "-m", "edge_llm", "import", str(tiny_model("llama")), "--lora", "org/lora", "--fast"]
    for endpoint, offline in ((stub.endpoint, "0"), ("http://127.0.0.1:9", "1")):
        around = environment(tmp_path / "hf", endpoint, EDGE_LLM_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE=offline)
        done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, done.stderr
    assert "already imported" in done.stderr
    with open_bundle(Path(done.stdout.strip())) as bundle:
        assert bundle.manifest["source"]["lora"] == f"org/lora@{COMMIT}"
        assert bundle.folder.name == f"{tiny_model('llama').name}-lora"
    asked = {path.rpartition("/")[2] for method, path, _ in stub.requests if "/resolve/" in path}
    assert asked == {"adapter_config.json", "adapter_model.safetensors"}


def test_a_gguf_file_is_found_again_beside_files_that_were_not_wanted(serve: Callable[[Stub], Stub], tmp_path: Path) -> None:
    files = {"m-Q8_0.gguf": os.urandom(20_000), "config.json": CONFIG, "tokenizer.json": b"{}"}
    stub = serve(Stub(files, large=("m-Q8_0.gguf",)))
    for endpoint, offline in ((stub.endpoint, "0"), ("http://127.0.0.1:9", "0"), ("http://127.0.0.1:9", "1")):
        around = environment(tmp_path, endpoint, HF_HUB_OFFLINE=offline)
        call = [sys.executable, "-m", "edge_llm", "pull", "org/tiny:Q8_0"]
        done = subprocess.run(call, env=around, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 and Path(done.stdout.strip()).read_bytes() == files["m-Q8_0.gguf"], done
    assert not stub.asked("GET", "tokenizer.json")


def test_token_stays_with_the_hub(serve: Callable[[Stub], Stub], hub: Stub, tmp_path: Path) -> None:
    other = serve(Stub({"model.safetensors": hub.files["model.safetensors"]}))
    hub.redirect = other.endpoint.replace("127.0.0.1", "localhost")
    result = run_pull(tmp_path, hub.endpoint, HF_TOKEN="hf_secret")
    assert result.code == 0, result.out + result.err
    assert any(headers.get("authorization") == "Bearer hf_secret" for _, _, headers in hub.requests)
    assert other.requests
    assert all("authorization" not in headers for _, _, headers in other.requests)


@pytest.mark.parametrize(
    "repository", ["x", "a/b/c", "../x", "a/..", "a/.b", "a/b ", "/a/b", "http://x/y", "a--b/c", "a/b\n", "é/b", ""]
)
def test_odd_ids_are_refused_before_anything_is_asked(repository: str) -> None:
    with pytest.raises(UsageError, match="not a hub id"):
        pull(repository)


@pytest.mark.parametrize("revision", ["", "../x", "a b", "/x", "x\n", "a" * 300])
def test_odd_revisions_are_refused(revision: str) -> None:
    with pytest.raises(UsageError, match="cannot be a revision"):
        pull("org/tiny", revision)
