"""The best epoch of a training, and the patience that ends it.

Both are functions of the lines of metrics.jsonl, so that a finished training can be judged again by
other settings.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from a2cap.pipeline.training.training_config import TrainingConfig

FIGURES: Mapping[str, str] = {
    **{name: name for name in ("CIDEr", "BLEU-4", "METEOR")},
    "loss": "likelihood",
}
"""Value of `select` -> the figure of metrics.jsonl that selects the best epoch, better if higher: e
to the minus loss is the likelihood of a token."""
VALIDATION_LOSS = "validation_loss"
"""Figure that decides between epochs of equal scores, where the validation has it."""
_ZERO = 1e-6
"""Scores below are 0 but for rounding."""


@dataclass(frozen=True)
class Selection:
    """The best epoch so far.

    score, loss: of its validation.
    step: at its end, None before the first epoch.
    stale: epochs without a better score that count against patience.
    """

    score: float = -1.0
    loss: float = math.inf
    epoch: int = 0
    step: int | None = None
    stale: int = 0

    @property
    def is_zero(self) -> bool:
        """Return True if no epoch had a score above 0."""
        return self.score < _ZERO

    def after(self, line: Mapping[str, float], *, score: str, warmup: int) -> "Selection":
        """Return the selection after an epoch, from its line in metrics.jsonl.

        score: name of the figure that selects; warmup: updates over which the rate rises. Equal
        scores are decided by the lower validation loss, and then the later epoch is the better.
        """
        figure, loss, step = line[score], line.get(VALIDATION_LOSS, 0.0), int(line["step"])
        # patience must neither end a training whose rate still rises, nor one without any score
        counts = step > warmup and not self.is_zero
        stale = 0 if figure > self.score else self.stale + counts
        if self.step is not None and (figure, -loss) < (self.score, -self.loss):
            return Selection(self.score, self.loss, self.epoch, self.step, stale)
        return Selection(figure, loss, int(line["epoch"]), step, stale)


def select(
    lines: Sequence[Mapping[str, float]], config: TrainingConfig, *, score: str
) -> tuple[Selection, int | None]:
    """Return the best of these epochs, and the one after which a training with these settings ends.

    That is None for a training that goes on after the last of them.
    """
    selection = Selection()
    for epoch, line in enumerate(lines, start=1):
        selection = selection.after(line, score=score, warmup=config.warmup_updates)
        if epoch >= config.epochs or selection.stale >= config.patience:
            return selection, epoch
    return selection, None
