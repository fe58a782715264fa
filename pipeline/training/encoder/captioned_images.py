"""Images with their captions, read and cut for the training of an encoder."""

import logging
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a2cap.data.batches.dataset import ItemKey
from a2cap.data.batches.sampling import caption_choice, is_mirrored, part_draws
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.vocabulary import PAD
from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.atomic import write_durably
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.extract.detector.input import Pixels
from a2cap.extract.image import decode_image
from a2cap.extract.trainable_encoder import random_part, recoloured, scaled, shrunk
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.extraction.images import Images
from a2cap.pipeline.training.encoder.encoder_config import EncoderConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncoderItem:
    """An image scaled to a square, (S, S, 3) uint8 BGR, and captions, (K, L) int64."""

    image_id: str
    pixels: Pixels
    tokens: NDArray[np.int64]


@dataclass(frozen=True)
class EncoderPart:
    """B images, (B, S, S, 3) uint8 BGR, and captions, (B, K, L) int64, padded with PAD."""

    image_ids: tuple[str, ...]
    pixels: Tensor
    tokens: Tensor

    def halves(self) -> "list[EncoderPart]":
        """Return the first and the second half, or a single image as it is."""
        middle = -(-len(self.image_ids) // 2)
        both = slice(middle), slice(middle, len(self.image_ids))
        halves = [EncoderPart(self.image_ids[h], self.pixels[h], self.tokens[h]) for h in both]
        return [half for half in halves if half.image_ids]


def collate(items: Sequence[EncoderItem], *, pinned: bool = False) -> EncoderPart:
    """Return a part of at least one image, captions padded; pinned: pixels page-locked."""
    shape = tuple(max(item.tokens.shape[axis] for item in items) for axis in (0, 1))
    tokens = torch.full((len(items), *shape), PAD)
    for row, item in zip(tokens, items, strict=True):
        count, length = item.tokens.shape
        row[:count, :length] = torch.from_numpy(item.tokens)
    pixels = torch.from_numpy(np.stack([item.pixels for item in items]))
    pixels = pixels.pin_memory() if pinned else pixels
    return EncoderPart(tuple(item.image_id for item in items), pixels, tokens)


@dataclass(frozen=True)
class SquareImages:
    """Images of which parts, with the share `crop` of the area at least, become squares.

    Those much larger than `side`, that of a square, are scaled down when first read, into `folder`,
    unless its disk would have less than `spared` bytes left.
    """

    images: Images
    side: int
    crop: float
    folder: Path
    spared: int = 0
    # held from the first failed write on, which threads can meet at once
    _failure_lock: Lock = field(default_factory=Lock, init=False)

    def read(self, image_id: str) -> Pixels:
        """Return the pixels of an image, (H, W, 3) uint8 BGR; raise A2Error where it is damaged."""
        # not as PNG: half as large, but ten times as long to read
        file = self.folder / f"{sha256(image_id.encode()).hexdigest()}.npy"
        if file.exists():
            return cast(Pixels, np.load(file))
        [encoded] = self.images.read([image_id])
        if isinstance(encoded.content, A2Error):
            raise encoded.content
        pixels = decode_image(encoded.content, encoded.name)
        small = shrunk(pixels, self.side, self.crop)
        if small is not pixels and not self._failure_lock.locked():
            self._keep(small, file)
        return small

    def _keep(self, small: Pixels, file: Path) -> None:
        """Write a scaled image; after a failure none, since each can be decoded again."""
        try:
            self.folder.mkdir(exist_ok=True)
            if shutil.disk_usage(self.folder).free < self.spared + small.nbytes:
                raise OSError("checkpoints need the free disk space")
            stream = BytesIO()  # to a file numpy states no reason why it fails
            np.save(stream, small)
            write_durably(file, stream.getvalue())
        except OSError as error:
            if not self._failure_lock.acquire(blocking=False):
                return
            logger.warning(
                "cannot write smaller copies of images: %s; decoding the others in each epoch, "
                "which takes longer; free disk space, and run the same command again to avoid it",
                error.strerror or error,
            )


class CaptionedImages:
    """Images with captions by (epoch, index): parts of them in training, whole ones to validate.

    config: None for whole images with all their captions.
    """

    def __init__(
        self,
        images: SquareImages,
        captions: CaptionFile,
        image_ids: Sequence[str],
        config: EncoderConfig | None = None,
    ) -> None:
        self.image_ids = image_ids
        self._images, self._captions, self._config = images, captions, config

    def __len__(self) -> int:
        return len(self.image_ids)

    def sizes(self) -> dict[str, int]:
        """Return the number of images."""
        return {"images": len(self.image_ids)}

    def __getitem__(self, key: ItemKey) -> EncoderItem:
        epoch, index = key  # an item depends only on these and the seed, so that a resume is exact
        config, image_id = self._config, self.image_ids[index]
        pixels, tokens = self._images.read(image_id), self._captions.captions(image_id)
        if config is not None:
            key_of = {"seed": config.seed, "epoch": epoch, "index": index}
            draws = part_draws(6, **key_of)
            pixels = random_part(pixels, config.crop, draws[:4])
            if config.mirror and is_mirrored(**key_of):
                pixels = pixels[:, ::-1]
            if config.objective == "captions":
                tokens = tokens[caption_choice(len(tokens), config.captions_per_image, **key_of)]
        pixels = scaled(pixels, self._images.side)
        if config is not None and config.colour:
            pixels = recoloured(pixels, config.colour, draws[4:])
        return EncoderItem(image_id, pixels, tokens.astype(np.int64))


def unreadable(
    images: SquareImages, image_ids: Iterable[str], *, workers: int, shown: bool
) -> tuple[list[SkippedItem], int]:
    """Decode every image; return those that cannot be read, and the smallest side of the others.

    shown: as in `track`.
    """
    names, seen = list(image_ids), list[SkippedItem | int]()

    def look(image_id: str) -> SkippedItem | int:
        try:
            return int(min(images.read(image_id).shape[:2]))
        except InputError as error:
            return SkippedItem(image_id, str(error))

    with (
        ThreadPoolExecutor(max(workers, 1)) as pool,
        track("read images", total=len(names), shown=shown) as progress,
    ):
        for item in pool.map(look, names):
            seen.append(item)
            progress.advance(1)
    skipped = [item for item in seen if isinstance(item, SkippedItem)]
    return skipped, min((item for item in seen if isinstance(item, int)), default=2**31)
