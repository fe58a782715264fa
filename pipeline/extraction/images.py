"""The images of an extraction: files of a folder, or members of tars, Parquet files and lists.

Their order decides the shards: that of the ids for a folder, that of the listing for a source,
which is then read from its beginning to its end.
"""

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from a2cap.data.annotations.instances import Instances, read_instances
from a2cap.data.errors import A2Error, InputError, UnreadableError
from a2cap.data.features.store_manifest import shard_name
from a2cap.data.files.atomic import write_durably
from a2cap.data.files.checksum import with_checksum, without_checksum
from a2cap.data.image_ids import sample_ids
from a2cap.data.sources.location import is_url
from a2cap.data.sources.open_source import open_source
from a2cap.data.sources.source import ImageSource, SourceItem
from a2cap.extract.extract_config import ExtractConfig
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig

logger = logging.getLogger(__name__)

SHARD_SIZE = 1024
"""Images per shard; the last shard may have fewer."""

LISTING = "images.jsonl"
"""File of an unfinished extraction with the images of its source, for processes that join it."""


class EncodedImage(NamedTuple):
    """The file of an image, or the error for which the image is skipped."""

    image_id: str
    name: str
    content: bytes | A2Error


@dataclass(frozen=True)
class ImageFiles:
    """Images of a folder: the file of each id, None if it is missing.

    unreadable: files that could not be read for the digest in the key.
    """

    paths: Mapping[str, Path | None]
    unreadable: Collection[Path] = ()

    @cached_property
    def ids(self) -> Sequence[str]:
        """Ids in order."""
        return sorted(self.paths)

    def listed(self, partial: Path) -> "ImageFiles":
        """Return these images, whose ids are known."""
        return self

    def part(self, ids: Iterable[str]) -> "ImageFiles":
        """Return some of the images, for another process."""
        return replace(self, paths={image_id: self.paths[image_id] for image_id in ids})

    def files(self, ids: Iterable[str]) -> set[Path]:
        """Return the files of these images."""
        return {path for image_id in ids if (path := self.paths[image_id]) is not None}

    def read(self, ids: Sequence[str]) -> Iterator[EncodedImage]:
        """Read images in order; raise UnreadableError if the system fails."""
        for image_id in ids:
            path = self.paths[image_id]
            if path is None:
                yield EncodedImage(image_id, "", InputError("image file not found"))
            else:
                yield EncodedImage(image_id, path.name, self._content(path))

    def _content(self, path: Path) -> bytes | A2Error:
        from a2cap.data.files.image_file import read_image_file  # imports Pillow

        try:
            content = read_image_file(path)
        except InputError as error:
            return error
        except UnreadableError as error:
            # else memory or the disk fails now, and the same command finds the image later
            if path not in self.unreadable:
                raise
            return error
        if path in self.unreadable:  # the key states that this image has no features
            return InputError(
                f"image {path.name!r} was unreadable when the run started but is readable now; "
                "run again to include it"
            )
        return content


@dataclass(frozen=True)
class SourceImages:
    """Images of a source that has been listed; None for one that it does not contain."""

    text: str
    items: Mapping[str, SourceItem | None]

    @cached_property
    def ids(self) -> Sequence[str]:
        """Ids in order."""
        return list(self.items)

    @cached_property
    def _source(self) -> ImageSource:
        return open_source(self.text)

    def part(self, ids: Iterable[str]) -> "SourceImages":
        """Return some of the images, for another process."""
        return SourceImages(self.text, {image_id: self.items[image_id] for image_id in ids})

    def files(self, ids: Iterable[str]) -> set[Path]:
        """Return the tars or Parquet files of these images, or their own ones, of this machine."""
        items = [item for image_id in ids if (item := self.items[image_id]) is not None]
        containers = {Path(item.container) for item in items if not is_url(item.container)}
        # paths that are not inputs are not checked
        return containers | {Path(item.container).parent / item.member for item in items}

    def read(self, ids: Sequence[str]) -> Iterator[EncodedImage]:
        """Read images in order; raise UnreadableError if the system fails."""
        items = [item for image_id in ids if (item := self.items[image_id]) is not None]
        waiting: dict[str, bytes | A2Error] = {}
        encoded = self._source.read(items)  # with images that a container lacks at the end
        for image_id in ids:
            item = self.items[image_id]
            if item is None:
                error = InputError(f"image is not in {self.text!r}")
                yield EncodedImage(image_id, "", error)
                continue
            while image_id not in waiting:
                read, content = next(encoded)
                waiting[read.image_id] = content
            content = waiting.pop(image_id)
            if isinstance(content, UnreadableError):
                raise content
            yield EncodedImage(image_id, item.member, content)


@dataclass(frozen=True)
class Source:
    """The images of tars, Parquet files or a list that have not been listed yet.

    selected: ids of the images to extract, None for all.
    """

    text: str
    selected: Collection[str] | None = None

    def listed(self, partial: Path) -> SourceImages:
        """List the source, or read the list that another process of the extraction has made."""
        items = {item.image_id: item for item in _listed(self.text, partial / LISTING)}
        if self.selected is None:
            return SourceImages(self.text, dict(items))
        missing = sorted(set(self.selected) - items.keys())
        available = {
            image_id: item for image_id, item in items.items() if image_id in self.selected
        }
        return SourceImages(self.text, {**available, **dict.fromkeys(missing)})


Images = ImageFiles | SourceImages
"""Images in the order of their shards."""

UnlistedImages = ImageFiles | Source
"""Images whose ids may not be known yet."""


def _listed(text: str, file: Path) -> list[SourceItem]:
    """Return the images of a source in order, from `file` if it is intact."""
    try:
        body = without_checksum(file.read_bytes())
        if body is not None:
            return [SourceItem(**json.loads(line)) for line in body.splitlines()]
        logger.warning("list of images is damaged: %r; making it again", str(file))
    except FileNotFoundError:
        pass
    items = list(open_source(text).items())
    body = b"".join(json.dumps(asdict(item)).encode() + b"\n" for item in items)
    write_durably(file, with_checksum(body))
    return items


def shards_of(ids: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the name of each shard and its images, which the list alone decides."""
    return {shard_name(number): run for number, run in enumerate(runs_of(ids, SHARD_SIZE))}


def runs_of(ids: Sequence[str], size: int) -> list[Sequence[str]]:
    """Split ids into runs of a size; the last one may be shorter."""
    return [ids[first : first + size] for first in range(0, len(ids), size)]


BoxesById = Mapping[str, Instances]  # by image id


@dataclass(frozen=True)
class ExtractionInputs:
    """Inputs of an extraction; the precision of `config` is the one that is computed."""

    config: ExtractConfig
    weights: Path
    images: UnlistedImages
    boxes: Path | None  # COCO instances with given boxes; None if regions are detected
    runtime: RuntimeConfig


def given_boxes(
    boxes: Path | None, image_ids: Iterable[str], *, optional: bool
) -> BoxesById | None:
    """Read the boxes of a COCO file, None without one.

    Raises InputError if an image has none; if they are optional, only if every image has none.
    """
    if boxes is None:
        return None
    annotated = read_instances(boxes)
    none = Instances(np.zeros((0, 4), np.float32), ())
    boxes_of = {image_id: annotated.get(image_id, none) for image_id in image_ids}
    # an image whose only box is bad is skipped with that reason when its turn comes
    missing = sorted(name for name, b in boxes_of.items() if not len(b) and b.problem is None)
    if missing and (not optional or len(missing) == len(boxes_of)):
        raise InputError(
            f"no boxes for {len(missing)} of {len(boxes_of)} images: {sample_ids(missing)}; add "
            f"them to data.instances, or set extract.boxes={'grid' if optional else 'detect'}"
        )
    return boxes_of
