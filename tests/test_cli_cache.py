"""`edge-llm cache`: what is kept, what nobody will ask for, and what goes."""

import errno
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from edge_llm.cli.main import run
from edge_llm.config import RuntimeConfig
from edge_llm.formats.bundle import open_bundle
from edge_llm.kv.pages import page_bytes
from edge_llm.kv.prefix_page import pages_of
from edge_llm.opening.prefix_cache import open_prefix_store
from edge_llm.paths import builtin_bundle, bundle_path, prefix_cache_folder

pytestmark = pytest.mark.thorough(file=4)


@pytest.fixture
def call(capsys):
    """Call `edge-llm cache` with arguments: exit code, stdout, stderr."""

    def call_(*arguments):
        code = run(["cache", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call_


def keep(folder, pages):
    """Store ``pages`` pages of a text for the model in ``folder``."""
    bundle = open_bundle(folder)
    store = open_prefix_store(bundle, RuntimeConfig(), page_bytes(bundle.decoder.attentions), 64 << 20)
    found = list(pages_of(store.identity, range(16 * pages)))
    store.write(found, np.zeros((pages, store.page_bytes), np.uint8))
    store.close()
    assert store.counts.written == pages


@pytest.fixture
def two_models(edge_llm_home):
    """4 pages of the built-in model are kept, and 2 of a copy of it with the name `mine` and other numbers."""
    from edge_llm.formats.manifest import decode_manifest, encode_manifest

    folder = bundle_path("mine")
    shutil.copytree(builtin_bundle(), folder)
    path = folder / "manifest.json"
    fields = decode_manifest(path.read_bytes(), path)
    del fields["checksum"]
    next(iter(fields["linears"].values()))["input_scale"] *= 2
    path.write_bytes(encode_manifest(fields))
    keep(builtin_bundle(), 4)
    keep(folder, 2)
    return folder


def listed(call):
    code, out, _ = call("list", "--json")
    assert code == 0
    return {row["model"]: row for row in json.loads(out)}


def test_nothing_is_kept(call):
    assert call("list")[:2] == (0, "")
    assert listed(call) == {}
    assert json.loads(call("prune", "--json")[1]) == {"removed_pages": 0, "removed_bytes": 0, "bytes": 0}
    assert call("clear")[0] == 0


def test_list(call, two_models):
    rows = listed(call)
    assert {name: (row["pages"], row["tokens"], row["state"]) for name, row in rows.items()} == {
        "builtin": (4, 64, "usable"), "mine": (2, 32, "usable"),
    }  # fmt: skip
    assert set(rows["mine"]) == {"model", "pages", "tokens", "bytes", "last_used", "state", "path"}
    assert rows["builtin"]["bytes"] == 2 * rows["mine"]["bytes"] > 0
    code, out, _ = call("list")
    assert (code, len(out.splitlines())) == (0, 3)
    assert out.splitlines()[0].split() == ["MODEL", "PAGES", "TOKENS", "SIZE", "LAST", "USE", "STATE"]
    assert rows["mine"]["last_used"][:16] in out


def test_what_no_model_will_ask_for_is_pruned(call, two_models):
    shutil.rmtree(two_models)
    assert listed(call)["mine"]["state"] == "stale"
    report = json.loads(call("prune", "--json")[1])
    assert (report["removed_pages"], set(listed(call))) == (2, {"builtin"})


def test_pages_of_other_code_or_of_a_changed_model_are_stale(call, two_models, monkeypatch):
    shutil.copy(builtin_bundle() / "manifest.json", two_models / "manifest.json")
    assert {name: row["state"] for name, row in listed(call).items()} == {"builtin": "usable", "mine": "stale"}
    monkeypatch.setattr("edge_llm.opening.prefix_cache.numerics_version", lambda: "of other code")
    assert {row["state"] for row in listed(call).values()} == {"stale"}


def test_prune_to_a_size_takes_the_least_recently_used(call, two_models):
    size = listed(call)["mine"]["bytes"] // 2
    code, _, err = call("prune", "--to", 3 * size)
    assert (code, err.startswith("removed 3 pages")) == (0, True)
    assert {name: row["pages"] for name, row in listed(call).items()} == {"builtin": 1, "mine": 2}


def test_clear(call, two_models):
    assert call("clear", "mine", "--yes")[2].startswith("removed 2 pages")
    assert set(listed(call)) == {"builtin"}
    code, _, err = call("clear", "mine")
    assert (code, "nothing is kept of `mine`" in err) == (1, True)
    assert json.loads(call("clear", "--json")[1])["removed_pages"] == 4
    assert list(prefix_cache_folder().iterdir()) == []


def test_a_folder_without_a_label_is_shown_and_pruned(call, two_models):
    for path in prefix_cache_folder().glob("*/model.json"):
        path.write_text("{")
    assert {name: row["state"] for name, row in listed(call).items()} == {"unknown": "stale"}
    assert json.loads(call("prune", "--json")[1])["removed_pages"] == 6


def test_removing_a_model_removes_what_is_kept_of_it(call, two_models):
    assert run(["rm", "mine", "--yes"]) == 0
    assert set(listed(call)) == {"builtin"}


def test_a_size_that_is_none_is_refused(call, two_models):
    code, _, err = call("prune", "--to", "much")
    assert (code, "is an invalid size for the prefix cache" in err) == (2, True)
    assert len(listed(call)) == 2


@pytest.mark.parametrize("seconds", [-(2**62), -(2**40), -1, 0, 2**32, 2**40, 2**62])
def test_a_clock_that_was_far_off_only_shows(call, tmp_path, monkeypatch, seconds):
    memory = Path("/dev/shm")  # keeps any time; other file systems round what they cannot keep
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as home:
        monkeypatch.setenv("EDGE_LLM_HOME", home)
        page = prefix_cache_folder() / "a model" / "a.page"
        page.parent.mkdir(parents=True)
        page.write_bytes(b"x")
        os.utime(page, ns=(seconds * 10**9, seconds * 10**9))
        assert call("list")[0] == 0
        assert listed(call)["unknown"]["last_used"] is not None
        assert json.loads(call("prune", "--to", "1", "--json")[1])["bytes"] == 0


def test_what_the_disk_refuses_to_remove_is_said(call, two_models, monkeypatch):
    path = Path(listed(call)["mine"]["path"])
    held, *others = sorted(path.glob("*.page"))
    unlink = Path.unlink

    def refuse(path, **options):
        if path == held:
            raise OSError(errno.EIO, "Input/output error", str(path))
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        code, _, err = call("clear", "mine", "--yes")
    assert (code, err) == (1, f"error: cannot remove `{held}`: Input/output error\n")
    assert not any(page.exists() for page in others)
    assert call("clear", "--yes")[0] == 0
    assert not path.exists()
