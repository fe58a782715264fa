"""The errors of this project.

Texts read *what happened: value; what to do*, and only the command line turns an error into an
exit code. `a2cap.model`, which imports no other box, raises its own `ModelError`.
"""


class A2Error(Exception):
    """Base of every error that a user can cause or mend."""


class ConfigError(A2Error):
    """A configuration field is unknown, of the wrong type, or contradicts another."""


class InputError(A2Error):
    """Something the user handed in (annotations, images, results) cannot be used as it is."""


class StoreError(A2Error):
    """A feature store is missing, incomplete, damaged, or not the one that was expected."""


class WeightsError(A2Error):
    """Weights are not named, not readable, not safe to read, or belong to something else."""


class LockedError(A2Error):
    """Another process is running the same stage."""


class LoaderError(A2Error):
    """A process that loads batches has ended before its work was done."""
