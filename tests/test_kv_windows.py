"""What no window reaches any more gives its memory back; what comes out is the same, also behind known beginnings."""

import random

import numpy as np
import pytest
from families import family_bundle
from model_files import VOCAB_SIZE
from test_devices_card import EXACT

from edge_llm.config import RuntimeConfig
from edge_llm.devices.returned import ReturnedArray, runs_of
from edge_llm.formats.bundle import open_bundle
from edge_llm.kv import windows
from edge_llm.kv.pages import page_bytes
from edge_llm.opening.machine import this_machine
from edge_llm.opening.plan import site_rows
from edge_llm.opening.resolve import resolve
from edge_llm.opening.runner import load_runner

TOKENS = np.random.default_rng(5).integers(0, VOCAB_SIZE, 240).tolist()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Five of six layers have a window of 16 tokens."""
    with open_bundle(family_bundle(tmp_path_factory.mktemp("windows"), "gemma3_text")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_spare(monkeypatch):
    monkeypatch.setattr(windows, "SPARE_TOKENS", 0)


def runner_of(bundle, **more):
    return load_runner(bundle, RuntimeConfig(**{"threads": 2, "context": 256, "kv_tokens": 1024, **more}), 250)[0]


@pytest.fixture(scope="module")
def whole(bundle):
    """Logits of all tokens in one step, which forgets nothing."""
    runner = runner_of(bundle)
    return runner.forward(runner.open(), TOKENS, wanted=len(TOKENS))


@pytest.mark.parametrize("most", [1, 7, 64])
def test_what_is_forgotten_is_not_read(bundle, whole, most):
    runner = runner_of(bundle)
    sequence, found, first = runner.open(), [], 0
    draw = random.Random(most)
    while first < len(TOKENS):
        piece = TOKENS[first : first + draw.randint(1, most)]
        found.append(runner.forward(sequence, piece, wanted=len(piece)))
        first += len(piece)
    assert np.array_equal(np.concatenate(found), whole)
    assert sequence.forgotten * 16 + 16 - 1 == sequence.least > len(TOKENS) - 16 - most - 5 * 16
    local, full = (runner.model.kv.layers[index] for index in (0, 5))
    gone = sequence.table[: sequence.forgotten // 8 * 8]  # a page of the system holds the keys of eight of ours
    assert len(gone) and not local.k[gone].any() and full.k[gone].any()
    sequence.truncate(sequence.least)
    rest = TOKENS[sequence.length :]
    assert np.array_equal(runner.forward(sequence, rest, wanted=len(rest)), whole[-len(rest) :])
    sequence.truncate(10)
    assert sequence.length == 0  # all is computed again
    assert np.array_equal(runner.forward(sequence, TOKENS[:20], wanted=20), whole[:20])


def test_beside_a_card_layers_with_a_window_forget_as_on_the_host(bundle):
    """The same bits, and no more tokens than the plan counts of one text."""
    static = {"activations": "static", "chunk": 32}
    on_host = runner_of(bundle, **static)
    whole = on_host.forward(on_host.open(), TOKENS, wanted=len(TOKENS))
    runner = runner_of(bundle, device=EXACT["310p"], placement="split", **static)
    sequence, found = runner.open(), []
    for first in range(0, len(TOKENS), 20):
        found.append(runner.forward(sequence, TOKENS[first : first + 20], wanted=20))
        reach = min(sequence.length, 16 + windows.SPARE_TOKENS + windows._AT_ONCE * 16)
        assert sequence.length - 20 - 16 * sequence.forgotten <= reach
    assert np.array_equal(np.concatenate(found), whole)
    local, full = (runner.model.kv.layers[index] for index in (0, 5))
    gone = sequence.table[: sequence.forgotten // 8 * 8]
    assert len(gone) and not local.k[gone].any() and full.k[gone].any()


def test_a_plan_counts_what_windows_reach_of_one_text(bundle):
    plans = [resolve(RuntimeConfig(context=context, device=device), this_machine(), bundle).facts for context, device in (
        (128, "host"), (256, "host"), (256, "emulated:310p"))]  # fmt: skip
    page = page_bytes(bundle.decoder.attentions[:1])
    assert [one["windowed_layers"] for one in plans] == [5, 5, 5]
    kept = 16 // 16 + windows._AT_ONCE
    assert [one["text_kv_bytes"] for one in plans] == [page * (pages + 5 * kept) for pages in (8, 16, 16)]
    assert any(name == "one text" and "5 layers have a window" in value for name, value in site_rows(plans[0]))


def test_a_known_beginning_reaches_to_where_its_window_is_whole(bundle, whole):
    """A text that ends where a known one ended goes on there; one that leaves it before is computed from its beginning."""
    runner = runner_of(bundle)
    sequence = runner.open()
    for first in range(0, 200, 40):
        runner.forward(sequence, TOKENS[first : first + 40])
    runner.memory.remember(sequence, TOKENS[:200])
    sequence.close()
    known = []
    for text in (TOKENS, [*TOKENS[:100], 3, *TOKENS[100:]], TOKENS[:100], TOKENS[:100], TOKENS):
        again = runner.memory.open(text)
        known.append(again.length)
        for first in range(again.length, len(text), 50):
            rows = runner.forward(again, text[first : first + 50], wanted=1)
        if text == TOKENS[: len(text)]:
            assert np.array_equal(rows[-1], whole[len(text) - 1])
        runner.memory.remember(again, text)
        again.close()
    assert known[0] == 192 and known[1] == known[2] == 0 and known[3] == 96 and known[4] == 224


def test_texts_that_share_beginnings_never_see_what_was_forgotten(bundle):
    """With few pages, so that they change hands."""
    runner, draw = runner_of(bundle, kv_tokens=320), random.Random(2)
    fresh, exact = runner_of(bundle), {}
    texts = [[*TOKENS[: draw.randrange(0, 200)], *(draw.randrange(VOCAB_SIZE) for _ in range(9))] for _ in range(14)]
    for text in draw.choices(texts, k=24):
        sequence = runner.memory.open(text)
        while sequence.length < len(text):
            rows = runner.forward(sequence, text[sequence.length : sequence.length + draw.choice([1, 20, 90])], wanted=1)
        if tuple(text) not in exact:
            alone = fresh.open()
            exact[tuple(text)] = fresh.forward(alone, text)
            alone.close()
        assert np.array_equal(rows, exact[tuple(text)])
        runner.memory.remember(sequence, text)
        sequence.close()


def test_a_text_longer_than_the_window_is_known_after_a_restart(bundle, whole):
    """Its pages are written before a window forgets them, those of a growing answer too."""
    disk, known = {"prefix_cache": "1GiB"}, TOKENS[:60]
    runner = runner_of(bundle, **disk)
    sequence = runner.memory.open(known)
    for first in (0, 40, *range(60, 220)):
        known += TOKENS[len(known) : first + 1]
        runner.forward(sequence, known[first : first + 40])
    assert sequence.length == len(known) == 220 and sequence.forgotten > 5
    runner.memory.remember(sequence, known)
    runner.memory._disk.flush()
    again = runner_of(bundle, **disk)
    found = again.memory.open(TOKENS)
    assert found.length == 208 == 16 * again.memory.state()["prefix_disk_pages_read"]
    rows = again.forward(found, TOKENS[found.length :], wanted=1)
    assert np.array_equal(rows[-1], whole[-1])


def test_memory_is_given_back_and_comes_again():
    array = ReturnedArray((64, 4096), np.uint8)
    array.values[:] = 7
    array.give_back(runs_of(np.array([3, 4, 9])))
    assert [row for row in range(64) if not array.values[row].any()] == [3, 4, 9]
    array.values[4] = 1
    assert array.values[4].all() and runs_of(np.empty(0, np.int64)) == []
    small = ReturnedArray((64, 512), np.uint8)
    small.values[:] = 7
    small.give_back([(1, 23)])  # only whole pages of the system
    assert [row for row in range(64) if not small.values[row].any()] == [*range(8, 16)]
