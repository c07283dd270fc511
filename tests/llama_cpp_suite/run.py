"""Run llama.cpp's own tests of its server against `edge-llm serve`, unmodified, as its `tests.sh` does.

    python tests/llama_cpp_suite/run.py --model FOLDER            run them; what passed before and fails now is an error
    python tests/llama_cpp_suite/run.py --model FOLDER --write    write results.json, which docs/conformance.md has its count of
    python tests/llama_cpp_suite/run.py --model FOLDER unit/test_completion.py    some of them, and nothing is compared

FOLDER has stories260k as a Hugging Face model; it stands in for every model that the tests name.  The tests come from the
source distribution of llama-cpp-python, which is fetched into --work; nothing of it is kept in this repository.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a script's own folder is there, the tests' is not

from foreign_tests import outcomes_in, python_with, report_lost  # noqa: E402

RESULTS = HERE / "results.json"
PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
NEEDS = (
    "aiohttp", "pytest~=8.3", "pytest-timeout", "filelock", "numpy", "openai~=2.14", "prometheus-client", "requests", "wget"
)  # fmt: skip
CONTEXT = 8192
"""Tokens: some tests ask for more than stories260k was made for."""
_CONTINUED = "a last message of the assistant is continued only where that is asked"
REASONS = (
    ("unit/test_mcp_servers.py", "MCP servers and tools run by the server: not here"),
    ("unit/test_tools_builtin.py", "MCP servers and tools run by the server: not here"),
    ("unit/test_router.py", "llama.cpp's router of model files"),
    ("unit/test_stream.py", "llama.cpp's router of model files"),
    ("unit/test_lora.py", "LoRA adapters of other models: not here (ours are tried by our own tests)"),
    ("unit/test_vision_api.py", "models that see images: not here"),
    ("unit/test_security.py::test_local_media_file", "models that see images: not here"),
    ("unit/test_security.py::test_cors", "origins: an allow-list here, reflected there"),
    ("unit/test_security.py", "files of llama.cpp's own page"),
    ("unit/test_slot_save.py", "slots saved and restored: prompts are kept by their beginnings here"),
    ("unit/test_kv_keep_only_active.py", "slots saved and restored: prompts are kept by their beginnings here"),
    ("unit/test_speculative.py", "draft models of llama.cpp's own, or the text of another model"),
    ("unit/test_rerank.py", "counts and order of a reranking model that is not here"),
    ("unit/test_infill.py", "a model with tokens for gaps that is not here"),
    ("unit/test_embedding.py", "counts or pooling of BERT, for which stories260k stands"),
    ("unit/test_proxy.py", "a proxy for other addresses: not here"),
    ("unit/test_sleep.py", "llama.cpp's way to unload a model"),
    ("unit/test_compat_gcp.py", "Vertex AI's route: not here"),
    ("unit/test_ctx_shift.py::test_ctx_shift_enabled", "a context that shifts: not here (it changes what the model has read)"),
    ("unit/test_metrics.py", "metrics that are off by default"),
    ("unit/test_basic.py::test_no_ui", "`/` is the page for browsers alone: others get Ollama's word"),
    ("unit/test_basic.py", "flags of llama-server without a counterpart"),
    ("unit/test_compat_anthropic.py", "models that see images or think: not stories260k"),
    ("unit/test_chat_completion.py::test_chat_template", _CONTINUED),
    ("unit/test_chat_completion.py::test_invalid", _CONTINUED),
    ("unit/test_chat_completion.py::test_chat_completion_cached_tokens", "prompts are kept in pages of 16 tokens"),
    ("unit/test_chat_completion.py::test_return_progress", "progress is told by time, not by batch"),
    ("unit/test_chat_completion.py::test_chat_completion_with_timings", "the first chunk of a chat has no content, not null"),
    ("unit/test_chat_completion.py::test_apply", "the bos token is shown in the prompt that a template makes"),
    ("unit/test_completion.py::test_n_probs_post_backend", "probabilities behind samplers: of plain sampling alone"),
    ("unit/test_compat_oai_responses.py::test_responses_stream_with_llama", "progress in responses: not here"),
    ("", "the very text that llama.cpp's arithmetic and random numbers give"),
)
"""Why a test does not pass, by the beginning of its name; the first that fits."""


def main() -> int:
    """Run what the command line asks for; 1 if something that passed before does not."""
    asked = _arguments()
    asked.work.mkdir(parents=True, exist_ok=True)
    found = outcomes(_suite(asked.work), asked)
    passed = sorted(name for name, outcome in found.items() if outcome == "passed")
    print(f"{len(passed)} of {len(found)} pass")
    if asked.tests:
        return 0
    if asked.write:
        RESULTS.write_text(json.dumps(results(found), indent=1) + "\n")
        return 0
    return report_lost(json.loads(RESULTS.read_text())["passed"], passed)


def results(found: dict[str, str]) -> dict[str, object]:
    """What is kept of a run: what passed, and how many did not by reason."""
    others: defaultdict[str, int] = defaultdict(int)
    for name, outcome in found.items():
        if outcome == "skipped":
            others["skipped by the tests themselves"] += 1
        elif outcome != "passed":
            others[next(reason for begin, reason in REASONS if name.startswith(begin))] += 1
    passed = sorted(name for name, outcome in found.items() if outcome == "passed")
    return {"package": f"{PACKAGE} {VERSION}", "total": len(found), "passed": passed, "others": dict(sorted(others.items()))}


def outcomes(suite: Path, asked: argparse.Namespace) -> dict[str, str]:
    """The outcome of each test by its name: passed, failed or skipped."""
    work: Path = asked.work.resolve()
    line, report = work / "line", work / "report.xml"
    line.unlink(missing_ok=True)
    server = work / "llama-server"
    server.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{HERE / "forks.py"}" start "{line}" "$@"\n')
    server.chmod(0o755)
    _draft(suite)
    environment = os.environ | {
        "EDGE_LLM_HOME": str(work / "home"), "LLAMA_SERVER_BIN_PATH": str(server), "PORT": str(asked.port),
        "LLAMA_STAND_IN_MODEL": _stand_in(asked.model, work),
    }  # fmt: skip
    python = python_with(work, NEEDS)
    forks = subprocess.Popen([sys.executable, str(HERE / "forks.py"), "serve", str(line)], env=environment)
    try:
        while not line.exists():
            if forks.poll() is not None:
                raise SystemExit("the process that starts servers has ended")
            time.sleep(0.05)
        command = [
            python, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", "--timeout", "120", "-q", "--tb=short",
            f"--junitxml={report}", *asked.tests,
        ]  # fmt: skip
        with (work / "log.txt").open("wb") as log:
            subprocess.run(command, cwd=suite, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
    finally:
        forks.terminate()
        forks.wait()
    return outcomes_in(report, lambda module: module.replace(".", "/"))


def _suite(work: Path) -> Path:
    """The folder of the tests, fetched once."""
    root = f"{PACKAGE.replace('-', '_')}-{VERSION}/vendor/llama.cpp"
    suite = work / root / "tools/server/tests"
    if not suite.exists():
        fetch = [sys.executable, "-m", "pip", "download", "--no-binary", ":all:", "--no-deps", f"{PACKAGE}=={VERSION}"]
        subprocess.run([*fetch, "--dest", str(work)], check=True)
        with tarfile.open(work / f"{root.partition('/')[0]}.tar.gz") as archive:
            wanted = (f"{root}/tools/server/tests", f"{root}/models/templates")
            archive.extractall(work, [one for one in archive if one.name.startswith(wanted)], filter="data")
    return suite


def _draft(suite: Path) -> None:
    """An empty file where the tests would download a draft model: the server guesses from the text itself."""
    (suite / "tmp").mkdir(exist_ok=True)
    (suite / "tmp/stories15M-q4_0.gguf").touch()


def _stand_in(model: Path, work: Path) -> str:
    """The name of the imported model, whose context is long enough for all tests."""
    name, source = "stories260k", work / "stories260k"
    if not (work / "home/models" / name).exists():
        shutil.copytree(model, source, dirs_exist_ok=True)
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
        command = [sys.executable, "-m", "edge_llm", "import", str(source), "--name", name]
        subprocess.run(command, env=os.environ | {"EDGE_LLM_HOME": str(work / "home")}, check=True)
    return name


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="stories260k as a Hugging Face model")
    parser.add_argument("--work", type=Path, default=Path("build/llama_cpp"), help="what is fetched and made is kept here")
    parser.add_argument("--port", type=int, default=18080, help="of the servers that the tests start")
    parser.add_argument("--write", action="store_true", help="write results.json")
    parser.add_argument("tests", nargs="*", help="files or names of tests; default: all that are not slow")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
