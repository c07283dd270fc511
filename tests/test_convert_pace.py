"""How long an import takes is reckoned from its weights and from this machine's pace, not from its file's bytes."""

import time

from edge_llm.convert import pace
from edge_llm.convert.packed import digest_in_floats
from edge_llm.sources.hub_gguf import float_bytes


def test_the_pace_is_that_of_products_on_all_cores(monkeypatch):
    begun = time.monotonic()
    assert pace.slowness(10**6) == 1.0 and pace.expected_seconds(10**6, "fast") < 5
    now = pace.slowness(10**8)
    assert 0.2 <= now <= 50.0 and time.monotonic() - begun < 30
    monkeypatch.setattr(pace, "_RATE", 1e12)
    assert pace.slowness(10**8) == now  # what was just measured stays
    for rate, limit in ((1e12, 50.0), (1e-9, 0.2)):
        monkeypatch.setattr(pace, "_RATE", rate)
        pace._measured.clear()
        assert pace.slowness(10**8) == limit
    pace._measured.clear()


def test_a_slower_machine_takes_longer(monkeypatch):
    seconds = []
    for slower in (1.0, 3.0):
        monkeypatch.setattr(pace, "slowness", lambda parameters, slower=slower: slower)
        seconds.append(pace.expected_seconds(10**9, "int8"))
    assert 2.8 < seconds[1] / seconds[0] < 3.1


def test_a_digest_is_told_in_weights_of_16_bits():
    told: list[tuple[str, int, int]] = []
    tell = digest_in_floats(lambda *step: told.append(step), 1000)
    for done in (0, 30, 60):
        tell("digest", done, 60)
    tell("digest", 0, 0)
    assert told == [("digest", 0, 2000), ("digest", 1000, 2000), ("digest", 2000, 2000), ("digest", 2000, 2000)]


def test_bytes_in_floats_go_by_the_files_name():
    assert float_bytes("a/x-Q8_0.gguf", 860) == 1600 and float_bytes("x.F16.gguf", 500) == float_bytes("x", 500) == 500
    assert float_bytes("x-F32.gguf", 500) == 250
    real = 98_362_432, 2 * 134_515_008  # SmolLM2-135M in Q4_1: bytes of the file, bytes of its weights in 16 bits
    assert 0.6 < float_bytes("SmolLM2-135M-Instruct.Q4_1.gguf", real[0]) / real[1] < 1.3
