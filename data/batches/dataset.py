"""Dataset of images with region features and captions."""

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from a2cap.data.batches.collate import Item
from a2cap.data.batches.sampling import caption_choice
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.vocabulary import PAD
from a2cap.data.errors import InputError
from a2cap.data.features.store import FeatureStore
from a2cap.data.regions import top_scoring

logger = logging.getLogger(__name__)

Grouping = Literal["image", "caption"]
ItemKey = tuple[int, int]
"""Epoch and index. An item is a pure function of both and the seed: random numbers drawn while
loading would start again from scratch when training resumes."""


class CaptionDataset:
    """Images of a split with captions, by (epoch, index).

    grouping: "image", an item is an image with `captions_per_image` of its captions, drawn again
    in every epoch; "caption", an item is one pair of image and caption.
    max_words: longer captions are left out, and images that have no other.
    skipped: images that extraction could not read; they are left out.
    Raises StoreError if any other image has no features, InputError if the split has no images or
    an image has no captions.
    """

    def __init__(
        self,
        store: Path,
        captions: CaptionFile,
        split: str,
        *,
        captions_per_image: int = 5,
        max_regions: int | None = None,
        seed: int,
        grouping: Grouping = "image",
        max_words: int | None = None,
        skipped: Collection[str] = (),
    ) -> None:
        left_out = set(skipped)
        self.image_ids = [name for name in captions.image_ids(split) if name not in left_out]
        if not self.image_ids:
            raise InputError(f"split {split!r} has no images; check the annotations")
        self.store = FeatureStore(store)
        self.store.require(self.image_ids)  # now, not after an hour of training
        self._captions = captions
        self._max_words = max_words
        if max_words is not None:
            self.image_ids = self._with_short_captions(max_words)
        self._counts = [len(self._tokens(image_id)) for image_id in self.image_ids]
        if 0 in self._counts:
            bare = self.image_ids[self._counts.index(0)]
            raise InputError(f"image {bare!r} has no captions; remove it from the split")
        self._captions_per_image = captions_per_image
        self._max_regions = max_regions
        self._seed = seed
        self._pairs = None
        if grouping == "caption":
            self._pairs = [(i, k) for i, count in enumerate(self._counts) for k in range(count)]

    def __len__(self) -> int:
        return len(self.image_ids if self._pairs is None else self._pairs)

    def __getitem__(self, key: ItemKey) -> Item:
        epoch, index = key
        if self._pairs is None:
            image, count = index, self._counts[index]
            number = self._captions_per_image
            rows = caption_choice(count, number, seed=self._seed, epoch=epoch, index=index)
        else:
            image, caption = self._pairs[index]
            rows = [caption]
        image_id = self.image_ids[image]
        return Item(
            image_id=image_id,
            regions=top_scoring(self.store[image_id], self._max_regions),
            tokens=self._tokens(image_id)[rows].astype(np.int64),
        )

    def sizes(self) -> dict[str, int]:
        """Return the numbers of images and of their captions."""
        return {"images": len(self.image_ids), "captions": sum(self._counts)}

    def parts(self) -> NDArray[np.int64]:
        """Return the number of the store's shard that contains each item."""
        parts = np.array([self.store.shard_of(image_id) for image_id in self.image_ids], np.int64)
        return parts if self._pairs is None else parts[[image for image, _ in self._pairs]]

    def lengths(self) -> NDArray[np.int64]:
        """Return the tokens of each caption of grouping "caption", <eos> included."""
        pairs = self._pairs or []
        lengths = {image_id: _lengths(self._tokens(image_id)) for image_id in self.image_ids}
        return np.array([lengths[self.image_ids[i]][k] for i, k in pairs], np.int64)

    def _tokens(self, image_id: str) -> NDArray[np.integer]:
        rows = self._captions.captions(image_id)
        return rows if self._max_words is None else rows[_lengths(rows) <= self._max_words + 1]

    def _with_short_captions(self, max_words: int) -> list[str]:
        """Return the images that have a caption left; log what is left out."""
        kept = {image_id: len(self._tokens(image_id)) for image_id in self.image_ids}
        total = sum(len(self._captions.captions(image_id)) for image_id in self.image_ids)
        logger.info(
            "left out %s of %s captions with more than %d words; images without another: %d",
            f"{total - sum(kept.values()):,}",
            f"{total:,}",
            max_words,
            sum(not count for count in kept.values()),
        )
        if not any(kept.values()):
            raise InputError(
                f"every caption has more than {max_words} words; raise train.max_words"
            )
        return [image_id for image_id, count in kept.items() if count]


def _lengths(rows: NDArray[np.integer]) -> NDArray[np.int64]:
    """Count the tokens of each row, <eos> included."""
    return np.asarray((rows != PAD).sum(axis=1))
