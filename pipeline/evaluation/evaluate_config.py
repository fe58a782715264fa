"""Configuration of the section `evaluate`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from a2cap.model.plug_ins import Function
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig


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
    spice: bool | Literal["auto"] = "auto"
    """Compute SPICE. auto: where its parser is ("a2 weights fetch spice" downloads it), else a line
    says that it is left out. true: without the parser, the other metrics are computed and the exit
    code is 3. It parses every caption: minutes for 5,000 images, less if the same references were
    parsed before."""
    metrics: tuple[Function, ...] = ()
    """Further metrics, Python functions as those of `scst.reward`; each value is the mean."""
    baseline: Path | None = None
    """metrics.json of another evaluation, to compare with in the report."""
    baseline_name: str = "baseline"
    """Name of the baseline in the report."""
    report_images: Annotated[int, Field(ge=0)] = 500
    """Largest number of images embedded in report.html: the worst, the most typical and the best by
    CIDEr, a third each."""
    attention: Literal["all", "report", "none"] = "all"
    """Images whose attention at each token is saved in attention.h5: all (about 3 kB for an image
    with 36 regions), those embedded in the report, or none."""
