"""Print the table of clients: one row for every client and feature of tests/client_rows.py.

python assets/clients.py            print it
python assets/clients.py --write    write docs/clients.md
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "clients.md"
HEAD = """# Clients that are tried

Made by `python assets/clients.py --write` from `tests/client_rows.py`. Every row is a test (`pytest -m clients`, after
`pip install -e '.[test,clients]'`) that runs the client, unmodified, against a server of the built-in model.

| client | feature | |
|---|---|---|
"""


def clients_page() -> str:
    """The whole page."""
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        from client_rows import ROWS
    finally:
        sys.path.pop(0)
    return HEAD + "".join(
        f"| {client} | {feature} | {f'refused: {why}' if why else 'works'} |\n" for client, _, feature, why, _ in ROWS
    )


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(clients_page())
    else:
        print(clients_page())
