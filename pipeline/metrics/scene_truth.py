"""Truth of what captions name: statements about generated scenes, and CHAIR.

A mention names one of COCO's 80 categories, or the category of a scene's object. CHAIR-i is the
share of mentions of absent objects, CHAIR-s the share of captions with one (Rohrbach et al. 2018,
arXiv:1809.02156). CHAIR-recall is the share of the categories of COCO images that their captions
mention.
"""

from collections.abc import Iterable, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from a2cap.data.captions.coco_objects import mentions_of
from a2cap.pipeline.metrics.metric_table import FAMILIES, SUBJECTS
from a2cap.pipeline.metrics.ngrams import Floats

if TYPE_CHECKING:  # it reads annotations and draws, which scoring need not import
    from a2cap.data.scenes.truth import Judgement

TRUTH, CHAIR = FAMILIES["truth"].names, FAMILIES["CHAIR"].names
"""Share of true captions, and of true statements on each subject; CHAIR-i, -s and -recall."""


def truth_counts(judged: Iterable["Judgement"]) -> Floats:
    """Return (N, 2 + 2F): 1, 1 if true, statements, true statements.

    F: number of SUBJECTS, in whose order the statements are counted.
    """
    rows = []
    for judgement in judged:
        verdicts = {f: [s.is_true for s in judgement.statements if s.family == f] for f in SUBJECTS}
        stated, held = map(len, verdicts.values()), map(sum, verdicts.values())
        rows.append([1, judgement.is_true, *stated, *held])
    return np.array(rows, dtype=np.float64)


def truth_values(sums: Floats) -> Floats:
    """Return (…, F + 1) values of TRUTH, NaN for 0 / 0; sums: `truth_counts` summed over images."""
    captions, true, *counts = np.moveaxis(sums, -1, 0)
    stated, held = np.split(np.array(counts), 2)
    with np.errstate(invalid="ignore"):
        return np.stack([true / captions, *(held / stated)], axis=-1)


def scene_chair_counts(judged: Iterable["Judgement"]) -> Floats:
    """Return (N, 6) as `chair_counts`, of judged captions of scenes; without objects to recall."""
    verdicts = [
        [s.is_true for s in judgement.statements if s.family == "category"] for judgement in judged
    ]
    rows = [[1, not all(v), len(v), len(v) - sum(v), 0, 0] for v in verdicts]
    return np.array(rows, dtype=np.float64)


def chair_statistics(
    candidates: Sequence[str],
    objects: Sequence[Set[str]] | None,
    judged: "Sequence[Judgement] | None",
) -> Floats:
    """Return (N, 6) of `scene_chair_counts` for scenes, of `chair_counts` for COCO's objects."""
    return chair_counts(candidates, objects or ()) if judged is None else scene_chair_counts(judged)


def chair_counts(captions: Iterable[str], objects: Iterable[Set[str]]) -> Floats:
    """Return (N, 6): 1, 1 if an object is absent, mentions, absent ones, objects, mentioned ones.

    captions: PTB tokens joined by spaces. objects: COCO's categories in the image of each.
    """
    rows = []
    for caption, present in zip(captions, objects, strict=True):
        mentions = mentions_of(caption)
        absent = sum(name not in present for name in mentions)
        recalled = len(present & set(mentions))
        rows.append([1, absent > 0, len(mentions), absent, len(present), recalled])
    return np.array(rows, dtype=np.float64)


def chair_values(sums: Floats) -> Floats:
    """Return (…, 3) values of CHAIR, NaN for 0 / 0; sums: `chair_counts` summed over images."""
    captions, false, mentions, absent, objects, recalled = np.moveaxis(sums, -1, 0)
    with np.errstate(invalid="ignore"):
        return np.stack([absent / mentions, false / captions, recalled / objects], axis=-1)
