"""Data of a captioner's training: features, captions, references, vocabulary, named regions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from a2cap.data.annotations.instances import Instances, read_instances
from a2cap.data.batches.collate import Batch
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.reference_tokens import load_reference_tokens
from a2cap.data.captions.vocabulary import EOS, PAD, Vocabulary
from a2cap.data.errors import InputError
from a2cap.data.features.store import FeatureStore
from a2cap.data.files.sealed_folder import read_manifest
from a2cap.data.regions import is_grid
from a2cap.model.captioners.model_config import ModelConfig
from a2cap.pipeline.captioning.grounding import named_regions, names_in
from a2cap.pipeline.engine.artifact_names import CAPTIONS, FEATURES, REFERENCES, VOCABULARY

_SAMPLE = 1000  # images from which means and deviations are taken
_REMEDIES = {
    "boxes": "extract features with boxes",
    "relations": "add them with a2 convert --relations FILE",
}
"""Part of the stored regions -> what adds it."""


@dataclass(frozen=True)
class TrainingData:
    """The opened data of a training."""

    store: FeatureStore
    captions: CaptionFile
    references: dict[str, list[str]]  # of the images to validate on
    vocabulary: Vocabulary
    skipped: frozenset[str]  # ids that extraction left out
    validation: list[str]  # ids to validate on

    @property
    def training(self) -> list[str]:
        """Ids to train on."""
        return [name for name in self.captions.image_ids("train") if name not in self.skipped]

    def sample_features(self) -> Iterator[Tensor]:
        """Yield the features of up to 1,000 training images, spread over the split."""
        for name in self.training[:: -(-len(self.training) // _SAMPLE)]:
            yield torch.from_numpy(self.store[name].features)

    def token_counts(self) -> Tensor:
        """Count each token to predict in the training captions, (V,)."""
        tokens = torch.cat([torch.from_numpy(self.captions.captions(i)) for i in self.training])
        counts = tokens.flatten().bincount(minlength=len(self.vocabulary))
        counts[PAD] = 0
        return counts


def read_training_data(features: Path, captions: Path) -> TrainingData:
    """Open the results of extraction and preprocessing.

    Raises InputError if captions and vocabulary do not match or no validation image is left,
    StoreError if a validation image has no features.
    """
    store = FeatureStore(features / FEATURES)
    vocabulary = Vocabulary.load(captions / VOCABULARY)
    tokens = CaptionFile(captions / CAPTIONS)
    # on a GPU, to check each batch would wait
    is_known = tokens.largest_token < len(vocabulary)
    if tokens.vocabulary_digest != vocabulary.digest or not is_known:
        raise InputError(
            f'captions and vocabulary do not match: {str(captions)!r}; run "a2 preprocess --force"'
        )
    skipped = frozenset(read_manifest(features).reasons)
    validation = [name for name in tokens.image_ids("val") if name not in skipped]
    if not validation:
        raise InputError(
            f"no validation image has features: all were skipped in {str(features)!r}; "
            "fix their files and extract again"
        )
    store.require(validation)
    # only these: all references would stay in memory, those of every image of the training
    all_references = load_reference_tokens(captions / REFERENCES)
    references = {image_id: all_references[image_id] for image_id in validation}
    return TrainingData(store, tokens, references, vocabulary, skipped, validation)


def require_kind_of_regions(
    model: ModelConfig, store: FeatureStore, *, max_regions: int | None
) -> None:
    """Raise InputError where a model or `max_regions` needs regions, cells or boxes not there."""
    regions = store[next(iter(store))]
    name, count = f"features of {str(store.path)!r}", len(regions)
    has_boxes, has_cells = regions.boxes.any(), is_grid(regions)  # imported ones may lack boxes
    has = {"boxes": has_boxes, "relations": regions.relations is not None}
    for part, (setting, without) in model.needs.items():
        if not has[part]:
            raise InputError(
                f"{name} have no {part}, which model.{setting} needs; {_REMEDIES[part]}, or set "
                f"model.{without}"
            )
    if has_cells and max_regions is not None and max_regions < count:
        raise InputError(
            f"{name} have {count} cells per image of equal score, and train.max_regions="
            f"{max_regions} would drop the lower part of each image; set train.max_regions=null"
        )
    if model.grid_cells is None:
        return
    if has_boxes and not has_cells:
        raise InputError(
            f"{name} are not the cells of a grid, whose positions model.kind={model.kind} needs; "
            "extract with extract.boxes=grid, or choose another model.kind"
        )
    if count != model.grid_cells:
        raise InputError(
            f"{name} have {count} cells per image, model.cells is {model.grid_cells}; set "
            f"model.cells={count}"
        )


def unseen_attributes(model: ModelConfig, data: TrainingData) -> list[str]:
    """Return the attributes of a captioner that no training caption contains."""
    if not model.attribute_tokens:
        return []
    counts = data.token_counts()
    return [data.vocabulary.word(token) for token in model.attribute_tokens if not counts[token]]


def require_same_attributes(model: ModelConfig, old: Vocabulary, new: Vocabulary) -> None:
    """Raise InputError if attributes, the first words, differ between two vocabularies.

    old: of the captioner that a training goes on from.
    """
    tokens = slice(model.attribute_tokens.start, model.attribute_tokens.stop)
    for before, after in zip(old.words[tokens], new.words[tokens], strict=False):
        if before != after:
            raise InputError(
                f"train.start does not fit: it has the attribute {before!r} where this vocabulary "
                f"has {after!r}; preprocess with the vocabulary that it was trained with, or name "
                "another captioner"
            )


class NamedRegions:
    """Targets of attention at words that name a category with boxes (`train.supervision`)."""

    def __init__(self, instances: Mapping[str, Instances], vocabulary: Vocabulary) -> None:
        self._names = names_in(instances.values())
        self._instances, self._words = instances, vocabulary.words

    @classmethod
    def read(cls, path: Path, vocabulary: Vocabulary) -> "NamedRegions":
        """Read COCO instances; raise InputError if an image has boxes without its size."""
        boxes = read_instances(path)
        if unsized := [name for name, image in boxes.items() if len(image) and image.size is None]:
            raise InputError(
                f"image {unsized[0]!r} has boxes, but no width and height in {str(path)!r}; "
                "add them for train.supervision, or set it to 0"
            )
        return cls(boxes, vocabulary)

    def targets(self, batch: Batch) -> Tensor:
        """Return beta, (B, K * L, R) float32: uniform over a named category's regions, or 0."""
        assert batch.tokens is not None  # a training batch
        count, rows, length = batch.tokens.shape
        targets = torch.zeros(count, rows, length, batch.region_mask.shape[1])
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
                    targets[image, row, span.start : span.stop, : len(right)] = share.float()
        return targets.flatten(1, 2)
