"""Downloads from a local stub of ModelScope's HTTP interface; each pull runs in a process of its own environment."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from adapter_files import pairs, write_adapter
from model_files import random_tensors, tiny_config
from stub_modelscope import Stub, entry, environment, serving

from edge_llm.cli.main import run
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.sources.hub_download import PIECE_BYTES
from edge_llm.sources.hub_files import is_safe_name
from edge_llm.sources.place import MODELSCOPE, Place, place_of

pytestmark = pytest.mark.thorough(file=5)

CONFIG = json.dumps(tiny_config("llama")).encode()
NAME = "modelscope:org/tiny"


@pytest.fixture
def serve() -> Iterator[Callable[[Stub], Stub]]:
    with ExitStack() as servers:
        yield lambda stub: servers.enter_context(serving(stub))


@pytest.fixture
def scope(serve: Callable[[Stub], Stub]) -> Stub:
    files = {"config.json": CONFIG, "tokenizer.json": b"{}", "model.safetensors": bytes(range(256)) * 40}
    extra = {"README.md": b"# no", "configuration.json": b"{}", "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"x"}
    return serve(Stub(files | extra))


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def folder(self) -> Path:
        return Path(self.out.splitlines()[0])

    @property
    def error(self) -> str:
        """The one line that it ends with."""
        assert self.code == 1 and not self.out and "Traceback" not in self.err, self
        return self.err.splitlines()[-1]


def edge(cache: Path, endpoint: str, *command: str, **more: str) -> Result:
    around = environment(cache, endpoint, EDGE_LLM_HOME=str(cache / "home"), **more)
    call = [sys.executable, "-m", "edge_llm", *command]
    done = subprocess.run(call, env=around, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


def pull(cache: Path, stub: Stub, name: str = NAME, *more: str, **variables: str) -> Result:
    """In this process, which need not load everything again."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    variables = {"HF_HUB_OFFLINE": "0", "HF_HUB_DOWNLOAD_TIMEOUT": "10", **variables}
    with ExitStack() as around:
        around.enter_context(patch.dict(os.environ, environment(cache, stub.endpoint, **variables)))
        for constant in ("HF_HUB_OFFLINE", "HF_HUB_DOWNLOAD_TIMEOUT"):  # it reads them when it is loaded
            around.enter_context(patch(f"huggingface_hub.constants.{constant}", int(variables[constant])))
        around.enter_context(redirect_stdout(out))
        around.enter_context(redirect_stderr(err))
        code = run(["pull", name, *more])
    return Result(code, *(one.buffer.getvalue().decode() for one in (out, err)))


def leftovers(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file() and "home" not in path.parts]


def test_only_what_an_import_needs_is_downloaded(scope: Stub, tmp_path: Path) -> None:
    result = pull(tmp_path, scope)
    assert result.code == 0, result
    assert sorted(path.name for path in result.folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    for path in result.folder.iterdir():
        assert path.read_bytes() == scope.files[path.name]
    assert not scope.asked("README") and not scope.asked(".bin") and not scope.asked("configuration")
    before = len(scope.asked("FilePath=model.safetensors"))
    assert pull(tmp_path, scope).folder == result.folder
    assert len(scope.asked("FilePath=model.safetensors")) == before == 1
    scope.files["README.md"] = b"# another state of the repository: its weights are the same"
    assert pull(tmp_path, scope).folder != result.folder
    assert len(scope.asked("FilePath=model.safetensors")) == before


def test_what_came_is_found_where_the_service_cannot_be_reached(scope: Stub, tmp_path: Path) -> None:
    first = pull(tmp_path, scope)
    for more in ({}, {"HF_HUB_OFFLINE": "1"}):
        again = edge(tmp_path, "http://127.0.0.1:9", "pull", NAME, **more)
        assert again.folder == first.folder and "cannot be reached" in again.err
    (first.folder / "model.safetensors").unlink()
    assert "cannot download `org/tiny` from http://127.0.0.1:9" in edge(tmp_path, "http://127.0.0.1:9", "pull", NAME).error


def test_an_import_remembers_where_it_came_from(
    tiny_model: Callable[..., Path], serve: Callable[[Stub], Stub], tmp_path: Path
) -> None:
    folder = tiny_model("qwen2", shards=2)
    stub = serve(Stub({path.name: path.read_bytes() for path in folder.iterdir()}))
    done = edge(tmp_path, stub.endpoint, "import", NAME, "--fast")
    assert done.code == 0, done
    with open_bundle(done.folder) as bundle:
        source = bundle.manifest["source"]
        assert bundle.folder.name == "tiny" and source["kind"] == "hub"
        assert source["path"].startswith("modelscope:org/tiny@") and bundle.float_source() is not None
    answered = edge(tmp_path, "http://127.0.0.1:9", "run", NAME, "hi", "-n", "2")
    assert answered.code == 0, answered
    other = edge(tmp_path, "http://127.0.0.1:9", "run", "org/tiny", "hi", "-n", "2")
    assert other.code != 0, "Hugging Face's repository of that name is another one"


def test_run_offers_to_fetch_it(tiny_model: Callable[..., Path], serve: Callable[[Stub], Stub], tmp_path: Path) -> None:
    folder = tiny_model("llama")
    stub = serve(Stub({path.name: path.read_bytes() for path in folder.iterdir()}))
    refused = edge(tmp_path, stub.endpoint, "run", NAME, "hi")
    assert refused.code == 2 and "`edge-llm import modelscope:org/tiny`" in refused.err
    done = edge(tmp_path, stub.endpoint, "run", NAME, "hi", "-n", "2", "--yes")
    assert done.code == 0 and "ready: it is called `tiny`" in done.err, done


def test_a_gguf_file_is_chosen_by_its_quantization(serve: Callable[[Stub], Stub], tmp_path: Path) -> None:
    stub = serve(Stub({"m-Q4_K_M.gguf": os.urandom(20_000), "sub/m-Q8_0.gguf": os.urandom(20_000), "README.md": b""}))
    for name, file in (("Q8_0", "sub/m-Q8_0.gguf"), ("q4_k_m", "m-Q4_K_M.gguf")):
        result = pull(tmp_path, stub, f"{NAME}:{name}")
        assert result.folder.read_bytes() == stub.files[file] and file in result.err
    assert "has no GGUF file `Q5_0`; there is: Q4_K_M, Q8_0" in pull(tmp_path, stub, f"{NAME}:Q5_0").error


def test_of_a_repository_of_gguf_files_alone_one_is_taken(serve: Callable[[Stub], Stub], tmp_path: Path) -> None:
    stub = serve(Stub({"m-Q8_0.gguf": os.urandom(20_000), "m-Q4_K_M.gguf": os.urandom(20_000), "config.json": b"{}"}))
    for _ in range(2):  # the second time from the cache
        assert pull(tmp_path, stub, NAME).folder.read_bytes() == stub.files["m-Q4_K_M.gguf"]
        stub.status = 500


def test_what_is_quantized_in_another_way_is_refused_before_its_weights_come(
    serve: Callable[[Stub], Stub], tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_model("llama")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    raw = json.loads(files["config.json"]) | {"quantization_config": {"quant_method": "exl2"}, "base_model": "org/base"}
    stub = serve(Stub(files | {"config.json": json.dumps(raw).encode()}))
    error = pull(tmp_path, stub, NAME).error
    assert "by ExLlamaV2 (EXL2), which is not read here; import `org/base`, of which" in error
    assert not stub.asked("model.safetensors")


def test_revisions(serve: Callable[[Stub], Stub], scope: Stub, tmp_path: Path) -> None:
    scope.revisions = ("master", "v1.0")
    for call in ((f"{NAME}@v1.0",), (NAME, "--revision", "v1.0")):
        assert pull(tmp_path, scope, *call).code == 0
    assert scope.asked("Revision=v1.0") and not scope.asked("Revision=master")
    assert "`revision not found`; check the spelling and the revision" in pull(tmp_path, scope, f"{NAME}@v2").error


def test_an_adapter_is_fetched(tiny_model: Callable[..., Path], serve: Callable[[Stub], Stub], tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a", pairs(random_tensors(tiny_config("llama"))))
    texts = {"README.md": b"", "tokenizer.json": b"{}", "optimizer.pt": b"x"}
    stub = serve(Stub({path.name: path.read_bytes() for path in adapter.iterdir()} | texts, "org/lora"))
    done = edge(
        tmp_path,
        stub.endpoint,
        "import",
        str(tiny_model("llama")),
        "--lora",
        "modelscope:org/lora:0.5",
        "--fast",
        "--name",
        "m",
    )
    assert done.code == 0, done
    with open_bundle(done.folder) as bundle:
        assert bundle.manifest["source"]["lora"].startswith("modelscope:org/lora@")
        assert bundle.manifest["source"]["lora"].endswith(":0.5")
    assert not stub.asked("optimizer") and not stub.asked("tokenizer.json")
    assert (
        "is no adapter: import it without --lora"
        in edge(
            tmp_path, serve(Stub({"config.json": CONFIG})).endpoint, "import", str(tiny_model("llama")), "--lora", NAME
        ).error
    )


def test_a_token_stays_with_the_service(serve: Callable[[Stub], Stub], scope: Stub, tmp_path: Path) -> None:
    other = serve(Stub(scope.files))
    scope.token, scope.redirect = "ms-secret", other.endpoint.replace("127.0.0.1", "localhost")
    assert "no model `org/tiny` with the revision `master`" in pull(tmp_path, scope).error
    result = pull(tmp_path, scope, MODELSCOPE_API_TOKEN="ms-secret", HF_TOKEN="hf-secret")
    assert result.code == 0, result
    assert any(headers.get("cookie") == "m_session_id=ms-secret" for _, headers in scope.requests)
    assert other.requests
    for _, headers in other.requests:
        assert "authorization" not in headers and "cookie" not in headers
    assert "hf-secret" not in str(scope.requests)


def test_cut_connection_goes_on_where_it_stopped(scope: Stub, tmp_path: Path) -> None:
    weights = scope.files["model.safetensors"] = os.urandom(1000) * 1_500
    scope.cut = PIECE_BYTES + 100_000
    result = pull(tmp_path, scope)
    assert (result.folder / "model.safetensors").read_bytes() == weights
    assert any("range" in headers for headers in scope.asked("FilePath=model.safetensors"))


@pytest.mark.parametrize("ignores_range", [False, True])
def test_killed_process_goes_on_where_it_stopped(scope: Stub, tmp_path: Path, ignores_range: bool) -> None:
    weights = scope.files["model.safetensors"] = os.urandom(1000) * 1_500
    scope.stall, scope.ignores_range = PIECE_BYTES + 100_000, ignores_range
    process = subprocess.Popen(
        [sys.executable, "-m", "edge_llm", "pull", NAME],
        env=environment(tmp_path, scope.endpoint),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 30
    while not any(path.stat().st_size >= PIECE_BYTES for path in tmp_path.rglob("*.incomplete")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=20)
    scope.stall = 0
    result = pull(tmp_path, scope)
    assert (result.folder / "model.safetensors").read_bytes() == weights
    assert any(headers.get("range", "") > "bytes=1" for headers in scope.asked("FilePath=model.safetensors"))
    assert not list(tmp_path.rglob("*.incomplete"))


def lying(**listed: object) -> Callable[[Stub], None]:
    return lambda stub: stub.listed.update(listed)


def listing(*extra: object) -> Callable[[Stub], None]:
    return lambda stub: stub.extra.extend(extra)


def being(**how: object) -> Callable[[Stub], None]:
    def change(stub: Stub) -> None:
        for name, value in how.items():
            setattr(stub, name, value)

    return change


LIES: dict[str, tuple[Callable[[Stub], None], str]] = {
    "damaged": (being(damaged=True), "arrived damaged"),
    "another checksum": (lying(Sha256="0" * 64), "arrived damaged"),
    "no checksum": (lying(Sha256=""), "names no SHA-256 of `model.safetensors`"),
    "a checksum that leads elsewhere": (lying(Sha256="../../x"), "names no SHA-256"),
    "shorter than listed": (listing(entry("model.safetensors", b"x") | {"Size": 20_000}), "file should be of size 20000"),
    "longer than listed": (lying(Size=100), ""),
    "endless": (being(endless=True), ""),
    "no size": (lying(Size=None), "with `None` bytes for `org/tiny`, which is no list"),
    "a size below 0": (lying(Size=-1), "with `-1` bytes"),
    "a size that is true": (lying(Size=True), "with `True` bytes"),
    "a config that is too large": (lying(Size=1 << 49), "`config.json` has more than 64 MiB"),
    "a size that no disk has": (listing(entry("model.safetensors", b"x") | {"Size": 1 << 49}), "are free"),
    "a huge size": (lying(Size=1 << 200), "bytes for `org/tiny`, which is no list"),
    "a path out of the folder": (listing({"Path": "../x", "Size": 1, "Type": "blob"}), "is called `../x`"),
    "an absolute path": (listing({"Path": "/etc/x", "Size": 1}), "is called `/etc/x`"),
    "control characters": (listing({"Path": "a\x1b[31m", "Size": 1}), "is called `a\\x1b[31m`"),
    "a number for a file": (listing(7), "is called `None`"),
    "an error for a file": (being(json_for_file=True), ""),
    "an error with status 200": (being(refuses={"Code": 10010, "Message": "the\nmodel is\x1b[2J gone"}), "says of `org/tiny`"),
    "no success": (being(refuses={"Code": 200, "Success": False, "Message": "busy"}), "`busy`"),
    "no data": (being(refuses={"Code": 200, "Data": None}), "lists no list of files"),
    "data of another type": (being(refuses={"Code": 200, "Data": {"Files": {}}}), "lists no list of files"),
    "many files": (being(refuses={"Code": 200, "Data": {"Files": [{}] * 20_000}}), "lists 20000 files"),
    "a login page": (being(nonsense=b"<html>login</html>"), "is not usable JSON"),
    "a list": (being(nonsense=b"[]"), "must hold a JSON object"),
    "too much": (being(nonsense=b" " * (65 << 20)), "has more than 64 MiB"),
    "no files": (being(files={}), "has no model.safetensors"),
    "no config": (being(files={"model.safetensors": b"x"}), "has no config.json"),
    "another family": (being(files={"config.json": b'{"model_type": "x"}', "model.safetensors": b"x"}), "cannot be run here"),
    "404": (being(status=404), "no model `org/tiny` with the revision `master`"),
    "403": (being(status=403), "refused access to `org/tiny` (403)"),
    "500": (being(status=500), "answered 500"),
    "another repository": (being(repository="org/other"), "no model `org/tiny`"),
}


@pytest.mark.thorough(keep=12)
@pytest.mark.parametrize("name", LIES)
def test_a_service_that_lies_is_refused_in_a_line_and_leaves_nothing(
    name: str, scope: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change, said = LIES[name]
    change(scope)
    for variable, value in environment(tmp_path, scope.endpoint).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    start = time.monotonic()
    assert run(["pull", NAME]) == 1
    out, err = capsys.readouterr()
    error = err.splitlines()[-1]
    assert not out and "Traceback" not in err
    assert error.startswith("error: ") and said in error and "\x1b" not in error
    assert time.monotonic() - start < 40
    assert sum(path.stat().st_size for path in leftovers(tmp_path)) < 200_000
    assert not [path for path in tmp_path.rglob("snapshots/*/*.safetensors")]


def test_a_service_that_says_nothing_is_not_waited_for_long(scope: Stub, tmp_path: Path) -> None:
    scope.silent = 8.0
    start = time.monotonic()
    error = pull(tmp_path, scope, HF_HUB_DOWNLOAD_TIMEOUT="1").error
    assert "cannot download `org/tiny`" in error and time.monotonic() - start < 60


def test_a_small_file_that_changed_here_is_fetched_again(scope: Stub, tmp_path: Path) -> None:
    folder = pull(tmp_path, scope).folder
    (folder / "tokenizer.json").write_bytes(b"[]")
    assert (pull(tmp_path, scope).folder / "tokenizer.json").read_bytes() == b"{}"


PLACES = {
    "modelscope:Qwen/Qwen3-0.6B": Place(None, "Qwen/Qwen3-0.6B", hub=MODELSCOPE),
    "ModelScope:Qwen/Qwen3-0.6B@v1": Place(None, "Qwen/Qwen3-0.6B", "v1", hub=MODELSCOPE),
    "modelscope:Qwen/Qwen3-0.6B-GGUF:Q8_0": Place(None, "Qwen/Qwen3-0.6B-GGUF", gguf="Q8_0", hub=MODELSCOPE),
    "modelscope:a/b:x-Q8_0.gguf@master": Place(None, "a/b", "master", gguf="x-Q8_0.gguf", hub=MODELSCOPE),
    "https://www.modelscope.cn/models/Qwen/Qwen3-0.6B": Place(None, "Qwen/Qwen3-0.6B", hub=MODELSCOPE),
    "modelscope.cn/models/Qwen/Qwen3-0.6B/summary": Place(None, "Qwen/Qwen3-0.6B", hub=MODELSCOPE),
    "https://modelscope.ai/models/a/b/files": Place(None, "a/b", hub=MODELSCOPE),
    "https://modelscope.cn/models/a/b/file/view/v1/c/d-Q8_0.gguf": Place(
        None, "a/b", "v1", gguf="c/d-Q8_0.gguf", hub=MODELSCOPE
    ),
    "https://modelscope.cn/models/a/b/resolve/master/d-Q8_0.gguf": Place(None, "a/b", gguf="d-Q8_0.gguf", hub=MODELSCOPE),
}


@pytest.mark.parametrize("text", PLACES)
def test_names_of_the_service(text: str) -> None:
    place = place_of(text)
    assert place == PLACES[text]
    assert place_of(f"{place}@{place.revision}" if place.revision else str(place)) == place


@pytest.mark.parametrize(
    "text",
    ["modelscope:", "modelscope:x", "modelscope:a/b/c", "modelscope:../x", "modelscope:a/..", "modelscope:a/b:nonsense",
     "modelscope:a--b/c", "modelscope:a b/c", "https://modelscope.cn/datasets/a/b", "https://modelscope.cn/models/a"],
)  # fmt: skip
def test_what_is_no_name_of_the_service_is_misuse(text: str) -> None:
    with pytest.raises(UsageError):
        place_of(text)


@pytest.mark.parametrize("revision", ["../x", "a b", "/x", "x\n"])
def test_odd_revisions_are_misuse(revision: str, tmp_path: Path) -> None:
    result = edge(tmp_path, "http://127.0.0.1:9", "pull", NAME, "--revision", revision)
    assert result.code == 2 and "cannot be a revision" in result.err


def test_names_of_files_stay_in_their_folder() -> None:
    rng = np.random.default_rng(0)
    parts = ["..", ".", "", "a", "/", "\\", "b.gguf", "~", "\x00", "\n", "..."]
    for _ in range(3000):
        name = "/".join(parts[index] for index in rng.integers(0, len(parts), rng.integers(1, 6)))
        if is_safe_name(name):
            assert (Path("/r/s") / name).resolve().is_relative_to("/r/s"), name
    assert is_safe_name("sub/m-Q8_0.gguf") and not is_safe_name("") and not is_safe_name("x" * 600)


def test_the_stub_lists_as_the_service_does() -> None:
    assert entry("sub/x.bin", b"abc")["Name"] == "x.bin"
