"""Regions that the words of training captions name, from annotated boxes (`train.supervision`)."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from a2cap.data.annotations.instances import Instances, read_instances
from a2cap.data.batches.collate import Batch
from a2cap.data.captions.vocabulary import EOS, PAD, Vocabulary
from a2cap.data.errors import InputError
from a2cap.pipeline.captioning.grounding import CategoryNames, named_regions


class NamedRegions:
    """Targets of attention at the words that name a category with boxes in the image."""

    def __init__(self, instances: Mapping[str, Instances], vocabulary: Vocabulary) -> None:
        self._names = CategoryNames.of_images(instances.values())
        self._instances, self._words = instances, vocabulary.words

    @classmethod
    def read(cls, path: Path, vocabulary: Vocabulary) -> "NamedRegions":
        """Read COCO instances; raise InputError if an image has boxes without its size."""
        found = read_instances(path)
        if unsized := [name for name, one in found.items() if len(one) and one.size is None]:
            raise InputError(
                f"image {unsized[0]!r} has boxes, but no width and height in {str(path)!r}; "
                "add them for train.supervision, or set it to 0"
            )
        return cls(found, vocabulary)

    def targets(self, batch: Batch) -> Tensor:
        """Return beta, (B, K * L, R) float32: uniform over a named category's regions, or 0."""
        assert batch.tokens is not None  # a training batch
        count, rows, length = batch.tokens.shape
        found = torch.zeros(count, rows, length, batch.region_mask.shape[1])
        for image, image_id in enumerate(batch.image_ids):
            instances = self._instances.get(image_id)
            if instances is None or instances.size is None or not len(instances):
                continue
            exists = batch.region_mask[image]
            boxes = (batch.boxes[image, exists, :4] * torch.tensor(instances.size * 2)).numpy()
            for row, tokens in enumerate(batch.tokens[image].tolist()):
                words = [self._words[token] for token in tokens if token not in (PAD, EOS)]
                for span, right in named_regions(words, boxes, instances, self._names):
                    share = torch.from_numpy(right / right.sum())
                    found[image, row, span.start : span.stop, : len(right)] = share.float()
        return found.flatten(1, 2)
