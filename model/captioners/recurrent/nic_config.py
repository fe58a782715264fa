"""Settings of NIC."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioners.captioner_settings import CaptionerSettings


def _none(alignment: AlignmentConfig) -> AlignmentConfig:
    if alignment.fusion != "none":
        raise ValueError(
            f"alignment.fusion is {alignment.fusion!r}, but nic has no attention to align; set it "
            "to none"
        )
    return alignment


class NicConfig(CaptionerSettings):
    """Sizes and options of NIC (Vinyals et al. 2015); the defaults are the authors' code."""

    kind: Literal["nic"] = "nic"
    """Kind of captioner; the other fields of this section depend on it."""

    width: Annotated[int, Field(gt=0, le=2**16)] = 512
    """Width of the LSTM's state, D."""

    embedding: Annotated[int, Field(gt=0, le=2**16)] = 512
    """Width of the token embedding and of the embedded image."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """Dropout rate of what the LSTM reads, the image too, and of its state before the output."""

    alignment: Annotated[AlignmentConfig, AfterValidator(_none)] = AlignmentConfig(fusion="none")
    """No attention, so nothing to align: its fusion is none."""
