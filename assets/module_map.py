"""The generated parts of documents: floors and module map of docs/architecture.md, short names of docs/chat.md, families of
docs/support.md.

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
SUPPORT = ROOT / "docs" / "support.md"
SHORT_NAMES = ROOT / "edge_llm" / "models" / "small_models.toml"
HOUSE = ROOT / "tests" / "test_house.py"
LLAMA_LIKE, OTHERS = ROOT / "tests" / "model_files.py", ROOT / "tests" / "families.py"
ENCODERS = ROOT / "tests" / "encoders.py"
TRAINED = {"llama": "SmolLM2-135M, stories260K", "gemma3_text": "Gemma 3 270M", "bert": "all-MiniLM-L6-v2"}
"""Trained models that were imported and run, by the family."""
PACKAGES = ("scheduler", "kernels", "edge_llm")


def floors() -> str:
    """The floors as `tests/test_house.py` has them, the highest first."""
    rooms: dict[int, list[str]] = {}
    for room, floor in ast.literal_eval(_assigned(HOUSE, "FLOORS")).items():
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


def family_table() -> str:
    """A table of all families with what is tried of each, as the tests have them."""
    from edge_llm.models import families
    from edge_llm.sources.gguf_families import ARCHITECTURE_OF

    others = [key for name in ("FAMILIES", "SEEING", "MIXTURES", "STATEFUL") for key in _keys(OTHERS, name)]
    tried = [*_keys(LLAMA_LIKE), *others, *_keys(ENCODERS, "ENCODERS"), *_keys(ENCODERS, "KINDS")]
    lines = [
        "| `model_type` | models | against transformers | INT8 and W4, one result in every way | GGUF | trained models |",
        "|---|---|---|---|---|---|",
    ]
    for family in families():
        models = _first_sentence(ROOT / "edge_llm" / "models" / f"{family}.py").partition(":")[0].partition(" (arXiv")[0]
        shapes = sum(_is_of(key, family) for key in tried)
        assert shapes, f"no test has a model of the family {family}"
        checked = f"{shapes} tiny models" if shapes > 1 else "a tiny model"
        gguf = f"`{ARCHITECTURE_OF[family]}`" if family in ARCHITECTURE_OF else "not yet"
        lines.append(f"| `{family}` | {models} | {checked} | yes | {gguf} | {TRAINED.get(family, '')} |")
    return "\n".join(lines)


def _is_of(key: str, family: str) -> bool:
    """Whether a test's model ``key`` is of ``family``: its first word is the name, or begins it and is no other's."""
    from edge_llm.models import families

    word = key.partition(",")[0]
    return word == family or (word not in families() and family.startswith(word))


def _assigned(path: Path, name: str) -> ast.expr:
    """The value of a constant."""
    for node in ast.parse(path.read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and target and ast.unparse(target) == name:
            return node.value
    raise LookupError(f"{path} has no {name}")


def _keys(path: Path, name: str = "FAMILIES") -> list[str]:
    found = _assigned(path, name)
    assert isinstance(found, ast.Dict)
    return [ast.literal_eval(key) for key in found.keys if key is not None]


PARTS: dict[Path, dict[str, Callable[[], str]]] = {
    ARCHITECTURE: {"floors": floors, "module map": module_map},
    CHAT: {"short names": short_names},
    SUPPORT: {"families": family_table},
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
    return (path.parent for path in sorted(folder.glob("*/__init__.py")) if not path.parent.is_symlink())


def _line(name: str, module: Path, depth: int) -> str:
    return f"{'  ' * depth + name:<26}{_first_sentence(module)}".rstrip()


def _first_sentence(module: Path) -> str:
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def _block(lines: Iterator[str]) -> str:
    """A Markdown code block."""
    return "\n".join(["```text", *lines, "```"])


if __name__ == "__main__":
    for page, parts in PARTS.items():
        if "--write" in sys.argv:
            page.write_text(renewed(page))
        else:
            print("\n\n".join(make() for make in parts.values()))
