"""Rendering of scenes to JPEG files by several processes."""

import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path

import cv2

from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.system import cores, signals_blocked
from a2cap.data.scenes.drawing import ImageArray
from a2cap.data.scenes.scene import Scene, draw, make_scene

JPEG_QUALITY = 95

_BATCH_SIZE = 32
_MIN_SCENES_PER_PROCESS = 300
"""Fewer scenes take less time than the start of another process."""


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

    workers: processes, by cores and work if None; the files do not depend on it. Raises A2Error if
    a process is killed.
    """
    write = partial(_write_batch, images, planted, seed=seed, side=side)
    starts = range(0, len(planted), _BATCH_SIZE)
    count = workers or min(cores(), len(planted) // _MIN_SCENES_PER_PROCESS)
    drawn = _map_in_pool(write, starts, workers=count) if count > 1 else (write(s) for s in starts)
    scenes: list[Scene] = []
    # closed here: garbage collection may close it in a thread of the pool, which cannot end it
    with closing(drawn) as parts:
        for part in parts:
            for scene in part:
                scenes.append(scene)
                if progress is not None:
                    progress(1)
    return scenes


def _map_in_pool(
    write: Callable[[int], list[Scene]], starts: Sequence[int], *, workers: int
) -> Generator[list[Scene]]:
    """Map `write` over the starts in order, in several processes."""
    # not forked: OpenCV may already have threads, which a fork does not copy
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_init_worker)
    try:
        # Processes inherit the mask: only this one receives Ctrl-C, and it then ends the others.
        with signals_blocked({signal.SIGINT}):
            parts = pool.map(write, starts)
        yield from parts
    except BrokenProcessPool as error:
        raise A2Error(
            "a process that drew scenes was killed; free memory and run it again"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _init_worker() -> None:
    """Limit a worker to one core, and end it with its parent."""
    cv2.setNumThreads(1)  # the processes use all cores already
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # sys.exit would end this thread alone


def _write_batch(
    images: Path, planted: Sequence[float], start: int, *, seed: int, side: int
) -> list[Scene]:
    """Draw up to _BATCH_SIZE scenes with indices from `start`."""
    scenes = []
    for index in range(start, min(start + _BATCH_SIZE, len(planted))):
        scene = make_scene(index, seed=seed, side=side, planted=planted[index])
        (images / scene.file_name).write_bytes(_jpeg(draw(scene)))
        scenes.append(scene)
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
