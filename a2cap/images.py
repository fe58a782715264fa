"""Images as Python programs hold them, and their region features."""

import os
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Literal, TypeGuard, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageOps
from torch import Tensor

from a2cap.data.errors import InputError
from a2cap.data.features.store import FeatureStore
from a2cap.data.files.paths import did_you_mean
from a2cap.data.image_ids import list_images
from a2cap.data.regions import Regions
from a2cap.data.sources.location import require_local
from a2cap.extract.detector.input import Pixels
from a2cap.extract.extractor import load_extractor
from a2cap.extract.image import read_image, to_rgb
from a2cap.pipeline.configuration import config_from
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.weights.detectors import weights_file

AnyImage = str | PathLike[str] | Image.Image | NDArray[np.uint8] | Tensor
"""A file, a PIL image, an array (H, W), (H, W, 3) or (H, W, 4) of uint8, or a tensor (C, H, W)."""
Channels = Literal["rgb", "bgr"]


def is_image(images: object) -> TypeGuard[AnyImage]:
    """Return False for a folder, an array or tensor of several images, and another iterable."""
    if isinstance(images, str | PathLike):
        return not os.path.isdir(path_of(images))  # noqa: PTH112  (False for too long names)
    if isinstance(images, np.ndarray | Tensor):
        return images.ndim != 4
    return isinstance(images, Image.Image | bytes | Mapping) or not isinstance(images, Iterable)


@overload
def path_of(image: str | PathLike[str]) -> Path: ...
@overload
def path_of(image: object) -> Path | None: ...
def path_of(image: object) -> Path | None:
    """Return the path of an image's file, None for another image; InputError for an address."""
    if not isinstance(image, str | PathLike):
        return None
    require_local(os.fspath(image))
    # a Path would make an empty text the working directory
    if not os.fspath(image) or "\0" in os.fspath(image):
        raise InputError(f"no image has this name: {os.fspath(image)!r}; give a path")
    return Path(image)


def listed(images: str | PathLike[str] | Iterable[AnyImage]) -> Iterable[AnyImage]:
    """Return many images: the files of a folder, or the iterable itself."""
    if not isinstance(images, str | PathLike):
        return images
    folder = path_of(images)
    if not folder.is_dir():
        raise InputError(
            f"no folder: {str(folder)!r}; name a folder, or give a list of images"
            f"{did_you_mean(folder)}"
        )
    return [folder / image for image in list_images(folder)]


def as_pixels(image: AnyImage, *, channels: Channels = "rgb") -> Pixels:
    """Return the pixels of an image, (H, W, 3) uint8 in blue, green, red, as extractors take them.

    channels: order of an array's colours; "bgr" is that of OpenCV. Transparent pixels are laid on
    white. A tensor is (H, W) or (C, H, W), of uint8, or of floats in [0, 1]. Raises InputError for
    an unreadable file, a web address, and for another type, shape or dtype.
    """
    path = path_of(image)
    if path is not None:
        return read_image(path)
    if isinstance(image, Image.Image):
        try:  # opened images are decoded here
            return np.ascontiguousarray(to_rgb(ImageOps.exif_transpose(image))[:, :, ::-1])
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise InputError(f"image cannot be decoded: {error}; open it again") from error
    if channels not in ("rgb", "bgr"):
        raise InputError(f'channels are unknown: {channels!r}; choose "rgb" or "bgr"')
    array = _array(image) if isinstance(image, Tensor) else image
    rgb = to_rgb(Image.fromarray(_checked(array)))
    return np.ascontiguousarray(rgb[:, :, ::-1] if channels == "rgb" else rgb)


def _array(image: Tensor) -> NDArray[np.uint8]:
    """Return a tensor as (H, W) or (H, W, C) uint8; raise InputError for floats beyond [0, 1]."""
    image = image.detach().cpu()
    if image.is_floating_point():
        if not ((image >= 0) & (image <= 1)).all():  # False for NaN too
            raise InputError(
                f"not an image: a tensor of {str(image.dtype)[6:]} with values outside [0, 1]; "
                "give the image as it was before normalisation"
            )
        image = (image.float() * 255).round().to(torch.uint8)
    if image.ndim == 3 and image.shape[0] not in (1, 3, 4):
        raise InputError(
            f"not an image: a tensor {tuple(image.shape)}; give (H, W), or C of 1, 3 or 4 colours "
            "as (C, H, W)"
        )
    array: NDArray[np.uint8] = image.permute(1, 2, 0).numpy() if image.ndim == 3 else image.numpy()
    return array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array


def _checked(image: object) -> NDArray[np.uint8]:
    """Return the array; raise InputError if it is not an image."""
    if not isinstance(image, np.ndarray):
        raise InputError(
            f"not an image: {type(image).__name__}; give a path, a PIL image, a NumPy array or a "
            "tensor"
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
        torch_device = prepare_device(config.runtime)
        self._extractor = load_extractor(path, config=config.extract, device=str(torch_device))

    def __call__(
        self, image: AnyImage, *, boxes: ArrayLike | None = None, channels: Channels = "rgb"
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
