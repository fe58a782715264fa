"""The work of one task of a plan: decode its images, extract features, seal them as a part."""

import json
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from a2cap.data.errors import A2Error
from a2cap.data.features.parts import DoneRecord
from a2cap.data.features.seal import DONE, FAILED, SEAL_FILE
from a2cap.data.features.writer import FeatureWriter
from a2cap.data.files.atomic import write_durably
from a2cap.data.sources.source import EncodedImage, ImageSource
from a2cap.extract.config import ExtractConfig
from a2cap.extract.extractor import AnyExtractor
from a2cap.extract.image import decode_image
from a2cap.pipeline.extraction.plan.plan import Plan, read_items

logger = logging.getLogger(__name__)

T = TypeVar("T")
Pixels = NDArray[np.uint8]  # (H, W, 3), channels blue, green, red

_AHEAD = 4  # images decoded before they are needed


class ShardWork:
    """The work of the tasks of one plan, with a loaded extractor."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        source: ImageSource,
        *,
        config: ExtractConfig,
        extractor: Callable[[], AnyExtractor],
        advance: Callable[[int], None],
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._source = source
        self._config = config
        self._extractor = extractor
        self._advance = advance
        self._failed: dict[str, str] = {}
        self._began = 0.0

    def fill(self, task: str, folder: str) -> Generator[None, None, None]:
        """Add an image that the store lacks per step."""
        self._failed, self._began = {}, time.monotonic()
        extractor = self._extractor()
        store = self._folder / folder
        (store / SEAL_FILE).unlink(missing_ok=True)  # of a worker killed between seal and rename
        with self._open(store) as writer:
            items = read_items(self._plan, self._folder, self._source, task)
            left = [item for item in items if item.image_id not in writer]
            self._advance(len(items) - len(left))
            decoded = map(_decode, self._source.read(left))
            with closing(_ahead(decoded)) as images:
                for image_id, pixels in images:
                    self._add(image_id, pixels, extractor, writer)
                    self._advance(1)
                    yield

    def seal(self, task: str, folder: str) -> None:
        """Seal the store and write the record of the part."""
        path = self._folder / folder
        with self._open(path) as writer:
            seal = writer.seal()
        lines = [
            json.dumps({"id": image_id, "reason": reason})
            for image_id, reason in sorted(self._failed.items())
        ]
        write_durably(path / FAILED, "".join(f"{line}\n" for line in lines).encode())
        record = DoneRecord(
            count=seal.count,
            failed=len(self._failed),
            digest=seal.digest,
            fingerprint=self._plan.fingerprint,
            host=socket.gethostname(),
            seconds=round(time.monotonic() - self._began, 3),
            ended=round(time.time(), 3),
        )
        write_durably(path / DONE, f"{record.model_dump_json()}\n".encode())

    def _open(self, store: Path) -> FeatureWriter:
        return FeatureWriter(store, dtype=self._config.dtype, form=self._config.output)

    def _add(
        self,
        image_id: str,
        pixels: Pixels | A2Error,
        extractor: AnyExtractor,
        writer: FeatureWriter,
    ) -> None:
        try:
            if isinstance(pixels, A2Error):
                raise pixels
            (regions,) = extractor.extract_many([pixels], [None])
        except A2Error as error:
            self._failed[image_id] = str(error)
            logger.warning("failed image %s: %s", image_id, error)
            return
        writer.add(image_id, regions)


def _decode(image: EncodedImage) -> tuple[str, Pixels | A2Error]:
    item, encoded = image
    if isinstance(encoded, A2Error):
        return item.image_id, encoded
    try:
        return item.image_id, decode_image(encoded, item.member)
    except A2Error as error:
        return item.image_id, error


def _ahead(images: Iterator[T]) -> Generator[T, None, None]:
    """Yield the images in order; a thread makes the next ones."""
    with ThreadPoolExecutor(1, thread_name_prefix="images") as reader:
        started = deque(reader.submit(next, images, None) for _ in range(_AHEAD))
        while (found := started.popleft().result()) is not None:
            started.append(reader.submit(next, images, None))
            yield found
