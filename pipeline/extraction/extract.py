"""The work of stage extract: from image files to region features in the feature store."""

import logging
import shutil
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.instances import Instances, read_instances
from a2cap.data.annotations.read import SkippedItem, check_skip_limit
from a2cap.data.errors import A2Error, InputError, UnreadableError
from a2cap.data.features.parquet_file import require_pyarrow
from a2cap.data.features.seal import SEAL_FILE
from a2cap.data.features.shard import Shard
from a2cap.data.features.writer import FeatureWriter
from a2cap.extract.config import ExtractConfig
from a2cap.extract.extractor import AnyExtractor, load_extractor
from a2cap.extract.image import read_image
from a2cap.extract.record import ExtractorRecord
from a2cap.pipeline.engine.artifacts import EXTRACTOR, FEATURES, SKIPPED, WEIGHTS
from a2cap.pipeline.engine.inputs import check_inputs
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.engine.run import read_skipped, write_skipped
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.extraction.inputs import ExtractionInputs, check_feature_space
from a2cap.pipeline.runtime.device import prepare_device

logger = logging.getLogger(__name__)

GivenBoxes = Mapping[str, Instances]  # by image id
Pixels = NDArray[np.uint8]  # (H, W, 3), channels blue, green, red

_BATCH_SIZE = 16  # images; on a CPU a batch of detected regions is one image


def extract_features(
    inputs: ExtractionInputs, *, directory: Path, events: EventLog
) -> Sequence[SkippedItem]:
    """Fill `directory` with the store, the weights and the record of the extractor.

    Continues an interrupted run. Returns the skipped images; raises InputError if too many are bad.
    """
    extraction = Extraction.load(inputs, events, directory)
    save_extractor(extraction.extractor, directory)
    if (directory / FEATURES / SEAL_FILE).exists() and (directory / SKIPPED).exists():
        return skipped_in(directory)  # the last run died between seal and manifest
    with extraction.open_store(directory / FEATURES) as writer:
        skipped = extraction.fill(writer)
        require_some(len(writer), skipped, total=len(inputs.images))
        write_skipped(directory, skipped)  # before the seal: a sealed store is complete
        writer.seal()
    return skipped


def skipped_in(directory: Path) -> list[SkippedItem]:
    """Return the skipped images of a sealed store or shard."""
    return [SkippedItem(image_id, why) for image_id, why in read_skipped(directory).items()]


def recorded_config(inputs: ExtractionInputs, directory: Path) -> ExtractConfig:
    """Return the configuration, with the precision that was chosen when the work began."""
    record = directory / EXTRACTOR
    if inputs.config.precision_in_key != "auto" or not record.exists():
        return inputs.config
    # a continued run, or another shard, may be on a machine that would choose otherwise
    precision = ExtractorRecord.read(record).config.precision
    return inputs.config.model_copy(update={"precision": precision})


def save_extractor(extractor: AnyExtractor, directory: Path) -> None:
    """Write the weights and the record with which a captioner can extract the same regions."""
    extractor.save(directory / WEIGHTS)
    extractor.record(directory / WEIGHTS).write(directory / EXTRACTOR)


def require_some(stored: int, skipped: Sequence[SkippedItem], *, total: int) -> None:
    """Raise InputError if no image has features."""
    if not stored:
        first = skipped[0]
        raise InputError(
            f"none of the {total} images can be used, first {first.image_id!r}: "
            f"{first.reason}; fix or replace them"
        )


def given_boxes(boxes: Path | None, images: Mapping[str, Path | None]) -> GivenBoxes | None:
    """Read the boxes of a COCO file, None without one; raise InputError if an image has none."""
    if boxes is None:
        return None
    given = read_instances(boxes)
    none = Instances(np.zeros((0, 4), np.float32), ())
    found = {image_id: given.get(image_id, none) for image_id in images}
    # an image whose only box is bad is skipped with that reason when its turn comes
    missing = sorted(name for name, one in found.items() if not len(one) and one.problem is None)
    if missing:
        raise InputError(
            f"no boxes for {len(missing)} of {len(images)} images: "
            f"{', '.join(missing[:5])}; add them to data.instances, or set extract.boxes=detect"
        )
    return given


@dataclass
class Extraction:
    """The extraction of all images, or of those of one shard, with a loaded extractor."""

    inputs: ExtractionInputs
    events: EventLog
    extractor: AnyExtractor
    boxes: GivenBoxes | None
    shard: Shard | None = None
    skipped: list[SkippedItem] = field(default_factory=list)

    @classmethod
    def load(
        cls,
        inputs: ExtractionInputs,
        events: EventLog,
        directory: Path,
        shard: Shard | None = None,
    ) -> Self:
        """Read the given boxes, then load the extractor on the configured device."""
        # both fail sooner than large weights load
        boxes = given_boxes(inputs.boxes, inputs.images)
        if inputs.config.output == "parquet":
            require_pyarrow()
        device = str(prepare_device(inputs.runtime))
        config = recorded_config(inputs, directory)
        extractor = load_extractor(inputs.weights, config=config, device=device, strict=True)
        return cls(inputs, events, extractor, boxes, shard)

    def open_store(self, folder: Path) -> FeatureWriter:
        """Open the store for writing; each commit becomes a checkpoint event."""
        return FeatureWriter(
            folder,
            dtype=self.inputs.config.dtype,
            form=self.inputs.config.output,
            on_commit=lambda stored: self.events.write("checkpoint", images=stored),
        )

    def fill(self, writer: FeatureWriter) -> list[SkippedItem]:
        """Add the images that the store does not contain yet.

        Returns the skipped images; raises InputError if too many of all images are bad.
        """
        images, shard = self.inputs.images, self.shard
        missing = [name for name in sorted(images) if not images[name] and _is_in(name, shard)]
        batches = list(self._batches())
        own = {image_id for batch in batches for image_id in batch}
        done = writer.done()
        self._check_disk(writer.path, own - done)
        what = "extract" if shard is None else f"extract {shard}"
        with track(what, total=len(own) + len(missing), done=len(done)) as progress:
            for image_id in missing:  # first, so that too many fail before any work
                self._skip(image_id, InputError("image file not found"))
            left = (batch for batch in batches if batch.keys() - done)
            readers = max(1, self.inputs.runtime.workers)
            for decoded in _decode_ahead(left, self.inputs.unreadable, readers=readers):
                # what was decoded must be what the stage's key promises
                check_inputs([images[image_id] for image_id in decoded])
                self._add(self._readable(decoded), writer)
                progress.advance(len(decoded.keys() - done))
        return self.skipped

    def _batches(self) -> Iterator[dict[str, Path]]:
        """Yield the image files in batches, only those of the shard if there is one."""
        # An image's features depend in the last bit on its batch. So the batches depend neither on
        # what is done nor on the number of shards: a batch belongs to the shard of its first image.
        size = 1 if self.boxes is None else _BATCH_SIZE
        files = iter([(name, path) for name, path in sorted(self.inputs.images.items()) if path])
        while batch := dict(islice(files, size)):
            if _is_in(next(iter(batch)), self.shard):
                yield batch

    def _readable(self, decoded: Mapping[str, Pixels | A2Error]) -> dict[str, Pixels]:
        """Return the decoded images; skip the others."""
        readable: dict[str, Pixels] = {}
        for image_id, pixels in decoded.items():
            if isinstance(pixels, A2Error):
                self._skip(image_id, pixels)
            else:
                readable[image_id] = pixels
        return readable

    def _add(self, batch: Mapping[str, Pixels], writer: FeatureWriter) -> None:
        """Extract a batch; if one of its images fails, extract each alone and skip that one."""
        try:
            boxes = [self._boxes_of(image_id, pixels) for image_id, pixels in batch.items()]
            found = self.extractor.extract_many(list(batch.values()), boxes)
        except InputError as error:
            if len(batch) == 1:
                self._skip(next(iter(batch)), error)
                return
            for image_id, pixels in batch.items():
                self._add({image_id: pixels}, writer)
            return
        for image_id, regions in zip(batch, found, strict=True):
            # a batch that was interrupted half-way is extracted again as a whole
            if image_id not in writer:
                writer.add(image_id, regions)

    def _boxes_of(self, image_id: str, pixels: Pixels) -> NDArray[np.float32] | None:
        if self.boxes is None:
            return None
        self.boxes[image_id].require_usable(pixels.shape[1], pixels.shape[0])
        return self.boxes[image_id].boxes

    def _skip(self, image_id: str, error: A2Error) -> None:
        self.skipped.append(SkippedItem(image_id, str(error)))
        self.events.skip(image_id, str(error))
        logger.warning("skipped image %s: %s", image_id, error)
        check_skip_limit(self.skipped, len(self.inputs.images), "images")

    def _check_disk(self, folder: Path, image_ids: Iterable[str]) -> None:
        """Raise StoreError if the missing features cannot fit on the disk; warn if they may not."""
        config = self.inputs.config
        if self.boxes is None:
            least, most = (count * len(set(image_ids)) for count in config.region_counts)
        else:
            least = most = sum(len(self.boxes[image_id]) for image_id in image_ids)
        region_bytes = self.extractor.feature_width * np.dtype(config.dtype).itemsize
        free = shutil.disk_usage(folder).free
        estimate = check_feature_space(least * region_bytes, most * region_bytes, free=free)
        if most * region_bytes > free:
            logger.warning("the disk may become full: %s", estimate)


def _is_in(image_id: str, shard: Shard | None) -> bool:
    return shard is None or shard.owns(image_id)


def _decode_ahead(
    batches: Iterable[Mapping[str, Path]], unreadable: Collection[Path], *, readers: int
) -> Iterator[dict[str, Pixels | A2Error]]:
    """Yield decoded batches in order; threads decode the next ones during extraction."""
    # threads, because the decoders of OpenCV and Pillow release Python's lock
    with ThreadPoolExecutor(readers, thread_name_prefix="images") as pool:
        # lazily: Executor.map would decode all images into memory
        started = (pool.submit(_decode, batch, unreadable) for batch in batches)
        ahead = deque(islice(started, readers + 1))
        while ahead:
            ahead.extend(islice(started, 1))
            yield ahead.popleft().result()


def _decode(
    images: Mapping[str, Path], unreadable: Collection[Path]
) -> dict[str, Pixels | A2Error]:
    """Return the pixels of each image, or the error for which it is skipped."""
    found: dict[str, Pixels | A2Error] = {}
    for image_id, path in images.items():
        try:
            found[image_id] = read_image(path)
            if path in unreadable:  # the key states that this image has no features
                raise InputError(
                    f"image {path.name!r} was unreadable when the run started but is readable now; "
                    "run again to include it"
                )
        except InputError as error:
            found[image_id] = error
        except UnreadableError as error:
            # else memory or the disk fails now, and the same command finds the image later
            if path not in unreadable:
                raise
            found[image_id] = error
    return found
