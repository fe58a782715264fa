"""Configuration of the section `evaluate`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from a2cap.pipeline.captioning.config import CaptioningConfig


class EvaluateConfig(CaptioningConfig):
    """Decoding and scoring."""

    split: Literal["val", "test"] = "test"
    """The Karpathy split that is captioned."""
    ensemble: tuple[Path, ...] = ()
    """Results of further trainings on the same features and vocabulary (directories of train-xe or
    train-scst) that say each word together with this experiment's captioner."""
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
