"""Signals that are held: their handlers wait, and nothing is lost."""

import signal
import threading

import pytest

from edge_llm.config import GenerationParams
from edge_llm.engine.delta_stream import DeltaStream
from edge_llm.engine.request import Delta, Request
from edge_llm.interrupts import HELD, HeldInterrupt

pytestmark = pytest.mark.thorough(file=2)


class TimeIsUp(Exception):
    """What a handler of SIGALRM raises."""


def time_is_up(number, frame):
    raise TimeIsUp


@pytest.fixture(autouse=True)
def handlers():
    """Those of a program that wants to be stopped."""
    before = {number: signal.getsignal(number) for number in HELD}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, time_is_up)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def all_handlers():
    return {number: signal.getsignal(number) for number in HELD}


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, TimeIsUp)])
def test_a_handler_waits_for_the_end_and_is_called_then(number, error):
    before, woken, done = all_handlers(), [], False
    with pytest.raises(error), HeldInterrupt(lambda: woken.append(1)) as interrupt:
        assert not interrupt.pending
        signal.raise_signal(number)
        assert interrupt.pending and woken == [1]
        done = True
    assert done and all_handlers() == before


def test_held_twice_it_waits_for_the_outer_end():
    done = False
    with pytest.raises(KeyboardInterrupt), HeldInterrupt() as outer:
        with HeldInterrupt() as inner:
            signal.raise_signal(signal.SIGINT)
            assert inner.pending and not outer.pending
        assert outer.pending
        done = True
    assert done


def test_what_is_raised_in_there_is_not_lost():
    with pytest.raises(KeyboardInterrupt) as caught, HeldInterrupt():
        signal.raise_signal(signal.SIGINT)
        raise OSError("of the work")
    assert isinstance(caught.value.__context__, OSError)


def test_signals_without_a_handler_and_other_threads_stay_as_they_are():
    before, seen = all_handlers(), []

    def other():
        with HeldInterrupt():
            seen.append(all_handlers())

    with HeldInterrupt() as interrupt:
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        signal.raise_signal(signal.SIGTERM)
        assert not interrupt.pending
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_wait_for_a_delta_ends_at_once_and_the_delta_comes_to_the_next():
    stream = DeltaStream(Request((1,), GenerationParams()), lambda stream: None)
    main = threading.main_thread().ident
    ringing = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))
    ringing.start()
    with pytest.raises(KeyboardInterrupt):
        next(iter(stream))
    ringing.join()
    stream.put(Delta("whole"))
    assert next(iter(stream)).text == "whole"
