"""Queue of the images that wait for the captioner, which one thread decodes in batches.

The queue is bounded: an image that is accepted is answered within the time of those before it, and
one that is refused states when to send it again.
"""

import io
import json
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import BinaryIO

from a2cap.data.errors import A2Error
from a2cap.extract.detector.input import Pixels
from a2cap.extract.image import decode_image
from a2cap.pipeline.captioning.attention_figure import attention_figure
from a2cap.pipeline.captioning.captioned_image import BatchCaptioner, CaptionedImage, OpenedImage
from a2cap.pipeline.captioning.outputs.output import caption_line
from a2cap.pipeline.report.image_card import ImageCard

MOST_WAITING = 128
"""Images that wait."""
TOGETHER = 16
"""Images that are decoded together: more are hardly faster, and the first would wait for them."""


class Busy(Exception):
    """Raised for an image that is not captioned; again: seconds after which it may be, or None."""

    def __init__(self, reason: str, *, again: int | None = None) -> None:
        when = "start it again" if again is None else f"send it again in {again} s"
        super().__init__(f"{reason}; {when}")
        self.again = again


@dataclass(frozen=True)
class _Job:
    """An image file that waits for its answer."""

    file: BinaryIO
    as_figure: bool
    answer: Future[bytes] = field(default_factory=Future)


class CaptionQueue:
    """The images that wait for a captioner; `name` is stated in the answers."""

    def __init__(self, captioner: BatchCaptioner, *, name: str) -> None:
        self._captioner, self._name = captioner, name
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._seconds = 0.5  # per image; a first estimate
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, file: BinaryIO, *, as_figure: bool) -> Future[bytes]:
        """Return the future captions of an image and its card (`ImageCard`) in JSON, or its figure.

        It fails with A2Error for an unusable image, and Busy if the server stops. Raises Busy if
        too many wait or the server stops.
        """
        job = _Job(file, as_figure)
        job.answer.set_running_or_notify_cancel()  # a client that left does not cancel it
        with self._changed:
            if self._is_closed:
                raise _stops()
            if len(self._waiting) >= MOST_WAITING:
                seconds = math.ceil(self._seconds * len(self._waiting))
                raise Busy("too many images wait", again=seconds)
            self._waiting.append(job)
            self._changed.notify()
        return job.answer

    def close(self) -> None:
        """Caption none of those that wait."""
        with self._changed:
            self._is_closed = True
            while self._waiting:
                self._waiting.popleft().answer.set_exception(_stops())
            self._changed.notify()

    @property
    def is_working(self) -> bool:
        """True until the last batch of a closed queue is captioned."""
        return self._thread.is_alive()

    def _work(self) -> None:
        while jobs := self._next():
            start = time.monotonic()
            self._answer(jobs)
            taken = (time.monotonic() - start) / len(jobs)
            self._seconds += 0.25 * (taken - self._seconds)

    def _next(self) -> list[_Job]:
        """Wait for images; return none when the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            return [self._waiting.popleft() for _ in range(min(TOGETHER, len(self._waiting)))]

    def _answer(self, jobs: Sequence[_Job]) -> None:
        start = time.monotonic()
        opened = [partial(_open, job.file) for job in jobs]
        try:
            captioned = self._captioner.caption_each(opened, attention=True)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].answer.set_exception(error)
                return
            for job in jobs:  # one of them is at fault
                self._answer([job])
            return
        seconds = (time.monotonic() - start) / len(jobs)
        for job, answer in zip(jobs, captioned, strict=True):
            try:
                if isinstance(answer, A2Error):
                    raise answer
                drawn = _draw(job.file, answer) if job.as_figure else self._as_json(answer, seconds)
                job.answer.set_result(drawn)
            except Exception as error:
                job.answer.set_exception(error)

    def _as_json(self, captioned: CaptionedImage, seconds: float) -> bytes:
        attention = captioned.attention and replace(captioned.attention, layers=())
        card = ImageCard.of_regions(None, captioned.regions, attention=attention)  # the page has it
        shown = {
            **caption_line(None, captioned, self._name),
            "seconds": round(seconds, 3),
            "card": card.as_json(captioned.beams[0].caption),
        }
        return json.dumps(shown).encode()


def _open(file: BinaryIO) -> OpenedImage:
    return OpenedImage(_pixels(file))


def _pixels(file: BinaryIO) -> Pixels:
    file.seek(0)
    return decode_image(file.read(), "image")


def _stops() -> Busy:
    return Busy("the server stops")


def _draw(file: BinaryIO, captioned: CaptionedImage) -> bytes:
    """Return the figure of `a2 caption --figure`."""
    drawn = io.BytesIO()
    figure = attention_figure(_pixels(file)[:, :, ::-1], captioned)
    figure.savefig(drawn, format="png", dpi=120)
    return drawn.getvalue()
