"""Signals: remembered until a step is done, and handed back afterwards."""

import signal

import pytest

from a2cap.pipeline.engine.interruption import (
    Interrupted,
    StopRequest,
    raise_interrupted,
    stop_between_steps,
)

BOTH = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_is_remembered_and_raised_between_steps(number):
    with stop_between_steps() as stop:
        assert not stop.pending
        stop.raise_if_pending()
        signal.raise_signal(number)
        assert stop.pending
        with pytest.raises(Interrupted) as interrupted:
            stop.raise_if_pending()
    assert interrupted.value.signal_number == number


@pytest.mark.parametrize("first", BOTH)
@pytest.mark.parametrize("second", BOTH)
def test_a_second_signal_stops_at_once(first, second):
    with stop_between_steps(), pytest.raises(Interrupted) as interrupted:
        signal.raise_signal(first)
        signal.raise_signal(second)
    assert interrupted.value.signal_number == second


def test_handlers_are_put_back_even_after_an_error():
    before = [signal.getsignal(number) for number in BOTH]
    with pytest.raises(ZeroDivisionError), stop_between_steps() as stop:
        assert [signal.getsignal(number) for number in BOTH] == [stop, stop]
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in BOTH] == before


def test_a_request_belongs_to_its_block_alone():
    with stop_between_steps():
        signal.raise_signal(signal.SIGTERM)
    with stop_between_steps() as stop:
        assert not stop.pending


def test_work_that_commits_as_it_goes_stops_at_once():
    with pytest.raises(Interrupted) as interrupted:
        raise_interrupted(signal.SIGTERM, None)
    assert interrupted.value.signal_number == signal.SIGTERM


def test_code_that_catches_errors_does_not_catch_a_stop():
    assert not issubclass(Interrupted, Exception)
    assert issubclass(Interrupted, KeyboardInterrupt)


def test_no_stop_is_pending_at_first():
    stop = StopRequest()
    assert not stop.pending
    stop.raise_if_pending()


def test_a_stop_that_another_process_asks_for_is_one_of_this_process_too():
    with stop_between_steps() as stop:
        stop.ask(signal.SIGTERM)
        assert stop.pending
        with pytest.raises(Interrupted) as interrupted:
            stop.raise_if_pending()
    assert interrupted.value.signal_number == signal.SIGTERM


def test_the_signal_behind_it_does_not_stop_at_once_when_it_comes():
    with stop_between_steps() as stop:
        stop.ask(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.signal_number == signal.SIGTERM
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
