"""The documents: what is generated is up to date, and what they name is there."""

import ast
import re
import sys
from pathlib import Path

import pytest

from edge_llm.tui.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")]
PAGES += [ROOT / "benchmarks/LOG.md", *sorted((ROOT / "benchmarks/log").glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
CHAT = ROOT / "docs" / "chat.md"


@pytest.fixture(scope="module")
def module_map():
    sys.path.insert(0, str(ROOT / "assets"))
    try:
        import module_map
    finally:
        sys.path.pop(0)
    return module_map


def test_the_generated_parts_are_true(module_map):
    """The floors and the module map."""
    for page in module_map.PARTS:
        assert module_map.renewed(page) == page.read_text(), "run `python assets/module_map.py --write`"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def prose(page):
    """The text of ``page`` without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        place, _, anchor = link.partition("#")
        target = page.parent / place if place else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def named(text):
    """(file, name) of every name in code marks and the file that is named before it; (file, "") of every file."""
    file = ""
    for word in re.findall(r"`([^`]+)`", text):
        if "/" in word:
            file = word
            yield file, ""
        else:
            yield file, word


def defined(path):
    """The functions, classes, methods and constants of a Python file."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        names |= bound(node)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{name}" for member in node.body for name in bound(member)}
    return names


def bound(node):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def section(page, title):
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{page.name} has no section `{title}`"
    return found[1]


@pytest.mark.parametrize("title", ["A prompt's way", "A weight's way", "A request's way", "A message's way"])
def test_what_a_way_goes_through_is_there(title):
    for file, name in named(section(ARCHITECTURE, title)):
        path = ROOT / file
        assert path.is_file(), f"{title}: {file}"
        if name and path.suffix == ".py":
            assert name in defined(path), f"{title}: {file} has no {name}"
        elif name:
            assert re.search(rf"\b{re.escape(name)}\b", path.read_text()), f"{title}: {file} has no {name}"


def test_every_key_of_a_command_is_told():
    text = CHAT.read_text().casefold().replace("esc ", "escape ")
    assert [command.name for command in COMMANDS if not re.search(rf"\b{re.escape(command.key)}\b", text)] == []


ADDITIONS = {
    "Add a family": "tests/test_added_family.py",
    "Add a weight scheme": "tests/test_added_scheme.py",
    "Add a device": "tests/test_added_device.py",
    "Add a source": "tests/test_added_source.py",
    "Add an endpoint": "tests/test_server_clients.py",
}


@pytest.mark.parametrize("title", ADDITIONS)
def test_how_to_add_something_is_said_in_fifteen_lines(title):
    text = section(CONTRIBUTING, title)
    assert len(text.strip().splitlines()) <= 15
    assert f"`{ADDITIONS[title]}`" in text


def test_the_files_that_contributors_are_sent_to_are_there():
    words = re.findall(r"`([^`\s]+/[^`\s]*)`", prose(CONTRIBUTING))
    assert [word for word in words if not word.startswith("/") and not (ROOT / word).exists()] == []
