"""Evaluation of a captioner on a split."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.instances import Instances, read_instances
from a2cap.data.annotations.word_groups import WordGroups, read_word_groups
from a2cap.data.batches.collate import Batch
from a2cap.data.batches.loader import image_batches
from a2cap.data.captions.attention_file import AttentionFile, CaptionAttention, write_attention
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.coco_objects import ImageObjects, read_coco_objects
from a2cap.data.captions.reference_tokens import load_reference_tokens
from a2cap.data.errors import InputError
from a2cap.data.features.store import FeatureStore
from a2cap.data.files.sealed_folder import SkippedItem, read_manifest
from a2cap.data.regions import Regions, top_scoring
from a2cap.data.scenes.truth import Scenes, read_scenes
from a2cap.data.tokenizers import Tokenizer
from a2cap.model.captioner import CaptionModel
from a2cap.pipeline.captioning.attention import certify_captions, ground_captions
from a2cap.pipeline.captioning.decoding import Beam, Vote
from a2cap.pipeline.captioning.grounding import Grounding, region_names
from a2cap.pipeline.captioning.saved_captioner import LoadedCaptioner, load_captioner
from a2cap.pipeline.engine.artifact_names import (
    ATTENTION,
    CAPTIONS,
    FEATURES,
    FURTHER_MODEL,
    REFERENCES,
    RESULTS,
)
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Input
from a2cap.pipeline.engine.progress import advance_after_each, track
from a2cap.pipeline.evaluation.evaluate_config import EvaluateConfig, EvaluationRun
from a2cap.pipeline.evaluation.metrics_file import read_baseline
from a2cap.pipeline.evaluation.neighbours import Neighbours
from a2cap.pipeline.evaluation.provenance import provenance_of
from a2cap.pipeline.evaluation.results import write_results
from a2cap.pipeline.evaluation.score_captions import score_evaluation, write_evaluation
from a2cap.pipeline.metrics.caption_statistics import beam_diversity, caption_statistics
from a2cap.pipeline.report.image_card import MAX_LAYER_BYTES, ImageCard, embedded_bytes
from a2cap.pipeline.report.report import Baseline, ScoreReport, worst_typical_best
from a2cap.pipeline.runtime.device import prepare_device
from a2cap.pipeline.training.learning_curve import LearningCurve

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationImages:
    """Everything known about the images besides their captions.

    max_regions: largest number of regions that the captioner attends to, None for all.
    files: image id -> image, None if it is missing.
    instances: annotated boxes of some images.
    attention: to the regions at each token, None if it was not computed.
    layers: image id -> the same of each layer, of some images.
    certificates: image id -> those of `certify_captions`, of some images.
    """

    store: FeatureStore
    max_regions: int | None
    files: Mapping[str, Path | None]
    instances: Mapping[str, Instances]
    attention: AttentionFile | None
    layers: Mapping[str, tuple[CaptionAttention, ...]] = field(default_factory=dict)
    certificates: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def regions(self, image_id: str) -> Regions:
        """Return the regions that the captioner was given."""
        return top_scoring(self.store[image_id], self.max_regions)

    def ground(self, captions: Mapping[str, str]) -> dict[str, Grounding]:
        """Return the grounding of each caption that names an annotated object, by image id."""
        if self.attention is None or not self.instances:
            return {}
        return ground_captions(self.attention, captions, self.regions, self.instances)

    def cards(self, image_ids: Sequence[str]) -> Iterator[tuple[str, ImageCard]]:
        """Yield the report's image cards one by one, so that they are never all in memory."""
        for image_id in image_ids:
            regions = self.regions(image_id)
            yield (
                image_id,
                ImageCard.of_regions(
                    self.files.get(image_id),
                    regions,
                    self._names(image_id, regions),
                    scores=regions.scores,
                    attention=self._attention(image_id),
                    truth=self.instances.get(image_id),
                    certificates=self.certificates.get(image_id),
                ),
            )

    def _attention(self, image_id: str) -> CaptionAttention | None:
        # With evaluate.attention = report, only some images have attention.
        if self.attention is None or image_id not in self.attention:
            return None
        return replace(self.attention[image_id], layers=self.layers.get(image_id, ()))

    def _names(self, image_id: str, regions: Regions) -> list[str]:
        """Return each region's category: from its annotation, else the detector's class."""
        if image_id in self.instances:
            return region_names(regions.boxes, self.instances[image_id])
        # Checkpoints do not contain class names, only numbers.
        return [f"class {class_id}" for class_id in regions.class_ids]


@dataclass(frozen=True)
class _Captioning:
    """A captioner, the features that it reads, and the decoding options."""

    config: EvaluateConfig
    model: LoadedCaptioner[CaptionModel]
    store: FeatureStore
    events: EventLog

    def batches(self, image_ids: Sequence[str]) -> Iterable[Batch]:
        """Return the features of these images in batches."""
        return image_batches(
            self.store.path,
            image_ids,
            batch_size=self.config.batch_size,
            max_regions=self.model.description.max_regions,
        )

    def decode(self, image_ids: Sequence[str], vote: Vote | None) -> dict[str, list[Beam]]:
        """Return the beams of each image, best first; vote: for the consensus."""
        decoded = self.model.decode(self.batches(image_ids), self.config, vote)
        with track("caption", total=len(image_ids), events=self.events) as progress:
            return dict(advance_after_each(decoded, progress.advance))

    def write_attention(
        self, path: Path, captions: Mapping[str, str], image_ids: Sequence[str]
    ) -> AttentionFile:
        """Write the attention at each token of these images' captions, one batch at a time."""
        # The captions are teacher-forced, because beam search does not return attention.
        with track("attend", total=len(image_ids), events=self.events) as progress:
            attention = self.model.attend(self.batches(image_ids), captions)
            write_attention(path, advance_after_each(attention, progress.advance))
        return AttentionFile(path)

    def layers(
        self, captions: Mapping[str, str], image_ids: Sequence[str]
    ) -> dict[str, tuple[CaptionAttention, ...]]:
        """Return the attention of each layer and head, of as many images as a report embeds.

        image_ids: from the worst to the best caption; both ends come first.
        """
        count = len(image_ids)
        ends = [image_ids[n // 2 if n % 2 == 0 else count - 1 - n // 2] for n in range(count)]
        attention_layers, left = {}, MAX_LAYER_BYTES
        for image_id, attention in self.model.attend(self.batches(ends), captions, layers=True):
            left -= sum(embedded_bytes(layer) for layer in attention.layers)
            if left < 0:
                break
            attention_layers[image_id] = attention.layers
        return attention_layers

    def certify(
        self, captions: Mapping[str, str], attention: AttentionFile, image_ids: Sequence[str]
    ) -> dict[str, NDArray[np.float32]]:
        """Return what the words of the report's captions depend on."""
        batches = self.batches([image_id for image_id in image_ids if image_id in attention])
        model = self.model
        return dict(
            certify_captions(
                model.captioner,
                batches,
                captions,
                attention.__getitem__,
                model.vocabulary,
                device=model.device,
            )
        )

    def attend(
        self, run: EvaluationRun, captions: Mapping[str, str], shown: Sequence[str]
    ) -> EvaluationImages:
        """Write the attention of the captions; return it with the images and annotated boxes."""
        attention, layers, certificates = None, {}, {}
        if self.config.attention != "none":
            attended = shown if self.config.attention == "report" else list(captions)
            attention = self.write_attention(run.folder / ATTENTION, captions, attended)
            layers = self.layers(captions, shown)
            certificates = self.certify(captions, attention, shown)
        instances = run.inputs.get("instances")
        boxes = {} if instances is None else read_boxes(instances.path, self.store, captions)
        most = self.model.description.max_regions
        return EvaluationImages(
            self.store, most, run.images, boxes, attention, layers, certificates
        )


@dataclass(frozen=True)
class SplitScoring:
    """What the captions of a split are compared with, read before minutes of decoding."""

    config: EvaluateConfig
    groups: WordGroups
    scenes: Scenes | None
    annotated: ImageObjects | None
    baseline: Baseline | None
    no_spice: str | None

    @classmethod
    def read(cls, run: EvaluationRun) -> "SplitScoring":
        """Read the inputs."""
        config, inputs = run.config, run.inputs
        baseline = read_baseline(inputs["baseline"].path) if "baseline" in inputs else None
        return cls(
            config,
            read_word_groups(inputs["word_groups"].path) if "word_groups" in inputs else {},
            read_scenes(inputs["scenes"].path) if "scenes" in inputs else None,
            read_coco_objects(inputs["instances"].path) if config.chair else None,
            baseline and replace(baseline, name=config.baseline_name),
            run.no_spice,
        )

    def score(
        self,
        captions: Mapping[str, str],
        beams: Mapping[str, Sequence[Beam]],
        references: Mapping[str, Sequence[str]],
        tokenizer: Tokenizer,
    ) -> ScoreReport:
        """Score one caption per image of the split; beams: of which they are the best."""
        return score_evaluation(
            f"Captions of the {self.config.split} split",
            captions,
            references,
            tokenizer=tokenizer,
            no_spice=self.no_spice,
            metrics=self.config.metrics,
            groups=self.groups,
            scenes=self.scenes,
            annotated=self.annotated,
            figures=_figures(captions, beams, references),
        )


def evaluate_captioner(run: EvaluationRun) -> Sequence[SkippedItem]:
    """Write captions, metrics and report; return the skipped images. The files are for the report.

    Raises StoreError for an image without features or features of another width, A2Error for an
    unusable model, InputError for an empty split or captioners that cannot form an ensemble.
    """
    run = with_existing_split(run)
    config, inputs = run.config, run.inputs
    device = prepare_device(run.runtime)
    further = [saved.path for name, saved in inputs.items() if name.startswith(FURTHER_MODEL)]
    models = [inputs["model"].path, *further]
    average, weights = config.ensemble_average, config.ensemble_weights
    model = load_captioner(models, device=device, average=average, weights=weights)
    store = FeatureStore(inputs["features"].path / FEATURES)
    store.require_width(model.description.region_width)
    captioning = _Captioning(config, model, store, run.events)
    references, skipped = read_split(config.split, inputs)
    scoring = SplitScoring.read(run)

    vote = None
    if config.neighbours:
        vote = Neighbours.find(
            store,
            inputs["captions"].path,
            list(references),
            count=config.neighbours,
            max_regions=model.description.max_regions,
            events=run.events,
        )
    beams = captioning.decode(list(references), vote)
    captions = {image_id: image_beams[0].caption for image_id, image_beams in beams.items()}
    caption_file = CaptionFile(inputs["captions"].path / CAPTIONS)
    write_results(run.folder / RESULTS, captions, caption_file.identities, caption_file.files)
    evaluation = scoring.score(captions, beams, references, model.vocabulary.tokenizer)
    scores = evaluation.scores
    run.events.write("scored", **scores.metrics)

    shown = worst_typical_best(scores.per_image, config.report_images)
    attended = captioning.attend(run, captions, shown)
    evaluation = replace(
        evaluation,
        skipped=skipped,
        provenance=provenance_of(config, inputs, model, caption_file.identities),
        curve=LearningCurve.read(inputs["model"].path),
        beams=beams,
        grounding=attended.ground(captions),
        baseline=scoring.baseline,
        facts=_facts(config, inputs, model),
    )
    write_evaluation(run.folder, evaluation, attended.cards(shown))
    return [SkippedItem(image_id, reason) for image_id, reason in skipped.items()]


def _facts(
    config: EvaluateConfig, inputs: Mapping[str, Input], model: LoadedCaptioner[CaptionModel]
) -> dict[str, str]:
    """Return what the head of the report states."""
    settings, digest = model.description.model, inputs["model"].digest[:12]
    captions = inputs["captions"]
    cut = CaptionFile(captions.path / CAPTIONS).cut
    return {
        "Model": f"{settings.kind}, fusion {settings.alignment.fusion}, digest {digest}",
        "Data": f"{config.split} split, digest {captions.digest[:12]}",
        **({"Long captions": str(cut)} if cut.cut else {}),
        # The resolved configuration is in the folder of the report.
        "Command": "a2 evaluate -c config.yaml",
    }


def read_boxes(
    path: Path, store: FeatureStore | Mapping[str, Regions], image_ids: Collection[str]
) -> dict[str, Instances]:
    """Read the annotated boxes of images; list and leave out those for another size."""
    boxes = {}
    for image_id, annotated in read_instances(path).items():
        if image_id in image_ids:
            regions = store[image_id]
            try:
                annotated.require_usable(regions.width, regions.height)
                boxes[image_id] = annotated
            except InputError as error:
                logger.warning("the boxes of image %s are not used: %s", image_id, error)
    return boxes


def with_existing_split(run: EvaluationRun) -> EvaluationRun:
    """Return the run, on the validation split for captions that have no test split."""
    captions = CaptionFile(run.inputs["captions"].path / CAPTIONS)
    if run.config.split == "val" or captions.image_ids("test"):
        return run
    logger.warning("the captions have no test split; the validation split is evaluated")
    return replace(run, config=run.config.model_copy(update={"split": "val"}))


def read_split(
    name: str, inputs: Mapping[str, Input]
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the tokens of a split's references by image id, and the skipped images.

    Raises InputError if no image of the split has features.
    """
    captions = inputs["captions"].path
    tokens = load_reference_tokens(captions / REFERENCES)
    # Sorted: the order of decoding is the same on every machine.
    of_split = sorted(CaptionFile(captions / CAPTIONS).image_ids(name))
    # a model of transformers reads no features
    features = inputs.get("features")
    reasons = {} if features is None else read_manifest(features.path).reasons
    references = {image_id: tokens[image_id] for image_id in of_split if image_id not in reasons}
    if not references:
        raise InputError(
            f"no image of split {name!r} has features; set evaluate.split to another one"
        )
    return references, {image_id: reasons[image_id] for image_id in of_split if image_id in reasons}


def _figures(
    captions: Mapping[str, str],
    beams: Mapping[str, Sequence[Beam]],
    references: Mapping[str, Sequence[str]],
) -> dict[str, float]:
    """Return the statistics of the captions; with several beams also their mean self-CIDEr."""
    statistics = caption_statistics(list(captions.values()))
    texts = {image_id: [beam.caption for beam in group] for image_id, group in beams.items()}
    diversity = beam_diversity(texts, references)
    return statistics | {"beam_diversity": fmean(diversity.values())} if diversity else statistics
