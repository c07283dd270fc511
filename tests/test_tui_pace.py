"""How often an answer is drawn."""

import asyncio

import pytest

from edge_llm.tui.pace import LOOK_SECONDS, MOST_SECONDS, SHARE, TYPING_SECONDS, Pace

pytestmark = pytest.mark.thorough(file=3)


class Clock:
    """Time that passes while something works or sleeps; somebody types until ``typed``."""

    def __init__(self, typed=0.0):
        self.now = self.used = 0.0
        self.pace = Pace(lambda: self.now < typed, lambda: self.now, lambda: self.used, self.sleep)

    async def sleep(self, seconds):
        self.now += seconds

    def step(self, work, idle=0.0):
        """How long a step waits after so much work, and then so much of nothing."""
        self.now += work + idle
        self.used += work
        before = self.now
        asyncio.run(self.pace.wait())
        return self.now - before


@pytest.mark.parametrize("work", [0.001, 0.03, 0.1])
def test_the_loop_is_never_busier_than_its_share(work):
    clock = Clock()
    for _ in range(20):
        clock.step(work)
    assert clock.used / clock.now == pytest.approx(SHARE)


def test_who_is_idle_does_not_wait_and_nobody_waits_long():
    clock = Clock()
    assert clock.step(0.01, idle=0.1) == 0
    assert clock.step(10.0) == pytest.approx(MOST_SECONDS)


@pytest.mark.parametrize("typed", [0.3, 1.0, 1000.0])
def test_an_answer_stands_still_while_somebody_types_but_not_for_ever(typed):
    waited = Clock(typed).step(0.001)
    wanted = min(typed, TYPING_SECONDS)
    assert wanted - 0.01 <= waited <= wanted + LOOK_SECONDS
