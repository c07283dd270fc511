"""The house: who may import whom, what must not be loaded early, and words that can rot."""

import ast
import functools
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from edge_llm.opening.numerics import numeric_files

ROOT = Path(__file__).resolve().parents[1]

FLOORS = {
    "edge_llm.kernels": 0, "edge_llm.scheduler": 0, "edge_llm.errors": 0, "edge_llm.child": 0, "edge_llm.control_groups": 0,
    "edge_llm.config": 1, "edge_llm.paths": 1, "edge_llm.files": 1, "edge_llm.progress": 1, "edge_llm.resources": 1,
    "edge_llm.strict_json": 2, "edge_llm.user_config": 2, "edge_llm.operations": 2,
    "edge_llm.models": 3,
    "edge_llm.tool_servers": 4, "edge_llm.chats": 4, "edge_llm.text": 4, "edge_llm.quant": 4, "edge_llm.decoding": 4,
    "edge_llm.schemes": 5,
    "edge_llm.formats": 6,
    "edge_llm.kv": 7, "edge_llm.weights": 7, "edge_llm.sources": 7, "edge_llm.ascend.npu": 7,
    "edge_llm.subgraphs": 8,
    "edge_llm.devices": 9, "edge_llm.ascend.selftest": 9,
    "edge_llm.ascend.devices": 10, "edge_llm.runner": 10,
    "edge_llm.engine": 11, "edge_llm.convert": 11,
    "edge_llm.opening": 12, "edge_llm.talk": 12, "edge_llm.ascend.export": 12,
    "edge_llm.llm": 13, "edge_llm.bench": 13, "edge_llm.server": 13, "edge_llm.providers": 13, "edge_llm.export": 13,
    "edge_llm.tui": 14,
    "edge_llm.cli": 15,
    "app": 16,
}  # fmt: skip
LONGEST_CHAIN = 15
"""Modules of which each imports the next when it is loaded: to understand the first, one may have to read all the others."""
OUTSIDE = ("kernels", "scheduler")
"""Packages of edge_llm whose folders lie beside its own; links lead to them."""
FACE = "edge_llm"
"""It hands on names of files that ask it for the version."""
SCHEDULER_IMPORTERS = {"edge_llm.runner", "edge_llm.bench"}
BANNED_CALLS = {"eval", "exec", "compile", "__import__"}
BANNED_MODULES = {"pickle", "marshal", "shelve", "diskcache"}
TORCH_USERS = ("edge_llm.ascend.npu.", "edge_llm.ascend.selftest.", "edge_llm.ascend.devices.card.")


@functools.cache
def modules():
    found = [path for folder in ("edge_llm", "scheduler", "kernels") for path in sorted((ROOT / folder).rglob("*.py"))]
    return (*found, ROOT / "app.py")


def module_name(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return f"edge_llm.{name}" if name.split(".")[0] in OUTSIDE else name


def room(name):
    """The package of FLOORS that a dotted name lies in; None for the face of edge_llm and for other people's packages."""
    parts = name.split(".")
    return next((".".join(parts[:n]) for n in (3, 2, 1) if ".".join(parts[:n]) in FLOORS), None)


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


@functools.cache
def imports(path):
    return tuple(imports_among(ast.walk(parsed(path))))


def imports_among(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{ast.unparse(node)}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_go_down():
    for path in modules():
        here = room(module_name(path))
        for imported in imports(path) if here is not None else ():  # edge_llm/__init__.py hands public names on
            there = room(imported)
            if there is not None and there != here:
                floors = f"{path}: {here} (floor {FLOORS[here]}) imports {imported} (floor {FLOORS[there]})"
                assert FLOORS[there] < FLOORS[here], floors
                if there == "edge_llm.scheduler":
                    assert here in SCHEDULER_IMPORTERS, f"{path}: {here} must not know the scheduler"


def test_nothing_but_edge_llm_is_imported_from_the_top():
    """A wheel has no `kernels` and no `scheduler` there: others have packages of these names."""
    for path in (*modules(), *(ROOT / "tests").rglob("*.py")):
        assert not {name.split(".")[0] for name in imports_among(ast.walk(ast.parse(path.read_text())))} & set(OUTSIDE), path


def test_nothing_runs_code_from_data():
    for path in modules():
        calls = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
        assert not {call.func.id for call in calls if isinstance(call.func, ast.Name)} & BANNED_CALLS, path
        assert not {name.split(".")[0] for name in imports(path)} & BANNED_MODULES, path


def test_what_defines_correct_is_not_called_by_what_it_checks():
    for path in modules():
        if not module_name(path).startswith("edge_llm.kernels.reference"):
            assert not [name for name in imports(path) if f"{name}.".startswith("edge_llm.kernels.reference.")], path


def outside_functions(tree):
    """The nodes of a file that run when it is loaded; what only type checkers read does not."""
    for node in ast.iter_child_nodes(tree):
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not for_types and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from outside_functions(node)


def torch_among(names):
    return {name for name in names if name.split(".")[0] in {"torch", "torch_npu"}}


def test_torch_is_imported_only_by_functions_that_use_a_card():
    """It takes seconds, and without CANN an installed torch_npu breaks it."""
    for path in modules():
        assert f"{module_name(path)}.".startswith(TORCH_USERS) or not torch_among(imports(path)), path
        assert not torch_among(imports_among(outside_functions(parsed(path)))), path


def test_no_file_is_mapped():
    """A mapped file that is cut kills the process; memory of our own (-1 for a file) may be."""
    for path in modules():
        calls = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
        mapped = [ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func) in ("mmap", "mmap.mmap", "np.memmap")]
        assert set(mapped) <= {"-1"}, path


def test_native_code_gives_the_gil_back_in_one_way():
    """A thread that comes back from nanobind's own release after the interpreter has ended aborts the process."""
    texts = {path.name: path.read_text() for path in (ROOT / "kernels" / "native").rglob("*.*")}
    assert [name for name, text in texts.items() if "gil_scoped_release" in text or "PyEval_SaveThread" in text] == ["gil.h"]


def test_scheduler_needs_only_the_standard_library():
    for path in (ROOT / "scheduler").glob("*.py"):
        for imported in imports(path):
            top = imported.split(".")[0]
            ours = f"{imported}.".startswith("edge_llm.scheduler.")
            assert ours or top in sys.stdlib_module_names, f"{path.name} imports {imported}"


def imported_among(nodes, known):
    """The modules among ``known`` that ``nodes`` import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from ({name if name in known else node.module for name in inner} & known)


def circle(needs):
    """Modules of which each needs the next, the first again at the end; empty where there are none."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as found:
        return found.args[1][::-1]
    return []


def test_no_files_know_each_other():
    """What is imported for types alone, or by a function, counts: one who reads a file reads what it names."""
    paths = {module_name(path): path for path in modules()}
    needs = {name: set(imported_among(ast.walk(parsed(path)), paths.keys())) for name, path in paths.items()}
    del needs[FACE]
    assert not (found := circle(needs)), " > ".join(found)


def test_a_circle_of_types_is_found(tmp_path):
    (tmp_path / "a.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from b import B\n")
    (tmp_path / "b.py").write_text("def b():\n    import c\n")
    (tmp_path / "c.py").write_text("from a import A\n")
    trees = {path.stem: ast.parse(path.read_text()) for path in tmp_path.iterdir()}
    needs = {name: set(imported_among(ast.walk(tree), trees.keys())) for name, tree in trees.items()}
    found = circle(needs)
    assert set(found) == set("abc")
    assert all(after in needs[before] for before, after in pairwise(found))


def test_chains_of_imports_are_short():
    paths = {module_name(path): path for path in modules()}
    needs = {name: set(imported_among(parsed(path).body, paths.keys())) - {name} for name, path in paths.items()}
    chain = {}
    for name in TopologicalSorter(needs).static_order():
        chain[name] = [name, *max((chain[needed] for needed in needs[name]), key=len, default=[])]
    longest = max(chain.values(), key=len)
    assert len(longest) <= LONGEST_CHAIN, " > ".join(longest)


def loaded_by(code):
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("config", [None, "[defaults]\nthreads = 2\n[chat]\ntheme = 'nord'\n", "not [ TOML"])
@pytest.mark.parametrize(
    "code",
    [
        "import edge_llm",
        "from edge_llm.cli.main import run; run(['--help'])",
        "from edge_llm.cli.main import run; run(['--version'])",
        "from edge_llm.cli.main import run; run(['nonsense'])",
        "import edge_llm.user_config",
    ],
)
def test_help_loads_nothing_heavy(edge_llm_home, code, config):
    if config is not None:
        (edge_llm_home / "config.toml").write_text(config)
    heavy = {
        "numpy", "torch", "onnx", "onnxruntime", "textual", "rich", "tokenizers", "jinja2", "huggingface_hub",
        "edge_llm.kernels", "starlette", "uvicorn", "pydantic",
    }  # fmt: skip
    assert not loaded_by(code) & heavy


def test_one_answer_needs_no_full_screen():
    code = "from edge_llm.cli.main import run; assert run(['run', 'builtin', 'hi', '-n', '1', '-t', '1']) == 0"
    assert not {"textual", "httpx", "sqlite3"} & loaded_by(code)


def test_the_first_frame_of_the_chat_needs_no_engine():
    """Loading it takes longer than the frame may."""
    heavy = {"numpy", "edge_llm.kernels", "tokenizers", "mcp", "edge_llm.engine.engine"}
    assert not heavy & loaded_by("import edge_llm.tui.app")


def test_all_that_a_runner_reaches_counts_as_numerics():
    """Stored pages are of the code that `edge_llm.opening.numerics` digests: nothing that computes may lie beside it."""
    knows_no_numbers = {f"edge_llm.{name}" for name in ("ascend", "errors", "files", "progress", "strict_json")} | {"edge_llm"}
    reached = loaded_by("import edge_llm.runner.runner, edge_llm.ascend.devices.emulated, edge_llm.models.rope")
    ours = {name for name in reached if name.startswith("edge_llm") and ".scheduler" not in name} - knows_no_numbers
    digested = {module_name(path) for path in numeric_files() if path.suffix == ".py"}
    assert ours - digested == {"edge_llm.kernels._native"}
    assert any(path.suffix == ".so" for path in numeric_files())


def test_files_and_functions_are_short():
    for path in modules():
        assert path.read_text().count("\n") <= 400, path
        functions = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        long = [node.name for node in functions if node.end_lineno - node.lineno + 1 > 60]
        assert long == [], path


CARD = {"ascend.devices.card.layers", "ascend.devices.card.whole", "ascend.devices.card_cost"}
PEERS = {"bench.synthetic_onnx", "bench.synthetic_openvino"}
KNOWERS = {
    "glu": CARD | PEERS | {"ascend.devices.card.device", "bench.llama_shape"},
    "norm": CARD | PEERS | {"subgraphs.placement"},
}


@pytest.mark.parametrize("kind", KNOWERS)
def test_few_files_know_a_kind_of_operation(kind):
    """Families describe layers with it; cards and files of other engines have their own form of it."""
    found = {module_name(path) for path in modules() if f"edge_llm.operations.{kind}" in imports(path)}
    others = {name for name in found if not name.startswith(("edge_llm.operations.", "edge_llm.models."))}
    assert others == {f"edge_llm.{name}" for name in KNOWERS[kind]}


SIZE_READERS = {"edge_llm.opening.budgets", "edge_llm.cli.cache", "edge_llm.cli.bench.experts", "edge_llm.weights.budget"}
"""A size that a user wrote is read where the plan of an opening is made, or by a command that opens nothing."""
CHANGERS = {f"edge_llm.opening.{name}" for name in ("begin", "carry_out", "runner", "load", "prefix_cache")}
"""Files that bind, read weights or write."""


def test_sizes_are_read_once():
    for path in modules():
        readers = {name for name in imports(path) if name.endswith((".parse_memory", ".parse_disk"))}
        assert not readers or module_name(path) in SIZE_READERS, path


def test_a_plan_is_made_without_effects():
    """`resolve`, and what it imports of its room, neither binds nor logs nor writes, and starts no threads."""
    paths = {module_name(path): path for path in modules() if module_name(path).startswith("edge_llm.opening.")}
    reached, waiting = set(), ["edge_llm.opening.resolve"]
    while waiting:
        name = waiting.pop()
        reached.add(name)
        waiting += set(imported_among(ast.walk(parsed(paths[name])), paths.keys())) - reached
    assert not reached & CHANGERS
    for name in reached:
        assert not set(imports(paths[name])) & {"logging", "kernels", "concurrent.futures", "subprocess"}, name
        called = (ast.unparse(node.func) for node in ast.walk(parsed(paths[name])) if isinstance(node, ast.Call))
        calls = {one.rpartition(".")[2] for one in called}
        assert not calls & {"sched_setaffinity", "write_text", "write_bytes", "mkdir", "unlink", "ThreadPool"}, name


OPENING = (
    "library", "made_from", "examine", "processor",  # what is here, for lists and reports
    "runner", "load",  # a plan is made, and carried out
    "resolve", "defaults", "budgets", "kv_plan", "chunks", "cpus",  # it is made
    "carry_out", "draft_model", "prefix_cache", "float_assembly", "numerics", "begin",  # it is carried out
    "plan", "ledger", "machine", "auto_device", "adapters", "adapter_plan",  # what both know
)  # fmt: skip
"""The rooms of `edge_llm.opening`; each imports only those behind it."""


def imports_in_opening():
    """By name: the rooms of `edge_llm.opening` that each of them imports."""
    paths = {path.stem: path for path in modules() if module_name(path).startswith("edge_llm.opening.")}
    names = {f"edge_llm.opening.{stem}": stem for stem in paths}
    found = {stem: imported_among(ast.walk(parsed(path)), names.keys()) for stem, path in paths.items()}
    return {stem: {names[one] for one in imported} - {stem} for stem, imported in found.items()}


def test_opening_is_entered_in_one_direction():
    found = imports_in_opening()
    assert found.keys() == set(OPENING)
    for here, imported in found.items():
        assert not imported - set(OPENING[OPENING.index(here) :]), f"opening/{here}.py"


def test_what_carries_a_plan_out_decides_nothing():
    planners, first, last = set(OPENING[6:11]), OPENING.index("carry_out"), OPENING.index("begin")
    found = imports_in_opening()
    for name in OPENING[first : last + 1]:
        assert not found[name] & planners, name
