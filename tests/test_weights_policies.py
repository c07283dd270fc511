"""Policies of the cache of experts against obvious twins, and Belady's optimum against every choice there is."""

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.weights.policies import (
    POLICIES,
    FrequentAndRecent,
    Key,
    LeastFrequent,
    LeastRecent,
    Optimum,
    Slots,
    Taken,
    Uses,
    policy_of,
    uses_of,
)

EXPERTS = 6
steps_of_a_layer = st.lists(st.sets(st.integers(0, EXPERTS - 1), min_size=1, max_size=4).map(sorted), max_size=25)
walks = st.lists(
    st.tuples(st.integers(0, 2), st.sets(st.integers(0, EXPERTS - 1), min_size=1, max_size=4).map(sorted)), max_size=40
)
names = st.sampled_from(sorted(POLICIES))
quotas = st.integers(1, EXPERTS)


def total(slots, steps):
    return sum((uses_of(slots.take(layer, experts)) for layer, experts in steps), Uses())


def foretold(steps):
    return Optimum(Key(layer, expert) for layer, experts in steps for expert in experts)


def history(steps):
    """The uses of a layer, in order, up to each of its steps."""
    seen = []
    for experts in steps:
        seen += experts
        yield experts, list(seen)


def victims(policy, steps):
    """Whom a policy would send away of all experts, after each step."""
    found = []
    for experts in steps:
        for expert in experts:
            policy.touched(Key(0, expert))
        found.append(least_worth(policy, 0, range(EXPERTS)))
    return found


def least_worth(policy, layer, experts):
    return min(experts, key=lambda expert: (policy.worth(Key(layer, expert)), expert))


@given(steps_of_a_layer)
def test_least_recent_is_whom_the_list_of_uses_names_last(steps):
    def twin(seen):
        return min(range(EXPERTS), key=lambda expert: max((at for at, one in enumerate(seen) if one == expert), default=-1))

    assert victims(LeastRecent(), steps) == [twin(seen) for _, seen in history(steps)]


def faded(seen, expert, half_life):
    return sum(0.5 ** ((len(seen) - 1 - at) / half_life) for at, one in enumerate(seen) if one == expert)


@given(steps_of_a_layer, st.sampled_from([1.0, 4.0, 50.0]))
def test_least_frequent_has_the_smallest_sum_of_faded_uses(steps, half_life):
    for found, (_, seen) in zip(victims(LeastFrequent(half_life), steps), history(steps), strict=True):
        worth = [faded(seen, expert, half_life) for expert in range(EXPERTS)]
        assert worth[found] == pytest.approx(min(worth), rel=1e-9, abs=1e-12)


@given(steps_of_a_layer, st.sampled_from([0.0, 1.0, 3.0]))
def test_frequent_and_recent_has_the_smallest_sum_of_both(steps, weight):
    for found, (_, seen) in zip(victims(FrequentAndRecent(40, 3, weight), steps), history(steps), strict=True):
        worth = [faded(seen, expert, 40) + weight * faded(seen, expert, 3) for expert in range(EXPERTS)]
        assert worth[found] == pytest.approx(min(worth), rel=1e-9, abs=1e-12)


def test_who_uses_never_changes_keeps_the_oldest_favourites():
    """The least recent goes; the least frequent stays whoever was liked for long."""
    uses = [[0], [0], [0], [1], [2]]
    assert victims(LeastRecent(), [[3], [4], [5], *uses])[-1] == 3
    liked = [0, 1, 2]
    frequent, recent = LeastFrequent(100), LeastRecent()
    for policy in (frequent, recent):
        for ((expert,),) in zip(uses, strict=True):
            policy.touched(Key(0, expert))
    assert least_worth(frequent, 0, liked) == 1
    assert least_worth(recent, 0, liked) == 0


@given(names, walks, quotas)
def test_a_layer_has_its_quota_and_reads_what_it_lacks(name, steps, quota):
    slots, held = Slots(policy_of(name, EXPERTS), quota), {layer: set() for layer in range(3)}
    for layer, experts in steps:
        before = set(held[layer])
        taken = slots.take(layer, experts)
        assert sorted(one.expert for one in taken) == experts
        assert {one.expert for one in taken if one.is_read} == set(experts) - before
        assert [one.is_read for one in taken] == sorted(one.is_read for one in taken), "what is in memory is used first"
        for one in taken:
            assert one.is_read == (one.expert not in held[layer])
            assert one.leaves is None or (one.is_read and one.leaves in held[layer] and len(held[layer]) == quota)
            held[layer] = (held[layer] - {one.leaves}) | {one.expert}
        assert held[layer] == slots.held(layer)
        assert len(held[layer]) <= quota
        if len(experts) <= quota:
            assert set(experts) <= held[layer], "nothing leaves that the step uses"


@given(names, walks, quotas)
def test_who_leaves_is_worth_least_of_those_that_may_go(name, steps, quota):
    """Whom the step does not use, while there are any; its twin asks for every worth at every choice."""
    slots, policy, held = Slots(policy_of(name, EXPERTS), quota), policy_of(name, EXPERTS), {layer: set() for layer in range(3)}
    for layer, experts in steps:
        for expert in experts:
            policy.touched(Key(layer, expert))
        for one in slots.take(layer, experts):
            if one.is_read and len(held[layer]) == quota:
                assert one.leaves == least_worth(policy, layer, held[layer].difference(experts) or held[layer])
                held[layer].remove(one.leaves)
            held[layer].add(one.expert)


class Counting(LeastRecent):
    asked = 0

    def worth(self, key):
        self.asked += 1
        return super().worth(key)


def test_a_step_of_many_experts_asks_for_each_worth_no_more_than_twice():
    policy, many = Counting(), 5000
    slots = Slots(policy, 2000)
    for first in (0, 2500):
        before = policy.asked
        slots.take(0, range(first, first + many))
        assert policy.asked - before <= 2000 + many


@given(names, walks, quotas)
def test_layers_do_not_feel_each_other(name, steps, quota):
    together = Slots(policy_of(name, EXPERTS), quota)
    by_layer = [(layer, together.take(layer, experts)) for layer, experts in steps]
    for alone in range(3):
        slots = Slots(policy_of(name, EXPERTS), quota)
        mine = [slots.take(layer, experts) for layer, experts in steps if layer == alone]
        assert mine == [taken for layer, taken in by_layer if layer == alone]


@given(names, walks, quotas, st.randoms())
def test_the_order_in_which_a_step_is_named_does_not_count(name, steps, quota, rng: random.Random):
    one, other = Slots(policy_of(name, EXPERTS), quota), Slots(policy_of(name, EXPERTS), quota)
    for layer, experts in steps:
        shuffled = [*experts, *experts[:1]]
        rng.shuffle(shuffled)
        assert one.take(layer, experts) == other.take(layer, shuffled)


@given(names, walks, quotas)
def test_no_policy_reads_less_than_the_optimum(name, steps, quota):
    quota = max([quota, *(len(experts) for _, experts in steps)])
    ours, best = (total(Slots(policy, quota), steps) for policy in (policy_of(name, EXPERTS), foretold(steps)))
    first = len({(layer, expert) for layer, experts in steps for expert in experts})
    assert first <= best.read <= ours.read <= ours.used == best.used
    assert total(Slots(policy_of(name, EXPERTS), EXPERTS), steps).read == first


@given(names, walks)
def test_a_larger_cache_never_reads_more(name, walk):
    read = [total(Slots(policy_of(name, EXPERTS), quota), walk).read for quota in range(1, EXPERTS + 1)]
    assert read == sorted(read, reverse=True)


@given(
    st.lists(st.sets(st.integers(0, 3), min_size=1, max_size=3).map(lambda found: tuple(sorted(found))), max_size=7),
    st.integers(1, 3),
)
@settings(max_examples=60)
def test_the_optimum_is_the_best_of_all_choices(steps, quota):
    """Every victim that `Slots` could have chosen is tried."""

    @cache
    def least(at, held):
        if at == len(steps):
            return 0
        return len(set(steps[at]) - held) + min(least(at + 1, after) for after in endings(steps[at], held, quota))

    quota = max([quota, *map(len, steps)])
    walk = [(0, step) for step in steps]
    assert total(Slots(foretold(walk), quota), walk).read == least(0, frozenset())


def endings(experts, held, quota):
    """All that can be in memory after a step."""
    found = {held}
    for expert in sorted(set(experts) - held):
        grown = set()
        for one in found:
            leaving = [frozenset()] if len(one) < quota else [frozenset((key,)) for key in (one.difference(experts) or one)]
            grown |= {one - gone | {expert} for gone in leaving}
        found = grown
    return found


def test_the_optimum_refuses_what_was_not_foretold():
    optimum = foretold([(0, [1, 2])])
    optimum.touched(Key(0, 1))
    with pytest.raises(ValueError, match="use 2 of layer 0 is of expert 3, which was not foretold"):
        optimum.touched(Key(0, 3))


def test_a_scan_of_more_experts_than_slots():
    """Least recent forgets exactly what comes next, the optimum keeps all but one."""
    steps = [(0, [expert]) for _ in range(10) for expert in range(4)]
    assert total(Slots(LeastRecent(), 3), steps).read == 40
    assert total(Slots(foretold(steps), 3), steps).read == 16


def test_counts_and_a_cache_without_slots():
    assert Uses(4, 1).hit_rate == 0.75
    assert Uses().hit_rate == 1
    assert uses_of([Taken(0, False, None), Taken(3, True, 1)]) == Uses(2, 1)
    with pytest.raises(ValueError, match="0 slots hold no expert"):
        Slots(LeastRecent(), 0)
