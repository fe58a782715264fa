"""What is trained: the settings that are compared, each with several seeds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .worlds import PLAIN, PLANTED

FUSIONS = ("none", "max", "moving", "decay", "gate")
"""In the order of the paper's Table 3."""

WEIGHTS = (0.003, 0.01, 0.035, 0.1, 0.3)
"""Of the masks' penalty, lambda of Eq. 4."""

ABLATIONS = {
    "linear masks (Eq. 2 to the letter)": ("mask_network=linear",),
    "mean of heads for the masked": ("average=heads",),
    "aligned rows renormalised": ("renormalise_aligned=true",),
    "perturbed rows renormalised": ("renormalise_perturbed=true",),
    "caption loss through the masks": ("detach_mask=false",),
}
"""What `docs` call an open choice -> the fields of `model.alignment` that take the other one."""

FUSED, WEIGHED, ABLATED, DEVIATED = "fusions", "penalty", "ablations", "planted"
PARTS = (FUSED, DEVIATED, WEIGHED, ABLATED)
"""Parts of the study, the most important first."""


@dataclass(frozen=True)
class Trial:
    """One captioner to train and to measure.

    label: its row in the tables of `part`; overrides: fields that it has of its own; refined:
    whether self-critical training follows.
    """

    part: str
    label: str
    seed: int
    world: str
    overrides: tuple[str, ...]
    refined: bool

    @property
    def fields(self) -> list[str]:
        """All that it adds to the common configuration."""
        seeds = [f"train.seed={self.seed}", f"scst.seed={self.seed}"]
        return [*self.overrides, *seeds]


@dataclass(frozen=True)
class Extent:
    """How much is compared: seeds of the fusions, of the planted world, and of all else."""

    fusions: tuple[str, ...] = FUSIONS
    planted_fusions: tuple[str, ...] = ("none", "max", "gate")
    weights: tuple[float, ...] = WEIGHTS
    ablations: tuple[str, ...] = tuple(ABLATIONS)
    seeds: int = 5
    planted_seeds: int = 5
    other_seeds: int = 2


def trials(extent: Extent, parts: Sequence[str] = PARTS) -> list[Trial]:
    """All trials of these parts, of each part seed by seed, so that what is cut off is seeds."""
    made = {
        FUSED: lambda: _fused(extent),
        DEVIATED: lambda: _deviated(extent),
        WEIGHED: lambda: _weighed(extent),
        ABLATED: lambda: _ablated(extent),
    }
    return [trial for part in PARTS if part in parts for trial in made[part]()]


def _fused(extent: Extent) -> Iterator[Trial]:
    for seed in range(extent.seeds):
        for fusion in extent.fusions:
            yield Trial(FUSED, fusion, seed, PLAIN, _fusion(fusion), refined=True)


def _deviated(extent: Extent) -> Iterator[Trial]:
    for seed in range(extent.planted_seeds):
        for fusion in extent.planted_fusions:
            yield Trial(DEVIATED, fusion, seed, PLANTED, _fusion(fusion), refined=True)


def _weighed(extent: Extent) -> Iterator[Trial]:
    for seed in range(extent.other_seeds):
        for weight in extent.weights:
            fields = (*_fusion("gate"), f"model.alignment.penalty_weight={weight}")
            yield Trial(WEIGHED, str(weight), seed, PLAIN, fields, refined=False)


def _ablated(extent: Extent) -> Iterator[Trial]:
    for seed in range(extent.other_seeds):
        yield Trial(ABLATED, "gate", seed, PLAIN, _fusion("gate"), refined=False)
        for label in extent.ablations:
            changed = tuple(f"model.alignment.{field}" for field in ABLATIONS[label])
            fields = (*_fusion("gate"), *changed)
            yield Trial(ABLATED, label, seed, PLAIN, fields, refined=False)


def _fusion(name: str) -> tuple[str, ...]:
    return (f"model.alignment.fusion={name}",)
