"""Pages on disk: what was written is found again, after a restart, too; anything else is not known, removed and counted."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest
from paged_script import forget
from prefix_writer import IDENTITY, PAGE_BYTES, TEXTS, data_of, text

from edge_llm import devices
from edge_llm.ascend.devices.emulated import EmulatedDevice
from edge_llm.config import LlamaConfig, RuntimeConfig
from edge_llm.devices.host import HostDevice
from edge_llm.devices.kv_pages import PagedKV
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.kv import prefix_store
from edge_llm.kv.memory import KVMemory
from edge_llm.kv.pages import PAGE_TOKENS, page_bytes
from edge_llm.kv.prefix_folder import prune, stored_models, stored_pages
from edge_llm.kv.prefix_page import clear_leftovers, page_file_bytes, pages_of, unfinished
from edge_llm.kv.prefix_store import PrefixStore
from edge_llm.models import describe
from edge_llm.models.rope import RopeTables
from edge_llm.opening.machine import this_machine
from edge_llm.opening.numerics import numeric_files, numerics_version
from edge_llm.opening.prefix_cache import model_identity, open_prefix_store
from edge_llm.opening.resolve import resolve
from edge_llm.opening.runner import load_runner
from edge_llm.paths import builtin_bundle
from edge_llm.runner.runner import Int8Runner
from edge_llm.text.tokenizer import Tokenizer
from edge_llm.weights.budget import parse_disk
from edge_llm.weights.resident import ResidentWeights

pytestmark = pytest.mark.thorough(file=12)

TINY = LlamaConfig(
    family="llama", vocab_size=32, hidden_size=16, intermediate_size=32, num_layers=3, num_heads=2, num_kv_heads=1,
    head_dim=64, context=256, norm_eps=1e-5, rope_theta=1e4,
)  # fmt: skip
ATTENTIONS = describe(TINY).attentions
HEADER = page_file_bytes(0)
CONTEXT = 512


@pytest.fixture
def open_store(tmp_path):
    """Open the store of a test, ready for use; all are closed at the end."""
    opened = []

    def open_(identity=IDENTITY, page_bytes=PAGE_BYTES, budget=1 << 30, root=tmp_path / "cache"):
        opened.append(PrefixStore(root, identity, page_bytes, budget, {"model": "tiny"}))
        opened[-1].flush()
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


def fill(store, tokens):
    """Store all pages of ``tokens``: them."""
    pages = list(pages_of(store.identity, tokens))
    store.write(pages, np.stack([data_of(page)[: store.page_bytes] for page in pages]))
    store.flush()
    return pages


def read(store, tokens):
    """How many pages of ``tokens`` are had from ``store``; each must be what was written."""
    pages = store.find(tokens)
    count = 0
    for data in store.read(pages):
        for row in data:
            np.testing.assert_array_equal(row, data_of(pages[count])[: store.page_bytes])
            count += 1
    return count


def test_what_was_written_is_read_by_the_next(open_store):
    first = open_store()
    assert (first.find(text(0)), first.count(10)) == ([], 0)
    fill(first, text(0))
    assert first.counts.written == 40
    assert read(first, text(0)) == 40
    assert read(first, text(1)) == 0
    again = open_store()
    assert (again.count(99), again.count(7)) == (40, 7)
    assert read(again, text(0)) == 40
    assert read(again, text(0)[:100]) == 6
    assert (again.counts.read, again.counts.damaged, again.counts.problem) == (46, 0, None)


def test_pages_are_found_from_any_number_on(open_store):
    store = open_store()
    pages = fill(store, text(0))
    assert store.find(text(0), 38) == pages[38:]
    assert store.find(text(0), 40) == []


def test_what_is_stored_is_not_written_again(open_store):
    store = open_store()
    assert len(store.missing(text(0))) == 40
    fill(store, text(0)[:320])
    assert [page.number for page in store.missing(text(0))] == [*range(20, 40)]
    other = open_store()
    fill(other, text(0))
    assert other.counts.written == 20


def test_nobody_else_may_read_what_was_said(open_store):
    store = open_store()
    fill(store, text(0)[:16])
    folders = (store.folder.parent, store.folder)
    assert [path.stat().st_mode & 0o777 for path in folders] == [0o700, 0o700]
    assert {path.stat().st_mode & 0o077 for path in store.folder.glob("*.page")} == {0}


def test_models_never_meet(open_store):
    fill(open_store(), text(0))
    assert read(open_store(identity=b"x" * 32), text(0)) == 0


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def swap(path, other):
    path.unlink()
    other(path)


DAMAGES = {
    **{f"header byte {at}": lambda path, at=at: flip(path, at) for at in range(HEADER)},
    **{f"cut at {at}": lambda path, at=at: os.truncate(path, at) for at in range(0, HEADER + PAGE_BYTES, 512)},
    "cut at the end": lambda path: os.truncate(path, HEADER + PAGE_BYTES - 1),
    "a byte too long": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "data bit": lambda path: flip(path, HEADER + PAGE_BYTES // 2),
    "last bit": lambda path: flip(path, -1),
    "zeros": lambda path: path.write_bytes(bytes(HEADER + PAGE_BYTES)),
    "empty": lambda path: path.write_bytes(b""),
    "pipe": lambda path: swap(path, os.mkfifo),
    "link": lambda path: swap(path, lambda gone: gone.symlink_to("/dev/zero")),
    "folder": lambda path: swap(path, Path.mkdir),
}


def test_a_damaged_page_is_not_known_removed_and_counted(open_store):
    store = open_store()
    pages = fill(store, text(0)[:96])
    victim = store.folder / pages[3].file_name
    whole = victim.read_bytes()
    for number, (name, damage) in enumerate(DAMAGES.items(), 1):
        damage(victim)
        assert read(store, text(0)[:96]) == 3, name
        assert store.counts.damaged == number, name
        if victim.is_dir():
            victim.rmdir()
        assert not os.path.lexists(victim), name
        assert [page.number for page in store.missing(text(0)[:96])] == [3], name
        victim.write_bytes(whole)
    assert read(store, text(0)[:96]) == 6


def test_a_page_in_another_pages_place_is_refused(open_store):
    store = open_store()
    pages = fill(store, text(0)[:96])
    (store.folder / pages[4].file_name).replace(store.folder / pages[2].file_name)
    assert (read(store, text(0)), store.counts.damaged) == (2, 1)
    foreign = open_store(identity=b"x" * 32)
    theirs = fill(foreign, text(0)[:96])
    (foreign.folder / theirs[1].file_name).replace(store.folder / pages[1].file_name)
    assert (read(store, text(0)), store.counts.damaged) == (1, 2)


def test_equal_keys_are_not_enough(open_store):
    store = open_store()
    [page] = fill(store, text(0)[:16])
    same_key = page._replace(tokens=(31, *page.tokens[1:]))
    assert sum(len(data) for data in store.read([same_key])) == 0


def test_the_least_recently_used_go_first_and_ends_before_beginnings(open_store):
    budget = 100 * 12288  # 100 pages of 3 blocks
    store = open_store(budget=budget)
    for number in range(2):
        fill(store, text(number))
    later = open_store(budget=budget)
    assert read(later, text(0)) == 40
    later.flush()
    fill(later, text(2))  # 120 pages do not fit: text 1 is the oldest
    assert sum(file.nbytes for file in stored_pages(store.folder.parent)) <= budget
    assert (read(later, text(0)), read(later, text(2))) == (40, 40)
    left = read(later, text(1))
    assert left == len(stored_pages(store.folder.parent)) - 80 > 0
    assert later.counts.pruned == 40 - left


def test_a_page_that_is_larger_than_the_budget_is_not_written(open_store):
    store = open_store(budget=5000)
    fill(store, text(0))
    assert (store.counts.written, store.counts.failed, read(store, text(0))) == (0, 40, 0)
    assert "more than the prefix cache may hold" in store.counts.problem


def test_what_does_not_fit_into_the_queue_is_dropped(open_store, monkeypatch):
    monkeypatch.setattr(prefix_store, "QUEUE_BYTES", 10 * PAGE_BYTES)
    store = open_store()
    assert len(store.missing(text(0))) == 10
    assert store.counts.dropped == 30


def test_removed_while_open(open_store):
    store = open_store()
    pages = fill(store, text(0))
    for page in pages[5:]:
        (store.folder / page.file_name).unlink()
    assert read(store, text(0)) == 5
    assert len(store.missing(text(0))) == 35
    for path in store.folder.iterdir():
        path.unlink()
    store.folder.rmdir()
    assert read(store, text(0)) == 0
    fill(store, text(0))
    assert (read(store, text(0)), store.counts.problem) == (40, None)
    assert [model.label for model in stored_models(store.folder.parent)] == [{"model": "tiny"}]


def test_a_folder_that_cannot_be_used_only_knows_nothing(open_store, tmp_path):
    (tmp_path / "file").write_text("")
    store = open_store(root=tmp_path / "file")
    fill(store, text(0))
    assert (read(store, text(0)), store.counts.failed) == (0, 40)
    assert store.counts.problem


@pytest.mark.parametrize("call", ["open", "write", "utime", "fsync", "rename"])
def test_a_disk_that_is_full(open_store, monkeypatch, call):
    store = open_store()
    works = getattr(os, call)
    calls = 0

    def full(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls > 7:
            raise OSError(errno.ENOSPC, "no space left")
        return works(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        pages = fill(store, text(0))
    assert (store.counts.written, store.counts.failed) == (7, len(pages) - 7)
    assert "no space left" in store.counts.problem
    assert not list(store.folder.glob(".*"))
    assert read(store, text(0)) == 7
    fill(store, text(0))
    assert read(store, text(0)) == 40


def test_leftovers_are_removed_but_not_what_is_being_written(open_store):
    import fcntl

    folder = open_store().folder
    left, held = unfinished(folder), unfinished(folder)
    left.write_text("half")
    with held.open("w") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        clear_leftovers(folder)
        assert (left.exists(), held.exists()) == (False, True)
    open_store(identity=b"another model's process".ljust(32))
    assert not held.exists()


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename", "unlink"])
def test_what_a_disk_that_fails_for_good_leaves_goes_with_the_next_start(open_store, monkeypatch, call):
    """Even the removal of what is half written may be refused."""
    store = open_store()

    def refuse(*arguments, **options):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        patch.setattr(os, "unlink", refuse)
        patch.setattr(os, call, refuse)
        fill(store, text(0))
        broken = open_store()
    assert (store.counts.written, store.counts.failed) == (0, 40)
    assert "Input/output error" in store.counts.problem and "Input/output error" in broken.counts.problem
    again = open_store()
    assert [path.name for path in again.folder.iterdir()] == ["model.json"]
    assert again.counts.problem is None


def test_one_folder_that_cannot_be_cleared_keeps_no_other_from_it(open_store, monkeypatch):
    folders = [open_store(identity=bytes([number]) * 32).folder for number in range(3)]
    left = [unfinished(folder) for folder in folders]
    for path in left:
        path.write_text("half")
    scandir = os.scandir

    def refuse(path):
        if path == folders[0]:
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        open_store()
    assert [path.exists() for path in left] == [True, False, False]


def writers(root):
    """A process that starts another for every line it gets."""
    command = [sys.executable, Path(__file__).with_name("prefix_writer.py"), root]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, bufsize=1, env=environment)


def test_several_processes_at_once(tmp_path, open_store):
    root = tmp_path / "cache"
    with writers(root) as first, writers(root) as second:
        children = []
        for parent in (first, second):
            parent.stdin.write("go\n")
            children.append(int(parent.stdout.readline()))
        store = open_store(root=root)
        known = []
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            known += [read(store, text(number)) for number in range(TEXTS)]
            prune(root, 40 * 12288)
            clear_leftovers(store.folder)
        for child, parent in zip(children, (first, second), strict=True):
            os.kill(child, signal.SIGKILL)
            parent.stdin.close()
    assert store.counts.damaged == 0
    assert max(known) > 0


def test_killed_at_any_moment(tmp_path, open_store):
    root = tmp_path / "cache"
    moments = random.Random(0)
    known, unfinished_files = [], 0
    with writers(root) as parent:
        for _ in range(40):
            parent.stdin.write("go\n")
            child = int(parent.stdout.readline())
            time.sleep(moments.uniform(0.005, 0.06))
            os.kill(child, signal.SIGKILL)
            assert parent.stdout.readline() == "gone\n"
            unfinished_files += len(list(root.glob("*/.*")))
            store = open_store(root=root)
            known.append(sum(read(store, text(number)) for number in range(TEXTS)))
            assert (store.counts.damaged, store.counts.problem) == (0, None)
            assert not list(store.folder.glob(".*"))
            if moments.random() < 0.3:
                prune(root, 0)
        parent.stdin.close()
    assert max(known) > 0
    assert unfinished_files > 0
    assert len(set(known)) > 3  # they were killed at different places


# -- the pages of a model ---------------------------------------------------------------------------------------------


def random_pages(kv, seed=0):
    random_ = np.random.default_rng(seed)
    for layer in kv.layers:
        for array in (layer.k, layer.k_scale, layer.v, layer.v_scale):
            array.view(np.int8 if array.dtype == np.int8 else np.uint16)[:] = random_.integers(0, 100, array.shape)


def test_read_and_write_pages_move_whole_pages():
    source, target = PagedKV(ATTENTIONS, 8 * 16), PagedKV(ATTENTIONS, 8 * 16)
    random_pages(source)
    random_pages(target, seed=1)
    before = target.read_pages(np.arange(8))
    data = source.read_pages(np.array([6, 0, 3]))
    assert (data.shape, data.dtype) == ((3, page_bytes(ATTENTIONS)), np.uint8)
    target.write_pages(np.array([1, 7, 2]), data)
    for ours, theirs in zip(target.layers, source.layers, strict=True):
        for name in ("k", "k_scale", "v", "v_scale"):
            np.testing.assert_array_equal(getattr(ours, name)[[1, 7, 2]], getattr(theirs, name)[[6, 0, 3]])
    untouched = [0, 3, 4, 5, 6]
    np.testing.assert_array_equal(target.read_pages(np.array(untouched)), before[untouched])


def memory(disk, tokens):
    """Keys and values for ``tokens`` tokens, and who shares them."""
    kv = PagedKV(ATTENTIONS, tokens)
    return kv, KVMemory(kv, disk.identity, disk)


def test_a_restart_restores_the_pages_as_they_were(open_store):
    kv, before = memory(open_store(page_bytes=page_bytes(ATTENTIONS)), 256)
    tokens = [*range(150)]
    sequence = before.open(tokens)
    assert sequence.length == 0
    before.reserve(sequence, len(tokens))
    random_pages(kv)
    sequence.length = len(tokens)
    written = kv.read_pages(sequence.table[:9])
    before.remember(sequence, tokens)
    before._disk.flush()

    restored, after = memory(open_store(page_bytes=page_bytes(ATTENTIONS)), 256)
    other = after.open([7] * 40)
    after.reserve(other, 40)
    again = after.open(tokens)
    assert again.length == 144
    np.testing.assert_array_equal(restored.read_pages(again.table), written)
    again.close()
    other.close()
    assert after.open([*tokens[:80], 99]).length == 80  # from memory now
    assert after._disk.counts.read == 9


def test_restoring_takes_only_what_nobody_uses(open_store):
    disk = open_store(page_bytes=page_bytes(ATTENTIONS))
    fill(disk, range(160))
    _, shared = memory(disk, 128)
    running = shared.open()
    shared.reserve(running, 80)
    restored = shared.open([*range(200)])
    assert (restored.length, shared.pages.free) == (48, 0)
    restored.close()
    running.close()
    assert shared.pages.free + forget(shared) == 8


def test_a_page_that_turns_out_bad_ends_what_is_restored(open_store):
    disk = open_store(page_bytes=page_bytes(ATTENTIONS))
    pages = fill(disk, range(160))
    flip(disk.folder / pages[4].file_name, 1000)
    _, shared = memory(disk, 256)
    sequence = shared.open([*range(161)])
    assert (sequence.length, len(sequence.table), disk.counts.damaged) == (64, 4, 1)
    sequence.close()
    assert shared.pages.free + forget(shared) == 16


# -- a model's answers ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle():
    return open_bundle(builtin_bundle())


@pytest.fixture(scope="module")
def answer(bundle):
    """Greedy tokens of prompts, one after the other, on a fresh runner, and how many of their tokens were cached."""
    tokenizer = Tokenizer.from_folder(bundle.folder, bundle.config.vocab_size)
    weights = ResidentWeights(bundle)

    def answer_(*texts, store=None):
        runtime = RuntimeConfig(context=CONTEXT, chunk=64)
        tables = RopeTables(CONTEXT)
        runner = Int8Runner(
            bundle.config, weights, HostDevice(2), runtime, tables, model_identity(bundle, runtime), prefix_store=store
        )
        results = [greedy(runner, tokenizer.encode(text)) for text in texts]
        if store is not None:
            store.close()
        return results

    return answer_


def greedy(runner, prompt):
    """32 tokens, and how many of the prompt's were known."""
    known = [*prompt]
    sequence = runner.memory.open(known)
    cached = sequence.length
    while len(known) < len(prompt) + 32:
        runner.memory.reserve(sequence, len(known))
        known.append(int(runner.forward(sequence, known[sequence.length :])[-1].argmax()))
    runner.memory.remember(sequence, known)
    sequence.close()
    return known[len(prompt) :], cached


def opened(bundle, runtime):
    return open_prefix_store(bundle, runtime, page_bytes(bundle.decoder.attentions), parse_disk(runtime.prefix_cache or "0"))


SYSTEM = "You are a helpful assistant that answers in one short sentence. " * 6


def test_cold_is_cached_is_restored(bundle, answer):
    runtime = RuntimeConfig(prefix_cache="64MiB")
    prompts = [SYSTEM + "Who are you?", SYSTEM + "What is a cat?", "Tell me a story about a small dog. " * 3]
    cold = [answer(prompt)[0] for prompt in prompts]
    assert {cached for _, cached in cold} == {0}
    tokens = [one for one, _ in cold]

    first = answer(*prompts, store=opened(bundle, runtime))
    assert [one for one, _ in first] == tokens
    assert [cached > 0 for _, cached in first] == [False, True, False]

    restored = answer(*prompts, store=opened(bundle, runtime))
    assert [one for one, _ in restored] == tokens
    assert all(cached % PAGE_TOKENS == 0 and cached > 0 for _, cached in restored)
    assert restored[0][1] >= first[1][1]

    store = opened(bundle, runtime)
    for number, path in enumerate(sorted(store.folder.glob("*.page"))):
        if number % 3 == 0:
            flip(path, 500 + number)
    damaged = answer(*prompts, store=store)
    assert [one for one, _ in damaged] == tokens
    assert store.counts.damaged > 0


def test_the_cache_is_off_unless_asked_for(bundle):
    assert opened(bundle, RuntimeConfig()) is None
    assert opened(bundle, RuntimeConfig(prefix_cache="0")) is None
    assert resolve(RuntimeConfig(prefix_cache="1GiB", float_path=True), this_machine(), bundle).prefix_bytes == 0


def test_what_changes_the_numbers_changes_the_identity(bundle, monkeypatch):
    plain = model_identity(bundle, RuntimeConfig())
    assert plain == model_identity(bundle, RuntimeConfig(chunk=64, threads=1, context=100))
    assert plain != model_identity(bundle, RuntimeConfig(shadow=False))
    monkeypatch.setattr("edge_llm.opening.prefix_cache.numerics_version", lambda: "of other code")
    assert plain != model_identity(bundle, RuntimeConfig())


@pytest.fixture
def cached(bundle):
    """``cached(device)``: how many tokens of a prompt a new runner there finds; it leaves them for the next."""
    tokens = Tokenizer.from_folder(bundle.folder, bundle.config.vocab_size).encode(SYSTEM)

    def cached_(device, placement="auto"):
        where = RuntimeConfig(device=device, placement=placement, prefix_cache="64MiB", context=256, threads=2)
        runner, _ = load_runner(bundle, where, 200)
        sequence = runner.memory.open(tokens)
        found = sequence.length
        runner.forward(sequence, tokens[found:])
        runner.memory.remember(sequence, tokens)
        sequence.close()
        runner.memory._disk.close()
        return found

    return cached_


def test_pages_of_another_placement_are_not_taken(cached):
    """Each placement has its own: where products are rounded to float16, two need not give the same bits."""
    found = [cached("emulated:310p:float16", placement) > 0 for placement in ("split", "auto", "card")]
    assert found == [False, True, False]


def test_pages_of_other_numerics_are_not_taken_though_the_device_has_the_same_name(cached):
    """What is behind a name, such as the chip of a card, may be another one after a reboot."""
    found = []
    for route in ("s8gemm", "float16", "s8gemm"):
        devices.add_device("card", lambda name, options, route=route: EmulatedDevice("310p", options.threads, route=route))
        found.append(cached("card") > 0)
    assert found == [False, False, True]


@pytest.mark.parametrize("name", ["_native*.so", "rope.py", "linear.py", "sequence.py", "kv_pages.py"])
def test_a_change_in_the_numerics_is_another_version(monkeypatch, name):
    """No constant to bump: a byte more in any of its files does it."""
    [changed, *_] = [path for path in numeric_files() if path.match(name)]
    read, before = Path.read_bytes, numerics_version()
    assert before == numerics_version.__wrapped__()
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + (b"\n" if path == changed else b""))
    assert before != numerics_version.__wrapped__()


@pytest.mark.parametrize(("text_", "nbytes"), [("1GiB", 2**30), ("300MB", 300 * 10**6), ("0", 0), ("off", 0), ("4096", 4096)])
def test_budgets(text_, nbytes):
    assert parse_disk(text_) == nbytes


@pytest.mark.parametrize("text_", ["much", "50%", "-1", "1e9", "nan"])
def test_a_budget_that_is_none_is_refused(text_):
    with pytest.raises(UsageError, match="is an invalid size for the prefix cache") as refused:
        parse_disk(text_)
    assert refused.value.param == "prefix_cache"
