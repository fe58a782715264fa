"""Settings that the study compares, each with several seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from a2cap.model.alignment_config import FUSIONS
from benchmarks.study.worlds import PHOTOGRAPHED, PLAIN, PLANTED

WEIGHTS = (0.015, 0.05, 0.15, 0.5, 1.5)
"""Weights of the mask penalty, lambda of Eq. 4."""

DEEP_WEIGHT, DEEP_WEIGHTS = 0.035, (0.015, 0.15, 1.5)
"""The paper's own, of captioners of its depth, and others of a part of their own."""

SMALL_WEIGHT = 0.0005
"""Another one on photographs, where masks hardly move with the paper's."""

ABLATIONS = {
    "linear masks (Eq. 2 to the letter)": ("mask_network=linear",),
    "mean of heads for the masked": ("average=heads",),
    "aligned rows renormalised": ("renormalise_aligned=true",),
    "perturbed rows renormalised": ("renormalise_perturbed=true",),
    "caption loss through the masks": ("detach_mask=false",),
}
"""Open choice of the paper -> fields of `model.alignment` that reverse it."""

LAYERS = {
    "none": "fusion=none",
    "layer 1": "aligned_layers=[1]",
    "layer 2": "aligned_layers=[2]",
    "all": "aligned_layers=all",
}
"""Decoder layers with masks -> field of `model.alignment`."""

RIVALS = {
    "none": ("model.alignment.fusion=none",),
    "gate": ("model.alignment.fusion=gate",),
    "supervised by boxes": ("model.alignment.fusion=none", "train.supervision=1"),
    "prophet attention": ("model.alignment.fusion=none", "model.prophet=1"),
}
"""What moves attention -> its fields."""

DEEP = (
    *("model.encoder_layers=6", "model.decoder_layers=6", "model.width=64"),
    *("model.feed_forward=128", "model.norm=pre", "train.batch_size=10", "train.epochs=5"),
    *("train.lr=0.004", "train.warmup=200", f"model.alignment.penalty_weight={DEEP_WEIGHT}"),
    "model.alignment.decay_steps=300",  # of 600 updates
)
"""Fields of the captioners of the paper's depth: its layers, heads, lambda and batch. They are
trained from the beginning, and narrow, so that each takes minutes; with norms before the blocks,
as so few updates do not suffice with those after them."""

_LONGER = ("train.epochs=10", "train.warmup=400", "model.alignment.decay_steps=600")
TRAININGS = {
    "norms after the blocks": (*DEEP, *_LONGER, "model.norm=post", "train.lr=0.002"),
    "twice the updates": (*DEEP, *_LONGER),
}
"""Other trainings of such a captioner without alignment -> their fields, of a single seed."""

RATES = {"half the rate": "train.lr=0.002", "twice the rate": "train.lr=0.008"}
"""Other learning rates of `DEEP` -> their field."""

FUSED, WEIGHED, ABLATED, DEVIATED = "fusions", "penalty", "ablations", "planted"
LAYERED, RIVALLED, DEEPENED, TRAINED = "layers", "rivals", "depth", "trainings"
DEEP_WEIGHED, CONTROLLED, DEEP_PHOTOGRAPHED = "depth penalty", "random masks", "flickr8k depth"
RATED = "learning rates"
CLAIMED = (DEEPENED, TRAINED, RATED, DEEP_WEIGHED, CONTROLLED, DEEP_PHOTOGRAPHED)
"""Parts that only docs/claims.md shows."""
STUDIED = (FUSED, DEVIATED, WEIGHED, ABLATED, LAYERED, RIVALLED)
"""Parts of the study, the most important first."""

STARTS = "starts"
"""The captioners without alignment that all others start from, one per world and seed."""

FURTHER = ("train.epochs=3", "train.lr=0.0005", "train.warmup=50")
"""Fields of the training that follows with each fusion, `none` included."""


@dataclass(frozen=True)
class Trial:
    """One captioner to train and to measure.

    label: its row in the tables of `part`; overrides: its own fields; self_critical: True if
    self-critical training follows.
    """

    part: str
    label: str
    seed: int
    world: str
    overrides: tuple[str, ...]
    self_critical: bool

    @property
    def fields(self) -> list[str]:
        """Fields that it adds to the common configuration."""
        further = FURTHER if self.start else ()
        seeds = [f"train.seed={self.seed}", f"scst.seed={self.seed}"]
        return [*further, *self.overrides, *seeds]

    @property
    def start(self) -> "Trial | None":
        """The captioner that it starts from; None if it is trained from the beginning."""
        if self.part in {STARTS, *CLAIMED} - {CONTROLLED}:
            return None
        return Trial(STARTS, self.world, self.seed, self.world, _fusion("none"), False)


@dataclass(frozen=True)
class Extent:
    """Size of the study: variants, seeds of the fusions in each world, and of other parts."""

    fusions: tuple[str, ...] = tuple(FUSIONS)
    planted_fusions: tuple[str, ...] = ("none", "max", "gate")
    weights: tuple[float, ...] = WEIGHTS
    deep_weights: tuple[float, ...] = DEEP_WEIGHTS
    ablations: tuple[str, ...] = tuple(ABLATIONS)
    seeds: int = 5
    planted_seeds: int = 5
    other_seeds: int = 3


def trials(extent: Extent, parts: Sequence[str] = STUDIED) -> list[Trial]:
    """Return the trials of these parts, seed by seed, so that stopping early costs seeds only.

    The captioners that they start from come first.
    """
    fusions = {fusion: _fusion(fusion) for fusion in extent.fusions}
    weighed, deep_weighed = (
        {str(weight): _gate(f"penalty_weight={weight}") for weight in weights}
        for weights in (extent.weights, extent.deep_weights)
    )
    variants: dict[str, tuple[str, int, Mapping[str, tuple[str, ...]]]] = {
        FUSED: (PLAIN, extent.seeds, fusions),
        DEVIATED: (PLANTED, extent.planted_seeds, {x: _fusion(x) for x in extent.planted_fusions}),
        WEIGHED: (PLAIN, extent.other_seeds, weighed),
        ABLATED: (
            *(PLAIN, extent.other_seeds),
            {"gate": _gate(), **{label: _gate(*ABLATIONS[label]) for label in extent.ablations}},
        ),
        LAYERED: (PLAIN, extent.other_seeds, {x: _gate(field) for x, field in LAYERS.items()}),
        RIVALLED: (PLAIN, extent.other_seeds, RIVALS),
        DEEPENED: (PLAIN, extent.other_seeds, {x: (*y, *DEEP) for x, y in fusions.items()}),
        TRAINED: (PLAIN, 1, {x: (*_fusion("none"), *y) for x, y in TRAININGS.items()}),
        RATED: (
            *(PLAIN, 1),
            {
                f"{fusion}, {label}": (*_fusion(fusion), *DEEP, rate)
                for label, rate in RATES.items()
                for fusion in ("none", "gate")
            },
        ),
        DEEP_WEIGHED: (
            *(PLAIN, extent.other_seeds),
            {label: (*DEEP, *fields) for label, fields in deep_weighed.items()},
        ),
        CONTROLLED: (PLAIN, extent.other_seeds, fusions),
        DEEP_PHOTOGRAPHED: (
            *(PHOTOGRAPHED, extent.other_seeds),
            {x: (*y, *DEEP) for x, y in fusions.items()}
            | {f"gate, λ {SMALL_WEIGHT}": (*DEEP, *_gate(f"penalty_weight={SMALL_WEIGHT}"))},
        ),
    }
    grid = [
        Trial(part, label, seed, world, fields, self_critical=part == FUSED)
        for part, (world, seeds, labelled) in variants.items()
        if part in parts
        for seed in range(seeds)
        for label, fields in labelled.items()
    ]
    starts = dict.fromkeys(trial.start for trial in grid if trial.start)
    return [*starts, *grid]


def _gate(*fields: str) -> tuple[str, ...]:
    return (*_fusion("gate"), *(f"model.alignment.{field}" for field in fields))


def _fusion(name: str) -> tuple[str, ...]:
    return (f"model.alignment.fusion={name}",)
