"""Filling of the shards of an extraction with one extractor."""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from a2cap.data.errors import A2Error, InputError
from a2cap.data.features.writer import FeatureWriter
from a2cap.data.files.sealed_folder import SkippedItem, check_skip_limit, read_manifest
from a2cap.extract.detector.input import Pixels
from a2cap.extract.detector.started_batches import Pending
from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.extractor import AnyExtractor, load_extractor
from a2cap.extract.image import decode_image
from a2cap.pipeline.engine.artifact_names import FEATURES
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.progress import TrackedWork, track
from a2cap.pipeline.extraction.images import (
    BoxesById,
    EncodedImage,
    ExtractionInputs,
    Images,
    given_boxes,
    runs_of,
    shards_of,
)
from a2cap.pipeline.extraction.shard_folder import fill_shard
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig

logger = logging.getLogger(__name__)

_BATCH_SIZE = 16  # images that are started together; on a CPU regions are detected image by image


@dataclass(frozen=True)
class Extraction:
    """An extraction into a folder, the same in every process that takes part in it.

    boxes: given ones by image id, None if regions are detected; total: number of all images, also
    if `images` are those of some shards.
    """

    config: ExtractConfig
    weights: Path
    runtime: RuntimeConfig
    images: Images
    boxes: BoxesById | None
    inputs: Inputs
    folder: Path
    total: int

    @classmethod
    def begin(cls, request: ExtractionInputs, folder: Path, inputs: Inputs) -> Self:
        """List the images and read the given boxes."""
        images = request.images.listed(folder)
        boxes = given_boxes(request.boxes, images.ids, optional=request.config.pools_map)
        given_of = (boxes or {}).values()
        if whole := sum(not len(b) and b.problem is None for b in given_of):
            logger.warning("%d of %d images have no box: one region each", whole, len(given_of))
        return cls(
            request.config,
            request.weights,
            request.runtime,
            images,
            boxes,
            inputs,
            folder,
            total=len(images.ids),
        )

    @property
    def store(self) -> Path:
        """Folder of the finished shards."""
        return self.folder / FEATURES

    @cached_property
    def shards(self) -> dict[str, Sequence[str]]:
        """Name of each shard -> its images in order."""
        return shards_of(self.images.ids)

    def missing(self) -> list[str]:
        """Return the shards that have not been published."""
        return [name for name in self.shards if not (self.store / name).exists()]

    def skipped(self) -> list[SkippedItem]:
        """Return the images that the published shards lack."""
        shards = sorted(self.store.glob("[0-9]*"))
        return [item for shard in shards for item in read_manifest(shard).skipped]

    def part(self, ids: Sequence[str]) -> "Extraction":
        """Return the extraction of one shard, for another process."""
        images = self.images.part(ids)
        boxes = None if self.boxes is None else {i: self.boxes[i] for i in ids}
        source = self.inputs["images"]
        files = {path: source.files[path] for path in images.files(ids) if path in source.files}
        inputs = Inputs({"images": replace(source, files=files)})
        return replace(self, images=images, boxes=boxes, inputs=inputs)


def fill_here(
    extraction: Extraction, shards: Mapping[str, Sequence[str]], events: EventLog
) -> AnyExtractor:
    """Fill and publish shards in this process."""
    device = str(prepare_device(extraction.runtime))
    config = extraction.config
    extractor = load_extractor(extraction.weights, config=config, device=device, strict=True)
    ids = [image_id for part in shards.values() for image_id in part]
    with track("extract", total=len(ids), events=events) as progress:
        worker = ShardWorker(extraction, extractor, events, progress, extraction.skipped())
        for name, part in shards.items():
            fill_shard(extraction.store, name, partial(worker.fill, ids=part))
            events.write("shard", shard=name, images=len(part))
    return extractor


@dataclass
class ShardWorker:
    """A process that fills shards with one extractor.

    skipped: images that no features exist of, those of other shards included.
    """

    extraction: Extraction
    extractor: AnyExtractor
    events: EventLog
    progress: TrackedWork
    skipped: list[SkippedItem] = field(default_factory=list)

    def fill(self, folder: Path, ids: Sequence[str]) -> None:
        """Add the images that the folder's store does not contain yet, and seal it."""
        earlier_skips = len(self.skipped)
        with FeatureWriter(
            folder,
            dtype=self.extraction.config.dtype,
            on_commit=lambda stored: self.events.write("checkpoint", images=stored),
        ) as writer:
            done = writer.done()
            self.progress.advance(len(done))
            # Features depend in the last bit on the batch, so batches do not depend on what is done
            on_cpu = self.extractor.device.type == "cpu"
            size = 1 if on_cpu and self.extraction.boxes is None else _BATCH_SIZE
            left = [batch for batch in runs_of(ids, size) if set(batch) - done]
            # a GPU computes the next batch while the last one is added; a CPU ends it at once
            started: deque[tuple[dict[str, Pixels], Pending]] = deque()
            for decoded in self._decoded(left):
                self.extraction.inputs.check(self.extraction.images.files(decoded))
                readable = self._readable(decoded)
                started.append((readable, self._start(readable)))
                while len(started) > (0 if on_cpu else 1):
                    self._add(*started.popleft(), writer)
                self.progress.advance(len(decoded.keys() - done))
            while started:
                self._add(*started.popleft(), writer)
            writer.seal(self.skipped[earlier_skips:])

    def _decoded(self, batches: Sequence[Sequence[str]]) -> Iterator[dict[str, Pixels | A2Error]]:
        """Yield decoded batches; threads read and decode the next ones during extraction."""
        # Futures are two deep: the one reader reads the next batch in order and hands it to the
        # decoders, so its result is the future of the decoded batch. A deque of them keeps the
        # order, whichever decoder ends first, and bounds the images in memory.
        encoded = self.extraction.images.read([i for batch in batches for i in batch])
        sizes = iter([len(batch) for batch in batches])
        threads = max(1, self.extraction.runtime.workers)
        # threads, because the decoders of libjpeg and Pillow release Python's lock
        with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(threads) as decoders:

            def read_next() -> Future[dict[str, Pixels | A2Error]] | None:
                size = next(sizes, 0)
                batch = [next(encoded) for _ in range(size)]
                return decoders.submit(_decode, batch) if batch else None

            ahead = deque(reader.submit(read_next) for _ in range(threads + 1))
            while (decoding := ahead.popleft().result()) is not None:
                ahead.append(reader.submit(read_next))
                yield decoding.result()

    def _readable(self, decoded: Mapping[str, Pixels | A2Error]) -> dict[str, Pixels]:
        """Return the decoded images; skip the others."""
        readable: dict[str, Pixels] = {}
        for image_id, pixels in decoded.items():
            if isinstance(pixels, A2Error):
                self._skip(image_id, pixels)
            else:
                readable[image_id] = pixels
        return readable

    def _start(self, batch: Mapping[str, Pixels]) -> Pending:
        """Start to extract a batch; the returned function may raise InputError, this one not."""
        try:
            boxes = [self._boxes_of(image_id, pixels) for image_id, pixels in batch.items()]
            return self.extractor.start(list(batch.values()), boxes)
        except InputError as error:
            return partial(_raise, error)

    def _add(self, batch: Mapping[str, Pixels], pending: Pending, writer: FeatureWriter) -> None:
        """Add a batch; if one of its images fails, extract each alone and skip that one."""
        try:
            extracted = pending()
        except InputError as error:
            if len(batch) == 1:
                self._skip(next(iter(batch)), error)
                return
            for image_id, pixels in batch.items():
                alone = {image_id: pixels}
                self._add(alone, self._start(alone), writer)
            return
        for image_id, regions in zip(batch, extracted, strict=True):
            # a batch that was interrupted half-way is extracted again as a whole
            if image_id not in writer:
                labels = self.extraction.boxes
                writer.add(image_id, labels[image_id].labelled(regions) if labels else regions)

    def _boxes_of(self, image_id: str, pixels: Pixels) -> NDArray[np.float32] | None:
        if self.extraction.boxes is None:
            return None
        labels = self.extraction.boxes[image_id]
        labels.require_usable(pixels.shape[1], pixels.shape[0])
        return labels.boxes

    def _skip(self, image_id: str, error: A2Error) -> None:
        self.skipped.append(SkippedItem(image_id, str(error)))
        self.events.skip(image_id, str(error))
        logger.warning("skipped image %s: %s", image_id, error)
        check_skip_limit(self.skipped, self.extraction.total, "images")


def _raise(error: InputError) -> NoReturn:
    raise error


def _decode(batch: Iterable[EncodedImage]) -> dict[str, Pixels | A2Error]:
    """Return the pixels of each image, or the error for which it is skipped."""
    decoded: dict[str, Pixels | A2Error] = {}
    for image_id, name, content in batch:
        try:
            decoded[image_id] = (
                content if isinstance(content, A2Error) else decode_image(content, name)
            )
        except InputError as error:
            decoded[image_id] = error
    return decoded
