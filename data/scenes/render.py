"""Rendering of scenes to JPEG files."""

from collections.abc import Callable, Sequence
from pathlib import Path

import cv2

from a2cap.data.errors import InputError
from a2cap.data.scenes.drawing import ImageArray
from a2cap.data.scenes.scene import Scene, draw, make_scene

JPEG_QUALITY = 95


def write_images(
    images: Path,
    planted: Sequence[float],
    *,
    seed: int,
    side: int,
    progress: Callable[[int], None] | None = None,
) -> list[Scene]:
    """Draw a scene per value of `planted` into the folder `images`; return them in order."""
    scenes: list[Scene] = []
    for index, share in enumerate(planted):
        scene = make_scene(index, seed=seed, side=side, planted=share)
        (images / scene.file_name).write_bytes(_jpeg(draw(scene)))
        scenes.append(scene)
        if progress is not None:
            progress(1)
    return scenes


def _jpeg(image: ImageArray) -> bytes:
    # Halved chroma, the default, would blur the colours of such small objects.
    options = [
        *(cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY),
        *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444),
    ]
    encoded, buffer = cv2.imencode(".jpg", image, options)
    if not encoded:
        raise InputError(
            f"OpenCV {cv2.__version__} cannot encode a JPEG; reinstall opencv-python-headless"
        )
    return buffer.tobytes()
