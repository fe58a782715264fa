"""Faithfulness of attention in finished trainings: the paper's Fig. 2, 4, 5, 6, Table 3, erasure.

All runs are measured on the same tokens: each image's first caption, teacher-forced, with <eos>.
"""

import csv
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.reference_tokens import load_reference_tokens
from a2cap.data.errors import InputError
from a2cap.data.files.atomic import write_durably
from a2cap.data.files.csv_cell import as_text
from a2cap.model.alignment_config import FUSIONS, AlignmentConfig
from a2cap.model.erasure import TOKEN_SIZES, Erasure, ErasureMeter, erase_regions
from a2cap.model.faithfulness import FaithfulnessMeter, LayerFaithfulness
from a2cap.pipeline.analysis.figures import Curve, write_curves
from a2cap.pipeline.analysis.t_interval import t_interval
from a2cap.pipeline.analysis.trainings import OpenedRun, Run
from a2cap.pipeline.captioning.captioned_image import OpenedImage
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.captioning.image_captioner import open_pretrained
from a2cap.pipeline.engine.artifact_names import CAPTIONS, REFERENCES
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.metrics.metric_table import DEFAULTS
from a2cap.pipeline.report.erasure import Row, curve_rows, erasure_rows
from a2cap.pipeline.runtime.device import prepare_device, require_double
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig

logger = logging.getLogger(__name__)

LAYERS, RUNS, WEIGHTS, FUSED = "layers.csv", "runs.csv", "penalty_weights.csv", "fusions.csv"
ERASURE, CURVES, ERASED = "erasure.csv", "erasure_curves.csv", "erasure.png"
GROUNDING = "grounding.csv"
FAITHFULNESS, DIVERGENCE, SWEEP = "faithfulness.png", "divergence.png", "penalty_weights.png"

_BATCH = 20
"""Images per batch; the decoder's graph stays in memory for the gradient of every token."""

_FUSION_FIELDS = ("fusion", *(name for fusion in FUSIONS.values() for name in fusion.settings))


@dataclass(frozen=True)
class RunAnalysis:
    """Measurements of a run over `images` of the `total` images of a split.

    erasure: of each order of the regions, over `erased` of them. grounding: rows of its table.
    """

    run: Run
    alignment: AlignmentConfig
    layers: list[LayerFaithfulness]
    images: int
    total: int
    erasure: list[Erasure] = field(default_factory=list)
    erased: int = 0
    grounding: Sequence[Row] = ()

    @property
    def has_masks(self) -> bool:
        """True if any layer is aligned."""
        return self.alignment.fusion != "none"


def analyse(
    run: Run, *, split: str, images: int | None, runtime: RuntimeConfig, erased: int = 0
) -> RunAnalysis:
    """Measure every layer of a run on a split, or on its first `images` by id.

    erased: number of images on which erasure is measured too.

    Raises errors as `OpenedRun.open`.
    """
    if run.images is not None:
        return _analyse_images(run, run.images, split, images, runtime, erased)
    device = prepare_device(runtime)
    require_double(device, "the analysis")
    opened = OpenedRun.open(run, split=split, images=images, device=device)
    captions, captioner = opened.captions, opened.model.captioner
    meter = FaithfulnessMeter()
    erasure = ErasureMeter(images=erased)
    with track(f"analyse {run.name}", total=len(opened.image_ids)) as progress:
        for batch in opened.batches(opened.image_ids, batch_size=_BATCH):
            moved = batch.to(device)
            first = np.stack([captions.captions(image_id)[0] for image_id in batch.image_ids])
            # Token 0 is padding: drop the columns that are padding in every row.
            first = first[:, (first != 0).any(axis=0)].astype(np.int64)  # (B, L)
            tokens = torch.from_numpy(first).to(device)
            measured = (moved.features, moved.boxes, moved.region_mask, tokens)
            erase_regions(erasure, captioner, measured, meter.add_captions(captioner, *measured))
            progress.advance(len(batch.image_ids))
    alignment = opened.model.description.model.alignment
    images = len(opened.image_ids)
    results, erased = erasure.results(), erasure.erased
    return RunAnalysis(run, alignment, meter.layers(), images, opened.total, results, erased)


def _analyse_images(
    run: Run,
    files: Mapping[str, Path | None],
    split: str,
    images: int | None,
    runtime: RuntimeConfig,
    erased: int,
) -> RunAnalysis:
    """Measure a model of transformers, which reads images.

    files: image id -> image; the others as for `analyse`. Raises InputError if nothing is measured.
    """
    captioner = open_pretrained(run.model, decoding=CaptioningConfig(), runtime=runtime)
    references = load_reference_tokens(run.captions / REFERENCES)
    of_split = sorted(CaptionFile(run.captions / CAPTIONS).image_ids(split))
    image_ids = of_split[:images]
    meter, erasure = FaithfulnessMeter(), ErasureMeter(images=erased, sizes=TOKEN_SIZES)
    measured = 0
    with track(f"analyse {run.name}", total=len(image_ids)) as progress:
        for image_id in image_ids:
            try:
                pixels = OpenedImage.of(files.get(image_id)).pixels
                captioner.model.measure(pixels, references[image_id][0], erasure, meter)
                measured += 1
            except InputError as error:
                logger.warning("image %s is not measured: %s", image_id, error)
            progress.advance(1)
    if not measured:
        raise InputError(
            f"nothing was measured of {run.name!r} on {len(image_ids):,} images of split "
            f"{split!r}; name another --split, or a model that has the words of its captions"
        )
    totals = measured, len(of_split), erasure.results(), erasure.erased
    return RunAnalysis(run, captioner.alignment, meter.layers(), *totals)


def write_analysis(directory: Path, runs: Sequence[RunAnalysis]) -> list[Path]:
    """Write all tables and figures for which there are enough runs, and return their paths.

    A sweep needs two runs that differ only in its field, and possibly in their seed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    weights, fusions = weight_rows(runs), fusion_rows(runs)
    tables = {
        LAYERS: [row for run in runs for row in layer_rows(run)],
        ERASURE: [{**_head(run), **row} for run in runs for row in erasure_rows(run.erasure)],
        GROUNDING: [{**_head(run), **row} for run in runs for row in run.grounding],
        CURVES: [{**_head(run), **row} for run in runs for row in curve_rows(run.erasure)],
        RUNS: [run_row(run) for run in runs],
        WEIGHTS: weights,
        FUSED: fusions,
    }
    written = [_write_csv(directory / name, rows) for name, rows in tables.items() if rows]
    return written + _draw(directory, runs, weights)


def _draw(directory: Path, runs: Sequence[RunAnalysis], weights: Sequence[Row]) -> list[Path]:
    titles = {"attention": "attention", "evidence": "1 - mask"}
    panels = {title: _curves(runs, name) for name, title in titles.items()}
    path, axis = directory / FAITHFULNESS, "Kendall's tau with gradient importance"
    drawn = [write_curves(path, panels, x_label="decoder layer", y_label=axis)]
    if divergences := _curves(runs, "divergence"):
        panels = {"JSD of original and aligned attention": divergences}
        path = directory / DIVERGENCE
        drawn.append(write_curves(path, panels, x_label="decoder layer", y_label="nats"))
    if any(run.erasure for run in runs):
        kinds = {"deletion": "first removed", "insertion": "first alone"}
        panels = {title: _erasure_curves(runs, kind) for kind, title in kinds.items()}
        path, axis = directory / ERASED, "share of the regions"
        drawn.append(write_curves(path, panels, x_label=axis, y_label="nats of a word"))
    if panels := penalty_curves(weights):
        path, axis, share = directory / SWEEP, "best validation CIDEr", "mean mask"
        labels = {"x_label": "penalty weight λ", "y_label": axis, "share_label": share}
        drawn.append(write_curves(path, panels, **labels, logarithmic=True))
    return drawn


def penalty_curves(weights: Sequence[Row]) -> dict[str, list[Curve]]:
    """Return CIDEr and the mean mask over lambda (Fig. 4), means over seeds, by fusion and group.

    weights: as `weight_rows` returns them.
    """
    panels: dict[str, list[Curve]] = {}
    for number, rows in groupby(weights, itemgetter("group")):
        group = list(rows)
        for name, is_share in {"validation_CIDEr": False, "mean_mask": True}.items():
            scores: dict[float, list[float]] = {}
            for row in group:
                weight, score = row["penalty_weight"], row[name]
                if isinstance(weight, float) and isinstance(score, float):
                    scores.setdefault(weight, []).append(score)
            means = {weight: t_interval(values) for weight, values in scores.items()}
            if means:
                curve = Curve.of_means(name.replace("_", " "), means, is_share=is_share)
                panels.setdefault(f"{group[0]['fusion']} ({number})", []).append(curve)
    return panels


def layer_rows(analysed: RunAnalysis) -> list[Row]:
    """Return a row for each layer (Fig. 2, 5 and 6); `note` explains empty columns."""
    return [
        {
            "run": analysed.run.name,
            "fusion": analysed.alignment.fusion,
            "layer": layer.layer,
            "images": analysed.images,
            "words": layer.words,
            "tau_attention": layer.attention,
            "tau_aligned": layer.aligned,
            "tau_mask": layer.evidence,
            "jsd": layer.divergence,
            "mean_mask": layer.keep,
            "mean_gate": layer.gate,
            "note": _note(layer, analysed),
        }
        for layer in analysed.layers
    ]


def _head(analysed: RunAnalysis) -> Row:
    return {"run": analysed.run.name, "fusion": analysed.alignment.fusion}


def _note(layer: LayerFaithfulness, analysed: RunAnalysis) -> str:
    if layer.keep is None and not analysed.has_masks:
        return "no masks: fusion is none"
    if layer.keep is None:
        return "no masks: the layer is not aligned"
    if layer.constant:
        return f"1 - mask ranks no region at {layer.constant} of {layer.words} words"
    return ""


def run_row(analysed: RunAnalysis) -> Row:
    """Return the row of a run: its settings and scores."""
    keeps = [layer.keep for layer in analysed.layers if layer.keep is not None]
    trained: Any = analysed.run.manifest.origin.fields.get("train")
    return {
        "run": analysed.run.name,
        "fusion": analysed.alignment.fusion,
        "penalty_weight": analysed.alignment.penalty_weight if analysed.has_masks else None,
        "seed": trained.get("seed") if isinstance(trained, Mapping) else None,
        "mean_mask": sum(keeps) / len(keeps) if keeps else None,
        "validation_CIDEr": analysed.run.validation,
        "evaluated_split": analysed.run.evaluated_split or None,
        **{name: analysed.run.metrics.get(name) for name in DEFAULTS},
    }


def weight_rows(runs: Sequence[RunAnalysis]) -> list[Row]:
    """Return the rows of Fig. 4: runs that differ only in lambda and their seed."""
    groups = _groups([run for run in runs if run.has_masks], ("penalty_weight",))
    ordered = [sorted(group, key=lambda run: run.alignment.penalty_weight) for group in groups]
    return _varied_rows(ordered, "penalty_weight")


def fusion_rows(runs: Sequence[RunAnalysis]) -> list[Row]:
    """Return the rows of Table 3: runs that differ only in their fusion and their seed."""
    plain = [run for run in runs if not run.has_masks]
    ordered = []
    for group in _groups([run for run in runs if run.has_masks], _FUSION_FIELDS):
        # Without masks, no alignment field has an effect: compare the other settings.
        baselines = [run for run in plain if _setting(run, None) == _setting(group[0], None)]
        order = list(FUSIONS)
        by_fusion = sorted([*baselines, *group], key=lambda run: order.index(run.alignment.fusion))
        ordered.append(by_fusion)
    return _varied_rows(ordered, "fusion")


def _varied_rows(groups: Sequence[Sequence[RunAnalysis]], field: str) -> list[Row]:
    """Return the rows of the groups in which an alignment field varies, numbered from 1."""
    varied = [
        group for group in groups if len({getattr(run.alignment, field) for run in group}) > 1
    ]
    return [
        {"group": number, **run_row(run)} for number, group in enumerate(varied, 1) for run in group
    ]


def _groups(runs: Sequence[RunAnalysis], free: tuple[str, ...]) -> list[list[RunAnalysis]]:
    """Return runs with equal settings except for the alignment fields `free` and the seed."""
    groups: dict[str, list[RunAnalysis]] = {}
    for run in runs:
        groups.setdefault(_setting(run, free), []).append(run)
    return list(groups.values())


def _setting(analysed: RunAnalysis, free: tuple[str, ...] | None) -> str:
    """Return all settings of a run except its seed and the alignment fields `free` (None: all)."""
    sections = {
        name: {key: value for key, value in section.items() if key not in ("seed", "alignment")}
        for name, section in analysed.run.manifest.origin.fields.items()
        if isinstance(section, Mapping)
    }
    alignment = {} if free is None else analysed.alignment.model_dump(exclude=set(free))
    # Digests of the inputs: runs on different data are never compared.
    inputs = sorted(analysed.run.manifest.origin.inputs.items())
    return repr((sorted(sections.items()), sorted(alignment.items()), inputs))


def _erasure_curves(runs: Sequence[RunAnalysis], kind: str) -> list[Curve]:
    return [
        Curve(
            f"{run.run.name}, {erasure.order}",
            list(zip(erasure.shares, getattr(erasure, kind), strict=True)),
        )
        for run in runs
        for erasure in run.erasure
    ]


def _curves(runs: Sequence[RunAnalysis], name: str) -> list[Curve]:
    curves = []
    for run in runs:
        points = [
            (float(layer.layer), float(value))
            for layer in run.layers
            if (value := getattr(layer, name)) is not None
        ]
        if points:
            curves.append(Curve(run.run.name, points))
    return curves


def _write_csv(path: Path, rows: Sequence[Row]) -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        # csv writes None as an empty cell.
        texts = {k: f"{v:.6g}" if isinstance(v, float) else as_text(v) for k, v in row.items()}
        writer.writerow(texts)
    write_durably(path, text.getvalue().encode())
    return path
