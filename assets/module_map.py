"""The generated parts of documents: floors and module map of docs/architecture.md, short names of docs/chat.md.

    python assets/module_map.py            print them
    python assets/module_map.py --write    put each between its markers
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
CHAT = ROOT / "docs" / "chat.md"
SHORT_NAMES = ROOT / "edge_llm" / "sources" / "small_models.toml"
HOUSE = ROOT / "tests" / "test_house.py"
PACKAGES = ("scheduler", "kernels", "edge_llm")


def floors() -> str:
    """The floors as `tests/test_house.py` has them, the highest first."""
    assignments = (node for node in ast.parse(HOUSE.read_text()).body if isinstance(node, ast.Assign))
    found = next(node.value for node in assignments if ast.unparse(node.targets[0]) == "FLOORS")
    rooms: dict[int, list[str]] = {}
    for room, floor in ast.literal_eval(found).items():
        rooms.setdefault(floor, []).append(room)
    return _block(f"{floor:>2}  {'  '.join(rooms[floor])}" for floor in sorted(rooms, reverse=True))


def module_map() -> str:
    """Every module with the first sentence of its docstring."""
    return _block(line for package in PACKAGES for line in _folder(ROOT / package, 0))


def short_names() -> str:
    """A table of the short names of models with their sizes, a family in a row."""
    from edge_llm.progress import byte_count

    rows: dict[str, list[dict[str, Any]]] = {}
    for model in tomllib.loads(SHORT_NAMES.read_text())["model"]:
        rows.setdefault(model["names"][-1].partition(":")[0], []).append(model)
    lines = ["| | |", "|---|---|"]
    for family, models in rows.items():
        sizes = ", ".join(f"`{model['names'][-1]}` {byte_count(model['download'])}" for model in models)
        lines.append(f"| `{family}` | {sizes}{' (gated)' if models[0].get('gated') else ''} |")
    return "\n".join(lines)


PARTS: dict[Path, dict[str, Callable[[], str]]] = {
    ARCHITECTURE: {"floors": floors, "module map": module_map},
    CHAT: {"short names": short_names},
}
"""The parts of each page by the names of their markers."""


def renewed(page: Path) -> str:
    """The text of ``page`` with its parts as they are today."""
    text = page.read_text()
    for name, make in PARTS[page].items():
        begin, end = f"<!-- {name}: python assets/module_map.py --write -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n{make()}\n{end}{after}"
    return text


def _folder(folder: Path, depth: int) -> Iterator[str]:
    yield _line(f"{folder.name}/", folder / "__init__.py", depth)
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            yield _line(path.name, path, depth + 1)
    for child in _inner(folder):
        yield from _folder(child, depth + 1)


def _inner(folder: Path) -> Iterator[Path]:
    """The packages in ``folder``."""
    return (path.parent for path in sorted(folder.glob("*/__init__.py")))


def _line(name: str, module: Path, depth: int) -> str:
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return f"{'  ' * depth + name:<26}{first}".rstrip()


def _block(lines: Iterator[str]) -> str:
    """A Markdown code block."""
    return "\n".join(["```text", *lines, "```"])


if __name__ == "__main__":
    for page, parts in PARTS.items():
        if "--write" in sys.argv:
            page.write_text(renewed(page))
        else:
            print("\n\n".join(make() for make in parts.values()))
