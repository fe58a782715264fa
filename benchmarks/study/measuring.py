"""Measures of one trained captioner on held-out images."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from a2cap.data.annotations.instances import Instances, read_instances
from a2cap.data.batches.collate import Batch
from a2cap.data.batches.loader import image_batches
from a2cap.data.boxes import box_iou
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.reference_tokens import load_reference_tokens
from a2cap.data.captions.vocabulary import EOS, PAD
from a2cap.data.features.store import FeatureStore
from a2cap.data.scenes.objects import PLURALS
from a2cap.data.scenes.truth import judge_captions, read_scenes
from a2cap.model.alignment import AlignedAttention, Alignment
from a2cap.model.captioners.encoder_decoder import EncoderDecoder
from a2cap.pipeline.analysis.faithfulness import analyse
from a2cap.pipeline.analysis.trainings import read_run
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.captioning.grounding import MIN_IOU
from a2cap.pipeline.captioning.saved_captioner import LoadedCaptioner, load_model
from a2cap.pipeline.engine.artifact_names import CAPTIONS, FEATURES, REFERENCES
from a2cap.pipeline.metrics.all_metrics import corpus_score
from a2cap.pipeline.metrics.scene_truth import (
    CHAIR,
    TRUTH,
    chair_values,
    scene_chair_counts,
    truth_counts,
    truth_values,
)
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from benchmarks.study.grounding import (
    GroundedWord,
    GroundingMeter,
    grounded_words,
)
from benchmarks.study.worlds import World

ATTENTION, ALIGNED, EVIDENCE = "attention", "aligned", "evidence"
"""alpha, alpha^a and 1 - m."""

CONTROL = "aligned by random masks"
"""alpha^a with the values of the masks on other regions of the same image, drawn at random."""

COMPANION = "companions"
"""Group of the words paired with clutter, grounded in that clutter."""

_BATCH, _LONGEST = 50, 20

Measured = dict[str, object]


@dataclass(frozen=True)
class Subject:
    """A captioner and the split that it is measured on.

    model, features, captions: results of stages; analysed, erased: images for gradients and for
    erasure.
    """

    model: Path
    features: Path
    captions: Path
    world: World
    analysed: int
    erased: int
    split: str = "test"

    @cached_property
    def image_ids(self) -> list[str]:
        """Ids of the images."""
        return CaptionFile(self.captions / CAPTIONS).image_ids(self.split)

    @cached_property
    def saved(self) -> LoadedCaptioner[EncoderDecoder]:
        """Captioner on the CPU."""
        return load_model(self.model, device=torch.device("cpu"))

    @cached_property
    def instances(self) -> dict[str, Instances]:
        """True boxes by image id: objects, then clutter."""
        return read_instances(self.world.folder / "instances.json")

    def batches(self) -> list[Batch]:
        """Return all images, without captions."""
        store = self.features / FEATURES
        return list(image_batches(store, self.image_ids, batch_size=_BATCH))


def measure(subject: Subject, *, artifacts: Path) -> Measured:
    """Return all measures as plain numbers for JSON."""
    torch.set_num_threads(1)
    captions = greedy_captions(subject)
    references = load_reference_tokens(subject.captions / REFERENCES)
    controlled: Measured = {}
    if subject.saved.captioner.has_masks:
        with random_masks(subject.saved.captioner):
            captions_of_control = greedy_captions(subject)
        scored = {name: references[name] for name in captions}
        controlled["CIDEr"] = corpus_score("CIDEr", captions_of_control, scored)
        controlled["same captions"] = _share(
            [captions_of_control[x] == captions[x] for x in scored]
        )
    run = read_run("study", subject.model, artifacts, split=subject.split)
    analysed = analyse(
        run,
        split=subject.split,
        images=subject.analysed,
        runtime=RuntimeConfig(device="cpu", threads=1),
        erased=subject.erased,
    )
    return {
        "CIDEr": corpus_score("CIDEr", captions, {name: references[name] for name in captions}),
        "validation CIDEr": run.validation,
        CONTROL: controlled,
        **({} if subject.world.photographs else _of_scenes(subject, captions)),
        "erasure": {row.order: asdict(row) for row in analysed.erasure},
        "million parameters": sum(p.numel() for p in subject.saved.captioner.parameters()) / 1e6,
        "mean mask": _mean([layer.keep for layer in analysed.layers]),
        "layers": [
            {
                "tau attention": layer.attention,
                "tau aligned": layer.aligned,
                "tau evidence": layer.evidence,
                "millinats": None if layer.divergence is None else 1000 * layer.divergence,
                "mean mask": layer.keep,
                "mean gate": layer.gate,
            }
            for layer in analysed.layers
        ],
    }


def _of_scenes(subject: Subject, captions: Mapping[str, str]) -> Measured:
    """Return grounding, the truth of captions of scenes, and their errors by companions."""
    grounding, companions = ground(subject)
    scenes = read_scenes(subject.world.folder / "instances.json")
    judged = judge_captions(captions, scenes).values()
    sums = [truth_counts(judged).sum(axis=0), scene_chair_counts(judged).sum(axis=0)]
    values = [*truth_values(sums[0]), *chair_values(sums[1])]
    truth = dict(zip((*TRUTH, *CHAIR), map(float, values), strict=True))
    return {
        "grounding": grounding,
        "companions": companions,
        "truth": {name: None if np.isnan(value) else value for name, value in truth.items()},
        "errors": companion_errors(captions, subject.instances, subject.world.companions),
    }


def greedy_captions(subject: Subject) -> dict[str, str]:
    """Return the greedy caption of each image."""
    config = CaptioningConfig(beam_size=1, max_length=_LONGEST)
    decoded = subject.saved.decode(subject.batches(), config)
    return {image_id: beams[0].caption for image_id, beams in decoded}


def ground(subject: Subject) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Return the grounding of all true captions by group of words, and in planted clutter."""
    meter, companions = GroundingMeter(), GroundingMeter()
    groups = subject.world.word_groups
    group_of = {word: group for group, words in groups.items() for word in words}
    store = FeatureStore(subject.features / FEATURES)
    for batch in subject.batches():
        captions = [subject.world.captions[image_id] for image_id in batch.image_ids]
        layers = teacher_forced(subject.saved, batch, captions)
        for row, image_id in enumerate(batch.image_ids):
            regions = store[image_id].boxes
            objects = subject.instances[image_id]
            overlapping = box_iou(regions, objects.boxes) >= MIN_IOU
            for number, caption in enumerate(captions[row]):
                cells = (slice(None), row, number, slice(None), slice(len(regions)))
                attention = {name: values[cells] for name, values in layers.items()}
                meter.add(grounded_words(caption[:_LONGEST], group_of), attention, overlapping)
                paired = companion_words(caption[:_LONGEST], objects, subject.world.companions)
                companions.add(paired, attention, overlapping)
    return meter.results(), companions.results().get(COMPANION, {})


@torch.inference_mode()
def teacher_forced(
    saved: LoadedCaptioner[EncoderDecoder],
    batch: Batch,
    captions: Sequence[Sequence[Sequence[tuple[str, list[int]]]]],
) -> dict[str, NDArray[np.float64]]:
    """Return attention at each word of captions: name -> (layers, B, K, L, R), mean over heads."""
    tokens = _encoded(saved, captions)
    memory = saved.captioner.encode(batch.features, batch.boxes, batch.region_mask)
    attention = saved.captioner.score(memory, tokens).attention
    shape = (*tokens.shape, batch.features.shape[1])
    attentions = {ATTENTION: _stacked([layer.original for layer in attention], shape)}
    if saved.captioner.has_masks:
        attentions[ALIGNED] = _stacked([layer.used for layer in attention], shape)
        attentions[EVIDENCE] = _stacked([_evidence(layer) for layer in attention], shape)
        with random_masks(saved.captioner):
            control = saved.captioner.score(memory, tokens).attention
        attentions[CONTROL] = _stacked([layer.used for layer in control], shape)
    return attentions


@contextmanager
def random_masks(captioner: EncoderDecoder) -> Iterator[None]:
    """Permute each mask over the regions of its image, at random: its values stay, not its places.

    Regions of padding keep their mask of 1, and the generator's state is the same at each use.
    """
    generator = torch.Generator().manual_seed(0)

    def permuted(keep: Tensor, padding: Tensor) -> Tensor:
        exists = padding.expand_as(keep).isfinite()  # -inf where no region exists
        # real regions first in both orders, so that a region takes the value of a real one
        drawn = torch.rand(keep.shape, generator=generator).masked_fill(~exists, 2)
        places = exists.int().argsort(dim=-1, descending=True, stable=True)
        return keep.scatter(-1, places, keep.gather(-1, drawn.argsort(dim=-1)))

    with _changed_masks(captioner, permuted):
        yield


@contextmanager
def masks_of_others(captioner: EncoderDecoder) -> Iterator[None]:
    """Give each image of a batch the masks of the next one, at the same word; of equal regions."""
    with _changed_masks(captioner, lambda keep, _: keep.roll(1, dims=0)):
        yield


@contextmanager
def _changed_masks(
    captioner: EncoderDecoder, change: Callable[[Tensor, Tensor], Tensor]
) -> Iterator[None]:
    """Change all masks; change: masks, (B, ..., R), and padding, -inf on it -> masks."""

    def changed(_: nn.Module, arguments: tuple[Tensor, ...], keep: Tensor) -> Tensor:
        return change(keep, arguments[2])

    with ExitStack() as hooks:
        for module in captioner.modules():
            if isinstance(module, Alignment):
                handle = module.mask_network.register_forward_hook(changed)
                hooks.callback(handle.remove)
        yield


def _evidence(layer: AlignedAttention) -> Tensor:
    """Return 1 - m in float64, as m is often near 1; 0 on padding and in layers without masks."""
    if layer.keep is None:
        return torch.zeros_like(layer.original)
    return 1 - layer.keep.double()


def _encoded(
    saved: LoadedCaptioner[EncoderDecoder],
    captions: Sequence[Sequence[Sequence[tuple[str, list[int]]]]],
) -> Tensor:
    """Return tokens, (B, K, L) int64, with <eos> and padding; missing captions are padding."""
    most = max(map(len, captions))
    tokens = torch.full((len(captions), most, _LONGEST + 1), PAD, dtype=torch.int64)
    for row, of_image in enumerate(captions):
        for number, caption in enumerate(of_image):
            words = [text for text, _ in caption[:_LONGEST]]
            numbers = [*saved.vocabulary.encode(words), EOS]
            tokens[row, number, : len(numbers)] = torch.tensor(numbers)
    return tokens


def _stacked(layers: Sequence[Tensor], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Stack (B, H, K * L, R) per layer to (layers, B, K, L, R), averaged over heads."""
    stacked: NDArray[np.float64] = (
        torch.stack([layer.double().mean(dim=1).reshape(shape) for layer in layers]).cpu().numpy()
    )
    return stacked


def companion_words(
    caption: Sequence[tuple[str, Sequence[int]]],
    instances: Instances,
    companions: Mapping[str, str],
) -> list[GroundedWord | None]:
    """Return the caption's words of paired categories, grounded in companions in the image."""
    categories = _category_of_forms(companions)
    words: list[GroundedWord | None] = []
    for text, _ in caption:
        companion = companions[categories[text]] if text in categories else None
        objects = tuple(i for i, name in enumerate(instances.names) if name == companion)
        words.append(GroundedWord(text, COMPANION, objects) if objects else None)
    return words


def companion_errors(
    captions: Mapping[str, str],
    instances: Mapping[str, Instances],
    companions: Mapping[str, str],
) -> dict[str, float | None]:
    """Return how often an absent category is predicted, with and without its companion present.

    Over pairs (image, absent paired category): `with companion` and `without companion` are shares,
    `cases with` and `cases without` the numbers of pairs.
    """
    forms = _category_of_forms(companions)
    predicted: dict[bool, list[bool]] = {True: [], False: []}
    for image_id, caption in captions.items():
        shown = set(instances[image_id].names)
        mentioned = {forms[word] for word in caption.split() if word in forms}
        for category, companion in companions.items():
            if category not in shown:
                predicted[companion in shown].append(category in mentioned)
    return {
        "with companion": _share(predicted[True]),
        "without companion": _share(predicted[False]),
        "cases with": len(predicted[True]),
        "cases without": len(predicted[False]),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the defined values."""
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined else None


def _share(answers: Sequence[bool]) -> float | None:
    return sum(answers) / len(answers) if answers else None


def _category_of_forms(companions: Mapping[str, str]) -> dict[str, str]:
    """Return singular and plural -> paired category."""
    return {form: name for name in companions for form in (name, PLURALS[name])}
