"""A picture as the detector sees it, by the conventions of the weights."""

import numpy as np
from numpy.typing import NDArray

from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.input import picture_blob, picture_scale, rounded_blob, rounded_size
from a2cap.extract.detector.proposals import ScaledSize


def scaled_picture(
    picture: NDArray[np.uint8], *, min_side: int, max_side: int, meta: DetectorMeta
) -> tuple[NDArray[np.float32], ScaledSize]:
    """The detector's input, and how it came from the picture.

    picture: (H, W, 3) uint8 BGR; sides in pixels of the result. Returns (3, H', W') float32, BGR
    minus the mean. Raises InputError where the picture is too thin.
    """
    height, width = picture.shape[:2]
    scale = picture_scale(height=height, width=width, min_side=min_side, max_side=max_side)
    if meta.resize == "exact factor":
        blob = picture_blob(picture, scale=scale, mean=meta.mean)
        factors = scale, scale
    else:
        size = rounded_size(height=height, width=width, min_side=min_side, max_side=max_side)
        blob = rounded_blob(picture, size=size, mean=meta.mean)
        factors = size[1] / width, size[0] / height
    return blob, ScaledSize(height=blob.shape[1], width=blob.shape[2], scale=scale, factors=factors)
