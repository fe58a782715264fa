"""Errors of this project.

Their texts read *what happened: value; what to do*. Only the command line turns an error into an
exit code. `a2cap.model`, which imports no other box, raises its own `ModelError`.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class A2Error(Exception):
    """Base of all errors that a user can cause or fix."""


class ConfigError(A2Error):
    """Raised when a configuration field is unknown, invalid, or contradicts another."""


class InputError(A2Error):
    """Raised when a user's file (annotations, images, results) cannot be used."""


class TruncatedError(InputError):
    """Raised when a tar of images ends early or is damaged between its members."""


class UnreadableError(A2Error):
    """Raised when memory or the disk fails, so that a file of unknown content cannot be read."""


class StoreError(A2Error):
    """Raised when a feature store is missing, incomplete, damaged, or not the expected one."""


class WeightsError(A2Error):
    """Raised when weights are not named, unreadable, unsafe to read, or of another model."""


class LockedError(A2Error):
    """Raised when another process is running the same stage."""


def near_name(
    name: str, names: Iterable[str], *, otherwise: str = "", similarity: float = 0.6
) -> str:
    """Return "did you mean 'NAME'?" with the most similar of some names, `otherwise` for none.

    similarity: the least, difflib's ratio in [0, 1].
    """
    near = get_close_matches(name, list(names), n=1, cutoff=similarity)
    return f"did you mean {near[0]!r}?" if near else otherwise
