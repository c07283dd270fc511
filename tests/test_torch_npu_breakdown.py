"""The times of a card are those of torch_npu's events: what `bench --breakdown` asks the real wheel for, over stand-ins."""

from pathlib import Path

import pytest
from test_ascend import SHAPES, logits, runtime_of, tokens_of

from edge_llm.bench.breakdown import Clock
from edge_llm.bench.synthetic import write_random
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.runner import load_runner


def watched(folder: str) -> dict[str, tuple[int, float]]:
    """Calls and seconds of every part and kind, of a prompt and some steps that a card was watched at."""
    from standins import kernels

    from edge_llm.ascend.npu.emulated_ops import IMPLEMENTATIONS
    from edge_llm.ascend.npu.opening import load_torch_npu

    load_torch_npu()
    kernels.install(IMPLEMENTATIONS)
    bundle, clock = open_bundle(Path(folder)), Clock()
    runner = load_runner(bundle, runtime_of(placement="card"), 100, clock.watch)[0]
    tokens = tokens_of(bundle, 60)
    logits(runner, tokens)
    clock.take()
    logits(runner, tokens)
    return {f"{part} {kind}": (one.calls, one.seconds) for (part, kind), one in clock.take().items()}


@pytest.mark.thorough
def test_events_of_torch_npu_time_every_part(card, tmp_path):
    (tmp_path / "tied").mkdir()
    write_random(tmp_path / "tied", SHAPES["tied"], seed=3)
    found = card.run(watched, str(tmp_path / "tied"))
    assert found["step copy in"][0] == found["step card"][0] == found["step wait"][0] == 6
    for part in ("embedding", "layers", "head", "step"):
        assert {f"{part} card", f"{part} host"} <= found.keys()
    assert all(seconds >= 0 for _, seconds in found.values())
