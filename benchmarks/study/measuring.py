"""What is measured of one trained captioner on the images that it never saw."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a2cap.data.annotations.instances import Instances, read_instances
from a2cap.data.batches.collate import Batch
from a2cap.data.batches.loader import image_batches
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.reference_tokens import load_reference_tokens
from a2cap.data.captions.vocabulary import EOS, PAD
from a2cap.data.features.store import FeatureStore
from a2cap.data.scenes.objects import PLURALS
from a2cap.model.alignment import AlignedAttention
from a2cap.model.decoding.config import DecodingConfig
from a2cap.pipeline.analysis.faithfulness import analyse
from a2cap.pipeline.analysis.runs import read_run
from a2cap.pipeline.captioning.decoding import caption_batches
from a2cap.pipeline.captioning.saved_captioner import SavedModel, load_model
from a2cap.pipeline.engine.artifacts import CAPTIONS, FEATURES, REFERENCES
from a2cap.pipeline.metrics.score import cider
from a2cap.pipeline.runtime.config import RuntimeConfig

from .grounding import (
    GroundedWord,
    GroundingMeter,
    Looks,
    grounded_words,
    group_of_words,
    right_regions,
)
from .worlds import World

ATTENTION, ALIGNED, EVIDENCE = "attention", "aligned", "evidence"
"""alpha, alpha^a and 1 - m."""

COMPANION = "companions"
"""The group of words that are paired with clutter, "grounded" in that clutter."""

_BATCH, _LONGEST = 50, 20

Measured = dict[str, object]


@dataclass(frozen=True)
class Subject:
    """A captioner and the images of a split that it is measured on.

    model, features, captions: results of the stages; analysed: images whose gradients are taken.
    """

    model: Path
    features: Path
    captions: Path
    world: World
    analysed: int
    split: str = "test"

    @cached_property
    def image_ids(self) -> list[str]:
        """The images."""
        return CaptionFile(self.captions / CAPTIONS).image_ids(self.split)

    @cached_property
    def saved(self) -> SavedModel:
        """The captioner, on the CPU."""
        return load_model(self.model, device=torch.device("cpu"))

    @cached_property
    def instances(self) -> dict[str, Instances]:
        """The true boxes by image id: things, then clutter."""
        return read_instances(self.world.folder / "instances.json")

    def batches(self) -> list[Batch]:
        """All images, without captions."""
        store = self.features / FEATURES
        return list(image_batches(store, self.image_ids, batch_size=_BATCH))


def measure(subject: Subject, *, artifacts: Path) -> Measured:
    """Everything, as plain numbers for JSON."""
    torch.set_num_threads(1)
    captions = said_captions(subject)
    references = load_reference_tokens(subject.captions / REFERENCES)
    grounding, companions = ground(subject)
    run = read_run("study", subject.model, artifacts, split=subject.split)
    analysed = analyse(
        run,
        split=subject.split,
        images=subject.analysed,
        runtime=RuntimeConfig(device="cpu", threads=1),
    )
    return {
        "CIDEr": cider(captions, {name: references[name] for name in captions}),
        "validation CIDEr": run.validation,
        "grounding": grounding,
        "companions": companions,
        "errors": companion_errors(captions, subject.instances, subject.world.companions),
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


def said_captions(subject: Subject) -> dict[str, str]:
    """The greedy caption of each image."""
    decoded = caption_batches(
        subject.saved.captioner,
        subject.batches(),
        subject.saved.vocabulary,
        DecodingConfig(beam_size=1, max_length=_LONGEST),
        device=torch.device("cpu"),
    )
    return {image_id: beams[0].caption for image_id, beams in decoded}


def ground(subject: Subject) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """The grounding of all true captions, by group of words, and that in planted clutter."""
    meter, companions = GroundingMeter(), GroundingMeter()
    group_of = group_of_words(subject.world.word_groups)
    store = FeatureStore(subject.features / FEATURES)
    for batch in subject.batches():
        captions = [subject.world.captions[image_id] for image_id in batch.image_ids]
        layers = teacher_forced(subject.saved, batch, captions)
        for row, image_id in enumerate(batch.image_ids):
            regions = store[image_id].boxes
            found = subject.instances[image_id]
            overlapping = right_regions(regions, found.boxes)
            for number, caption in enumerate(captions[row]):
                cells = (slice(None), row, number, slice(None), slice(len(regions)))
                looks = Looks({name: values[cells] for name, values in layers.items()})
                meter.add(grounded_words(caption[:_LONGEST], group_of), looks, overlapping)
                paired = companion_words(caption[:_LONGEST], found, subject.world.companions)
                companions.add(paired, looks, overlapping)
    return meter.results(), companions.results().get(COMPANION, {})


@torch.inference_mode()
def teacher_forced(
    saved: SavedModel, batch: Batch, captions: Sequence[Sequence[Sequence[tuple[str, list[int]]]]]
) -> dict[str, NDArray[np.float64]]:
    """Attention at each word of given captions: name -> (layers, B, K, L, R), mean over heads."""
    tokens = _encoded(saved, captions)
    memory = saved.captioner.encode(batch.features, batch.boxes, batch.region_mask)
    attention = saved.captioner.score(memory, tokens).attention
    shape = (*tokens.shape, batch.features.shape[1])
    found = {ATTENTION: _stacked([layer.original for layer in attention], shape)}
    if saved.captioner.has_masks:
        found[ALIGNED] = _stacked([layer.used for layer in attention], shape)
        found[EVIDENCE] = _stacked([_evidence(layer) for layer in attention], shape)
    return found


def _evidence(layer: AlignedAttention) -> Tensor:
    """1 - m, 0 on padding and in a layer without masks; double, as m is often near 1."""
    if layer.keep is None:
        return torch.zeros_like(layer.original)
    return 1 - layer.keep.double()


def _encoded(
    saved: SavedModel, captions: Sequence[Sequence[Sequence[tuple[str, list[int]]]]]
) -> Tensor:
    """(B, K, L) int64, words, <eos>, padding; images with fewer captions are filled up."""
    most = max(map(len, captions))
    tokens = torch.full((len(captions), most, _LONGEST + 1), PAD, dtype=torch.int64)
    for row, of_image in enumerate(captions):
        for number, caption in enumerate(of_image):
            words = [text for text, _ in caption[:_LONGEST]]
            numbers = [*saved.vocabulary.encode(words), EOS]
            tokens[row, number, : len(numbers)] = torch.tensor(numbers)
    return tokens


def _stacked(layers: Sequence[Tensor], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """(B, H, K * L, R) per layer -> (layers, B, K, L, R)."""
    found: NDArray[np.float64] = (
        torch.stack([layer.double().mean(dim=1).reshape(shape) for layer in layers]).cpu().numpy()
    )
    return found


def companion_words(
    caption: Sequence[tuple[str, Sequence[int]]],
    instances: Instances,
    companions: Mapping[str, str],
) -> list[GroundedWord | None]:
    """The caption's words of paired kinds, about the companions that the image shows of them."""
    kinds = _kind_of_forms(companions)
    found: list[GroundedWord | None] = []
    for text, _ in caption:
        companion = companions[kinds[text]] if text in kinds else None
        places = tuple(i for i, name in enumerate(instances.names) if name == companion)
        found.append(GroundedWord(text, COMPANION, places) if places else None)
    return found


def companion_errors(
    captions: Mapping[str, str],
    instances: Mapping[str, Instances],
    companions: Mapping[str, str],
) -> dict[str, float | None]:
    """How often a kind is said that is not there, where its companion is and where it is not.

    Over (image, paired kind that it lacks): `with companion` and `without companion` are shares,
    `cases with` and `cases without` what they are shares of.
    """
    forms = _kind_of_forms(companions)
    said: dict[bool, list[bool]] = {True: [], False: []}
    for image_id, caption in captions.items():
        shown = set(instances[image_id].names)
        spoken = {forms[word] for word in caption.split() if word in forms}
        for kind, companion in companions.items():
            if kind not in shown:
                said[companion in shown].append(kind in spoken)
    return {
        "with companion": _share(said[True]),
        "without companion": _share(said[False]),
        "cases with": len(said[True]),
        "cases without": len(said[False]),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Of those that are defined."""
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None


def _share(found: Sequence[bool]) -> float | None:
    return sum(found) / len(found) if found else None


def _kind_of_forms(companions: Mapping[str, str]) -> dict[str, str]:
    """Singular and plural -> the paired kind."""
    return {form: kind for kind in companions for form in (kind, PLURALS[kind])}
