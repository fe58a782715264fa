"""An image as the detector sees it, by the conventions of the weights."""

import numpy as np
from numpy.typing import NDArray

from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.input import image_blob, image_scale, rounded_blob, rounded_size
from a2cap.extract.detector.proposals import ScaledSize


def scaled_image(
    image: NDArray[np.uint8], *, min_side: int, max_side: int, meta: DetectorMeta
) -> tuple[NDArray[np.float32], ScaledSize]:
    """The detector's input, and how it came from the image.

    image: (H, W, 3) uint8 BGR; sides in pixels of the result. Returns (3, H', W') float32, BGR
    minus the mean. Raises InputError where the image is too thin.
    """
    height, width = image.shape[:2]
    scale = image_scale(height=height, width=width, min_side=min_side, max_side=max_side)
    if meta.resize == "exact factor":
        blob = image_blob(image, scale=scale, mean=meta.mean)
        factors = scale, scale
    else:
        size = rounded_size(height=height, width=width, min_side=min_side, max_side=max_side)
        blob = rounded_blob(image, size=size, mean=meta.mean)
        factors = size[1] / width, size[0] / height
    return blob, ScaledSize(height=blob.shape[1], width=blob.shape[2], scale=scale, factors=factors)
