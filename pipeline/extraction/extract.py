"""The work of stage extract: reads images, describes their regions, fills the feature store."""

import logging
import shutil
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.instances import read_boxes
from a2cap.data.annotations.read import SkippedItem, check_skip_limit
from a2cap.data.errors import InputError, StoreError
from a2cap.data.features.seal import SEAL_FILE
from a2cap.data.features.shard import Shard
from a2cap.data.features.writer import FeatureWriter
from a2cap.extract.config import ExtractConfig
from a2cap.extract.extractor import AnyExtractor, load_extractor
from a2cap.extract.image import read_image
from a2cap.pipeline.engine.artifacts import EXTRACTOR, FEATURES, WEIGHTS
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.extraction.inputs import ExtractionInputs
from a2cap.pipeline.runtime.device import prepare_device

logger = logging.getLogger(__name__)

GivenBoxes = Mapping[str, NDArray[np.float32]]
"""Image id -> (R, 4) float32 x1 y1 x2 y2 in pixels."""

Pixels = NDArray[np.uint8]
"""(H, W, 3), channels blue, green, red."""

_AHEAD = 2
"""Groups of images that are decoded before they are needed."""

_TOGETHER = 16
"""Images whose regions are described together where boxes are given."""


@dataclass(frozen=True)
class _Job:
    """An image to describe, and its boxes where they are given."""

    image_id: str
    pixels: Pixels
    boxes: NDArray[np.float32] | None


def extract_features(
    inputs: ExtractionInputs, *, directory: Path, events: EventLog
) -> Sequence[SkippedItem]:
    """Fills `directory` with the store, `extractor.json` and the weights; resumes by key scan.

    Returns the images that were left out, with reasons; InputError above the limit of bad ones.
    """
    images = inputs.images
    given = given_boxes(inputs.boxes, images)
    device = str(prepare_device(inputs.runtime))
    extractor = load_extractor(inputs.weights, config=inputs.config, device=device)
    describe_extractor(extractor, directory)
    # A seal without a manifest: the last run died between the two, and sealing again is cheap.
    (directory / FEATURES / SEAL_FILE).unlink(missing_ok=True)
    with FeatureWriter(
        directory / FEATURES, dtype=inputs.config.dtype, on_commit=commits_in(events)
    ) as writer:
        skipped = describe_images(
            extractor, images, given, writer, directory=directory, events=events
        )
        require_some(len(writer), skipped, total=len(images))
        writer.seal()
    return skipped


def commits_in(events: EventLog) -> Callable[[int], None]:
    """Says in the events how many images each commit of a store has made safe."""
    return lambda kept: events.write("checkpoint", images=kept)


def describe_extractor(extractor: AnyExtractor, directory: Path) -> None:
    """Writes the weights and how they are used, so that a captioner can make the same regions."""
    extractor.save(directory / WEIGHTS)
    extractor.record(directory / WEIGHTS).write(directory / EXTRACTOR)


def describe_images(
    extractor: AnyExtractor,
    images: Mapping[str, Path | None],
    given: GivenBoxes | None,
    writer: FeatureWriter,
    *,
    directory: Path,
    events: EventLog,
    shard: Shard | None = None,
) -> list[SkippedItem]:
    """Adds the images that are not in the store yet, only those of `shard` where one is named.

    Returns those that were left out; InputError above the limit of bad ones among all images.
    """
    skipped: list[SkippedItem] = []

    def skip(image_id: str, error: InputError) -> None:
        skipped.append(SkippedItem(image_id, str(error)))
        events.skip(image_id, str(error))
        logger.warning("skipped image %s: %s", image_id, error)
        check_skip_limit(skipped, len(images), "images")

    missing = [name for name in sorted(images) if not images[name] and _is_own(name, shard)]
    groups = _own_groups(images, shard, size=1 if given is None else _TOGETHER)
    own = {image_id for together in groups for image_id in together}
    done = writer.done()
    _require_room(directory, _regions_left(extractor.config, given, own - done), extractor)
    what = "extract" if shard is None else f"extract {shard}"
    with track(what, total=len(own) + len(missing), done=len(done)) as progress:
        for image_id in missing:  # where too many are, that is known before any work
            skip(image_id, InputError("image file not found"))
        todo = (together for together in groups if together.keys() - done)
        for read in _read_ahead(todo):
            _describe(extractor, list(_readable(read, given, skip)), writer, skip)
            progress.advance(len(read.keys() - done))
    return skipped


def require_some(stored: int, skipped: Sequence[SkippedItem], *, total: int) -> None:
    """InputError where no image has features."""
    if not stored:
        first = skipped[0]
        raise InputError(
            f"none of the {total} images can be used, first {first.image_id!r}: "
            f"{first.reason}; mend or replace them"
        )


def _describe(
    extractor: AnyExtractor,
    jobs: Sequence[_Job],
    writer: FeatureWriter,
    skip: Callable[[str, InputError], None],
) -> None:
    """Describes images together; where one of them cannot be, each by itself."""
    try:
        found = extractor.extract_many([job.pixels for job in jobs], [job.boxes for job in jobs])
    except InputError as error:
        if len(jobs) == 1:
            skip(jobs[0].image_id, error)
            return
        for job in jobs:
            _describe(extractor, [job], writer, skip)
        return
    for job, regions in zip(jobs, found, strict=True):
        if job.image_id not in writer:
            writer.add(job.image_id, regions)


def _groups(images: Mapping[str, Path | None], *, size: int) -> Iterator[dict[str, Path]]:
    """The images that have a file, `size` at a time in the order of their ids.

    The groups do not depend on what is done already: an image then gets the same features, to the
    last bit, in a run that resumes as in one that does not.
    """
    files = iter([(image_id, path) for image_id, path in sorted(images.items()) if path])
    while group := dict(islice(files, size)):
        yield group


def _own_groups(
    images: Mapping[str, Path | None], shard: Shard | None, *, size: int
) -> list[dict[str, Path]]:
    """The groups of a shard, or all: a whole group goes where its first image does.

    So an image gets the same features, to the last bit, in any number of shards.
    """
    return [group for group in _groups(images, size=size) if _is_own(next(iter(group)), shard)]


def _is_own(image_id: str, shard: Shard | None) -> bool:
    return shard is None or shard.owns(image_id)


def _read_ahead(groups: Iterable[Mapping[str, Path]]) -> Iterator[dict[str, Pixels | InputError]]:
    """The images of each group in order, decoded by a thread while earlier ones are described."""
    with ThreadPoolExecutor(1, thread_name_prefix="images") as reader:
        ahead: deque[Future[dict[str, Pixels | InputError]]] = deque()
        for together in groups:
            ahead.append(reader.submit(_read, together))
            if len(ahead) > _AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _read(images: Mapping[str, Path]) -> dict[str, Pixels | InputError]:
    """Each image's pixels, or why it has none."""
    found: dict[str, Pixels | InputError] = {}
    for image_id, path in images.items():
        try:
            found[image_id] = read_image(path)
        except InputError as error:
            found[image_id] = error
    return found


def _readable(
    read: Mapping[str, Pixels | InputError],
    given: GivenBoxes | None,
    skip: Callable[[str, InputError], None],
) -> Iterator[_Job]:
    """The images that could be read; the others are skipped."""
    for image_id, pixels in read.items():
        if isinstance(pixels, InputError):
            skip(image_id, pixels)
        else:
            yield _Job(image_id, pixels, None if given is None else given[image_id])


def given_boxes(boxes: Path | None, images: Mapping[str, Path | None]) -> GivenBoxes | None:
    """The boxes of a file by image id, None without one; InputError where an image has none."""
    if boxes is None:
        return None
    given = read_boxes(boxes)
    missing = sorted(image_id for image_id in images if not len(given.get(image_id, ())))
    if missing:
        raise InputError(
            f"no boxes for {len(missing)} of {len(images)} images: "
            f"{', '.join(missing[:5])}; add them to data.instances, or set extract.boxes=detect"
        )
    return given


def _regions_left(
    config: ExtractConfig, given: GivenBoxes | None, todo: Collection[str]
) -> tuple[int, int]:
    """Fewest and most regions that are still to be stored."""
    if given is None:
        least, most = config.region_counts
        return least * len(todo), most * len(todo)
    count = sum(len(given[image_id]) for image_id in todo)
    return count, count


def _require_room(directory: Path, regions: tuple[int, int], extractor: AnyExtractor) -> None:
    """Refuses a store that cannot fit, before hours are spent on it; warns of one that may not."""
    each = extractor.feature_width * np.dtype(extractor.config.dtype).itemsize
    least, most = (count * each / 1e9 for count in regions)
    free = shutil.disk_usage(directory).free / 1e9
    if least > free:
        raise StoreError(
            f"disk too small for the features: at least {least:.1f} GB are needed, "
            f"{free:.1f} GB are free; make room, or lower extract.min_regions"
        )
    if most > free:
        logger.warning(
            "the disk may become full: features take up to %.1f GB, %.1f GB are free", most, free
        )
