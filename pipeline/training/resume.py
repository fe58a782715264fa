"""Exact resume: what a checkpoint contains of a training, and how it is restored."""

import logging
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from a2cap.data.errors import A2Error
from a2cap.pipeline.engine.artifact_names import CHECKPOINTS
from a2cap.pipeline.training.checkpoints import (
    Checkpoint,
    Checkpoints,
    environment,
    environment_changes,
    restore_rng_states,
    rng_states,
    seed_rngs,
)
from a2cap.pipeline.training.training_config import TrainingConfig
from a2cap.pipeline.training.training_run import TrainingRun

logger = logging.getLogger(__name__)


@dataclass
class Position:
    """Progress of a training, part of every checkpoint."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # of this epoch, like the next three
    sums: dict[str, float] = field(default_factory=dict)  # of `Update.means`
    amount: int = 0
    seconds: float = 0.0
    best: float = -1.0  # the highest validation score
    best_step: int | None = None
    stale: int = 0  # epochs since the best one


class Stateful(Protocol):
    """An optimizer with a state, and with averaged weights to save in place of the current ones."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""

    def averaged(self) -> AbstractContextManager[None]:
        """Put the averaged weights into the network."""


class SavedTraining:
    """The checkpoints of one training, read by all ranks and written by the main rank."""

    def __init__(
        self,
        network: nn.Module,
        optimizer: Stateful,
        config: TrainingConfig,
        run: TrainingRun,
        *,
        command: str,
    ) -> None:
        self._network, self._optimizer = network, optimizer
        self._seed, self._run = config.seed, run
        device = next(network.parameters()).device
        self._environment = environment(device, ranks=run.ranks.count)
        self._checkpoints = Checkpoints(run.folder / CHECKPOINTS, command=command)

    def resume(self) -> Position:
        """Restore the newest checkpoint that verifies; return the position in it, or the start."""
        seed_rngs(self._seed)
        ranks = self._run.ranks
        if not ranks.is_main:  # otherwise all ranks would draw the same dropout
            torch.manual_seed(derived_seed(self._seed, ranks.rank, 0))
        found = self._newest_checkpoint()
        if found is None:
            return Position()
        state: dict[str, Any] = found.state
        self._network.load_state_dict(found.tensors)
        self._optimizer.load_state_dict(state["optimizer"])
        position = Position(**state["position"])
        self._restore_rng(state["random"], position.step)
        if ranks.is_main:
            self._report(found.step, position, state["environment"])
        return position

    def _report(self, step: int, position: Position, before: dict[str, str]) -> None:
        # the killed run may have died before its own clean-up, and this one may be at its end
        self._checkpoints.drop_old(position.best_step)
        self._run.events.write("resume", step=step)
        logger.info("train: resuming at step %d, epoch %d", step, position.epoch + 1)
        changes = environment_changes(before, self._environment)
        if changes:
            logger.warning(
                "train: %s since the checkpoint; the result will not equal that of an "
                "uninterrupted run bit for bit",
                ", ".join(changes),
            )

    def _newest_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint that the main rank chooses; all ranks read it from one disk."""
        ranks = self._run.ranks
        found = self._checkpoints.latest() if ranks.is_main else None
        step = ranks.broadcast(None if found is None else found.step)
        return found if found is not None or step is None else self._checkpoints.load(step)

    def _restore_rng(self, saved: list[dict[str, Any]], step: int) -> None:
        """Restore this rank's RNG states; seed a rank that the checkpoint does not contain."""
        rank = self._run.ranks.rank
        if rank < len(saved):
            restore_rng_states(saved[rank])
        else:
            torch.manual_seed(derived_seed(self._seed, rank, step))

    def save(self, position: Position) -> None:
        """Write a checkpoint; all ranks wait until it is on disk."""
        ranks = self._run.ranks
        random = ranks.all_gather(rng_states())  # each rank has its own dropout
        if ranks.is_main:
            self._run.inputs.check()  # a resumed run trusts that its checkpoint is of these inputs
            with self._optimizer.averaged():
                self._checkpoints.save(
                    position.step,
                    tensors=self._network.state_dict(),
                    state={
                        "optimizer": self._optimizer.state_dict(),
                        "position": asdict(position),
                        "random": random,
                        "environment": self._environment,
                    },
                    best_step=position.best_step,
                )
            self._run.events.write("checkpoint", step=position.step)
        ranks.all_gather(None)  # a barrier: other ranks may read the checkpoint next

    def best_tensors(self, position: Position, *, section: str) -> dict[str, torch.Tensor]:
        """Return the network's tensors after the epoch with the best validation score."""
        if position.best_step is None:
            raise A2Error(
                f"no epoch has ended yet: nothing to save; set {section}.epochs to 1 or more"
            )
        return self._checkpoints.load(position.best_step).tensors


def derived_seed(seed: int, *key: int) -> int:
    """Return a 64-bit seed for one purpose of a training, such as one update of one rank."""
    # spawn keys keep purposes apart, which sums such as seed + step would not
    sequence = np.random.SeedSequence(seed, spawn_key=key)
    return int(sequence.generate_state(1, np.uint64)[0])
