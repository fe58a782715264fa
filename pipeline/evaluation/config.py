"""Configuration of the section `evaluate`."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from a2cap.data.config import Section


class EvaluateConfig(Section):
    """Decoding and scoring."""

    split: Literal["val", "test"] = "test"
    """The Karpathy split that is captioned."""
    beam_size: Annotated[int, Field(ge=1)] = 5
    """Beams kept per image."""
    max_length: Annotated[int, Field(ge=1, le=500)] = 20
    """Longest caption in tokens."""
    length_penalty: Annotated[float, Field(ge=0)] = 0.0
    """Beams are ranked by log p / length^penalty; 0 is the paper's plain sum."""
    no_repeat_ngram: Annotated[int, Field(ge=0)] = 0
    """Words in a row that no caption says twice (Paulus et al. 2018): 3 blocks trigrams, 0 is off,
    as in the paper."""
    groups: Annotated[int, Field(ge=1)] = 1
    """Groups of beams that are kept from saying the same (Vijayakumar et al. 2016); they share the
    beams equally, 1 is plain beam search."""
    diversity: Annotated[float, Field(ge=0)] = 0.5
    """What a group pays for a word, in nats per beam of earlier groups that says it at that place;
    0.2 to 0.8 in their paper."""
    ensemble: tuple[Path, ...] = ()
    """Results of further trainings on the same features and vocabulary (directories of train-xe or
    train-scst) that say each word together with this experiment's captioner."""
    ensemble_average: Literal["probabilities", "log_probabilities"] = "probabilities"
    """What an ensemble takes the mean of; log_probabilities is M2's, the A2 paper does not say."""
    collapse_repeats: bool = False
    """Say a word that follows itself once, as M2 does before it scores; off, as in the paper."""
    batch_size: Annotated[int, Field(ge=1)] = 50
    """Images decoded together."""
    spice: bool = True
    """SPICE too, where "a2 weights fetch spice" has brought its parser, which reads every caption:
    minutes for 5,000 images, less where the same references were parsed before."""
    baseline: Path | None = None
    """metrics.json of another evaluation, printed beside this one's figures."""
    baseline_name: str = "baseline"
    """What the report calls it."""
    report_images: Annotated[int, Field(ge=0, serialization_alias="report_pictures")] = 500
    """Most images embedded in report.html, the worst and the best by CIDEr; all are listed."""
    attention: Literal["all", "report", "none"] = "all"
    """Of which images attention.h5 keeps where the captioner looked at each word: all (about 3 kB
    an image of 36 regions), those embedded in the report, or none."""

    @model_validator(mode="after")
    def _groups_fit(self) -> Self:
        if self.beam_size % self.groups:
            raise ValueError(
                f"{self.beam_size} beams cannot be shared equally by groups: {self.groups}; choose "
                "a number of groups that divides evaluate.beam_size"
            )
        return self
