"""Rendering of scenes to JPEG files by several processes."""

import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import cv2

from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.system import cores, signals_blocked
from a2cap.data.scenes.drawing import ImageArray
from a2cap.data.scenes.scene import Scene, draw, make_scene

JPEG_QUALITY = 95

_STOPS = {signal.SIGINT, signal.SIGTERM}
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
    if count > 1:
        drawn = _draw_in_processes(write, starts, workers=count)
    else:
        drawn = (write(start) for start in starts)
    scenes: list[Scene] = []
    # closed here, at once, because an error keeps its frames and so the processes
    with closing(drawn) as parts:
        for part in parts:
            for scene in part:
                scenes.append(scene)
                if progress is not None:
                    progress(1)
    return scenes


def _draw_in_processes(
    write: Callable[[int], list[Scene]], starts: Sequence[int], *, workers: int
) -> Generator[list[Scene]]:
    """Yield `write` of each start in order; each process does the starts of one stripe."""
    # not forked: OpenCV may already have threads, which a fork does not copy
    context = get_context("spawn")
    resource_tracker.ensure_running()  # the first process would start it, which unblocks signals
    running: list[tuple[SpawnProcess, Connection]] = []
    try:
        # Processes inherit the mask: whatever signal all receive, this one alone ends the others.
        with signals_blocked(_STOPS):
            for first in range(workers):
                receiver, sender = context.Pipe(duplex=False)
                stripe = starts[first::workers]
                process = context.Process(target=_draw_stripe, args=(sender, write, stripe))
                process.start()
                sender.close()  # so that the end of the process is the end of its results
                running.append((process, receiver))
        for number in range(len(starts)):
            yield _receive(running[number % workers][1])
    finally:
        with signals_blocked(_STOPS):
            for process, receiver in running:
                process.kill()
                process.join()
                receiver.close()


def _receive(receiver: Connection) -> list[Scene]:
    """Return the next scenes of a process, or raise its error."""
    try:
        part = receiver.recv()
    except (EOFError, OSError) as error:  # OSError within a message
        raise A2Error(
            "a process that drew scenes was killed; free memory and run it again"
        ) from error
    if isinstance(part, Exception):
        raise part
    return list(part)


def _draw_stripe(
    sender: Connection, write: Callable[[int], list[Scene]], starts: Sequence[int]
) -> None:
    """Send `write` of each start, or its error, until the end of the stripe or of the parent."""
    cv2.setNumThreads(1)  # the processes use all cores already
    for start in starts:
        part: list[Scene] | Exception
        try:
            part = write(start)
        except Exception as error:
            part = error
        try:
            sender.send(part)
        except BrokenPipeError:  # nobody receives any more: the parent was killed
            return


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
