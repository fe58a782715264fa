"""Images as Python programs hold them, and their region features."""

from os import PathLike
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageOps

from a2cap.data.errors import InputError
from a2cap.data.features.store import FeatureStore
from a2cap.data.regions import Regions
from a2cap.extract.detector.input import Pixels
from a2cap.extract.extractor import load_extractor
from a2cap.extract.image import read_image, to_rgb
from a2cap.pipeline.config import config_from
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.weights.detectors import weights_file

AnyImage = str | PathLike[str] | Image.Image | NDArray[np.uint8]
"""A file, a PIL image, or an array (H, W), (H, W, 3) or (H, W, 4) of uint8."""
Channels = Literal["rgb", "bgr"]


def as_pixels(image: AnyImage, *, channels: Channels = "rgb") -> Pixels:
    """Return the pixels of an image, (H, W, 3) uint8 in blue, green, red, as extractors take them.

    channels: order of an array's colours; "bgr" is that of OpenCV. Transparent pixels are laid on
    white. Raises InputError for an unreadable file and for another type, shape or dtype.
    """
    if isinstance(image, str | PathLike):
        return read_image(Path(image))
    if isinstance(image, Image.Image):
        return np.ascontiguousarray(to_rgb(ImageOps.exif_transpose(image))[:, :, ::-1])
    if channels not in ("rgb", "bgr"):
        raise InputError(f'channels are unknown: {channels!r}; choose "rgb" or "bgr"')
    rgb = to_rgb(Image.fromarray(_checked(image)))
    return np.ascontiguousarray(rgb[:, :, ::-1] if channels == "rgb" else rgb)


def _checked(image: object) -> NDArray[np.uint8]:
    """Return the array; raise InputError if it is not an image."""
    if not isinstance(image, np.ndarray):
        raise InputError(
            f"not an image: {type(image).__name__}; give a path, a PIL image or a NumPy array"
        )
    is_shaped = image.ndim == 2 or (image.ndim == 3 and image.shape[2] in (3, 4))
    if image.dtype != np.uint8 or not is_shaped or not image.size:
        raise InputError(
            f"not an image: an array {image.shape} of {image.dtype}; give uint8 in [0, 255] of "
            "shape (H, W), (H, W, 3) or (H, W, 4)"
        )
    return image


def as_boxes(boxes: ArrayLike | None) -> NDArray[np.float32] | None:
    """Return boxes as an array, None for none; raise InputError for what is not numbers."""
    try:
        return None if boxes is None else np.asarray(boxes, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"not boxes: {boxes!r}; give numbers of shape (R, 4), x1 y1 x2 y2 in pixels"
        ) from error


class RegionExtractor:
    """An extractor of region features for images of Python programs."""

    def __init__(self, weights: str, *, device: str = "auto", **settings: object) -> None:
        extract = {"weights": weights, **settings}
        config = config_from({"extract": extract, "runtime": {"device": device}})
        path = weights_file(config.extract)
        chosen = prepare_device(config.runtime)
        self._extractor = load_extractor(path, config=config.extract, device=str(chosen))

    def __call__(
        self,
        image: AnyImage,
        *,
        boxes: ArrayLike | None = None,
        channels: Channels = "rgb",
    ) -> Regions:
        """Return the regions of an image, detected ones or the given boxes.

        boxes: (R, 4) x1 y1 x2 y2 in pixels. channels: order of an array's colours. Raises
        InputError for an unusable image or unusable boxes.
        """
        return self._extractor(as_pixels(image, channels=channels), as_boxes(boxes))


def extractor(weights: str | Path, *, device: str = "auto", **settings: object) -> RegionExtractor:
    """Load an extractor of region features.

    weights: a weights file, or the name of a bundled or downloaded detector, such as "scenes".
    settings: other fields of the section `extract`, such as max_regions=36. Raises A2Error for
    unusable weights or settings.

    >>> extract = extractor("scenes")  # doctest: +SKIP
    >>> extract("house.png").boxes.shape  # doctest: +SKIP
    (11, 4)
    """
    return RegionExtractor(str(weights), device=device, **settings)


def features(path: str | Path) -> FeatureStore:
    """Open the store of `a2 extract`: a mapping of image id to Regions; StoreError if it is none.

    >>> store = features("artifacts/extract/0123456789ab/features.lmdb")  # doctest: +SKIP
    >>> store["000000000042"].features.shape  # doctest: +SKIP
    (36, 2048)
    """
    return FeatureStore(Path(path))
