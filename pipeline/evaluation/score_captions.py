"""Scores of captions in a file, or of a captioner: from captions to metrics and a report."""

import csv
import io
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from a2cap.data.annotations.word_groups import WordGroups, read_word_groups
from a2cap.data.captions.coco_objects import (
    ImageObjects,
    objects_of_images,
    read_coco_objects,
)
from a2cap.data.errors import InputError
from a2cap.data.files.atomic import write_durably
from a2cap.data.files.checksum import sha256_of
from a2cap.data.files.csv_cell import as_text
from a2cap.data.files.paths import require_folder
from a2cap.data.image_ids import find_images
from a2cap.data.scenes.truth import Scenes, judge_captions, read_scenes
from a2cap.data.tokenizers import Tokenizer
from a2cap.pipeline.engine.artifact_names import METRICS, REPORT
from a2cap.pipeline.evaluation.metrics_file import write_scores
from a2cap.pipeline.evaluation.references import (
    read_references,
    reference_fields,
    require_same_images,
)
from a2cap.pipeline.evaluation.results import read_captions
from a2cap.pipeline.metrics.all_metrics import score
from a2cap.pipeline.metrics.caption_statistics import caption_statistics
from a2cap.pipeline.metrics.cider import Idf
from a2cap.pipeline.metrics.metric_table import DEFAULTS, family_of
from a2cap.pipeline.metrics.spice import NEEDS, spice_obstacle
from a2cap.pipeline.metrics.tokenization import metric_tokens, tokenize
from a2cap.pipeline.metrics.word_groups import score_word_groups
from a2cap.pipeline.report.image_card import ImageCard, plain_cards
from a2cap.pipeline.report.report import ScoreReport, worst_typical_best, write_report

METRIC_TOKENS = "tokens of the metrics"
"""Name of the tokenizer in the provenance."""
_SHOWN = 500  # images of a report


@dataclass(frozen=True)
class ScoredFiles:
    """Captions and references to score, and how.

    captions, references: files as `read_captions` and `read_references` take them; None for
        references beside the captions.
    allow_missing: permit references without a caption.
    word_groups: groups of words that are scored separately.
    scenes: instances.json of generated scenes, to judge what the captions state.
    instances: COCO's, for CHAIR.
    tokenizer: as for `tokenize`; None for Unicode words in other scripts than Latin, else PTB
        tokens.
    idf: as for `score`.
    most: references of an image, the first by id; None is all.
    metrics: further ones, `module:function`.
    caption_column, reference_columns: names of the fields, None for those that are known.
    """

    captions: Path
    references: Path | None
    allow_missing: bool = False
    spice: bool = False
    word_groups: Path | None = None
    scenes: Path | None = None
    instances: Path | None = None
    tokenizer: Tokenizer | None = None
    idf: Idf = "references"
    most: int | None = None
    metrics: tuple[str, ...] = ()
    caption_column: str | None = None
    reference_columns: tuple[str, ...] = ()

    def score(self) -> ScoreReport:
        """Return the scores; raise InputError if both files are of different images."""
        groups = read_word_groups(self.word_groups) if self.word_groups else {}
        scenes = read_scenes(self.scenes) if self.scenes else None
        annotated = read_coco_objects(self.instances) if self.instances else None
        path = self.references or self.captions
        fields = reference_fields(self.reference_columns, beside_captions=self.references is None)
        references = read_references(path, fields)
        results = read_captions(self.captions, references, self.caption_column)
        tokenizer = self.tokenizer or references.tokenizer()
        missing = require_same_images(results.keys, references, allow_missing=self.allow_missing)
        captions, raw = results.captions, references.texts
        tokens = references.tokens(tokenizer)
        sources = (self.captions, path, self.word_groups, self.scenes, self.instances)
        evaluation = score_evaluation(
            f"Captions of {self.captions.name}",
            captions,
            # References of images without a caption do not count in CIDEr's document frequencies.
            {image_id: tokens[image_id][: self.most] for image_id in captions},
            tokenizer=tokenizer,
            idf=self.idf,
            no_spice=spice_obstacle() if self.spice else f"add --spice; {NEEDS}",
            metrics=self.metrics,
            groups=groups,
            scenes=scenes,
            annotated=annotated,
            shown={image_id: raw[image_id][: self.most] for image_id in captions},
        )
        return replace(
            evaluation,
            skipped=dict.fromkeys(missing, f"no caption in {self.captions.name}"),
            provenance={
                METRIC_TOKENS: metric_tokens(tokenizer),
                **({"document frequencies": "COCO train2014"} if self.idf == "coco" else {}),
                **({"references": f"the first {self.most} by id"} if self.most else {}),
                **{f"sha256 of {path.name}": sha256_of(path)[:12] for path in sources if path},
            },
            facts={
                "Model": f"captions of {self.captions.name}",
                "Data": path.name,
                "Command": self._command,
            },
            keys={**results.keys, **{i: references.key_of(i) for i in missing}},
        )

    @property
    def _command(self) -> str:
        """The command with its paths as they were named, to run in the same folder."""
        words = ["a2", "score", self.captions]
        words += ["--references", self.references] if self.references else []
        words += ["--caption-column", self.caption_column] if self.caption_column else []
        words += [word for name in self.reference_columns for word in ("--reference-column", name)]
        words += ["--allow-missing"] * self.allow_missing + ["--spice"] * self.spice
        words += [word for path in self.metrics for word in ("--metric", path)]
        words += ["--word-groups", self.word_groups] if self.word_groups else []
        words += ["--scenes", self.scenes] if self.scenes else []
        words += ["--instances", self.instances] if self.instances else []
        words += ["--tokenizer", self.tokenizer] if self.tokenizer else []
        words += ["--idf", self.idf] if self.idf != "references" else []
        words += ["--most-references", self.most] if self.most else []
        return shlex.join(map(str, words))


def score_evaluation(
    title: str,
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    tokenizer: Tokenizer,
    no_spice: str | None,
    metrics: Sequence[str] = (),
    groups: WordGroups,
    scenes: Scenes | None,
    annotated: ImageObjects | None = None,
    idf: Idf = "references",
    shown: Mapping[str, Sequence[str]] | None = None,
    figures: Mapping[str, float] | None = None,
) -> ScoreReport:
    """Score one caption per image against the tokens of its references.

    shown: references as the report shows them, if not as tokens.
    metrics: further ones, `module:function`.
    annotated: COCO's categories in the instances of each image, for CHAIR.
    The others: as for `score` and `ScoreReport`.
    """
    tokenized = tokenize({image_id: [caption] for image_id, caption in captions.items()}, tokenizer)
    tokens = {image_id: texts[0] for image_id, texts in tokenized.items()}
    options: dict[str, Any] = {"no_spice": no_spice, "tokenizer": tokenizer, "idf": idf}
    judged = None if scenes is None else judge_captions(tokens, scenes)
    if annotated is not None:
        options["objects"] = objects_of_images(references, annotated)
    return ScoreReport(
        title,
        captions,
        shown or references,
        score(tokens, references, metrics=(*DEFAULTS, *metrics), judged=judged, **options),
        figures=figures or caption_statistics(list(tokens.values())),
        word_groups=score_word_groups(tokens, references, groups) if groups else None,
        judged=judged or {},
    )


def write_evaluation(
    folder: Path, evaluation: ScoreReport, cards: Iterable[tuple[str, ImageCard]]
) -> None:
    """Write the scores, and a report that shows the cards of some images."""
    folder.mkdir(parents=True, exist_ok=True)
    write_scores(folder, evaluation)
    write_report(folder / REPORT, evaluation, cards)


def image_cards(evaluation: ScoreReport, images: Path | None) -> Iterator[tuple[str, ImageCard]]:
    """Return cards of at most 500 images in the folder `images`, without regions."""
    files = find_images(require_folder(images, "--images")) if images else {}
    return plain_cards(worst_typical_best(evaluation.scores.per_image, _SHOWN), files)


def require_unscored(folder: Path, *, force: bool) -> None:
    """Raise InputError if the folder contains scores, unless `force` is set."""
    if (folder / METRICS).exists() and not force:
        raise InputError(
            f"{str(folder)!r} already contains scores; name another folder, or use --force"
        )


def write_per_image(path: Path, evaluation: ScoreReport) -> None:
    """Write a CSV file with the caption and the metrics of each image."""
    names = [n for n in evaluation.scores.metrics if not family_of(n).is_of_set]
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["image_id", "caption", *names])
    for image_id, values in evaluation.scores.per_image.items():
        numbers = [values.get(name, "") for name in names]
        key = evaluation.keys.get(image_id, image_id)
        rows.writerow(map(as_text, [key, evaluation.captions[image_id], *numbers]))
    write_durably(path, text.getvalue().encode())
