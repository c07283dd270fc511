"""Print the table of clients: one row for every client and feature of tests/client_rows.py.

python assets/clients.py            print it
python assets/clients.py --write    write docs/clients.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "clients.md"
HEAD = """# Clients that are tried

Made by `python assets/clients.py --write` from `tests/client_rows.py`. A row without a way is a test that runs the client,
unmodified, against a server of the built-in model (`pytest -m clients`, after `pip install -e '.[test,clients]'`). Packages of
JavaScript are looked for in the folder that `EDGE_LLM_NODE_CLIENTS` names, where `npm install` has put them. openai-agents and
LlamaIndex's OpenAILike want different versions of `openai`, so the extra has neither.

| client | feature | | how |
|---|---|---|---|
"""
MORE = """
Nobody has tried these:

| client | why |
|---|---|
"""


def clients_page() -> str:
    """The whole page."""
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        import client_rows as found
    finally:
        sys.path.pop(0)
    rows = sorted(_rows(found), key=lambda row: row[0].lower())
    table = "".join(f"| {client} | {feature} | {_outcome(why)} | {how} |\n" for client, feature, why, how in rows)
    return HEAD + table + MORE + "".join(f"| {client} | {why} |\n" for client, why in found.NOT_TRIED)


def _rows(found: object) -> Iterator[tuple[str, str, str, str]]:
    """(client, feature, why it is refused or "", how it is tried)."""
    for client, _, feature, why, _ in found.ROWS:  # type: ignore[attr-defined]
        yield client, feature, why, ""
    for client, package, _, feature, why in found.JAVASCRIPT:  # type: ignore[attr-defined]
        yield client, feature, why, f"`{package}`"
    for client, feature, why, how in found.BY_HAND:  # type: ignore[attr-defined]
        yield client, feature, why, how


def _outcome(why: str) -> str:
    return f"refused: {why}" if why else "works"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(clients_page())
    else:
        print(clients_page())
