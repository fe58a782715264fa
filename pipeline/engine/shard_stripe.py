"""Stripes of `--shard i/N`: the shards of a stage's work that one of several processes takes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from a2cap.data.errors import ConfigError

T = TypeVar("T")

_TEXT = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)
_TORCHRUN = ("RANK", "WORLD_SIZE")
_SLURM = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT")


@dataclass(frozen=True)
class Stripe:
    """Every `count`-th part of the work, from `number`, counted from 0, on."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str]) -> Self:
        """Parse i/N; `auto` is the stripe of a Slurm job array or of torchrun in `environment`.

        Raises ConfigError if `auto` finds none or two, or if i is not from 0 to N - 1.
        """
        # read only with "auto", so that a variable left behind in a shell has no effect
        text = _started_as(environment) if text == "auto" else text
        match = _TEXT.fullmatch(text)
        stripe = cls(*map(int, match.groups())) if match else None
        if stripe is None or stripe.number >= stripe.count:
            raise ConfigError(f"shard is {text!r}; write i/N with i from 0 to N - 1, such as 0/4")
        return stripe

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, parts: Sequence[T]) -> Sequence[T]:
        """Return the parts of this stripe."""
        return parts[self.number :: self.count]


def _started_as(environment: Mapping[str, str]) -> str:
    """Return i/N of a Slurm job array or of torchrun."""
    sets = [names for names in (_SLURM, _TORCHRUN) if all(name in environment for name in names)]
    if len(sets) != 1:
        launchers = "none" if not sets else "both"
        raise ConfigError(
            "--shard auto needs a Slurm job array (SLURM_ARRAY_TASK_ID, SLURM_ARRAY_TASK_COUNT) "
            f"or torchrun (RANK, WORLD_SIZE), found {launchers}; write --shard i/N"
        )
    number, count = (environment[name] for name in sets[0])
    # ids of an array that starts at 1 or names single tasks are not numbers of stripes
    last = str(int(count) - 1) if count.isdecimal() else ""
    whole = {"SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_MAX": last}
    if sets[0] == _SLURM and any(environment.get(k, value) != value for k, value in whole.items()):
        raise ConfigError(
            f"the Slurm job array is not 0-{last}; submit it with --array=0-{last}, "
            "or write --shard i/N"
        )
    return f"{number}/{count}"
