"""Ctrl-C and SIGTERM: finish the current step, then end the run so that it can be resumed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


class Interrupted(KeyboardInterrupt):  # which `except Exception` does not catch
    """A stop by a signal; `signal_number` is 2 for Ctrl-C and 15 for SIGTERM."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


def raise_interrupted(signal_number: int, frame: FrameType | None) -> None:
    """Stop immediately; the signal handler of work that commits as it goes."""
    raise Interrupted(signal_number)


@dataclass
class StopRequest:
    """Signal handler of loops that stop only between two steps."""

    _received: int | None = None
    _requested: int | None = None

    def __call__(self, signal_number: int, frame: FrameType | None) -> None:
        """Record the first signal; stop immediately on the second."""
        if self._received is not None:
            raise Interrupted(signal_number)
        self._received = signal_number

    def request(self, signal_number: int) -> None:
        """Request a stop because another rank received a signal."""
        # Not as received: torchrun sends the signal to this rank a moment later, and a second
        # received signal would stop immediately.
        self._requested = signal_number

    @property
    def signal_number(self) -> int | None:
        """The signal behind the stop request, or None."""
        return self._received if self._received is not None else self._requested

    @property
    def pending(self) -> bool:
        """True once a stop is requested."""
        return self.signal_number is not None

    def raise_if_pending(self) -> None:
        """Raise Interrupted if a stop is requested."""
        if self.signal_number is not None:
            raise Interrupted(self.signal_number)


@contextmanager
def stop_between_steps() -> Iterator[StopRequest]:
    """Set a StopRequest on signals inside the block, instead of raising in the middle of a step."""
    request = StopRequest()
    watched = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, request) for number in watched}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
