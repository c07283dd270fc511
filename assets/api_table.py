"""Print the fields of the server's requests: what is honoured, what has no effect, what is refused.

python assets/api_table.py            print them
python assets/api_table.py --write    write docs/api.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from edge_llm.server.app import BODIES, ROUTES
from edge_llm.server.openapi import HONOURED, Operation, operations

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
HEAD = """# What requests may say

Made by `python assets/api_table.py --write` from the bodies and the table of fields (`edge_llm/server/fields.py`) that the
server itself uses; `GET /openapi.json` and `GET /docs` of a server say the same, and list its routes.

A field is honoured, or it is a hint: taken, without effect, and named in the answer's header `x-edge-llm-ignored`, as are
fields that no API has. Or it is refused: a 400 that names it, because without it the answer would be another one. Null is
always taken.
"""


def api_page() -> str:
    """The whole page."""
    found = operations(ROUTES, BODIES)
    first = {one.body: one for one in reversed(found)}
    listed = [one for one in found if one.body is not None and first[one.body] is one]
    return HEAD + "".join(map(_section, listed))


def _section(one: Operation) -> str:
    return f"\n## `{one.title}`\n\n| field | is | note |\n|---|---|---|\n" + "".join(_rows(one))


def _rows(one: Operation) -> Iterator[str]:
    for name, how, note in one.fields():
        yield f"| `{name}` | {how if how == HONOURED else f'**{how}**'} | {note} |\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(api_page())
    else:
        print(api_page())
