"""How often an answer is drawn."""

import pytest

from edge_llm.tui.pace import MOST_SECONDS, SHARE, TYPING_SECONDS, Pace


class Clock:
    def __init__(self):
        self.now = self.used = 0.0

    def step(self, pace, work, idle=0.0):
        """A step of so much work, and then so much of nothing."""
        self.now += work + idle
        self.used += work
        pause = pace.pause()
        self.now += pause
        return pause


@pytest.mark.parametrize("work", [0.001, 0.03, 0.1])
def test_the_loop_is_never_busier_than_its_share(work):
    clock = Clock()
    pace = Pace(clock=lambda: clock.now, used=lambda: clock.used)
    for _ in range(20):
        clock.step(pace, work)
    assert clock.used / clock.now == pytest.approx(SHARE)


def test_who_is_idle_does_not_wait_and_nobody_waits_long():
    clock = Clock()
    pace = Pace(clock=lambda: clock.now, used=lambda: clock.used)
    assert clock.step(pace, 0.01, idle=0.1) == 0
    assert clock.step(pace, 10.0) == MOST_SECONDS


def test_somebody_who_types_comes_first():
    now = [0.0]
    pace = Pace(lambda: True, clock=lambda: now[0], used=lambda: 0.0)
    assert pace.pause() == TYPING_SECONDS
