"""Signals: recorded until a step is finished; handlers restored afterwards."""

import signal

import pytest

from a2cap.pipeline.engine.interruption import Interrupted, raise_interrupted, stop_between_steps

BOTH = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_is_recorded_and_raised_between_steps(number):
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
def test_a_second_signal_stops_immediately(first, second):
    with stop_between_steps(), pytest.raises(Interrupted) as interrupted:
        signal.raise_signal(first)
        signal.raise_signal(second)
    assert interrupted.value.signal_number == second


def test_handlers_are_restored_even_after_an_error():
    before = [signal.getsignal(number) for number in BOTH]
    with pytest.raises(ZeroDivisionError), stop_between_steps() as stop:
        assert [signal.getsignal(number) for number in BOTH] == [stop, stop]
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in BOTH] == before


def test_a_stop_request_does_not_outlive_its_block():
    with stop_between_steps():
        signal.raise_signal(signal.SIGTERM)
    with stop_between_steps() as stop:
        assert not stop.pending


def test_the_immediate_handler_raises():
    with pytest.raises(Interrupted) as interrupted:
        raise_interrupted(signal.SIGTERM, None)
    assert interrupted.value.signal_number == signal.SIGTERM
    assert not isinstance(interrupted.value, Exception)  # which `except Exception` would catch


def test_the_first_signal_after_another_rank_s_request_does_not_stop_immediately():
    with stop_between_steps() as stop:
        stop.request(signal.SIGTERM)
        assert stop.pending
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted) as interrupted:
            stop.raise_if_pending()
        assert interrupted.value.signal_number == signal.SIGTERM
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
