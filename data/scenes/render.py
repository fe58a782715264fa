"""The JPEG files of generated scenes, drawn by as many processes as there are cores."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path

import cv2

from a2cap.data.errors import A2Error, InputError
from a2cap.data.scenes.drawing import AnnotatedImage
from a2cap.data.scenes.scene import Scene, draw, make_scene

JPEG_QUALITY = 95

_SCENES_AT_A_TIME = 32
_LEAST_SCENES_PER_PROCESS = 300
"""Fewer are drawn sooner than a further process has started."""


def write_images(
    images: Path,
    planted: Sequence[float],
    *,
    seed: int,
    side: int,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Scene]:
    """Draws a scene for each value of `planted` into the folder `images`; returns them in order.

    workers: processes, as many as there are cores and work where None; files are the same however
    many. Raises A2Error where one of them is ended from outside.
    """
    write = partial(_write_part, images, planted, seed=seed, side=side)
    starts = range(0, len(planted), _SCENES_AT_A_TIME)
    count = workers or min(_cores(), len(planted) // _LEAST_SCENES_PER_PROCESS)
    parts = _shared(write, starts, workers=count) if count > 1 else map(write, starts)
    scenes: list[Scene] = []
    for part in parts:
        for scene in part:
            scenes.append(scene)
            if progress is not None:
                progress(1)
    return scenes


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _shared(
    write: Callable[[int], list[Scene]], starts: Sequence[int], *, workers: int
) -> Iterator[list[Scene]]:
    """What `write` returns for each start, in order, of several processes."""
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin_worker)
    try:
        # Processes inherit the mask: a Ctrl-C is for this one alone, which then ends the others.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            parts = pool.map(write, starts)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        yield from parts
    except BrokenProcessPool as error:
        raise A2Error(
            "a process that drew scenes was ended from outside; free memory and run it again"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    """Keeps a worker to its own core, and from outliving the process that started it."""
    cv2.setNumThreads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _write_part(
    images: Path, planted: Sequence[float], start: int, *, seed: int, side: int
) -> list[Scene]:
    """Draws the scenes with the indices from `start` on, _SCENES_AT_A_TIME at most."""
    scenes = []
    for index in range(start, min(start + _SCENES_AT_A_TIME, len(planted))):
        scene = make_scene(index, seed=seed, side=side, planted=planted[index])
        (images / scene.file_name).write_bytes(_jpeg(draw(scene)))
        scenes.append(scene)
    return scenes


def _jpeg(image: AnnotatedImage) -> bytes:
    # Halved chroma, the default, smears the colours of things as small as these.
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
