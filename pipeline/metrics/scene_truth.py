"""Truth of captions of generated scenes, and CHAIR: how often they name an object that is absent.

CHAIR-i is per named object and CHAIR-s per caption (Rohrbach et al. 2018, arXiv:1809.02156).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from a2cap.pipeline.metrics.metric_table import names_of
from a2cap.pipeline.metrics.ngrams import Floats

if TYPE_CHECKING:  # it reads annotations and draws, which scoring need not import
    from a2cap.data.scenes.truth import Judgement

TRUTH = names_of("truth")
"""Share of true captions, of true statements in each family, and CHAIR."""

FAMILIES = tuple(n.removesuffix(" truth") for n in TRUTH if n.endswith(" truth"))
"""Subjects of statements."""


def truth_counts(judged: Iterable["Judgement"]) -> Floats:
    """Return (N, 3 + 2F): 1, 1 if true, 1 if an object is absent, statements, true statements.

    F: number of FAMILIES, in whose order the statements are counted.
    """
    rows = []
    for judgement in judged:
        verdicts = {f: [s.is_true for s in judgement.statements if s.family == f] for f in FAMILIES}
        stated, held = map(len, verdicts.values()), map(sum, verdicts.values())
        rows.append([1, judgement.is_true, not all(verdicts["category"]), *stated, *held])
    return np.array(rows, dtype=np.float64)


def truth_values(sums: Floats) -> Floats:
    """Return (…, F + 3) values of TRUTH, NaN for 0 / 0; sums: `truth_counts` summed over images."""
    captions, true, absent, *counts = np.moveaxis(sums, -1, 0)
    stated, held = np.split(np.array(counts), 2)
    with np.errstate(invalid="ignore"):
        families = held / stated
        chair = [1 - families[FAMILIES.index("category")], absent / captions]
        return np.stack([true / captions, *families, *chair], axis=-1)
