"""Print the module map of the README: every module with the first sentence of its docstring.

    python assets/module_map.py            print it
    python assets/module_map.py --write    put it between the markers in README.md
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("scheduler", "kernels", "edge_llm")
BEGIN, END = "<!-- module map: python assets/module_map.py --write -->", "<!-- end of module map -->"


def module_map() -> str:
    """The map as a Markdown code block."""
    lines = ["```text"]
    for package in PACKAGES:
        lines += _folder(ROOT / package, 0)
    return "\n".join([*lines, "```"])


def _folder(folder: Path, depth: int) -> list[str]:
    lines = [_line(f"{folder.name}/", folder / "__init__.py", depth)]
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            lines.append(_line(path.name, path, depth + 1))
    for child in sorted(path.parent for path in folder.glob("*/__init__.py")):
        lines += _folder(child, depth + 1)
    return lines


def _line(name: str, module: Path, depth: int) -> str:
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return f"{'  ' * depth + name:<26}{first}".rstrip()


def readme_with_map(readme: str) -> str:
    """``readme`` with today's map between the markers."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{module_map()}\n{END}{after}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        (ROOT / "README.md").write_text(readme_with_map((ROOT / "README.md").read_text()))
    else:
        print(module_map())
