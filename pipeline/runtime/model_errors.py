"""Errors of a2cap.model as errors of this project.

The model imports nothing of ours and raises ValueError with texts that tell a user what to do.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from a2cap.data.errors import A2Error


@contextmanager
def model_errors() -> Iterator[None]:
    """Turns a ValueError that a2cap.model itself raised into an A2Error; any other is a fault."""
    try:
        yield
    except ValueError as error:
        if _raised_in(error).startswith("a2cap.model."):
            raise A2Error(str(error)) from error
        raise


def _raised_in(error: ValueError) -> str:
    """Name of the module whose code raised the error."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return "" if place is None else str(place.tb_frame.f_globals.get("__name__"))
