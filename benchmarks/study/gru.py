"""The GRU captioner without attention and with each of its scores, on generated scenes.

The tutorial that it follows has no evaluation; these are its figures with the scoring of a2.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from a2cap.data.errors import A2Error
from a2cap.data.files.json_file import read_json
from a2cap.pipeline.engine.artifact_names import EVALUATE, METRICS
from a2cap.pipeline.experiment import Experiment
from benchmarks.captioners import Comparison
from benchmarks.study.results import Row, failed_row
from benchmarks.study.running import CROSS_ENTROPY

PART = "gru"
SCORES = ("none", "dot", "general", "additive")
"""Values of `model.attention`; none is the tutorial's vanilla captioner."""
FIELDS = (
    *("model.kind=gru", "model.scale=sqrt", "model.alignment.fusion=none", "scst.epochs=0"),
    "evaluate.split=test",
)


def gru_rows(compared: Comparison, seeds: Sequence[int]) -> Iterator[Row]:
    """Train and evaluate each score with each seed, the seeds outermost; yield their rows."""
    logging.disable(logging.WARNING)
    sizes = (f"model.width={compared.width}", f"model.embedding={compared.width}")
    for seed in seeds:
        for score in SCORES:
            fields = (*FIELDS, *sizes, f"model.attention={score}", f"train.seed={seed}")
            try:
                with Experiment(compared.config(*fields), compared.artifacts) as opened:
                    done = {stage: opened.run(stage) for stage in opened.names}
            except (A2Error, RuntimeError) as error:  # named in its row; the others go on
                yield failed_row(PART, score, seed, error)
                continue
            metrics: Any = read_json(done[EVALUATE].directory / METRICS)
            grounding = metrics.get("grounding", {})
            values = {
                "CIDEr": metrics["metrics"]["CIDEr"],
                "truth": metrics["metrics"]["truth"],
                "grounding": grounding.get("original"),
                "chance": grounding.get("uniform"),
                "seconds": sum(outcome.manifest.seconds for outcome in done.values()),
            }
            defined = {name: value for name, value in values.items() if value is not None}
            yield Row(PART, score, CROSS_ENTROPY, seed, defined)
