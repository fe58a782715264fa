"""Self-critical training of a captioner by its rewards (stage train-scst; Rennie et al. 2017)."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from a2cap.data.batches.collate import Batch
from a2cap.data.errors import A2Error
from a2cap.data.files.sealed_folder import read_manifest
from a2cap.model.captioner import Memory, Teaching
from a2cap.model.captioners.compile import compile_captioner
from a2cap.model.captioners.encoder_decoder import EncoderDecoder
from a2cap.model.losses import perturbed_pass_loss
from a2cap.model.self_critical.rollouts import Rollouts, generate_rollouts, self_critical_loss
from a2cap.pipeline.captioning.saved_captioner import (
    load_model,
)
from a2cap.pipeline.engine.artifacts import MANIFEST
from a2cap.pipeline.engine.key import key_fields
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.runtime.distributed import SINGLE, Ranks
from a2cap.pipeline.runtime.precision import forward_precision
from a2cap.pipeline.training.captioner.config import ScstConfig, SelfCriticalJob
from a2cap.pipeline.training.captioner.data import read_training_data
from a2cap.pipeline.training.captioner.rewards import ImageRewards
from a2cap.pipeline.training.captioner.task import (
    CaptionValidation,
    train_and_save,
    training_batches,
)
from a2cap.pipeline.training.continuation import read_epochs
from a2cap.pipeline.training.optimizer import Optimizer, Update, adam_sides, derived_seed

logger = logging.getLogger(__name__)

_SUMS = ("loss", "reward", "baseline", "samples", "tokens", "mask_loss", "true_tokens")


def refine_captioner(
    job: SelfCriticalJob, runtime: RuntimeConfig, *, directory: Path, events: EventLog
) -> None:
    """Train a captioner further; write it, checkpoints and `metrics.jsonl` into `directory`.

    Every rank calls this; only the main rank writes. Raises A2Error for unusable inputs, for a
    model that does not fit them, and on a loss that is not finite, Interrupted after saving.
    """
    config, ranks, device = job.scst, Ranks.current(), prepare_device(runtime)
    data = read_training_data(job.features, job.captions)
    loaded = load_model(job.model, device=device)
    data.store.require_width(loaded.description.region_width)
    if loaded.vocabulary.digest != data.vocabulary.digest:
        raise A2Error(
            f"model and captions do not match: {str(job.model)!r} has another vocabulary than "
            f'{str(job.captions)!r}; run "a2 train --phase xe" again'
        )
    if config.dropout == "rescore" and loaded.captioner.samples_regions:
        raise A2Error(
            "scst.dropout is 'rescore', which samples other regions than the captions were sampled "
            "with: hard attention; set scst.dropout to off"
        )
    torch.manual_seed(config.seed)
    compile_captioner(loaded.captioner, config.compile, warn=logger.warning)
    rewards = ImageRewards.read(job.captions, config, device=device)
    optimizer = SelfCriticalOptimizer(loaded.captioner, config, rewards, ranks)
    validation = CaptionValidation(
        loaded.captioner, data, config, loaded.description, ranks, start_score(job)
    )
    batches = training_batches(validation, runtime)
    train_and_save("scst", optimizer, batches, validation, directory=directory, events=events)


def start_score(job: SelfCriticalJob) -> float | None:
    """Return the best CIDEr of cross-entropy training; None for other validation settings."""
    scores = [line["CIDEr"] for line in read_epochs(job.model)]
    if not scores or not (job.model / MANIFEST).is_file():
        return None
    train = read_manifest(job.model).origin.fields["train"]
    same = isinstance(train, Mapping) and all(
        train.get(name) == value
        for name, value in key_fields(job.scst).items()
        if name in ("validation_beam_size", "max_validation_images", "max_length")
    )
    return max(scores) if same else None


class SelfCriticalOptimizer(Optimizer[Batch]):
    """Updates of a captioner by the rewards of sampled captions."""

    def __init__(
        self,
        captioner: EncoderDecoder,
        config: ScstConfig,
        rewards: ImageRewards,
        ranks: Ranks = SINGLE,
    ) -> None:
        self._trains_masks = config.mask == "continued" and captioner.has_masks
        masks = captioner.mask_parameters() if self._trains_masks else ()
        sides = adam_sides((captioner.caption_parameters(), masks), betas=config.betas)
        super().__init__(sides, config, ranks, ema=config.ema)
        self._captioner = captioner
        self._config = config
        self._rewards = rewards

    def step(self, parts: Sequence[Batch], number: int) -> list[Update]:
        """Make update `number` (1 is the first); each one is returned at once."""
        # the schedule step (s of Eq. 8) keeps the value of cross-entropy training
        self._zero_grad()
        # an RNG of its own, so that samples depend on nothing else; the global one is for dropout
        generator = torch.Generator(self._device)
        seed = derived_seed(self._config.seed, number, self._ranks.rank)
        generator.manual_seed(seed >> 1)  # 63 bits, as in earlier versions
        sums = torch.zeros(len(_SUMS), dtype=torch.float64)
        for part in self._overlapped(parts):
            sums += self._backward(part.to(self._device, non_blocking=True), generator)
        found = dict(zip(_SUMS, self._ranks.sum(sums).tolist(), strict=True))
        tokens, true_tokens = (max(found[name], 1.0) for name in ("tokens", "true_tokens"))
        samples = max(found["samples"], 1.0)
        divisors = [torch.tensor(count, device=self._device) for count in (tokens, true_tokens)]
        norm = self._reduce_gradients(divisors).item()
        means = {
            "loss": found["loss"] / tokens,  # Eq. 12 per token
            "reward": found["reward"] / samples,
            "baseline": found["baseline"] / samples,
        }
        if self._trains_masks:
            means["mask_loss"] = found["mask_loss"] / true_tokens
        scalars = {**means, "length": found["tokens"] / samples, "lr": self._config.lr}
        image_ids = tuple(name for part in parts for name in part.image_ids)
        update = Update(number, image_ids, int(found["tokens"]), means, scalars, norm)
        if update.finite:
            self._apply(self._config.lr)
        return [update]

    def _backward(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Add the gradients of a part, summed over tokens; return its sums by `_SUMS`."""
        self._captioner.eval()
        with forward_precision(self._config.precision, self._device, self._captioner):
            memory = self._encode(batch)
            rollouts = self._sample(memory, batch, generator)
            if self._config.dropout == "rescore":
                self._captioner.train()
                memory = self._encode(batch)
            scored = self._captioner.score(memory, rollouts.captions)
            loss = self_critical_loss(scored.log_probs, rollouts.advantages)
            is_token = rollouts.captions != self._captioner.special.pad
            # penalties are per token of the part
            loss = loss + sum(scored.penalties.values()) * is_token.sum()
            mask_loss, true_tokens = self._mask_loss(memory, batch)
        # sums, not means: `step` divides by the tokens of all ranks
        torch.autograd.backward(loss + mask_loss * true_tokens)
        exists = is_token.any(dim=-1)  # beam search may find fewer captions than beams
        sums = {
            "loss": loss,
            "reward": (rollouts.rewards * exists).sum(),
            "baseline": (rollouts.baseline * exists).sum(),
            "samples": exists.sum(),
            "tokens": is_token.sum(),
            "mask_loss": mask_loss * true_tokens,
            "true_tokens": true_tokens,
        }
        return torch.stack([sums[name].detach().double() for name in _SUMS]).cpu()

    def _sample(self, memory: Memory, batch: Batch, generator: torch.Generator) -> Rollouts:
        return generate_rollouts(
            self._captioner,
            memory,
            partial(self._rewards, batch.image_ids),
            baseline=self._config.baseline,
            samples=self._config.samples,
            max_length=self._config.max_length,
            generator=generator,
        )

    def _encode(self, batch: Batch) -> Memory:
        return self._captioner.encode(batch.features, batch.boxes, batch.region_mask)

    def _mask_loss(self, memory: Memory, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return Eq. 4 per token of the ground truth, and its number of tokens; 0 if frozen."""
        if not self._trains_masks or batch.tokens is None:
            return torch.zeros((), device=self._device), torch.zeros((), device=self._device)
        teaching = Teaching(positions=batch.positions)
        loss = perturbed_pass_loss(self._captioner, memory, batch.tokens, teaching=teaching)
        return loss, (batch.tokens != self._captioner.special.pad).sum()
