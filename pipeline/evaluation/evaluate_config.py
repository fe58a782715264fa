"""Configuration of the section `evaluate`, and an evaluation by it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from a2cap.data.errors import InputError
from a2cap.model.plug_ins import names_a_function
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Input
from a2cap.pipeline.metrics.metric_table import metric_name
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig


def _metric(text: str, info: ValidationInfo) -> str:
    if ":" in text:
        return names_a_function(text, info)
    try:
        return metric_name(text)
    except InputError as error:
        raise ValueError(f"{error}, or module:function") from error


class EvaluateConfig(CaptioningConfig):
    """Options of stage evaluate: decoding, scoring and the report."""

    split: Literal["val", "test"] = "test"
    """Split to caption; val too where the annotations have no test split."""
    model: Path | None = None
    """Model of transformers to evaluate in place of the experiment's captioner: a folder of
    save_pretrained, or org/name in the cache. It reads the images, not their features."""
    ensemble: tuple[Path, ...] = ()
    """Results of other trainings on the same features and vocabulary (directories of train-xe or
    train-scst) that form an ensemble with this experiment's captioner."""
    neighbours: Annotated[int, Field(ge=0, le=1000)] = 0
    """Training images nearest to an image, by the mean of its features, whose captions vote in the
    consensus too (consensus reranking, Mao et al. 2015, section 8, arXiv:1412.6632); mirror images
    count. The features of all training images are read; 0 turns it off."""
    spice: bool | Literal["auto"] = "auto"
    """Compute SPICE. auto: where its parser is ("a2 weights fetch spice" downloads it), else a line
    says that it is left out. true: without the parser, the other metrics are computed and the exit
    code is 3. It parses every caption: minutes for 5,000 images, less if the same references were
    parsed before."""
    metrics: tuple[Annotated[str, AfterValidator(_metric)], ...] = ()
    """Further metrics: distinct_1 to distinct_3 and other figures of all captions together, or
    Python functions as those of `scst.reward`, whose values are averaged. CIDEr and the others of
    a2 are computed anyway."""
    chair: bool = False
    """Compute CHAIR: the share of named objects that neither data.instances, which are COCO's, nor
    the references have (Rohrbach et al. 2018)."""
    baseline: Path | None = None
    """metrics.json of another evaluation, to compare with in the report."""
    baseline_name: str = "baseline"
    """Name of the baseline in the report."""
    report_images: Annotated[int, Field(ge=0)] = 500
    """Largest number of images embedded in report.html: the worst, the most typical and the best by
    CIDEr, a third each."""
    erasure: Annotated[int, Field(ge=0)] = 10
    """Images of a model of transformers whose tokens are removed, to measure in the report if its
    attention is true; 0 leaves that out, and what single words lose, as does attention none.
    "a2 analyze" does it for captioners of a2."""
    attention: Literal["all", "report", "none"] = "all"
    """Images whose attention at each token is saved in attention.h5: all (about 3 kB for an image
    with 36 regions), those embedded in the report, or none."""

    @model_validator(mode="after")
    def _check_neighbours(self) -> Self:
        if self.neighbours and not self.consensus:
            raise ValueError(
                f"neighbours is {self.neighbours}, but consensus is false; set consensus to true "
                "with a beam_size such as 20, or neighbours to 0"
            )
        return self

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        weights, count = self.ensemble_weights, 1 + len(self.ensemble)
        if weights and len(weights) != count:
            raise ValueError(
                f"ensemble_weights are {list(weights)} for {count} captioners; give a positive "
                "number for each, in their order, or none"
            )
        return self


@dataclass(frozen=True)
class EvaluationRun:
    """An evaluation of a split into `folder`.

    images: image id -> file, None if it is missing. no_spice: as in `score`.
    """

    config: EvaluateConfig
    inputs: Mapping[str, Input]
    images: Mapping[str, Path | None]
    runtime: RuntimeConfig
    folder: Path
    events: EventLog
    no_spice: str | None
