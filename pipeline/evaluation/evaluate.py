"""The work of stage evaluate: captions of a split, their scores, and the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import torch

from a2cap.data.annotations.instances import read_instances
from a2cap.data.annotations.read import SkippedItem
from a2cap.data.annotations.word_groups import WordGroups, read_word_groups
from a2cap.data.batches.loader import image_batches
from a2cap.data.captions.attention_file import AttentionFile, write_attention
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.reference_tokens import load_reference_tokens
from a2cap.data.errors import InputError
from a2cap.data.features.store import FeatureStore
from a2cap.data.files.checksum import sha256_of
from a2cap.pipeline.captioning.attention import attention_of_captions
from a2cap.pipeline.captioning.decoding import Beam, caption_batches
from a2cap.pipeline.captioning.ensemble import LoadedCaptioner, load_captioner
from a2cap.pipeline.captioning.grounding import Grounding, mean_grounding
from a2cap.pipeline.engine.artifacts import (
    ATTENTION,
    CAPTIONS,
    FEATURES,
    FURTHER_MODEL,
    METRICS,
    REFERENCES,
    REPORT,
    RESULTS,
)
from a2cap.pipeline.engine.progress import advance_after_each, track
from a2cap.pipeline.engine.run import read_skipped
from a2cap.pipeline.engine.stage import EventLog, Input
from a2cap.pipeline.evaluation.baseline import read_baseline
from a2cap.pipeline.evaluation.config import EvaluateConfig
from a2cap.pipeline.evaluation.images import EvaluatedImages
from a2cap.pipeline.evaluation.provenance import provenance_of
from a2cap.pipeline.evaluation.results import (
    read_reference_tokens,
    read_references,
    read_results,
    require_same_images,
    write_results,
)
from a2cap.pipeline.evaluation.scores import write_scores
from a2cap.pipeline.metrics.caption_statistics import beam_diversity, caption_statistics
from a2cap.pipeline.metrics.java import find_java
from a2cap.pipeline.metrics.score import Scores, score
from a2cap.pipeline.metrics.tokenization import tokenize
from a2cap.pipeline.metrics.word_groups import WordGroupScores, score_word_groups
from a2cap.pipeline.report.report import Report, ReportImage, worst_and_best, write_report
from a2cap.pipeline.report.summary import in_words
from a2cap.pipeline.runtime.config import RuntimeConfig
from a2cap.pipeline.runtime.device import prepare_device


@dataclass(frozen=True)
class EvaluatedSplit:
    """The images that are evaluated.

    references: PTB tokens by image id, of the images of the split that have features;
    skipped: image id -> why it was left out; total: images of the split, these included.
    """

    references: dict[str, list[str]]
    skipped: dict[str, str]
    total: int


@dataclass(frozen=True)
class Evaluation:
    """What a report is made of: who was asked, what they said, where they looked, how it scored.

    statistics: what the captions are like, as `describe_captions` tells. word_groups: how
    right they are in each group of words, where there are some.
    """

    split: EvaluatedSplit
    beams: dict[str, list[Beam]]
    scores: Scores
    grounding: dict[str, Grounding]
    statistics: dict[str, float]
    provenance: dict[str, str]
    word_groups: WordGroupScores | None = None


@dataclass(frozen=True)
class ScoredResults:
    """Scores of somebody's captions, the images that had none, and how many images there are.

    CIDEr's document frequencies are those of the images that were scored.
    """

    scores: Scores
    missing: list[str]
    total: int


def evaluate_captioner(
    config: EvaluateConfig,
    inputs: Mapping[str, Input],
    images: Mapping[str, Path | None],
    runtime: RuntimeConfig,
    *,
    directory: Path,
    events: EventLog,
) -> Sequence[SkippedItem]:
    """Fills `directory` with captions, metrics and report; returns the images left out.

    images: image id -> file, which the report shows. Raises StoreError where an image has no
    features or they are not as wide as the model expects, A2Error where the model cannot be used,
    InputError where the split is empty or the captioners of an ensemble do not belong together.
    """
    find_java()
    device = prepare_device(runtime)
    model = load_captioner(_models(inputs), device=device, average=config.ensemble_average)
    store = FeatureStore(inputs["features"].path / FEATURES)
    store.require_width(model.description.region_width)
    split = read_split(config.split, inputs)
    groups = read_word_groups(inputs["word_groups"].path) if "word_groups" in inputs else {}
    beams = _decode(config, model, store, list(split.references), device=device)
    captions = {image_id: found[0].caption for image_id, found in beams.items()}
    write_results(directory / RESULTS, captions)
    tokens = tokenize({image_id: [caption] for image_id, caption in captions.items()})
    scores = score(tokens, split.references, spice=config.spice)
    events.write("scored", **scores.metrics)
    shown = worst_and_best(scores.per_image, config.report_images)
    chosen = {"all": list(captions), "report": shown, "none": []}[config.attention]
    attention = _attend(config, model, store, captions, chosen, directory=directory, device=device)
    boxes = read_instances(inputs["instances"].path) if "instances" in inputs else {}
    evaluated = EvaluatedImages(
        store, model.description.max_regions, files=images, instances=boxes, attention=attention
    )
    grounding = evaluated.ground(captions)
    provenance = provenance_of(config, inputs, model)
    statistics = describe_captions(captions, beams, split.references)
    by_group = _score_groups(tokens, split.references, groups)
    evaluation = Evaluation(split, beams, scores, grounding, statistics, provenance, by_group)
    _write(directory, evaluation, captions)
    report = _report(f"Captions of the {config.split} split", evaluation)
    if "baseline" in inputs:
        report = _beside(report, inputs["baseline"].path, config.baseline_name)
    write_report(directory / REPORT, report, evaluated.show(shown))
    return [SkippedItem(image_id, reason) for image_id, reason in split.skipped.items()]


def score_results(
    results: Path,
    references: Path,
    output: Path,
    *,
    force: bool = False,
    allow_missing: bool = False,
    spice: bool = False,
    word_groups: Path | None = None,
) -> ScoredResults:
    """Scores somebody's captions and writes `metrics.json` and `report.html` into `output`.

    results: COCO results form; references: COCO captions, Karpathy layout or references.json;
    word_groups: groups of words that are scored apart.
    Raises InputError where they are not of the same images (captions may be missing where
    `allow_missing` is set), or where `output` holds scores already and `force` is not set.
    """
    find_java()
    if (output / METRICS).exists() and not force:
        raise InputError(
            f"{str(output)!r} holds scores already; name another folder, or use --force"
        )
    groups = {} if word_groups is None else read_word_groups(word_groups)
    captions = read_results(results)
    raw = read_references(references)
    missing = require_same_images(captions, raw, allow_missing=allow_missing)
    tokens = tokenize({image_id: [caption] for image_id, caption in captions.items()})
    reference_tokens = read_reference_tokens(references)
    known = {image_id: reference_tokens[image_id] for image_id in captions}
    scores = score(tokens, known, spice=spice)
    by_group = _score_groups(tokens, known, groups)
    read = (results, references, *([] if word_groups is None else [word_groups]))
    provenance = {f"sha256 of {path.name}": sha256_of(path)[:12] for path in read}
    left_out = dict.fromkeys(missing, f"no caption in {results.name}")
    split = EvaluatedSplit({i: raw[i] for i in captions}, left_out, len(raw))
    output.mkdir(parents=True, exist_ok=True)
    statistics = caption_statistics({image_id: group[0] for image_id, group in tokens.items()})
    evaluation = Evaluation(split, {}, scores, {}, statistics, provenance, by_group)
    _write(output, evaluation, captions)
    write_report(output / REPORT, _report(f"Captions of {results.name}", evaluation, captions))
    return ScoredResults(scores, missing, split.total)


def read_split(name: str, inputs: Mapping[str, Input]) -> EvaluatedSplit:
    """The images of a split; InputError where none of them has features."""
    captions = inputs["captions"].path
    tokens = load_reference_tokens(captions / REFERENCES)
    chosen = sorted(CaptionFile(captions / CAPTIONS).image_ids(name))
    left_out = read_skipped(inputs["features"].path)
    skipped = {image_id: left_out[image_id] for image_id in chosen if image_id in left_out}
    kept = [image_id for image_id in chosen if image_id not in skipped]
    if not kept:
        raise InputError(
            f"no image of split {name!r} has features; set evaluate.split to another one"
        )
    return EvaluatedSplit(
        references={image_id: tokens[image_id] for image_id in kept},
        skipped=skipped,
        total=len(chosen),
    )


def _decode(
    config: EvaluateConfig,
    model: LoadedCaptioner,
    store: FeatureStore,
    image_ids: list[str],
    *,
    device: torch.device,
) -> dict[str, list[Beam]]:
    """Beams of each image, best first, in the order of the ids."""
    batches = image_batches(
        store.path,
        image_ids,
        batch_size=config.batch_size,
        max_regions=model.description.max_regions,
    )
    decoded = caption_batches(
        model.captioner, batches, model.vocabulary, config, device=device
    )
    found = {}
    with track("caption", total=len(image_ids)) as progress:
        for image_id, beams in decoded:
            found[image_id] = beams
            progress.advance(1)
    return found


def _attend(
    config: EvaluateConfig,
    model: LoadedCaptioner,
    store: FeatureStore,
    captions: Mapping[str, str],
    image_ids: Sequence[str],
    *,
    directory: Path,
    device: torch.device,
) -> AttentionFile | None:
    """Writes attention.h5 of these images, a batch at a time; None where it is switched off."""
    if config.attention == "none":
        return None
    batches = image_batches(
        store.path,
        image_ids,
        batch_size=config.batch_size,
        max_regions=model.description.max_regions,
    )
    with track("attend", total=len(image_ids)) as progress:
        found = attention_of_captions(
            model.captioner, batches, captions, model.vocabulary, device=device
        )
        write_attention(directory / ATTENTION, advance_after_each(found, progress.advance))
    return AttentionFile(directory / ATTENTION)


def _models(inputs: Mapping[str, Input]) -> list[Path]:
    """The experiment's captioner, then the further ones of an ensemble in their order."""
    further = [found.path for name, found in inputs.items() if name.startswith(FURTHER_MODEL)]
    return [inputs["model"].path, *further]


def describe_captions(
    captions: Mapping[str, str],
    beams: Mapping[str, Sequence[Beam]],
    references: Mapping[str, Sequence[str]],
) -> dict[str, float]:
    """Figures of the captions; with several beams also beam_diversity, the mean self-CIDEr."""
    said = {image_id: [beam.caption for beam in found] for image_id, found in beams.items()}
    diversity = beam_diversity(said, references)
    found = caption_statistics(captions)
    return found | {"beam_diversity": fmean(diversity.values())} if diversity else found


def _score_groups(
    tokens: Mapping[str, Sequence[str]],
    references: Mapping[str, Sequence[str]],
    groups: WordGroups,
) -> WordGroupScores | None:
    """How right the captions are in each group of words; None where there are no groups.

    tokens: one caption of each image; references: PTB tokens.
    """
    if not groups:
        return None
    captions = {image_id: found[0] for image_id, found in tokens.items()}
    return score_word_groups(captions, references, groups)


def _write(directory: Path, evaluation: Evaluation, captions: Mapping[str, str]) -> None:
    """Writes the scores of an evaluation; captions: as they were said, by image id."""
    write_scores(
        *(directory, evaluation.scores, evaluation.statistics),
        total=evaluation.split.total,
        provenance=evaluation.provenance,
        grounding=mean_grounding(evaluation.grounding.values()),
        word_groups=evaluation.word_groups,
        said=captions,
        references=evaluation.split.references,
    )


def _beside(report: Report, path: Path, name: str) -> Report:
    """The report with another evaluation's figures beside its own."""
    found = read_baseline(path)
    return replace(
        report,
        baseline=found.metrics,
        baseline_groups=found.word_groups,
        baseline_name=name,
    )


def _report(
    title: str, evaluation: Evaluation, captions: Mapping[str, str] | None = None
) -> Report:
    """The report without a baseline; captions: by image id where there are no beams."""
    scores, split = evaluation.scores, evaluation.split
    said = captions or {i: beams[0].caption for i, beams in evaluation.beams.items()}
    return Report(
        title=title,
        metrics=scores.metrics,
        intervals=scores.confidence,
        baseline=None,
        baseline_name="",
        not_run=scores.not_run,
        n=len(said),
        total=split.total,
        skipped=split.skipped,
        provenance=evaluation.provenance,
        statistics=in_words(evaluation.statistics, scores.spice),
        images=[_image(image_id, caption, evaluation) for image_id, caption in said.items()],
        grounding=mean_grounding(evaluation.grounding.values()),
        word_groups={} if evaluation.word_groups is None else evaluation.word_groups.groups,
    )


def _image(image_id: str, caption: str, evaluation: Evaluation) -> ReportImage:
    return ReportImage(
        image_id=image_id,
        caption=caption,
        references=evaluation.split.references[image_id],
        scores=evaluation.scores.per_image[image_id],
        beams=[(beam.caption, beam.score) for beam in evaluation.beams.get(image_id, ())],
        grounding=evaluation.grounding.get(image_id),
    )
