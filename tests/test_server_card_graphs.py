"""A server on a card says that it is ready when nothing is left to be recorded."""

import os
import re
import subprocess
import sys
import time

import httpx
import pytest

pytest.importorskip("torch")


def test_health_says_ok_when_all_graphs_are_recorded(tmp_path):
    """HTTP | card | `/health` says how far a card's graphs are, and ok when all of them are recorded."""
    command = [sys.executable, "-m", "edge_llm", "serve", "builtin", "--port", "0", "--device", "ascend", "--ctx", "128"]
    environment = {**os.environ, "EDGE_LLM_NPU_OPS": "emulated", "EDGE_LLM_HOME": str(tmp_path)}
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        url = next(found[0] for line in server.stderr if (found := re.search(r"http://[^/]+", line)))
        stages, until = [], time.monotonic() + 60
        while (reply := httpx.get(f"{url}/health", timeout=60)).status_code != 200:
            assert time.monotonic() < until and server.poll() is None
            stages.append(reply.json()["progress"]["stage"])
            time.sleep(0.002)
        assert stages[-1] == "graphs"
        body = {"prompt": "Once upon", "temperature": 0, "max_tokens": 3}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]
    finally:
        server.kill()
        server.wait()
        server.stderr.close()
