"""Settings of the captioners, one class per kind, and of alignment.

Alignment is that of Fei, AAAI 2022 ("A2"), after Lu et al., ACL 2021 ("Lu"). Each point that the
paper leaves open is a field of `AlignmentConfig` with a2's reading as default.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_FROZEN = ConfigDict(
    frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
)

_ADDED = Field(json_schema_extra={"added": True})
"""Mark of a field that earlier results lack: at its default it is in no stage key."""


CompileMode = bool | Literal["reduce-overhead"]
"""What torch.compile compiles in training: nothing, the layers, or whole passes."""


class AlignmentConfig(BaseModel):
    """Alignment of attention over regions with the importance that the mask network finds."""

    model_config = _FROZEN

    fusion: Literal["none", "max", "moving", "decay", "gate"] = "gate"
    """Fusion of attention and evidence (Eq. 6-10); none is a plain Transformer without masks.
    max always equals the evidence alpha^m, because exp(1 - m) >= 1."""

    mask_network: Literal["bilinear", "linear"] = "bilinear"
    """Mask network of Eq. 2: bilinear compares the decoder's state with each region, in any order
    (Lu); linear is Eq. 2 as printed, one output per region slot, in the order of the feature store:
    that of proposals or of scores, as its extractor ordered them."""

    mask_slots: Annotated[int, Field(gt=0, le=10**6)] = 100
    """Maximum regions per image for the linear mask network; bilinear has no limit."""

    average: Literal["uniform", "heads"] = "uniform"
    """Replacement for the weight of a masked region in Eq. 3: uniform over the existing regions, or
    the heads' mean (which gives the mask no gradient where the heads agree)."""

    renormalise_aligned: bool = False
    """Scale each row of the fused attention back to a sum of 1 (the paper and Lu do not)."""

    renormalise_perturbed: bool = False
    """Scale each row of the perturbed attention back to a sum of 1 (the paper and Lu do not)."""

    detach_mask: bool = True
    """Stop the caption loss from reaching decoder and encoder through the mask (Lu does not)."""

    penalty_weight: Annotated[float, Field(ge=0)] = 0.035
    """Lambda of Eq. 4, against a loss in nats per token and a penalty summed over regions."""

    moving_rate: Annotated[float, Field(ge=0)] = 0.1
    """Eta of the moving average, Eq. 7."""

    decay_steps: Annotated[float, Field(gt=0)] = 1e5
    """T of the exponential decay, Eq. 8, in optimiser updates of 50 captions each."""

    aligned_layers: (
        Literal["all"] | Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
    ) = "all"
    """Decoder layers with aligned cross-attention, counted from 1, the lowest."""

    def includes(self, layer: int) -> bool:
        """Report whether decoder layer `layer` (counted from 1, the lowest) is aligned."""
        return self.fusion != "none" and (
            self.aligned_layers == "all" or layer in self.aligned_layers
        )


def _in_the_only_layer(alignment: AlignmentConfig) -> AlignmentConfig:
    if alignment.aligned_layers not in ("all", (1,)):
        raise ValueError(
            f"alignment.aligned_layers is {list(alignment.aligned_layers)}, this kind has one "
            'attention; choose "all"'
        )
    return alignment


SingleAlignment = Annotated[AlignmentConfig, AfterValidator(_in_the_only_layer)]
"""Alignment of a captioner with one attention over the regions."""


class CaptionerSettings(BaseModel):
    """Base of the settings of every kind."""

    model_config = _FROZEN

    kind: str
    """Kind of captioner; the other fields of this section depend on it."""

    feature_dropout: Annotated[Annotated[float, Field(ge=0, lt=1)] | None, _ADDED] = None
    """Dropout rate of the embedded regions, or of the features where a kind does not embed them;
    null is `dropout` of embedded regions and 0 of features."""

    attention_dropout: Annotated[float, Field(ge=0, lt=1), _ADDED] = 0.0
    """Dropout rate of attention weights, over regions and over tokens."""

    standardise: Annotated[bool, _ADDED] = False
    """Subtract each feature's mean over the training images and divide by its deviation. Published
    captioners read features as they are, at the scale of their own network; those of another one
    may be far smaller or larger, and attention that adds a key to a query then learns slowly."""

    blind: bool = False
    """Zero the region features before the encoder: the control experiment with language, number of
    regions and, where a kind reads them, boxes alone."""

    def region_dropout(self, otherwise: float = 0.0) -> float:
        """Return the dropout rate of regions; otherwise: without a `feature_dropout`."""
        return otherwise if self.feature_dropout is None else self.feature_dropout


class LayeredSettings(CaptionerSettings):
    """Base of the settings of kinds made of Transformer layers."""

    width: Annotated[int, Field(gt=0, le=2**16)] = 512
    """Width of every state, D."""

    heads: Annotated[int, Field(gt=0)] = 8
    """Number of attention heads, H; they divide the width equally."""

    feed_forward: Annotated[int, Field(gt=0, le=2**20)] = 2048
    """Width of the inner layer of each feed-forward block."""

    encoder_layers: Annotated[int, Field(ge=0, le=256)] = 6
    """Self-attention layers over the regions; 0 uses the embedded regions directly."""

    decoder_layers: Annotated[int, Field(gt=0, le=256)] = 6
    """Layers of the caption decoder."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout rate after each attention and feed-forward block and in the region embedding, nowhere
    else."""

    alignment: AlignmentConfig = AlignmentConfig()
    """The attention alignment of A2."""

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


class TransformerConfig(LayeredSettings):
    """Sizes and options of the Transformer captioner; the defaults are the paper's."""

    # left out where settings are written: keys and captioners older than the other kinds stay valid
    kind: Annotated[Literal["transformer"], Field(exclude=True)] = "transformer"
    """Kind of captioner; the other fields of this section depend on it."""

    norm: Annotated[Literal["post", "pre"], _ADDED] = "post"
    """Layer norm after each block, as in the paper, or before it, as in ImageCaptioning.pytorch."""

    box_geometry: Literal["none", "linear", "relative"] = "none"
    """Geometry of the regions: linear adds a projection of the normalised box to its region;
    relative adds two layers of it, and its encoder sees how each pair of boxes lies and can count;
    none, as in the paper, leaves the model unable to tell left from right."""


class SpatialConfig(LayeredSettings):
    """Sizes and options of the spatial self-attention Transformer (Springenberg et al. 2018)."""

    kind: Literal["spatial"] = "spatial"
    """Kind of captioner; the other fields of this section depend on it."""

    feed_forward: Annotated[int, Field(gt=0, le=2**20)] = 1024
    """Width of the inner layer of each feed-forward block."""

    encoder_layers: Annotated[int, Field(ge=0, le=256)] = 2
    """Self-attention layers over the cells."""

    decoder_layers: Annotated[int, Field(gt=0, le=256)] = 4
    """Layers of the caption decoder."""

    cells: Annotated[int, Field(gt=0, le=10**4)] = 196
    """Cells of an image, each with a position; d_len of attention over cells."""

    words: Annotated[int, Field(gt=0, le=500)] = 14
    """d_len of attention over words; the authors leave out longer captions (train.max_words)."""

    feature_norm: Literal["layer", "none"] = "layer"
    """Normalisation of the cells before their positions; none is the letter of the paper."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout rate of embedded tokens and cells."""

    attention_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout rate of attention weights."""


class UpDownConfig(CaptionerSettings):
    """Sizes and options of Up-Down (Anderson et al. 2018); the defaults are the authors' code."""

    kind: Literal["up-down"] = "up-down"
    """Kind of captioner; the other fields of this section depend on it."""

    width: Annotated[int, Field(gt=0, le=2**16)] = 1000
    """Width of the state of both LSTMs, D."""

    embedding: Annotated[int, Field(gt=0, le=2**16)] = 1000
    """Width of the token embedding."""

    attention_width: Annotated[int, Field(gt=0, le=2**16)] = 512
    """Width of the attention's hidden layer."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout rate of embedded tokens and of the state before the output layer; the authors have
    none, later implementations 0.5."""

    alignment: SingleAlignment = AlignmentConfig()
    """The attention alignment of A2."""


class HardAttentionConfig(BaseModel):
    """Hard attention of Show, Attend and Tell (section 4.1)."""

    model_config = _FROZEN

    decode: Literal["expectation", "argmax", "sample"] = "expectation"
    """Context outside of cross-entropy training: the weighted sum of all regions, as in the results
    of the authors; the most attended region; or a region drawn again at each pass."""

    baseline: Literal["moving", "soft"] = "moving"
    """Reward that a sample is compared with: the moving average of log p per token, or log p of the
    same caption with soft attention, one more decoder pass and far less variance at the start."""

    lambda_r: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the REINFORCE term; 1 is unbiased, the authors' code has 0.1."""

    lambda_e: Annotated[float, Field(ge=0)] = 0.002
    """Weight of the attention's entropy; raise it if the attention stays on one region."""


class ShowAttendTellConfig(CaptionerSettings):
    """Sizes and options of Show, Attend and Tell (Xu et al. 2015), soft or hard attention.

    The defaults are the settings of the authors' COCO model.
    """

    kind: Literal["show-attend-tell"] = "show-attend-tell"
    """Kind of captioner; the other fields of this section depend on it."""

    width: Annotated[int, Field(gt=0, le=2**16)] = 1800
    """Width of the LSTM's state, D; 1000 on Flickr8k, 1300 on Flickr30k."""

    embedding: Annotated[int, Field(gt=0, le=2**16)] = 512
    """Width of the token embedding and of the deep output."""

    attention_width: Annotated[int, Field(gt=0, le=2**16)] = 512
    """Width of the attention's hidden layers; the authors use the width of the features."""

    attention_layers: Literal[1, 2] = 2
    """Layers that project a region before the sum with the state; 1 is Bahdanau's attention."""

    gate: Literal["scalar", "none"] = "scalar"
    """Factor of the context by the previous state (section 4.2.1)."""

    output: Literal["tanh", "linear"] = "tanh"
    """Activation of the deep output: tanh as in the authors' code, linear as printed."""

    attention: Annotated[Literal["soft", "hard"], _ADDED] = "soft"
    """soft reads the weighted sum of the regions; hard samples one region per token in training."""

    hard: Annotated[HardAttentionConfig, _ADDED] = HardAttentionConfig()
    """Options of hard attention."""

    doubly_stochastic: Annotated[float, Field(ge=0)] = 1.0
    """Lambda of soft attention's penalty on regions whose attention over a caption does not sum to
    1."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Dropout rate in the initial state's network and before and after the deep output."""

    alignment: SingleAlignment = AlignmentConfig()
    """The attention alignment of A2."""

    @model_validator(mode="after")
    def _check_hard(self) -> Self:
        if self.attention == "hard" and self.attention_dropout:
            raise ValueError(
                f"attention_dropout is {self.attention_dropout}, but hard attention has no weights "
                "to drop; set attention_dropout to 0, or attention to soft"
            )
        return self

    @model_validator(mode="after")
    def _check_distribution(self) -> Self:
        fusion = self.alignment.fusion
        if self.attention == "hard" and fusion != "none" and not self.alignment.renormalise_aligned:
            raise ValueError(
                "hard attention samples from a distribution, and the weights of alignment.fusion "
                f"do not sum to 1: {fusion!r}; set alignment.renormalise_aligned to true, or "
                "alignment.fusion to none"
            )
        return self


class GruConfig(CaptionerSettings):
    """Sizes and options of the GRU captioner; the defaults are TensorFlow's captioning tutorial."""

    kind: Literal["gru"] = "gru"
    """Kind of captioner; the other fields of this section depend on it."""

    width: Annotated[int, Field(gt=0, le=2**16)] = 512
    """Width of the GRU's state and of the projected regions, D."""

    embedding: Annotated[int, Field(gt=0, le=2**16)] = 256
    """Width of the token embedding."""

    attention: Literal["none", "dot", "general", "additive"] = "dot"
    """Score of a region by the state: s'h and s'Wh (Luong), v'tanh(Wh + Us) (Bahdanau); none reads
    the mean region at each token."""

    order: Literal["text", "bahdanau"] = "text"
    """Step that reads the context: the output layer, from the new state; or the GRU, from the
    previous state."""

    initial: Literal["zero", "mean"] = "zero"
    """Initial state; mean is a tanh layer of the mean region."""

    scale: Literal["none", "sqrt"] = "none"
    """Divisor of a dot product: sqrt(D) keeps a softmax over large features from saturating."""

    alignment: SingleAlignment = AlignmentConfig()
    """The attention alignment of A2; without attention its fusion must be none."""

    @model_validator(mode="after")
    def _check_attention(self) -> Self:
        if self.attention == "none" and self.alignment.fusion != "none":
            raise ValueError(
                f"alignment.fusion is {self.alignment.fusion!r}, but attention is none; set "
                "alignment.fusion to none, or attention to dot"
            )
        return self


class AoaConfig(CaptionerSettings):
    """Sizes and options of AoANet (Huang et al. 2019); the defaults are the authors' code."""

    kind: Literal["aoa"] = "aoa"
    """Kind of captioner; the other fields of this section depend on it."""

    width: Annotated[int, Field(gt=0, le=2**16)] = 1024
    """Width of every state, D."""

    heads: Annotated[int, Field(gt=0)] = 8
    """Number of attention heads, H; they divide the width equally."""

    refiner_layers: Annotated[int, Field(ge=0, le=256)] = 6
    """Layers that refine the regions."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Dropout rate of embedded regions and tokens, of the context, and before the output layer."""

    attention_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout rate of all attention weights and of what the refiner's layers add."""

    gate_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """Dropout rate of the input of the refiner's attention on attention."""

    alignment: SingleAlignment = AlignmentConfig()
    """The attention alignment of A2, of the decoder's attention."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not divided by {self.heads} heads; choose a multiple of "
                f"{self.heads}"
            )
        return self


class M2Config(LayeredSettings):
    """Sizes and options of M2 (Cornia et al. 2020); the defaults are the authors' code.

    With alignment, each decoder layer has a mask network for each encoder layer.
    """

    kind: Literal["m2"] = "m2"
    """Kind of captioner; the other fields of this section depend on it."""

    encoder_layers: Annotated[int, Field(gt=0, le=256)] = 3
    """Self-attention layers over the regions; the decoder attends to each of them."""

    decoder_layers: Annotated[int, Field(gt=0, le=256)] = 3
    """Layers of the caption decoder."""

    memory_slots: Annotated[int, Field(gt=0, le=2**16)] = 40
    """Learned keys and values beside the regions in each encoder layer."""

    positions: Annotated[Literal["sinusoidal", "table"], _ADDED] = "sinusoidal"
    """Positions of tokens: sinusoidal, or a table that is saved with an imported captioner."""


def _with_kind(settings: object) -> object:
    """Add the kind to settings that were written before there was a choice."""
    return {"kind": "transformer", **settings} if isinstance(settings, Mapping) else settings


AnyConfig = (
    TransformerConfig
    | UpDownConfig
    | ShowAttendTellConfig
    | SpatialConfig
    | GruConfig
    | AoaConfig
    | M2Config
)
"""Union to which a new kind is added."""

ModelConfig = Annotated[AnyConfig, Field(discriminator="kind"), BeforeValidator(_with_kind)]
"""Settings of a captioner of any kind."""

MODEL_KINDS: dict[str, type[BaseModel]] = {
    config.model_fields["kind"].default: config for config in get_args(AnyConfig)
}
"""Kind -> class of its settings."""
