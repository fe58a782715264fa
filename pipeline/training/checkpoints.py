"""Checkpoints of training: one directory each, verified before it is trusted.

`step-%08d/` holds `model.safetensors`, `state.pt` (optimisers, position and random states; loads
with `weights_only=True`) and `manifest.json` with the sha256 of both, written last. The newest
whose manifest verifies wins; the two newest and the best are kept.
"""

import json
import logging
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from a2cap.data.errors import A2Error
from a2cap.data.files.atomic import fsync, rename_durably, write_durably
from a2cap.data.files.checksum import sha256_of
from a2cap.data.files.tensors import save_tensors
from a2cap.pipeline.training.checkpoint_files import (
    FILES,
    MANIFEST,
    STATE,
    TENSORS,
    checkpoint_problem,
)

logger = logging.getLogger(__name__)

_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: its step, the network's tensors and the state of training."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, object]


class Checkpoints:
    """The checkpoints of one training run; command: that made it, for messages."""

    def __init__(self, folder: Path, *, command: str = "a2 train") -> None:
        self._folder = folder
        self._command = command
        folder.mkdir(parents=True, exist_ok=True)

    def directory(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self._folder / f"step-{step:08d}"

    def save(
        self,
        step: int,
        *,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, object],
        best_step: int | None,
    ) -> None:
        """Writes a checkpoint under a temporary name, then renames it; drops those not kept."""
        for left in self._folder.glob(".step-*.partial"):
            shutil.rmtree(left)
        partial = self._folder / f".step-{step:08d}.partial"
        partial.mkdir()
        save_tensors(partial / TENSORS, tensors)
        _save_state(partial / STATE, state)
        digests = {name: sha256_of(partial / name) for name in FILES}
        for name in FILES:
            fsync(partial / name)
        write_durably(partial / MANIFEST, json.dumps({"sha256": digests}).encode())
        fsync(partial)
        self._give_final_name(partial)
        self.drop_old(best_step)

    def steps(self) -> list[int]:
        """Steps that have a checkpoint directory, oldest first."""
        numbers = (path.name.removeprefix("step-") for path in self._folder.glob("step-*"))
        return sorted(int(number) for number in numbers if number.isdigit())

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies, else None; says which damaged ones it passed.

        One that is whole, but whose run was killed before its rename, is given its name first:
        saving a step again removes its older checkpoint just before that.
        """
        for partial in self._folder.glob(".step-*.partial"):
            if checkpoint_problem(partial) is None:
                self._give_final_name(partial)
        for step in reversed(self.steps()):
            problem = checkpoint_problem(self.directory(step))
            if problem is None:
                return self._read(step)
            logger.warning("%s; going back to the one before it, or to the start", problem)
        return None

    def load(self, step: int) -> Checkpoint:
        """One checkpoint; A2Error where a file is missing or its sha256 is not the recorded one."""
        problem = checkpoint_problem(self.directory(step))
        if problem is not None:
            raise A2Error(f'{problem}; train again with "{self._command} --force"')
        return self._read(step)

    def _give_final_name(self, partial: Path) -> None:
        final = self._folder / partial.name.removeprefix(".").removesuffix(".partial")
        shutil.rmtree(final, ignore_errors=True)
        rename_durably(partial, final)

    def _read(self, step: int) -> Checkpoint:
        directory = self.directory(step)
        state = torch.load(directory / STATE, map_location="cpu", weights_only=True)
        return Checkpoint(step, load_file(directory / TENSORS), state)

    def drop_old(self, best_step: int | None) -> None:
        """Removes all but the two newest and the best."""
        for step in self.steps()[:-_KEPT]:
            if step != best_step:
                shutil.rmtree(self.directory(step))


def _save_state(path: Path, state: Mapping[str, object]) -> None:
    """Writes what is no tensor of the network's; OSError where that fails."""
    with path.open("wb") as file:  # a path would be written into the file
        try:
            torch.save(dict(state), file)
        except RuntimeError as error:
            # after a write that failed torch ends its archive all the same, and that error then
            # hides the first one: it misses the bytes that were not written
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def random_states() -> dict[str, Any]:
    """The state of every random generator, as types that `weights_only` loading accepts."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys)), position, has_gauss, float(cached)),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Puts every random generator back to where `random_states` found it."""
    random.setstate(states["python"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy(), *rest))
    torch.set_rng_state(states["torch"])
    for number, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, number)


def surroundings(device: torch.device, *, processes: int) -> dict[str, str]:
    """What a training has to find again so that its resumption is exact, by name."""
    on_cpu = device.type == "cpu"
    return {
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "device": torch.backends.cpu.get_cpu_capability()
        if on_cpu
        else torch.cuda.get_device_name(device),
        "threads": str(torch.get_num_threads()) if on_cpu else "any",
        "processes": str(processes),
    }


def surroundings_changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What is not as it was, in words: `torch 2.15.0 -> 2.16.0`."""
    return [
        f"{name} {before.get(name)} -> {now[name]}" for name in now if before.get(name) != now[name]
    ]
