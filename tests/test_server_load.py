"""A crowd of streams over three models under a budget that holds two: `tests/pool_load.py`."""

import asyncio

import httpx
import pytest
from pool_load import NAMES, crowd, make_models, options_of
from test_server_on_demand import until
from test_server_run import served

MOST_GROWTH = 48 << 20
"""Bytes by which the server's memory may differ between the middle of the requests and their end."""


@pytest.mark.parametrize(("streams", "requests"), [(16, 60), pytest.param(128, 1000, marks=pytest.mark.thorough)])
def test_a_crowd_over_more_models_than_fit(tmp_path, streams, requests):
    """HTTP | models | Streams over three models two of which fit: each says what its model says alone, and ends once."""
    words, budget = make_models(tmp_path)
    with served(*options_of(budget), model=None) as (process, url), httpx.Client(base_url=url, timeout=120) as client:
        found = asyncio.run(crowd(url, process.pid, words, streams, requests, 600.0))
        assert (found.wrong, found.ends.total()) == ([], requests)
        assert found.ends["whole"] > requests // 2 and found.ends["left"] > 0

        def counted(outcome):
            lines = client.get("/metrics").text.splitlines()
            return sum(int(line.split()[1]) for line in lines if f'outcome="{outcome}"' in line)

        until(lambda: not any(slot["is_processing"] for slot in client.get("/slots").json()))
        assert counted("failed") == 0
        assert found.ends["whole"] <= counted("completed") <= counted("completed") + counted("cancelled") <= requests
        for name in NAMES:  # nobody uses them any more, so each goes at once
            client.post("/models/unload", json={"model": name})
        assert {one["status"]["value"] for one in client.get("/v1/models").json()["data"]} == {"unloaded"}
    memory = [nbytes for _, nbytes in found.memory]
    assert memory[-1] - memory[len(memory) // 2] < MOST_GROWTH
