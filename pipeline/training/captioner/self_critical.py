"""The work of stage train-scst: a captioner of cross-entropy goes on by its rewards, resumably.

The schedule step of the captioner (Eq. 8's s) stays what cross-entropy left it at.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from a2cap.data.batches.collate import Batch
from a2cap.data.batches.dataset import CaptionDataset
from a2cap.data.errors import A2Error
from a2cap.model.captioner import Memory
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.losses import perturbed_pass_loss
from a2cap.model.self_critical.rollouts import Rollouts, generate_rollouts, self_critical_loss
from a2cap.pipeline.captioning.saved_captioner import load_model, save_captioner
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.runtime.distributed import ALONE, Processes
from a2cap.pipeline.runtime.precision import forward_precision, matrix_precision
from a2cap.pipeline.training.captioner.config import ScstConfig
from a2cap.pipeline.training.captioner.data import read_training_data
from a2cap.pipeline.training.captioner.optimization import SidedAdam
from a2cap.pipeline.training.captioner.rewards import ImageRewards
from a2cap.pipeline.training.captioner.task import captioner_phase
from a2cap.pipeline.training.loop import run_training


@dataclass(frozen=True)
class StepRewards:
    """What one update measured, over the whole batch.

    image_ids: of the images of this process; loss: Eq. 12 per token; reward, baseline: means over
    samples; tokens: of the samples, <eos> included; words: mean length of a sample in tokens;
    mask_loss: of the ground truth, None where the masks are frozen; gradient_norm: before clipping.
    """

    number: int
    image_ids: tuple[str, ...]
    loss: float
    reward: float
    baseline: float
    tokens: int
    length: float
    mask_loss: float | None
    lr: float
    gradient_norm: float

    @property
    def amount(self) -> int:
        """Tokens."""
        return self.tokens

    @property
    def finite(self) -> bool:
        """Whether losses and gradients are numbers."""
        measured = (self.loss, self.reward, self.mask_loss or 0.0, self.gradient_norm)
        return all(map(math.isfinite, measured))

    def reported(self) -> dict[str, float]:
        """What the epoch's line holds the mean of."""
        found = {"loss": self.loss, "reward": self.reward, "baseline": self.baseline}
        return found if self.mask_loss is None else {**found, "mask_loss": self.mask_loss}

    def scalars(self) -> dict[str, float]:
        """Everything by name, for TensorBoard."""
        others = {"length": self.length, "lr": self.lr, "gradient_norm": self.gradient_norm}
        return {**self.reported(), **others}

    def in_words(self) -> str:
        """Losses and gradient norm, for an error."""
        return (
            f"self-critical {self.loss}, reward {self.reward}, mask {self.mask_loss}, "
            f"gradient norm {self.gradient_norm}"
        )


class SelfCriticalOptimisation:
    """Samples, their rewards and one update; the mask networks move only where they are continued.

    The gradient is that of the whole batch, whatever the number of parts and of processes. Samples
    are a function of the seed, the number of the update and the process.
    """

    def __init__(
        self,
        captioner: TransformerCaptioner,
        config: ScstConfig,
        rewards: ImageRewards,
        processes: Processes = ALONE,
    ) -> None:
        self._captioner = captioner
        self._config = config
        self._rewards = rewards
        self._processes = processes
        self._device = next(captioner.parameters()).device
        self._continues_masks = config.mask == "continued" and captioner.has_masks
        masks = captioner.mask_parameters() if self._continues_masks else ()
        self._adam = SidedAdam(
            (captioner.caption_parameters(), masks),
            betas=config.betas,
            clip_norm=config.clip_norm,
            processes=processes,
        )

    def step(self, parts: Sequence[Batch], number: int) -> list[StepRewards]:
        """Update `number` (1 is the first) on this process's parts of a batch.

        Nothing is updated where a loss or a gradient is not finite.
        """
        self._adam.zero_grad()
        generator = torch.Generator(self._device)
        generator.manual_seed(_seed(self._config.seed, number, self._processes.rank))
        sums = torch.zeros(len(_SUMS), dtype=torch.float64)
        for part in parts:
            sums += self._backward(part.to(self._device, non_blocking=True), generator)
        found = dict(zip(_SUMS, self._processes.total(sums).tolist(), strict=True))
        tokens, true_tokens = (max(found[name], 1.0) for name in ("tokens", "true_tokens"))
        divisors = [torch.tensor(count, device=self._device) for count in (tokens, true_tokens)]
        norm = self._adam.add_and_clip(divisors).item()
        update = StepRewards(
            number=number,
            image_ids=tuple(name for part in parts for name in part.image_ids),
            loss=found["loss"] / tokens,
            reward=found["reward"] / max(found["samples"], 1.0),
            baseline=found["baseline"] / max(found["samples"], 1.0),
            tokens=int(found["tokens"]),
            length=found["tokens"] / max(found["samples"], 1.0),
            mask_loss=found["mask_loss"] / true_tokens if self._continues_masks else None,
            lr=self._config.lr,
            gradient_norm=norm,
        )
        if update.finite:
            self._adam.update(self._config.lr)
        return [update]

    def read(self) -> list[StepRewards]:
        """Nothing: every update is read at once, since drawing waits for each of its steps."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimisers."""
        return self._adam.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up the state of the optimisers."""
        self._adam.load_state_dict(state)

    def _backward(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Adds the part's gradients, summed over tokens, and returns its sums by `_SUMS`."""
        self._captioner.eval()
        memory, attempts = self._attempt(batch, generator)
        if self._config.dropout == "rescore":
            self._captioner.train()
            memory = self._encode(batch)
        # one autocast each: weights that are cast without a gradient stay so in the same one
        with forward_precision(self._config.precision, self._device):
            scored = self._captioner.score(memory, attempts.captions)
            loss = self_critical_loss(scored.log_probs, attempts.advantages)
        mask_loss, true_tokens = self._mask_loss(memory, batch)
        torch.autograd.backward(loss + mask_loss * true_tokens)
        exists = (attempts.captions != self._captioner.special.pad).any(dim=-1)
        measured = {
            "loss": loss,
            "reward": (attempts.rewards * exists).sum(),
            "baseline": (attempts.baseline * exists).sum(),
            "samples": exists.sum(),
            "tokens": (attempts.captions != self._captioner.special.pad).sum(),
            "mask_loss": mask_loss * true_tokens,
            "true_tokens": true_tokens,
        }
        return torch.stack([measured[name].detach().double() for name in _SUMS]).cpu()

    def _attempt(self, batch: Batch, generator: torch.Generator) -> tuple[Memory, Rollouts]:
        memory = self._encode(batch)
        config = self._config
        with forward_precision(config.precision, self._device):
            return memory, generate_rollouts(
                self._captioner,
                memory,
                partial(self._rewards, batch.image_ids),
                baseline=config.baseline,
                samples=config.samples,
                max_length=config.max_length,
                generator=generator,
            )

    def _encode(self, batch: Batch) -> Memory:
        with forward_precision(self._config.precision, self._device):
            return self._captioner.encode(batch.features, batch.boxes, batch.region_mask)

    def _mask_loss(self, memory: Memory, batch: Batch) -> tuple[Tensor, Tensor]:
        """Eq. 4 per token of the ground truth, and how many tokens that has; 0 where frozen."""
        if not self._continues_masks or batch.tokens is None:
            return torch.zeros((), device=self._device), torch.zeros((), device=self._device)
        with forward_precision(self._config.precision, self._device):
            loss = perturbed_pass_loss(self._captioner, memory, batch.tokens)
        return loss, (batch.tokens != self._captioner.special.pad).sum()


_SUMS = ("loss", "reward", "baseline", "samples", "tokens", "mask_loss", "true_tokens")


def refine_captioner(
    config: ScstConfig,
    features: Path,
    captions: Path,
    model: Path,
    runtime: RuntimeConfig,
    *,
    directory: Path,
    events: EventLog,
) -> None:
    """Fills `directory` with a captioner trained on from `model`, checkpoints and `metrics.jsonl`.

    Of processes that train together each calls this; only the first one writes. Raises StoreError
    where images have no features or they are not as wide as the model expects, A2Error on a loss
    that is not finite, Interrupted after saving.
    """
    device = prepare_device(runtime)
    processes = Processes.connected()
    data = read_training_data(features, captions)
    loaded = load_model(model, device=device)
    data.store.require_width(loaded.description.region_width)
    if loaded.vocabulary.digest != data.vocabulary.digest:
        raise A2Error(
            f"model and captions do not belong together: {str(model)!r} has another vocabulary "
            f'than {str(captions)!r}; run "a2 train --phase xe" again'
        )
    torch.manual_seed(config.seed)
    rewards = ImageRewards.read(captions, config, device=device)
    max_regions = loaded.description.max_regions
    phase = captioner_phase(
        "scst",
        config,
        loaded.captioner,
        data,
        CaptionDataset(
            data.store.path,
            data.captions,
            "train",
            captions_per_image=config.captions_per_image,
            max_regions=max_regions,
            seed=config.seed,
            skipped=data.skipped,
        ),
        SelfCriticalOptimisation(loaded.captioner, config, rewards, processes),
        runtime,
        max_regions=max_regions,
        processes=processes,
    )
    with matrix_precision(config.precision):
        best = run_training(phase, processes=processes, directory=directory, events=events)
    if processes.leads:
        save_captioner(directory, best, loaded.description, loaded.vocabulary, features=features)


def _seed(seed: int, number: int, rank: int) -> int:
    """What seeds the samples of an update; 63 bits."""
    sequence = np.random.SeedSequence(seed, spawn_key=(number, rank))
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)
