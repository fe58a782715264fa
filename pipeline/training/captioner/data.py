"""Data of a captioner's training: features, captions, references and vocabulary."""

from dataclasses import dataclass
from pathlib import Path

from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.reference_tokens import load_reference_tokens
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import InputError
from a2cap.data.features.store import FeatureStore
from a2cap.data.regions import is_grid
from a2cap.model.config import ModelConfig
from a2cap.pipeline.engine.artifacts import CAPTIONS, FEATURES, REFERENCES, SKIPPED, VOCABULARY
from a2cap.pipeline.engine.run import read_skipped


@dataclass(frozen=True)
class TrainingData:
    """The opened data of a training."""

    store: FeatureStore
    captions: CaptionFile
    references: dict[str, list[str]]  # of the images to validate on
    vocabulary: Vocabulary
    skipped: frozenset[str]  # ids that extraction left out
    validation: list[str]  # ids to validate on


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
    skipped = frozenset(read_skipped(features))
    validation = [name for name in tokens.image_ids("val") if name not in skipped]
    if not validation:
        raise InputError(
            f"no validation image has features: all are in {str(features / SKIPPED)!r}; "
            "fix their files and extract again"
        )
    store.require(validation)
    # only these: all references would stay in memory, those of every image of the training
    every = load_reference_tokens(captions / REFERENCES)
    references = {image_id: every[image_id] for image_id in validation}
    return TrainingData(store, tokens, references, vocabulary, skipped, validation)


def require_cells(model: ModelConfig, store: FeatureStore) -> None:
    """Raise InputError unless the features have the cells to whose positions a model refers."""
    if model.kind != "spatial":
        return
    regions = store[next(iter(store))]
    # imported features may have no boxes
    if regions.boxes.any() and not is_grid(regions):
        raise InputError(
            f"features of {str(store.path)!r} are not the cells of a grid, whose positions "
            "model.kind=spatial needs; extract with extract.boxes=grid, or choose another "
            "model.kind"
        )
    if len(regions) != model.cells:
        raise InputError(
            f"features of {str(store.path)!r} have {len(regions)} cells per image, model.cells is "
            f"{model.cells}; set model.cells={len(regions)}"
        )
