"""Guesses are made where they give more tokens in a second, in worlds whose times and guesses a test knows."""

import random

import pytest

from edge_llm.decoding.draft import own_layers
from edge_llm.decoding.gain import ENOUGH, MOST_GUESSES, Gain, Times
from edge_llm.errors import UsageError


class World:
    """Answers whose guesses are right with the chance ``right``; ``sweep(rows)`` and ``round`` are seconds."""

    def __init__(self, sweep, round, right, answers=1, noise=0.0):
        self.gain, self.random = Gain(), random.Random(5)
        self.sweep, self.round, self.right, self.answers, self.noise = sweep, round, right, answers, noise
        self.drafted = 0

    def run(self, tokens):
        """Tokens per second of ``tokens`` tokens."""
        made, seconds = 0, 0.0
        while made < tokens:
            guesses = self.gain.guesses(self.answers)
            if guesses:
                took = self._noisy(self.round)
                self.gain.rounds.add(self.answers, took)
                seconds += guesses * took
                self.drafted += 1
            rows = self.answers * (guesses + 1)
            took = self._noisy(self.sweep(rows))
            self.gain.sweeps.add(rows, took)
            seconds += took
            for _ in range(self.answers):
                right = next((at for at in range(guesses) if self.random.random() >= self.right), guesses)
                self.gain.learn(right, int(right < guesses))
                made += right + 1
        return made / seconds

    def _noisy(self, seconds):
        return seconds * self.random.uniform(1 - self.noise, 1 + self.noise)

    def best(self):
        """Tokens per second with the number of guesses that is best here, which nobody has to find."""
        def rate(guesses):
            tokens = sum(self.right**at for at in range(guesses + 1))
            return self.answers * tokens / (guesses * self.round + self.sweep(self.answers * (guesses + 1)))

        return max(map(rate, range(MOST_GUESSES + 1)))

    @property
    def plain(self):
        return self.answers / self.sweep(self.answers)


def flash(rows):
    return 0.030 + 0.0002 * rows


def memory(rows):
    return 0.003 + 0.0003 * rows


@pytest.mark.parametrize("answers", [1, 4])
@pytest.mark.parametrize("right", [0.03, 0.3, 0.6, 0.9, 1.0])
@pytest.mark.parametrize(("sweep", "round"), [(flash, 0.001), (flash, 0.012), (memory, 0.001), (memory, 0.003)])
def test_it_comes_near_the_best_and_costs_little_where_nothing_is_won(sweep, round, right, answers):
    world = World(sweep, round, right, answers, noise=0.2)
    world.run(400 * answers)
    rate = world.run(1500)
    assert rate >= 0.9 * world.best()
    assert rate >= 0.95 * world.plain


def test_it_follows_a_world_that_changes():
    world = World(flash, 0.001, 0.9)
    assert world.run(500) > 4 * world.plain
    world.right = 0.0  # now nothing that is guessed is right
    world.round = 0.02
    world.run(200)
    assert world.run(500) > 0.95 * world.plain
    world.right, world.round = 0.9, 0.001
    world.run(1500)  # trials are rare by now
    assert world.run(500) > 4 * world.plain


def test_trials_where_nothing_is_won_become_rare():
    world = World(memory, 0.003, 0.05)
    world.run(300)
    before = world.drafted
    world.run(4000)
    assert 4 <= world.drafted - before <= 60


def test_nothing_is_said_before_enough_was_seen():
    gain = Gain()
    assert gain.guesses(1) == 0  # no step without guesses was measured
    for _ in range(4):
        gain.sweeps.add(1, 0.01)
    asked = 0
    while gain.guesses(1) and asked < 100:
        asked += 1
        gain.rounds.add(1, 1.0)
        gain.sweeps.add(3, 0.01)
        gain.learn(0, 1)
    assert asked >= ENOUGH and gain.best(1) == 0


def test_times_between_those_that_are_known():
    times = Times()
    for seconds in (9.0, 1.0, 1.0):
        times.add(2, seconds)
    times.add(6, 3.0)
    assert [times.at(rows) for rows in (1, 2, 3, 4, 6, 50)] == [1.0, 1.0, 1.5, 2.0, 3.0, 3.0]
    assert (times.count(2), times.count(3)) == (3, 0)


@pytest.mark.parametrize(
    "draft",
    [
        "self", "self:", "self:0", "self:-1", "self:x", "self:1.0", "self:6:1", "SELF:6", " self:6", "self:\u0663",
        "self:" + "9" * 40,
    ],
)  # fmt: skip
def test_what_looks_like_own_layers_is_refused_in_a_line(draft):
    with pytest.raises(UsageError) as error:
        own_layers(draft)
    assert error.value.param == "draft" and "\n" not in str(error.value) and "self:6" in str(error.value)


def test_own_layers():
    assert own_layers("self:1") == 1 and own_layers("self:012") == 12
    assert {own_layers(name) for name in ("lookup", "none", "./self", "selfish", "my/self:6", "b")} == {None}
