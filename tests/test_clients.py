"""Other people's clients against a server of the built-in model: each row of docs/clients.md, where its client is installed."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from client_rows import JAVASCRIPT, ROWS

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).parent / "client_scripts" / "javascript.mjs"
NODE = os.environ.get("EDGE_LLM_NODE_CLIENTS", "")


def is_here(package):
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.clients
@pytest.mark.parametrize("row", ROWS, ids=[f"{client}: {feature}" for client, _, feature, *_ in ROWS])
def test_a_client_works(url, row):
    _, package, _, _, attempt = row
    if not is_here(package):
        pytest.skip(f"`{package}` is not installed (the extra `clients` has it)")
    attempt(url)


@pytest.mark.clients
@pytest.mark.parametrize("row", JAVASCRIPT, ids=[f"{client}: {feature}" for client, _, _, feature, _ in JAVASCRIPT])
def test_a_client_in_javascript_works(url, row):
    _, package, name, _, _ = row
    folder = Path(NODE)
    if not NODE or shutil.which("node") is None or not (folder / "node_modules" / package).exists():
        pytest.skip(f"`npm install {package}` in a folder that EDGE_LLM_NODE_CLIENTS names")
    script = folder / "edge_llm_clients.mjs"  # packages are looked for beside the file
    shutil.copyfile(SCRIPT, script)
    found = subprocess.run(["node", str(script), url, name], capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr


def test_the_table_of_clients_is_true():
    sys.path.insert(0, str(ROOT / "assets"))
    try:
        from clients import PAGE, clients_page
    finally:
        sys.path.pop(0)
    assert PAGE.read_text() == clients_page(), "run `python assets/clients.py --write`"
