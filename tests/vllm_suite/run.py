"""Run vLLM's own tests of its server against `edge-llm serve`, unmodified.

    python tests/vllm_suite/run.py --model NAME            run them; what passed before and fails now is an error
    python tests/vllm_suite/run.py --model NAME --write    write results.json, which docs/conformance.md has its count of
    python tests/vllm_suite/run.py --model NAME chat_completion/test_chat.py    some of them, and nothing is compared

NAME is SmolLM2-135M-Instruct as it was imported; it stands in for every model that the tests name.  The tests come from vLLM's
source distribution, which is fetched into --work; nothing of it is kept in this repository, and vLLM is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path

from edge_llm.paths import find_bundle

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a script's own folder is there, the tests' is not

from foreign_tests import outcomes_in, python_with, report_lost  # noqa: E402

RESULTS = HERE / "results.json"
PACKAGE, VERSION = "vllm", "0.33.0"
NEEDS = (
    "anthropic", "httpx", "jinja2", "jsonschema", "numpy", "openai~=3.57", "pytest~=9.2", "pytest-asyncio", "pytest-timeout",
    "regex", "requests", "tokenizers", "transformers~=5.24",
)  # fmt: skip
FILES = (
    "openai/chat_completion/test_chat.py", "openai/chat_completion/test_chat_completion.py",
    "openai/chat_completion/test_chat_echo.py", "openai/chat_completion/test_chat_logit_bias_validation.py",
    "openai/chat_completion/test_enable_force_include_usage.py", "openai/chat_completion/test_include_reasoning.py",
    "openai/chat_completion/test_logprob_token_ids.py", "openai/chat_completion/test_root_path.py",
    "openai/completion/test_completion.py", "openai/completion/test_token_in_token_out.py", "openai/models/test_models.py",
    "openai/responses/test_simple.py", "openai/test_chunked_prompt.py", "openai/test_return_token_ids.py",
    "openai/test_return_tokens_as_ids.py", "serve/tokenize/test_tokenization.py", "anthropic/test_messages.py",
)  # fmt: skip
"""Those of openai, anthropic and serve that ask a server for text and need little of vLLM itself."""
ADAPTERS = ("zephyr-lora",)
"""Models of the tests that are adapters: here the base model would answer for them, which proves nothing."""
REASONS = (
    ("[zephyr-lora]", "LoRA adapters of other models: not here (ours are tried by our own tests)"),
    ("test_chat_completion_request", "vLLM's own classes, no server"),
    ("test_null_top_logprobs", "vLLM's own classes, no server"),
    ("test_completion_request", "vLLM's own classes, no server"),
    ("decouples_top_k", "vLLM's own classes, no server"),
    ("rejects_explicit_token_ids", "vLLM's own classes, no server"),
    ("explicit_token_ids_with_beam", "vLLM's own classes, no server"),
    ("test_responses_api_logprobs", "vLLM's own classes, no server"),
    ("reasoning", "a model that thinks: not SmolLM2"),
    ("test_response_format_json", "what a model of 135M parameters says"),
    ("test_complex_message_content", "what a model of 135M parameters says"),
    ("test_simple_messages", "what a model of 135M parameters says"),
    ("test_system_message", "what a model of 135M parameters says"),
    ("test_anthropic_tool_call", "what a model of 135M parameters says"),
    ("test_anthropic_structured_output", "what a model of 135M parameters says"),
    ("test_chat_completion_with_tool_use", "what a model of 135M parameters says"),
    ("test_completion_streaming", "what a model of 135M parameters says"),
    ("test_more_than_one_prompt_logprobs", "what a model of 135M parameters says"),
    ("test_single_chat_session", "counts and texts of another tokenizer"),
    ("test_echo_logprob_completion", "counts and texts of another tokenizer"),
    ("test_anthropic_streaming", "vLLM counts cached tokens twice in a stream's first event; Anthropic does not"),
    ("test_tokenize_chat_with_tools", "tools are explained to a model whose template knows none"),
    ("test_chat_completion_stream_options", "the last chunk of a chat has no content, as OpenAI's"),
    ("test_chat_streaming", "the last chunk of a chat has no content, as OpenAI's"),
    ("test_kv_transfer", "prompts out of another server's stage: refused"),
    ("test_per_request_metrics", "`timings` has llama.cpp's names, not vLLM's"),
    ("test_custom_role", "roles of one's own: refused"),
    ("test_long_seed", "the very words of vLLM's refusals"),
    ("test_invocations", "SageMaker's route: not here"),
    ("test_batch_completions", "beam search: not here"),
    ("_logprobs", "log-probabilities of the whole vocabulary: 20 at most"),
    ("test_top_logprobs", "log-probabilities of the whole vocabulary: 20 at most"),
    ("test_detokenize", "llama.cpp's field stands beside vLLM's"),
    ("", "flags of `vllm serve` without a counterpart"),
)
"""Why a test does not count, by a part of its name; the first that fits."""


def main() -> int:
    """Run what the command line asks for; 1 if something that passed before does not."""
    asked = _arguments()
    asked.work.mkdir(parents=True, exist_ok=True)
    found = outcomes(_suite(asked.work), asked)
    kept = results(found)
    passed: list[str] = kept["passed"]  # type: ignore[assignment]
    print(*(f"{outcome:8}{name}" for name, outcome in sorted(found.items()) if name not in passed), sep="\n")
    print(f"{len(passed)} of {len(found)} pass")
    if asked.tests:
        return 0
    if asked.write:
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
        return 0
    return report_lost(json.loads(RESULTS.read_text())["passed"], passed)


def results(found: dict[str, str]) -> dict[str, object]:
    """What is kept of a run: how many tests each file has, what passed, and how many do not count by reason."""
    others: defaultdict[str, int] = defaultdict(int)
    passed = []
    for name, outcome in sorted(found.items()):
        if outcome == "passed" and not any(adapter in name for adapter in ADAPTERS):
            passed.append(name)
        else:
            others[next(reason for part, reason in REASONS if part in name)] += 1
    files = dict(sorted(Counter(name.partition("::")[0] for name in found).items()))
    kept = {"package": f"{PACKAGE} {VERSION}", "total": len(found), "files": files, "passed": passed}
    return kept | {"others": dict(sorted(others.items()))}


def outcomes(suite: Path, asked: argparse.Namespace) -> dict[str, str]:
    """The outcome of each test by its name: passed, failed or skipped."""
    work: Path = asked.work.resolve()
    report = work / "report.xml"
    model = find_bundle(asked.model)
    environment = os.environ | {
        "EDGE_LLM_PYTHON": sys.executable, "EDGE_LLM_PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PYTHONPATH": str(HERE),
        "VLLM_STAND_IN_MODEL": asked.model, "VLLM_STAND_IN_TOKENIZER": str(model), "VLLM_SUITE_LOG": str(work / "servers.txt"),
    }  # fmt: skip
    tests = [f"tests/entrypoints/{name}" for name in asked.tests or FILES]
    command = [
        python_with(work, NEEDS), "-m", "pytest", "-p", "stand_ins", "-p", "no:cacheprovider", "--timeout", "240", "-q",
        "--tb=short", f"--junitxml={report}", *tests,
    ]  # fmt: skip
    with (work / "log.txt").open("wb") as log:
        subprocess.run(command, cwd=suite, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
    return outcomes_in(report, lambda module: module.removeprefix("tests.entrypoints.").replace(".", "/"))


def _suite(work: Path) -> Path:
    """The folder above the tests, fetched once."""
    root = f"{PACKAGE}-{VERSION}"
    suite = work / root
    if not (suite / "tests").exists():
        archive = work / f"{root}.tar.gz"
        if not archive.exists():
            urllib.request.urlretrieve(_address(archive.name), archive)
        with tarfile.open(archive) as source:
            source.extractall(work, [one for one in source if one.name.startswith(f"{root}/tests/entrypoints")], filter="data")
        (suite / "tests/__init__.py").touch()
        (suite / "pytest.ini").write_text("[pytest]\n")
    return suite


def _address(name: str) -> str:
    """Where the index has the file ``name``: pip would build vLLM to learn what it is."""
    kind = "application/vnd.pypi.simple.v1+json"
    asked = urllib.request.Request(f"https://pypi.org/simple/{PACKAGE}/", headers={"Accept": kind})
    with urllib.request.urlopen(asked, timeout=60) as reply:
        return next(one["url"] for one in json.load(reply)["files"] if one["filename"] == name)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the imported SmolLM2-135M-Instruct")
    parser.add_argument("--work", type=Path, default=Path("build/vllm"), help="what is fetched and made is kept here")
    parser.add_argument("--write", action="store_true", help="write results.json")
    parser.add_argument("tests", nargs="*", help="files or names of tests below tests/entrypoints; default: those of FILES")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
