"""Numbers that no trained network has, by which a damaged weights file is rejected."""

from collections.abc import Mapping

from torch import Tensor

from a2cap.data.errors import WeightsError


def check_values(tensors: Mapping[str, Tensor], *, name: str) -> None:
    """Raise WeightsError where a number is not finite or a variance is negative.

    tensors: by their keys; name: the file's, for messages.
    """
    # An infinite variance, such as one that overflowed float16, gives finite features: its channel
    # is 0 everywhere.
    wrong = {key: int((~tensor.isfinite()).sum()) for key, tensor in tensors.items()}
    negative = {
        key: int((tensor < 0).sum())
        for key, tensor in tensors.items()
        if key.endswith("running_var")
    }
    for counts, what in ((wrong, "not finite"), (negative, "negative variances")):
        keys = sorted(key for key, count in counts.items() if count)
        if keys:
            more = f", and others of {len(keys) - 1} more tensors" if keys[1:] else ""
            raise WeightsError(
                f"weights {name!r} cannot be right: {counts[keys[0]]} of "
                f"{tensors[keys[0]].numel()} numbers of {keys[0]!r} are {what}{more}; "
                "download the file again, or write it in float32"
            )
