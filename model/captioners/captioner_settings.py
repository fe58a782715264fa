"""Settings that kinds of captioners share; those of a kind are beside its class."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, Field, model_validator

from a2cap.model.alignment_config import FROZEN, AlignmentConfig

Recipe = Mapping[str, Mapping[str, object]]
"""Section of the configuration -> field -> value."""

Rate = Annotated[float, Field(ge=0, lt=1)]
Width = Annotated[int, Field(gt=0, le=2**16)]

ADAM: Mapping[str, object] = {"schedule": "constant", "betas": (0.9, 0.999)}
"""Fields of `train` that recipes share."""


class CaptionerSettings(BaseModel):
    """Base of the settings of every kind."""

    model_config = FROZEN

    recipes: ClassVar[Mapping[str, Recipe]] = {}
    """Recipes of `train.optim`, that of the kind's "authors" and a "modern" one: defaults of other
    fields; a field that the configuration states wins. What the papers leave open follows the
    authors' code."""

    kind: str
    """Kind of captioner; the other fields of this section depend on it."""

    feature_dropout: Rate | None = None
    """Dropout rate of the embedded regions, or of the features where a kind does not embed them;
    null is `dropout` of embedded regions and 0 of features."""

    attention_dropout: Rate = 0.0
    """Dropout rate of attention weights, over regions and over tokens."""

    standardise: bool = False
    """Subtract each feature's mean over the training images and divide by its deviation. Published
    captioners read features as they are, at the scale of their own network; those of another one
    may be far smaller or larger, and attention that adds a key to a query then learns slowly."""

    blind: bool = False
    """Zero the region features before the encoder: the control experiment with language, number of
    regions and, where a kind reads them, boxes alone."""

    width: Width = 512
    """Width of every state, D."""

    prophet: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the distance from Prophet Attention, a rival of alignment in training alone; 0 is
    none (Liu et al. 2020; model/attention/supervised_attention.py states what was inferred). It
    stays on in self-critical training, over the words of sampled captions."""

    alignment: AlignmentConfig = AlignmentConfig()
    """The attention alignment of A2."""

    @property
    def has_attention(self) -> bool:
        """Return True if the captioner attends to regions, so that it can be aligned."""
        return True

    @model_validator(mode="after")
    def _check_attention(self) -> Self:
        """Reject what cannot act without attention; leave out alignment that nobody asked for."""
        if self.has_attention:
            return self
        alignment = self.alignment
        if "fusion" not in alignment.model_fields_set:
            # frozen for its users, who never see another fusion
            vars(self)["alignment"] = alignment.model_copy(update={"fusion": "none"})
        elif alignment.fusion != "none":
            raise ValueError(
                f"alignment.fusion is {alignment.fusion!r}, but this captioner has no attention to "
                "align; set alignment.fusion to none"
            )
        if self.prophet:
            raise ValueError(
                f"prophet is {self.prophet}, but this captioner has no attention that it could "
                "train; set prophet to 0"
            )
        if self.attention_dropout:
            raise ValueError(
                f"attention_dropout is {self.attention_dropout}, but this captioner has no "
                "attention; set attention_dropout to 0"
            )
        return self

    @property
    def needs(self) -> Mapping[str, tuple[str, str]]:
        """Return "boxes" or "relations" of the stored regions -> the setting that needs them, and
        its value that does not."""
        return {}

    @property
    def grid_cells(self) -> int | None:
        """Return the number of cells in each image, None if any regions will do."""
        return None

    @property
    def attribute_tokens(self) -> range:
        """Return the tokens that are learned as attributes of an image, from all its captions."""
        return range(0)

    @property
    def least_vocabulary(self) -> int:
        """Return the fewest tokens of a vocabulary that this captioner can have."""
        return max(1, self.attribute_tokens.stop)

    def region_dropout(self, otherwise: float = 0.0) -> float:
        """Return the dropout rate of regions; otherwise: without a `feature_dropout`."""
        return otherwise if self.feature_dropout is None else self.feature_dropout


class LayeredSettings(CaptionerSettings):
    """Base of the settings of kinds made of Transformer layers."""

    heads: Annotated[int, Field(gt=0)] = 8
    """Number of attention heads, H; they divide the width equally."""

    feed_forward: Annotated[int, Field(gt=0, le=2**20)] = 2048
    """Width of the inner layer of each feed-forward block."""

    encoder_layers: Annotated[int, Field(ge=0, le=256)] = 6
    """Self-attention layers over the regions; 0 uses the embedded regions directly."""

    decoder_layers: Annotated[int, Field(gt=0, le=256)] = 6
    """Layers of the caption decoder."""

    dropout: Rate = 0.1
    """Dropout rate after each attention and feed-forward block and in the region embedding, nowhere
    else."""

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} does not give each of {self.heads} heads an even width; "
                f"choose a multiple of {2 * self.heads}"
            )
        layers = self.alignment.aligned_layers
        if layers != "all" and max(layers) > self.decoder_layers:
            raise ValueError(
                f"alignment.aligned_layers contains layer {max(layers)}, the decoder has "
                f"{self.decoder_layers}; choose layers from 1 to {self.decoder_layers}"
            )
        return self
