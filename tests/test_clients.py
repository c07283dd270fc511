"""Other people's clients against a server of the built-in model: each row of docs/clients.md, where its client is installed."""

import importlib.util
import sys
from pathlib import Path

import pytest
from client_rows import ROWS

ROOT = Path(__file__).resolve().parents[1]


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


def test_the_table_of_clients_is_true():
    sys.path.insert(0, str(ROOT / "assets"))
    try:
        from clients import PAGE, clients_page
    finally:
        sys.path.pop(0)
    assert PAGE.read_text() == clients_page(), "run `python assets/clients.py --write`"
