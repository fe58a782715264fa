"""Rendering of scenes to JPEG files."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2

from a2cap.data.errors import InputError
from a2cap.data.files.system import cores
from a2cap.data.scenes.drawing import ImageArray
from a2cap.data.scenes.scene import Scene, draw, make_scene

JPEG_QUALITY = 95


def write_images(
    images: Path,
    planted: Sequence[float],
    *,
    seed: int,
    side: int,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Scene]:
    """Draw a scene per value of `planted` into the folder `images` and return the scenes in order.

    workers: threads, one per core if None; the files do not depend on it.
    """

    def write(index: int) -> Scene:
        scene = make_scene(index, seed=seed, side=side, planted=planted[index])
        (images / scene.file_name).write_bytes(_jpeg(draw(scene)))
        return scene

    # threads, because OpenCV releases Python's lock: processes are no faster
    pool = ThreadPoolExecutor(workers or cores(), "scenes")
    scenes: list[Scene] = []
    try:
        for scene in pool.map(write, range(len(planted))):
            scenes.append(scene)
            if progress is not None:
                progress(1)
    finally:
        pool.shutdown(cancel_futures=True)
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
