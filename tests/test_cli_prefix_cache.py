"""`--prefix-cache` of the commands that end: the next process knows the beginning of the text, and answers the same."""

import json
import os
import resource
import subprocess
import sys

import pytest

from edge_llm.kv.pages import PAGE_TOKENS
from edge_llm.kv.prefix_folder import stored_models
from edge_llm.paths import prefix_cache_folder

pytestmark = pytest.mark.thorough(file=2)

TEXT = "Once upon a time there was a small machine that liked long stories. " * 12


def called(*arguments, stdin="", **settings):
    command = [sys.executable, "-m", "edge_llm", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, **settings)


def answered(*options, prompt=TEXT, **settings):
    done = called("run", "builtin", prompt, "-n", "8", "-t", "1", "--temperature", "0", "--json", *options, **settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_next_process_knows_the_beginning():
    first, second = (answered("--prefix-cache", "64MiB") for _ in range(2))
    assert first["usage"]["cached_tokens"] == 0
    assert second["usage"]["cached_tokens"] >= second["usage"]["prompt_tokens"] - 1 - PAGE_TOKENS > 0
    assert second["text"] == first["text"] and second["tokens"] == first["tokens"]


@pytest.mark.parametrize("options", [(), ("--prefix-cache", "0")])
def test_nothing_is_kept_unless_it_is_wanted(options, edge_llm_home):
    assert answered(*options)["usage"]["cached_tokens"] == 0
    assert list(edge_llm_home.iterdir()) == []


def test_chat_keeps_pages_for_run():
    done = called("chat", "builtin", "-n", "4", "-t", "1", "--prefix-cache", "64MiB", stdin=f"{TEXT}\n")
    assert done.returncode == 0, done.stderr
    (kept,) = stored_models(prefix_cache_folder())
    assert len(kept.files) > 4
    assert answered("--prefix-cache", "64MiB")["usage"]["cached_tokens"] > 0


def test_a_place_that_nobody_may_use_costs_no_answer(edge_llm_home):
    plain = answered()
    prefix_cache_folder().write_text("in the way")
    done = answered("--prefix-cache", "64MiB")
    assert done["text"] == plain["text"]


def test_a_full_disk_costs_no_answer(edge_llm_home):
    def small_files_only():
        resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256))

    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    # stdout and stderr are pipes, to which the limit does not apply
    done = answered("--prefix-cache", "64MiB", env=environment, preexec_fn=small_files_only)
    assert done["text"] == answered()["text"]
    assert all(not kept.files for kept in stored_models(prefix_cache_folder()))


def test_an_invalid_size_is_refused():
    done = called("run", "builtin", "hi", "--prefix-cache", "much")
    assert done.returncode == 2 and "invalid size for the prefix cache" in done.stderr and done.stderr.count("\n") == 1
