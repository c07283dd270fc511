"""How long and with which seed this folder's tests look for findings."""

import random
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

SECONDS = 30.0
SHARES = 12
"""Tests that share the time."""


@dataclass(frozen=True)
class Fuzz:
    """``share``: seconds for one test."""

    seed: int
    share: float


@pytest.fixture(scope="session")
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    """A longer search begins somewhere else every time, unless it is told where."""
    seconds, seed = request.config.getoption("--fuzz-seconds"), request.config.getoption("--fuzz-seed")
    if seed is None:
        seed = 0 if seconds is None else random.SystemRandom().randrange(2**32)
    return Fuzz(seed, (SECONDS if seconds is None else seconds) / SHARES)
