"""Self-critical training of a captioner by its rewards (stage train-scst; Rennie et al. 2017)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from a2cap.data.batches.collate import Batch
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.document_frequencies import DocumentFrequencies
from a2cap.data.captions.reference_tokens import load_reference_tokens
from a2cap.data.captions.vocabulary import SPECIALS, Vocabulary
from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.sealed_folder import MANIFEST, read_manifest
from a2cap.model.alignment import caption_parameters, mask_parameters
from a2cap.model.captioner import Memory, Teaching
from a2cap.model.captioners.encoder_decoder import EncoderDecoder
from a2cap.model.errors import PlugInError
from a2cap.model.losses import perturbed_pass_loss
from a2cap.model.plug_ins import call_function
from a2cap.model.self_critical.document_frequencies import InverseDocumentFrequencies
from a2cap.model.self_critical.reward import CaptionReward, ReferenceTokens
from a2cap.model.self_critical.rollouts import Rollouts, generate_rollouts, self_critical_loss
from a2cap.pipeline.captioning.saved_captioner import load_model, save_captioner
from a2cap.pipeline.engine.artifact_names import (
    CAPTIONS,
    DOCUMENT_FREQUENCIES,
    REFERENCES,
    VOCABULARY,
)
from a2cap.pipeline.runtime.device import compiles_updates, prepare_device, require_double
from a2cap.pipeline.runtime.distributed import SINGLE, Ranks
from a2cap.pipeline.runtime.training_precision import forward_precision
from a2cap.pipeline.training.captioner.caption_validation import (
    CaptionValidation,
    start_score,
    training_batches,
)
from a2cap.pipeline.training.captioner.train_config import ScstConfig
from a2cap.pipeline.training.captioner.training_data import read_training_data
from a2cap.pipeline.training.checkpoints import derived_seed
from a2cap.pipeline.training.compiled_pass import CompiledPass
from a2cap.pipeline.training.extended_training import read_epochs
from a2cap.pipeline.training.loop import TrainingTask, run_training
from a2cap.pipeline.training.training_run import TrainingRun
from a2cap.pipeline.training.updates import Updater


def refine_captioner(config: ScstConfig, run: TrainingRun) -> None:
    """Train a captioner further; write it, checkpoints and `metrics.jsonl` into the run's folder.

    Every rank calls this; only the main rank writes. Raises A2Error for unusable inputs, for a
    model that does not fit them, and on a loss that is not finite, Interrupted after saving.
    """
    features, captions, model = (run.inputs[n].path for n in ("features", "captions", "model"))
    ranks, device = Ranks.current(), prepare_device(run.runtime)
    require_double(device, "self-critical training")
    data = read_training_data(features, captions)
    loaded = load_model(model, device=device)
    data.store.require_width(loaded.description.region_width)
    if loaded.vocabulary.digest != data.vocabulary.digest:
        raise A2Error(
            f"model and captions do not match: {str(model)!r} has another vocabulary than "
            f'{str(captions)!r}; run "a2 train --phase xe" again'
        )
    if config.dropout == "rescore" and loaded.captioner.samples_regions:
        raise A2Error(
            "scst.dropout is 'rescore', which samples other regions than the captions were sampled "
            "with: hard attention; set scst.dropout to off"
        )
    torch.manual_seed(config.seed)
    rewards = ImageRewards.read(captions, config, device=device)
    compiles = compiles_updates(run.runtime, device, deterministic=config.deterministic)
    updater = SelfCriticalUpdater(loaded.captioner, config, rewards, ranks, compiles=compiles)
    validation = CaptionValidation(
        loaded.captioner, data, config, loaded.description, ranks, best_score(model, config)
    )
    if validation.start is None:
        validation = replace(validation, start=start_score(validation))
    batches = training_batches(validation, run.runtime)
    task = TrainingTask(
        "scst", "a2 train", "tokens", config, loaded.captioner, batches, updater, validation
    )
    best = run_training(task, run)
    if ranks.is_main:
        save_captioner(run.folder, best, loaded.description, data.vocabulary, features=features)


def best_score(model: Path, config: ScstConfig) -> float | None:
    """Return the best validation figure of cross-entropy training, the one of `scst.select`.

    None if it did not use the same validation settings.
    """
    lines = [line for line in read_epochs(model) if line.get("epoch") != 0]
    scores = [line.get(config.selected, math.nan) for line in lines]
    if not scores or not (model / MANIFEST).is_file():
        return None
    train = read_manifest(model).origin.fields["train"]
    fields = config.model_dump(mode="json")
    same = isinstance(train, Mapping) and all(
        train.get(name) == fields.get(name)
        for name in ("select", "validation_beam_size", "max_validation_images", "max_length")
    )
    return max(scores) if same else None


@dataclass(frozen=True)
class _OwnReward:
    """The user's reward of captions (B, K, L) of images by number, (B,); returns (B, K) float64."""

    name: str
    vocabulary: Vocabulary
    references: list[list[str]]
    device: torch.device

    def __call__(self, images: Tensor, captions: Tensor) -> Tensor:
        texts = [self.vocabulary.decode(row) for row in captions.flatten(0, 1).tolist()]
        groups = [self.references[i] for i in images.tolist() for _ in range(captions.shape[1])]
        try:
            rewards = torch.tensor(call_function(self.name, texts, groups), dtype=torch.float64)
        except PlugInError as error:
            raise A2Error(f"scst.reward {error}") from error
        return rewards.view(captions.shape[:2]).to(self.device)


class ImageRewards:
    """Rewards of captions of the training images, by image id."""

    def __init__(
        self, reward: Callable[[Tensor, Tensor], Tensor], image_ids: Sequence[str]
    ) -> None:
        self._reward = reward
        self._numbers = {image_id: number for number, image_id in enumerate(image_ids)}

    @classmethod
    def read(cls, captions: Path, config: ScstConfig, *, device: torch.device) -> "ImageRewards":
        """Read the result of preprocessing; raise InputError if its files do not match."""
        vocabulary = Vocabulary.load(captions / VOCABULARY)
        frequencies = DocumentFrequencies.load(captions / DOCUMENT_FREQUENCIES)
        if frequencies.words[: len(vocabulary)] != vocabulary.words:
            raise InputError(
                f"document frequencies and vocabulary do not match: {str(captions)!r}; "
                'run "a2 preprocess --force"'
            )
        image_ids = CaptionFile(captions / CAPTIONS).image_ids("train")
        tokens = load_reference_tokens(captions / REFERENCES)  # PTB tokens: training needs no JVM
        # words outside the vocabulary keep a number of their own, which no caption can contain;
        # as <unk> they would match a generated <unk>
        numbers = {
            word: number for number, word in enumerate(frequencies.words) if number >= len(SPECIALS)
        }
        references = ReferenceTokens.from_sentences(
            [
                [[numbers[word] for word in sentence.split()] for sentence in tokens[image_id]]
                for image_id in image_ids
            ]
        )
        per_caption = config.idf == "caption"
        weights = InverseDocumentFrequencies(
            torch.from_numpy(frequencies.ngrams),
            torch.from_numpy(frequencies.caption_counts if per_caption else frequencies.counts),
            documents=frequencies.captions if per_caption else frequencies.documents,
        )
        if config.reward is not None:
            texts = [tokens[image_id] for image_id in image_ids]
            return cls(_OwnReward(config.reward, vocabulary, texts, device), image_ids)
        reward = CaptionReward(weights, references, eos=config.eos, bleu_weight=config.bleu_weight)
        return cls(reward.to(device), image_ids)

    def __call__(self, image_ids: Sequence[str], captions: Tensor) -> Tensor:
        """Return the rewards, (B, K) float64, of captions (B, K, L) int64."""
        numbers = [self._numbers[image_id] for image_id in image_ids]
        return self._reward(torch.tensor(numbers, device=captions.device), captions)


class SelfCriticalUpdater(Updater[Batch]):
    """Updates of a captioner by the rewards of sampled captions."""

    value_type = torch.float64
    names = ("loss", "reward", "baseline", "samples", "tokens", "mask_loss", "true_tokens")

    def __init__(
        self,
        captioner: EncoderDecoder,
        config: ScstConfig,
        rewards: ImageRewards,
        ranks: Ranks = SINGLE,
        *,
        compiles: bool = False,
    ) -> None:
        self._trains_masks = config.mask == "continued" and captioner.has_masks
        masks = list(mask_parameters(captioner)) if self._trains_masks else []
        sides = [side for side in (list(caption_parameters(captioner)), masks) if side]
        adams = [torch.optim.Adam(side, lr=0.0, betas=config.betas, fused=True) for side in sides]
        super().__init__(list(zip(sides, adams, strict=True)), config, ranks, ema=config.ema)
        self._captioner = captioner
        self._config = config
        self._rewards = rewards
        self._generator = torch.Generator(self._device)
        self._score = self._scored
        if compiles:
            self._score = self.compiled = CompiledPass(self._scored, config, ranks, self._device)

    def begin(self, number: int) -> None:
        """Seed the samples; the schedule step (s of Eq. 8) keeps that of cross-entropy training."""
        # an RNG of its own, so that samples depend on nothing else; the global one is for dropout
        self._generator.manual_seed(
            derived_seed(self._config.seed, number, self.ranks.rank) >> 1  # 63 bits
        )

    def losses(self, part: Batch, number: int, index: int) -> tuple[Tensor, Tensor]:
        """Return the losses of a part, summed over tokens, and its sums by `names`."""
        if part.tokens is not None:
            self._captioner.check(part.region_mask, part.tokens)
        batch = part.to(self._device, non_blocking=True)
        self._captioner.eval()
        with forward_precision(self._config.precision, self._device, self._captioner):
            memory = self._encode(batch)
            rollouts = self._sample(memory, batch, self._generator)
            if self._config.dropout == "rescore":
                self._captioner.train()
                memory = self._encode(batch)
        captions, positions = rollouts.captions, None
        if self.compiled is not None:
            captions = functional.pad(captions, (0, self._config.max_length - captions.shape[2]))
            # all of them, since lengths of samples would be more shapes; padding scores 0
            positions = torch.arange(captions.numel(), device=self._device)
        loss, mask_loss, true_tokens = self._score(
            memory, captions, positions, rollouts.advantages, batch.tokens, batch.positions
        )
        is_token = captions != self._captioner.special.pad
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
        measured = torch.stack([sums[name].detach().double() for name in self.names])
        return loss + mask_loss * true_tokens, measured

    def _scored(
        self,
        memory: Memory,
        captions: Tensor,
        positions: Tensor | None,
        advantages: Tensor,
        true_captions: Tensor | None,
        true_positions: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of sampled captions, and of Eq. 4 with its number of tokens."""
        captioner = self._captioner
        with forward_precision(self._config.precision, self._device, captioner):
            scored = captioner.score(memory, captions, teaching=Teaching(positions=positions))
            loss = self_critical_loss(scored.log_probs, advantages)
            # penalties are per token of the part
            count = (captions != captioner.special.pad).sum()
            left_out = captioner.penalties_of_truth
            kept = [value for name, value in scored.penalties.items() if name not in left_out]
            loss = loss + sum(kept) * count
            return loss, *self._mask_loss(memory, true_captions, true_positions)

    def count(self, part: Batch) -> int:
        """Return 0: the losses are sums, and their tokens will be sampled."""
        return 0

    def halves(self, part: Batch) -> list[Batch]:
        """Return the halves of a part of at least two images."""
        return part.halves()

    def divisors(self, values: Tensor) -> Sequence[Tensor]:
        """Return the sampled tokens of all ranks, and those of the ground truth."""
        totals = dict(zip(self.names, self.ranks.sum(values.clone()), strict=True))
        return [totals[name].clamp(min=1) for name in ("tokens", "true_tokens")]

    def lr(self, number: int) -> float:
        """Return the constant rate."""
        return self._config.lr

    def report(
        self, measured: dict[str, float], amount: int
    ) -> tuple[int, dict[str, float], dict[str, float]]:
        """Return the sampled tokens, the loss per token, rewards, and the length of captions."""
        tokens, samples = max(measured["tokens"], 1.0), max(measured["samples"], 1.0)
        means = {
            "loss": measured["loss"] / tokens,  # Eq. 12 per token
            "reward": measured["reward"] / samples,
            "baseline": measured["baseline"] / samples,
        }
        if self._trains_masks:
            means["mask_loss"] = measured["mask_loss"] / max(measured["true_tokens"], 1.0)
        return int(measured["tokens"]), means, {**means, "length": measured["tokens"] / samples}

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

    def _mask_loss(
        self, memory: Memory, captions: Tensor | None, positions: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return Eq. 4 per token of the ground truth, and its number of tokens; 0 if frozen."""
        if not self._trains_masks or captions is None:
            return torch.zeros((), device=self._device), torch.zeros((), device=self._device)
        teaching = Teaching(positions=positions)
        loss = perturbed_pass_loss(self._captioner, memory, captions, teaching=teaching)
        return loss, (captions != self._captioner.special.pad).sum()
