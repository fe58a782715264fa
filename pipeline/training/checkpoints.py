"""Exact resume from checkpoints: one directory each, verified before it is used.

`step-%08d/` is a sealed folder of `model.safetensors` and `state.pt` (optimizers, position and RNG
states; loads with `weights_only=True`).
"""

import logging
import random
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from a2cap.data.errors import A2Error
from a2cap.data.files.sealed_folder import MANIFEST, problems, publish, seal
from a2cap.data.files.tensors import save_tensors
from a2cap.pipeline.engine.artifact_names import checkpoint_name
from a2cap.pipeline.training.selection import Selection
from a2cap.pipeline.training.training_run import TrainingRun
from a2cap.pipeline.training.updates import Updater

logger = logging.getLogger(__name__)

TENSORS, STATE = "model.safetensors", "state.pt"
FILES = (TENSORS, STATE)

_KEPT = 2  # newest checkpoints, besides the best one


def training_disk(parameters: int, *, states: int = 2) -> int:
    """Return the bytes of checkpoints and of the result; states: of the optimiser, as Adam's two.

    During a write a new checkpoint is on the disk beside those that are kept.
    """
    return 4 * parameters * ((1 + states) * (_KEPT + 2) + 1)


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: its step, the network's tensors and the state of training."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, object]


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one training run; command: that trains, for error messages."""

    folder: Path
    command: str = "a2 train"

    def directory(self, step: int) -> Path:
        """Return the directory of a step's checkpoint."""
        return self.folder / checkpoint_name(step)

    def save(
        self,
        step: int,
        *,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, object],
        best_step: int | None,
    ) -> None:
        """Write a checkpoint under a temporary name, rename it, and drop old ones."""
        # left by a run that was killed during a save
        for left in self.folder.glob(".step-*.partial"):
            shutil.rmtree(left)
        partial = self.folder / f".{checkpoint_name(step)}.partial"
        partial.mkdir(parents=True)
        save_tensors(partial / TENSORS, tensors)
        _save_state(partial / STATE, state)
        seal(partial, FILES)
        self._rename(partial)
        self.drop_old(best_step)

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint directory, oldest first."""
        # isdigit skips folders such as "step-00000001 copy"
        numbers = (path.name.removeprefix("step-") for path in self.folder.glob("step-*"))
        return sorted(int(number) for number in numbers if number.isdigit())

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint that verifies, or None; warn about damaged ones."""
        # A partial checkpoint may be whole: its run died before the rename. Saving a step again
        # removes the older checkpoint of that step just before.
        for partial in self.folder.glob(".step-*.partial"):
            if checkpoint_problem(partial) is None:
                self._rename(partial)
        for step in reversed(self.steps()):
            problem = checkpoint_problem(self.directory(step))
            if problem is None:
                return self._read(step)
            logger.warning("%s; going back to the one before it, or to the start", problem)
        return None

    def load(self, step: int) -> Checkpoint:
        """Return one checkpoint; raise A2Error if it is incomplete or damaged."""
        problem = checkpoint_problem(self.directory(step))
        if problem is not None:
            raise A2Error(f'{problem}; train again with "{self.command} --force"')
        return self._read(step)

    def drop_old(self, best_step: int | None, *, kept: int = _KEPT) -> None:
        """Remove all checkpoints but the newest ones and the best.

        A training in progress keeps two, as the newest may be damaged; a finished one, one.
        """
        for step in self.steps()[:-kept]:
            if step != best_step:
                shutil.rmtree(self.directory(step))

    def _rename(self, partial: Path) -> None:
        final = self.folder / partial.name.removeprefix(".").removesuffix(".partial")
        shutil.rmtree(final, ignore_errors=True)
        publish(partial, final)

    def _read(self, step: int) -> Checkpoint:
        directory = self.directory(step)
        state = torch.load(directory / STATE, map_location="cpu", weights_only=True)
        return Checkpoint(step, load_file(directory / TENSORS), state)


def checkpoint_problem(directory: Path) -> str | None:
    """Read every byte of a checkpoint; return its defect, or None if there is none."""
    if not (directory / MANIFEST).is_file():
        return f"checkpoint is incomplete: {str(directory)!r}"
    try:
        defects = problems(directory)
    except A2Error as error:
        return f"checkpoint is damaged: {str(error).partition('; ')[0]}"
    return f"checkpoint is damaged: {defects[0]}" if defects else None


def _save_state(path: Path, state: Mapping[str, object]) -> None:
    with path.open("wb") as file:  # torch.save would write a path into the file
        try:
            torch.save(dict(state), file)
        except RuntimeError as error:
            # After a failed write torch still finishes its archive, and its error about missing
            # bytes hides the OSError.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def rng_states() -> dict[str, Any]:
    """Return the state of every RNG, as types that `weights_only` loading accepts."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys)), position, has_gauss, float(cached)),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_rng_states(states: Mapping[str, Any]) -> None:
    """Restore the RNG states that `rng_states` returned."""
    random.setstate(states["python"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy(), *rest))
    torch.set_rng_state(states["torch"])
    for number, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, number)


def environment(device: torch.device, *, ranks: int) -> dict[str, str]:
    """Return what must stay the same for an exact resume, by name."""
    # on a CPU the number of threads changes the order of sums
    on_cpu = device.type == "cpu"
    return {
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "device": torch.backends.cpu.get_cpu_capability()
        if on_cpu
        else torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else device.type,
        "threads": str(torch.get_num_threads()) if on_cpu else "any",
        "processes": str(ranks),
    }


@dataclass
class Position:
    """Progress of a training, part of every checkpoint."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # of this epoch, like the next three
    sums: dict[str, float] = field(default_factory=dict)  # of `Update.means`
    amount: int = 0
    seconds: float = 0.0
    selection: Selection = field(default_factory=Selection)

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> "Position":
        """Return the position of a checkpoint."""
        return cls(**{**saved, "selection": Selection(**saved["selection"])})


@dataclass(frozen=True)
class SavedTraining:
    """The checkpoints of one training, read by all ranks and written by the main rank."""

    network: nn.Module
    updater: Updater[Any]
    seed: int
    device: torch.device
    run: TrainingRun
    checkpoints: Checkpoints

    def resume(self) -> Position:
        """Restore the newest checkpoint that verifies; return the position in it, or the start."""
        # these would start from the clock; a2 draws from neither, but their states are saved
        random.seed(self.seed)
        np.random.seed(np.random.SeedSequence(self.seed).generate_state(4))
        ranks = self.updater.ranks
        if not ranks.is_main:  # otherwise all ranks would draw the same dropout
            torch.manual_seed(derived_seed(self.seed, ranks.rank, 0))
        # the main rank chooses, and all ranks read its choice from one disk
        checkpoint = self.checkpoints.latest() if ranks.is_main else None
        step = ranks.all_gather(None if checkpoint is None else checkpoint.step)[0]
        if step is None:
            return Position()
        checkpoint = checkpoint or self.checkpoints.load(step)
        state: dict[str, Any] = checkpoint.state
        self.network.load_state_dict(checkpoint.tensors)
        self.updater.load_state_dict(state["optimizer"])
        position = Position.restored(state["position"])
        if ranks.rank < len(state["random"]):
            restore_rng_states(state["random"][ranks.rank])
        else:  # the checkpoint was written by fewer ranks
            torch.manual_seed(derived_seed(self.seed, ranks.rank, position.step))
        if ranks.is_main:
            self._report(checkpoint.step, position, state["environment"])
        return position

    def _report(self, step: int, position: Position, before: dict[str, str]) -> None:
        # the killed run may have died before its own clean-up, and this one may be at its end
        self.checkpoints.drop_old(position.selection.step)
        self.run.events.write("resume", step=step)
        logger.info("train: resuming at step %d, epoch %d", step, position.epoch + 1)
        now = environment(self.device, ranks=self.updater.ranks.count)
        changes = [f"{k} {before.get(k)} -> {now[k]}" for k in now if before.get(k) != now[k]]
        if changes:
            logger.warning(
                "train: %s since the checkpoint; the result will not equal that of an "
                "uninterrupted run bit for bit",
                ", ".join(changes),
            )

    def save(self, position: Position) -> None:
        """Write a checkpoint; all ranks wait until it is on disk."""
        ranks = self.updater.ranks
        random = ranks.all_gather(rng_states())  # each rank has its own dropout
        if ranks.is_main:
            self.run.inputs.check()  # a resumed run trusts that its checkpoint is of these inputs
            with self.updater.averaged():
                self.checkpoints.save(
                    position.step,
                    tensors=self.network.state_dict(),
                    state={
                        "optimizer": self.updater.state_dict(),
                        "position": asdict(position),
                        "random": random,
                        "environment": environment(self.device, ranks=ranks.count),
                    },
                    best_step=position.selection.step,
                )
            self.run.events.write("checkpoint", step=position.step)
        ranks.all_gather(None)  # a barrier: other ranks may read the checkpoint next

    def best_tensors(self, position: Position, *, section: str) -> dict[str, torch.Tensor]:
        """Return the network's tensors after the epoch with the best validation score."""
        if position.selection.step is None:
            raise A2Error(
                f"no epoch has ended yet: nothing to save; set {section}.epochs to 1 or more"
            )
        return self.checkpoints.load(position.selection.step).tensors


def derived_seed(seed: int, *key: int) -> int:
    """Return a 64-bit seed for one purpose of a training, such as one update of one rank."""
    # spawn keys keep purposes apart, which sums such as seed + step would not
    sequence = np.random.SeedSequence(seed, spawn_key=key)
    return int(sequence.generate_state(1, np.uint64)[0])
