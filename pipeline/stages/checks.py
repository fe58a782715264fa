"""Checks of a stage before its run; a2cap.pipeline.stages.plan makes them."""

from collections.abc import Callable
from typing import TypeVar

from a2cap.data.errors import A2Error

T = TypeVar("T")

Check = Callable[[], str]
"""Return what was found, or raise A2Error with a remedy."""


class Doubt(str):
    """A finding that stops no stage, but that its reader should know before the run."""


class StatedDoubt(Doubt):
    """A doubt that the stage states itself when it runs."""


class UnknownRequirement(Exception):
    """A requirement that cannot be computed before another problem is fixed."""


def known(find: Callable[[], T]) -> T:
    """Call `find`; raise UnknownRequirement for a problem that another check reports."""
    try:
        return find()
    except A2Error as error:
        raise UnknownRequirement("unknown until the other problems are fixed") from error
