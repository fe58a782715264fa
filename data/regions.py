"""The regions of one image: what the extractor makes and the feature store keeps."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Regions:
    """R regions of one image, in the order in which the extractor chose them.

    boxes: (R, 4) float32, x1 y1 x2 y2 in pixels of the original image.
    features: (R, F) float32 or float16.
    scores: (R,) float32 in [0, 1], the detector's confidence.
    class_ids: (R,) int32; attribute_ids: (R,) int32, or None where the detector has no attributes.
    width, height: size of the original image in pixels.
    """

    boxes: NDArray[np.float32]
    features: NDArray[np.floating]
    scores: NDArray[np.float32]
    class_ids: NDArray[np.int32]
    attribute_ids: NDArray[np.int32] | None
    width: int
    height: int

    def __len__(self) -> int:
        return len(self.boxes)
