"""The ledger of memory: what the models of one process take together never exceeds what it may give."""

import threading
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.errors import OutOfMemory
from edge_llm.opening.ledger import Ledger, MemoryNeeds

MIB = 1 << 20


@dataclass(frozen=True)
class Wanted:
    name: str
    memory: MemoryNeeds


def wanted(name="a", weights=0, pages=0, work=0, card=0):
    return Wanted(name, MemoryNeeds(weights * MIB, pages * MIB, work * MIB, card * MIB))


def test_a_refusal_says_both_sizes_and_who_holds_the_rest():
    ledger = Ledger(main=100 * MIB)
    ledger.claim(wanted("first", weights=60))
    said = "`second` takes 50 MiB and the memory for models is 100 MiB, of which first hold 60 MiB"
    with pytest.raises(OutOfMemory, match=said):
        ledger.claim(wanted("second", weights=30, pages=15, work=5))
    assert list(ledger.claims) == ["first"]


def test_a_card_has_a_limit_of_its_own():
    ledger = Ledger(main=10 * MIB, card=5 * MIB)
    ledger.claim(wanted("host", weights=10))
    assert ledger.fits(wanted(card=5)) and not ledger.fits(wanted(weights=1)) and ledger.ever_fits(wanted(weights=1))
    ledger.claim(wanted("card", card=5))
    with pytest.raises(OutOfMemory, match="the card's memory for models is 5 MiB"):
        ledger.claim(wanted(card=1))


def test_without_limits_all_fit_and_are_known_by_name():
    ledger = Ledger()
    with ledger.claim(wanted("a", weights=1, card=2)), ledger.claim(wanted("a", pages=3)), ledger.claim(wanted("b", work=4)):
        assert ledger.claims == {"a": wanted(weights=1, pages=3, card=2).memory, "b": wanted(work=4).memory}
        assert ledger.taken == wanted(weights=1, pages=3, work=4, card=2).memory
    assert ledger.claims == {} and ledger.taken == MemoryNeeds()


needs = st.builds(MemoryNeeds, *[st.integers(0, 2**40)] * 5)


@given(needs, needs)
def test_needs_add_up_part_by_part(one, another):
    both = one + another
    assert both.main == one.main + another.main == sum(count for _, count in both.parts)
    assert both.card == one.card + another.card
    assert both == another + one and one + MemoryNeeds() == one


loads = st.lists(st.tuples(st.sampled_from("abc"), needs, st.booleans()), max_size=12)


@given(loads, st.integers(0, 2**42), st.integers(0, 2**41))
def test_a_model_that_fails_to_load_leaves_nothing(models, main, card):
    """Whatever is loaded, fails or goes: what is taken is the sum of those that are there, by name, within both limits."""
    ledger, there = Ledger(main, card), []
    for name, memory, fails in models:
        plan = Wanted(name, memory)
        try:
            with ExitStack() as loading:
                claim = loading.enter_context(ledger.claim(plan))
                if fails:
                    raise KeyboardInterrupt
                loading.pop_all()
                there.append(claim)
        except (OutOfMemory, KeyboardInterrupt):
            assert all(one.name != name for one in there) or name in ledger.claims
        assert ledger.taken == sum((one.needs for one in there), MemoryNeeds())
        assert ledger.claims.keys() == {one.name for one in there}
        assert ledger.taken.main <= main and ledger.taken.card <= card
    for one in there:
        one.release()
    assert ledger.claims == {}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), st.booleans()), max_size=30))
def test_claims_never_exceed_the_limits_and_all_comes_back(steps):
    ledger, held = Ledger(100 * MIB, 50 * MIB), []
    for number, (main, card, goes) in enumerate(steps):
        one = wanted(str(number), weights=main, card=card)
        fitted = ledger.fits(one)
        try:
            held.append(ledger.claim(one))
            assert fitted
        except OutOfMemory:
            assert not fitted
        if goes and held:
            gone = held.pop(0)
            gone.release()
            gone.release()
        assert ledger.taken == sum((claim.needs for claim in held), MemoryNeeds())
        assert ledger.taken.main <= 100 * MIB and ledger.taken.card <= 50 * MIB
    for claim in held:
        claim.release()
    assert ledger.taken == MemoryNeeds()


def test_of_many_threads_only_as_many_get_in_as_fit():
    ledger, claims = Ledger(main=10 * MIB), []

    def take():
        try:
            claims.append(ledger.claim(wanted(weights=3)))
        except OutOfMemory:
            claims.append(None)

    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(claim is not None for claim in claims) == 3
