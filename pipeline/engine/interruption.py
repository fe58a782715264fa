"""Ctrl-C and SIGTERM: the work in hand is brought to a safe point, then the run ends resumable."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop; `signal_number` says how (2 Ctrl-C, 15 SIGTERM)."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


def raise_interrupted(signal_number: int, frame: FrameType | None) -> None:
    """Signal handler that stops at once; right for work that commits as it goes."""
    raise Interrupted(signal_number)


class StopRequest:
    """Remembers that a signal asked to stop, for loops that stop only between two steps."""

    def __init__(self) -> None:
        self._received: int | None = None
        self._asked: int | None = None

    def __call__(self, signal_number: int, frame: FrameType | None) -> None:
        """Signal handler: the first signal is remembered, a second one stops at once."""
        if self._received is not None:
            raise Interrupted(signal_number)
        self._received = signal_number

    def ask(self, signal_number: int) -> None:
        """Asks to stop because of a signal that another process of the training received.

        It is not counted as received: this process is sent the same one a moment later.
        """
        self._asked = signal_number

    @property
    def signal_number(self) -> int | None:
        """The signal that asked to stop, if one did."""
        return self._received if self._received is not None else self._asked

    @property
    def pending(self) -> bool:
        """Whether a stop was asked for."""
        return self.signal_number is not None

    def raise_if_pending(self) -> None:
        """Raises Interrupted if a stop was asked for."""
        if self.signal_number is not None:
            raise Interrupted(self.signal_number)


@contextmanager
def stop_between_steps() -> Iterator[StopRequest]:
    """For the block, signals set a StopRequest instead of raising in the middle of a step."""
    request = StopRequest()
    watched = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, request) for number in watched}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
