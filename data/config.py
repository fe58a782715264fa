"""The settings of the sections `data` and `preprocess`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """Base of the sections of the configuration: frozen, with no unknown fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


class DataConfig(Section):
    """Where images and their annotations lie; relative paths start at the working directory."""

    images: Path | None = None
    """The image folder, searched with all folders below it."""

    annotations: Path | None = None
    """Karpathy's dataset_coco.json, COCO captions, or a captions.jsonl; each also as .gz."""

    split_list: Path | None = None
    """Which image is in which split; needed by COCO captions, which do not say."""

    instances: Path | None = None
    """COCO instances, for extraction from the annotated boxes instead of detected ones."""

    word_groups: Path | None = None
    """Groups of words, {"colours": ["red", …], …}, by which captions are scored apart as well."""


class PreprocessConfig(Section):
    """How captions become numbers."""

    vocabulary: Literal["karpathy", "m2", "neuraltalk2", "aoanet"] = "karpathy"
    """Rule for words and counts; only `karpathy` counts the training captions alone."""

    min_count: Annotated[int, Field(gt=0)] | None = None
    """Occurrences that a word needs; by default the preset's own, lower for a small data set."""

    max_length: Annotated[int, Field(gt=0, le=500)] = 20
    """Tokens that are kept of a caption, the end token not counted; 99.4 % of COCO's fit, and a
    captioner has no more than 512 positions."""
