"""Fixtures for all tests: a home of their own, a server of the built-in model, tiny models on disk, and a real model."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from edge_llm import kernels

if TYPE_CHECKING:
    import anthropic
    import openai
    from browser import Browser, Profile, Tab
    from page_driver import PageServer
    from standins import Card

    from edge_llm.engine.engine import Engine

sys.path.insert(0, str(Path(__file__).parent))  # the tests' own helper modules

if DELAY := os.environ.get("EDGE_LLM_TEST_DELAY"):
    from late import make_late

    make_late(float(DELAY) / 1000)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RUST_BACKTRACE", "0")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # tiny matrices: more threads only wait for each other
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # tests start over a thousand processes: each would compile all that it imports
sys.dont_write_bytecode = False

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    # a shell starts background jobs deaf to Ctrl-C, and children inherit that; the tests of Ctrl-C want it heard
    signal.signal(signal.SIGINT, signal.default_int_handler)

MOST_CASES = 4
"""Cases of a test that run without --thorough, where its marker says nothing else."""
EXAMPLES_IN, FEWEST_EXAMPLES = 4, 3
"""Of the examples of hypothesis one in so many is tried then, but so many at least."""

settings.register_profile("edge-llm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("edge-llm thorough", settings.get_profile("edge-llm"), derandomize=True)
settings.register_profile("edge-llm quick", settings.get_profile("edge-llm"), max_examples=100 // EXAMPLES_IN)
settings.load_profile("edge-llm")  # no test fails because the machine is busy


GARBAGE_AT = 10_000
"""New objects between two collections of garbage, of which the usual 700 take a tenth of all time."""
FOR_TESTS = ("EDGE_LLM_CHAT_TEMPLATES", "EDGE_LLM_DEBUG", "EDGE_LLM_NPU_OPS", "EDGE_LLM_TORCH_NPU")
"""What the environment may say to tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="Run all tests and cases, as .ci/run does.")
    parser.addoption("--fuzz-seconds", type=float, help="Time for all of tests/fuzz; default: well below a minute.")
    parser.addoption("--fuzz-seed", type=int, help="Where it begins; default: 0, or a random one with --fuzz-seconds.")


def pytest_configure(config: pytest.Config) -> None:
    """Who names files, a marker or a keyword gets all that they name; the processes of xdist are told by the option.

    With --thorough hypothesis draws the same examples again for the same tests: the verdict on a commit can be repeated.
    """
    config.option.same_examples = getattr(config.option, "same_examples", config.option.thorough)
    if config.option.same_examples:
        settings.load_profile("edge-llm thorough")
    named = config.args_source is pytest.Config.ArgsSource.ARGS or config.option.markexpr or config.option.keyword
    config.option.thorough = bool(config.option.thorough or named)
    if not config.option.thorough:
        settings.load_profile("edge-llm quick")


def pytest_report_header(config: pytest.Config) -> str | None:
    return None if config.option.thorough else "a part of the tests, with few cases of each; `pytest --thorough` runs them all"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only a thorough run has, and take fewer examples of hypothesis.

    Processes of xdist begin with files that take long, so that they end together.
    """
    if hasattr(config, "workerinput"):
        sizes = Counter(item.path for item in items)
        are_long = {item.path for item in items if any("file" in marker.kwargs for marker in item.iter_markers("thorough"))}
        items.sort(key=lambda item: (item.path not in are_long, -sizes[item.path]))
    if config.option.thorough:
        return
    left_out = _left_out(items)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]
    for function in {getattr(item.obj, "__func__", item.obj) for item in items if isinstance(item, pytest.Function)}:
        chosen = getattr(function, "_hypothesis_internal_use_settings", None)
        if chosen is not None:
            fewer = max(FEWEST_EXAMPLES, chosen.max_examples // EXAMPLES_IN)
            function._hypothesis_internal_use_settings = settings(chosen, max_examples=min(chosen.max_examples, fewer))


def _left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Tests marked `thorough`; of others with many cases all but `keep`, and of a file's tests all but as many as it says."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if all(marker.kwargs for marker in item.iter_markers("thorough")):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    files: dict[str, list[str]] = {}
    for name in cases:
        files.setdefault(name.partition("::")[0], []).append(name)
    kept: set[pytest.Item] = set()
    for names in files.values():
        for name in _spread(names, _said(cases[names[0]][0], "file", len(names)), str):
            kept |= {*_spread(cases[name], _said(cases[name][0], "keep", MOST_CASES), lambda item: item.nodeid)}
    return set(items) - kept


def _said(item: pytest.Item, key: str, otherwise: int) -> int:
    """What the marker nearest to ``item`` that has the ``key`` says."""
    return next((marker.kwargs[key] for marker in item.iter_markers("thorough") if key in marker.kwargs), otherwise)


def _spread(all_of_them: list[Any], count: int, name: Callable[[Any], str]) -> list[Any]:
    """One of each of ``count`` equal runs of them, always the same, and not always the one at the same place."""
    ends = [number * len(all_of_them) // count for number in range(count + 1)] if count < len(all_of_them) else []
    runs = [all_of_them[begin:end] for begin, end in pairwise(ends)]
    return [min(run, key=lambda one: crc32(name(one).encode())) for run in runs] if ends else all_of_them


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """A million objects of libraries and test files stay to the end: no collection of garbage looks at them again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(GARBAGE_AT)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[object]:
    """Behind a file all that is still there stays: the libraries that it loaded cost every later collection of garbage."""
    try:
        return (yield)
    finally:
        if nextitem is not None and nextitem.path != item.path:
            gc.collect()
            gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: many tests wait for another process or for the time."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New folders.  pytest numbers its own by a look at all that are there, which takes milliseconds among thousands."""
    around = tmp_path_factory.mktemp("homes")
    return (around / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def edge_llm_home(homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """EDGE_LLM_HOME in a fresh folder, and nothing else said: no test sees or touches the user's models and settings."""
    home = next(homes)
    home.mkdir(mode=0o700)
    for name in [name for name in os.environ if name.startswith("EDGE_LLM_") and name not in FOR_TESTS]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("EDGE_LLM_HOME", str(home))
    return home


# ---- the built-in model and its server; their modules are loaded late, as many tests need neither


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The built-in model."""
    from serving import builtin_engine

    return builtin_engine()


@pytest.fixture(scope="module")
def keys() -> tuple[str, ...]:
    """API keys that the server at ``url`` asks for; a module that wants some has a fixture of this name."""
    return ()


@pytest.fixture(scope="module")
def url(engine: Engine, keys: tuple[str, ...]) -> Iterator[str]:
    """Address of a server of ``engine``."""
    from serving import hosted, serving

    with serving(hosted(engine=engine), keys=keys) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str, keys: tuple[str, ...]) -> openai.OpenAI:
    """OpenAI's client of the server at ``url``."""
    import openai

    return openai.OpenAI(base_url=f"{url}/v1", api_key=(*keys, "x")[0], max_retries=0)


@pytest.fixture(scope="module")
def claude(url: str, keys: tuple[str, ...]) -> anthropic.Anthropic:
    """Anthropic's client of the server at ``url``."""
    import anthropic

    return anthropic.Anthropic(base_url=url, api_key=(*keys, "x")[0], max_retries=0)


# ---- the chat page in a browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A Chromium."""
    from browser import CHROMIUM, WHY_NOT, Browser

    if CHROMIUM is None:
        pytest.skip(WHY_NOT)
    with Browser() as browser:
        try:
            browser.call("Browser.getVersion")
        except (AssertionError, OSError):
            pytest.skip("the Chromium here does not start")
        yield browser


@pytest.fixture(scope="session")
def page_server() -> Iterator[PageServer]:
    """A server of the page, with an address for each test."""
    from page_driver import PageServer

    with contextlib.ExitStack() as stack:
        yield PageServer(stack)


@pytest.fixture
def service(browser: Browser, page_server: PageServer) -> Iterator[Any]:
    """What answers at ``service.url``, where nobody has been before; the test writes its answers."""
    with page_server.fresh() as service:
        yield service


@pytest.fixture(scope="session")
def profile(browser: Browser) -> Profile:
    """The browser's storage; an address of one's own makes it an empty one."""
    from page_driver import HELPERS

    return browser.profile(HELPERS)


@pytest.fixture(scope="session")
def first_tab(profile: Profile) -> Tab:
    return profile.tab()


@pytest.fixture
def empty_tab(first_tab: Tab) -> Tab:
    """A tab that is to go somewhere."""
    first_tab.resize()
    return first_tab


@pytest.fixture
def tab(service: Any, empty_tab: Tab) -> Iterator[Tab]:
    """A tab that shows the page; it complains about nothing, and asks nobody but its server."""
    empty_tab.go(service.url)
    yield empty_tab
    assert empty_tab.complaints == []
    assert [one for one in empty_tab.asked(service.url) if not one.startswith((service.url, "data:", "blob:"))] == []


# ---- an Ascend card that is not there


@pytest.fixture(scope="session")
def card(tmp_path_factory: pytest.TempPathFactory) -> Card:
    """Stand-ins for Ascend's libraries, for processes with the real torch_npu."""
    from standins import Card

    return Card(tmp_path_factory.mktemp("ascend"))


# ---- models on disk


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """Folder with the real model and text that lie beside the repository."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "models").is_dir():
        pytest.skip("the real model and text are not here (no `shared` folder beside the repository)")
    return folder


@pytest.fixture(scope="session")
def stories_folder(shared_folder: Path) -> Path:
    """The trained 260K-parameter Llama, as a Hugging Face folder."""
    return shared_folder / "models" / "stories260k"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``tiny_model(family="llama", **config_changes)``: a folder with a tiny random model; made once per session.

    Keywords of `model_files.write_model` (dtype, shards, seed, chat_template) are taken too.  Do not change the folder.
    """
    from model_files import tiny_config, write_model

    made: dict[str, Path] = {}

    def make(family: str = "llama", **changes: Any) -> Path:
        options = {key: changes.pop(key) for key in ("dtype", "shards", "seed", "chat_template") if key in changes}
        key = repr((family, sorted(changes.items()), sorted(options.items())))
        if key not in made:
            folder = tmp_path_factory.mktemp(family)
            made[key] = write_model(folder, tiny_config(family, **changes), **options)
        return made[key]

    return make


# ---- kernels


def with_isa(name: str) -> Iterator[str]:
    """The kernels of this instruction set for one test."""
    chosen = kernels.isa()
    kernels.use_isa(name)
    yield name
    kernels.use_isa(chosen)


@pytest.fixture(params=kernels.isa_variants())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kernels of each instruction set that this machine has."""
    yield from with_isa(request.param)


@pytest.fixture(params=[*kernels.isa_variants(), *kernels.emulated_isas()])
def every_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The same, and of each that this machine emulates."""
    yield from with_isa(request.param)


@pytest.fixture(scope="session")
def pools() -> list[kernels.ThreadPool]:
    """Teams of one to four threads."""
    return [kernels.ThreadPool(threads) for threads in (1, 2, 3, 4)]

