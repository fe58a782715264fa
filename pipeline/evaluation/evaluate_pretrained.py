"""Evaluation of a model of transformers on a split: it reads the images, not their features."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.instances import Instances
from a2cap.data.captions.attention_file import AttentionFile, CaptionAttention, write_attention
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.sealed_folder import SkippedItem, check_skip_limit, installed_versions
from a2cap.data.regions import Regions
from a2cap.model.erasure import TOKEN_SIZES, Erasure, ErasureMeter
from a2cap.pipeline.captioning.attention import ground_captions
from a2cap.pipeline.captioning.captioned_image import CaptionedImage, OpenedImage
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.captioning.image_captioner import open_pretrained
from a2cap.pipeline.engine.artifact_names import ATTENTION, CAPTIONS, RESULTS, VOCABULARY
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Input
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.evaluation.evaluate_captioner import (
    SplitScoring,
    evaluate_captioner,
    read_boxes,
    read_split,
    with_existing_split,
)
from a2cap.pipeline.evaluation.evaluate_config import EvaluateConfig, EvaluationRun
from a2cap.pipeline.evaluation.results import write_results
from a2cap.pipeline.evaluation.score_captions import METRIC_TOKENS, write_evaluation
from a2cap.pipeline.metrics.tokenization import metric_tokens
from a2cap.pipeline.report.image_card import ImageCard
from a2cap.pipeline.report.report import ScoreReport, worst_typical_best

if TYPE_CHECKING:  # an optional package
    from a2cap.pipeline.captioning.adapted.adapted_images import AdaptedImages

logger = logging.getLogger(__name__)

_TOGETHER = 8
"""Images that are captioned together unless `evaluate.batch_size` is set."""


@dataclass
class _Captions:
    """Captions of images as they come: beams, regions, and the reasons of images without."""

    captioner: "AdaptedImages"
    files: Mapping[str, Path | None]
    batch_size: int
    events: EventLog
    beams: dict[str, list[Beam]] = field(default_factory=dict)
    regions: dict[str, Regions] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def captions(self) -> dict[str, str]:
        """The first caption of each image."""
        return {image_id: beams[0].caption for image_id, beams in self.beams.items()}

    def attend(self, image_ids: Sequence[str]) -> Iterator[tuple[str, CaptionAttention]]:
        """Caption images; yield the attention of those that have some, without its layers."""
        for image_id, captioned in self.caption(image_ids, attention=True):
            if captioned.attention is not None:
                yield image_id, replace(captioned.attention, layers=())

    def caption(
        self, image_ids: Sequence[str], *, attention: bool
    ) -> Iterator[tuple[str, CaptionedImage]]:
        """Caption images in batches; keep all but the attention."""
        with track("caption", total=len(image_ids), events=self.events) as progress:
            rest = iter(image_ids)
            while group := list(islice(rest, self.batch_size)):
                opened = [partial(OpenedImage.of, self.files.get(image_id)) for image_id in group]
                answers = self.captioner.caption_each(opened, attention=attention)
                progress.advance(len(group))
                for image_id, answer in zip(group, answers, strict=True):
                    if isinstance(answer, A2Error):
                        self.skipped[image_id] = str(answer)
                        continue
                    self.beams[image_id] = answer.beams
                    self.regions[image_id] = answer.regions
                    yield image_id, answer

    def erase(self, count: int) -> list[Erasure]:
        """Measure what the captions of the first `count` images with words depend on."""
        meter = ErasureMeter(images=count, sizes=TOKEN_SIZES)
        captions = {image_id: text for image_id, text in self.captions.items() if text}
        with track("erase", total=min(count, len(captions)), events=self.events) as progress:
            for image_id, text in captions.items():
                if meter.is_full:
                    break
                try:
                    pixels = OpenedImage.of(self.files.get(image_id)).pixels
                    self.captioner.model.measure(pixels, text, meter)
                except InputError as error:
                    logger.warning("no erasure of image %s: %s", image_id, error)
                progress.advance(1)
        return meter.results()

    def cards(
        self,
        image_ids: Sequence[str],
        rows: AttentionFile | None,
        truth: Mapping[str, Instances],
        *,
        certify: bool,
    ) -> Iterator[tuple[str, ImageCard]]:
        """Yield the report's image cards one by one, so that they are never all in memory.

        certify: state what each word depends on, of images with attention.
        """
        for image_id in image_ids:
            attention = rows[image_id] if rows is not None and image_id in rows else None
            card = ImageCard.of_regions(
                self.files.get(image_id),
                self.regions[image_id],
                attention=attention,
                truth=truth.get(image_id),
                certificates=self._certificates(image_id) if certify and attention else None,
            )
            yield image_id, card

    def _certificates(self, image_id: str) -> NDArray[np.float32] | None:
        """Return what the words of an image's caption depend on, None where it fails."""
        try:
            text = self.beams[image_id][0].caption
            pixels = OpenedImage.of(self.files.get(image_id)).pixels
            return self.captioner.model.certify(pixels, text)
        except InputError as error:
            logger.warning("image %s has no certificates: %s", image_id, error)
            return None


def evaluate_pretrained(run: EvaluationRun) -> Sequence[SkippedItem]:
    """Write captions, metrics and report; return the skipped images.

    Raises InputError where too many images cannot be read, A2Error for an unusable model.
    """
    run = with_existing_split(run)
    config, inputs = run.config, run.inputs
    references, _ = read_split(config.split, inputs)
    scoring = SplitScoring.read(run)
    captioner = open_pretrained(inputs["model"].path, decoding=config, runtime=run.runtime)
    size = config.batch_size if "batch_size" in config.model_fields_set else _TOGETHER
    work = _Captions(captioner, run.images, size, run.events)
    attention = run.folder / ATTENTION
    if config.attention == "all":
        write_attention(attention, work.attend(list(references)))
    else:
        list(work.caption(list(references), attention=False))
    items = [SkippedItem(image_id, reason) for image_id, reason in work.skipped.items()]
    check_skip_limit(items, len(references), f"images of the {config.split} split")

    captions = work.captions
    references = {image_id: references[image_id] for image_id in captions}
    caption_file = CaptionFile(inputs["captions"].path / CAPTIONS)
    write_results(run.folder / RESULTS, captions, caption_file.identities, caption_file.files)
    tokenizer = Vocabulary.load(inputs["captions"].path / VOCABULARY).tokenizer
    evaluation = scoring.score(captions, work.beams, references, tokenizer)
    run.events.write("scored", **evaluation.scores.metrics)
    shown = worst_typical_best(evaluation.scores.per_image, config.report_images)
    if config.attention == "report":
        write_attention(attention, work.attend(shown))
    rows = None if config.attention == "none" else AttentionFile(attention)
    boxes = inputs.get("instances")
    truth = {} if boxes is None else read_boxes(boxes.path, work.regions, captions)
    evaluation = replace(
        _described(evaluation, config, inputs, captioner, metric_tokens(tokenizer)),
        skipped=work.skipped,
        beams=work.beams,
        grounding={}
        if rows is None or not truth
        else ground_captions(rows, captions, work.regions.__getitem__, truth),
        baseline=scoring.baseline,
        erasure=work.erase(config.erasure) if rows is not None and config.erasure else (),
    )
    write_evaluation(
        run.folder, evaluation, work.cards(shown, rows, truth, certify=config.erasure > 0)
    )
    return items


def _described(
    evaluation: ScoreReport,
    config: EvaluateConfig,
    inputs: Mapping[str, Input],
    captioner: "AdaptedImages",
    tokens: str,
) -> ScoreReport:
    """Return the evaluation with its provenance; tokens: of the metrics."""
    return replace(
        evaluation,
        provenance={
            **{"split": config.split, "model": captioner.about, METRIC_TOKENS: tokens},
            **{f"digest of {name}": item.digest[:12] for name, item in inputs.items()},
            **{f"version of {name}": text for name, text in installed_versions().items()},
        },
        facts={
            "Model": captioner.about,
            "Data": f"{config.split} split, digest {inputs['captions'].digest[:12]}",
            "Command": "a2 evaluate -c config.yaml",
        },
    )


def evaluate_split(run: EvaluationRun) -> Sequence[SkippedItem]:
    """Evaluate the experiment's captioner, or the model of transformers that `config` names."""
    work = evaluate_captioner if run.config.model is None else evaluate_pretrained
    return work(run)
