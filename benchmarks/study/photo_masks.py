"""Grounding of the bundled captioner in boxes, with its own masks and with changed ones.

The boxes are those that a reader drew on photographs of docs/photos.md.
"""

from pathlib import Path

import torch

from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.features.store import FeatureStore
from a2cap.data.files.sealed_folder import read_manifest
from a2cap.pipeline.analysis.grounding import GAIN, RunGrounding, analyse_grounding
from a2cap.pipeline.analysis.trainings import OpenedRun, Run
from a2cap.pipeline.analysis.word_boxes import read_word_boxes
from a2cap.pipeline.captioning.saved_captioner import load_model
from a2cap.pipeline.engine.artifact_names import CAPTIONS, EXTRACT, FEATURES, PREPROCESS
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.runs import find_trainings
from benchmarks.study.measuring import masks_of_others, random_masks
from benchmarks.study.results import Row
from benchmarks.study.running import CROSS_ENTROPY, Study, prepare
from benchmarks.study.worlds import PHOTOGRAPHED

PART, CAPTIONER = "photo masks", "photos"
_SPLIT = "val"
_COLUMNS = tuple(
    f"{name}{end}" for name in ("correctness", "pointing") for end in ("", "_low", "_high")
)


def permuted_rows(study: Study, boxes: Path) -> list[Row]:
    """Return the grounding of each attention, and differences paired by photograph.

    "permuted": each mask permuted over the cells; "others": the masks of another photograph.
    boxes: COCO instances of validation photographs of the study. A row has attention correctness
    and the pointing game, with intervals over photographs ("correctness_low", "correctness_high").
    """
    prepare(study, [PHOTOGRAPHED])
    opened = _opened(study)
    annotations = read_word_boxes(boxes, opened)
    own = analyse_grounding(opened, annotations)
    rows = {name: _values(own, name) for name in ("attention", "aligned", "random")}
    rows["gain"] = _values(own, GAIN)
    for name, changed in {"permuted": random_masks, "others": masks_of_others}.items():
        with changed(opened.model.captioner):
            control = analyse_grounding(opened, annotations)
        # the gain of a pair is that of its "aligned" over its "attention"
        pair = {**own.sums, "attention": control.sums["aligned"]}
        rows[name] = _values(control, "aligned")
        rows[f"{name}: gain"] = _values(control, GAIN)
        rows[f"gain over {name}"] = _values(RunGrounding(own.classes, pair), GAIN)
    return [Row(PART, name, CROSS_ENTROPY, 0, values) for name, values in rows.items()]


def _opened(study: Study) -> OpenedRun:
    """Open the bundled captioner on the photographs, of which it needs no vocabulary."""
    with Experiment(study.config(study.world(PHOTOGRAPHED)), study.artifacts) as opened:
        features, captions = (
            opened.result(stage, needed_by=PART).directory for stage in (EXTRACT, PREPROCESS)
        )
    [folder] = find_trainings([Path(CAPTIONER)])
    file = CaptionFile(captions / CAPTIONS)
    run = Run(CAPTIONER, folder, features, captions, read_manifest(captions), None)
    model = load_model(folder, device=torch.device("cpu"))
    image_ids = sorted(file.image_ids(_SPLIT))
    store = FeatureStore(features / FEATURES)
    return OpenedRun(run, _SPLIT, model, store, file, image_ids, len(image_ids))


def _values(grounding: RunGrounding, kind: str) -> dict[str, float]:
    """Return the row of all classes of a kind of attention, with the number of its words."""
    [row] = [r for r in grounding.rows() if (r["attention"], r["class"]) == (kind, "all")]
    counted = {name: row[name] for name in ("images", "words", *_COLUMNS)}
    return {name: float(str(value)) for name, value in counted.items() if value is not None}
