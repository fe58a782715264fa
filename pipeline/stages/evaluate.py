"""Stage evaluate: captions of a split, their scores, and the report.

Outputs are `captions.json` (COCO results), `metrics.json`, `per_picture.json`, `report.html`, and
unless `evaluate.attention` is none `attention.h5`: the attention at each token of the captions.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from a2cap.data.annotations.read import SkippedItem
from a2cap.pipeline.engine.artifacts import (
    ATTENTION,
    EVALUATE,
    METRICS,
    PER_IMAGE,
    REPORT,
    RESULTS,
)
from a2cap.pipeline.engine.stage import EventLog, Input, Stage, plain_outputs
from a2cap.pipeline.evaluation.config import EvaluateConfig
from a2cap.pipeline.runtime.config import RuntimeConfig

CODE_VERSION = 7


def evaluate_stage(
    config: EvaluateConfig,
    *,
    inputs: Mapping[str, Input],
    images: Mapping[str, Path | None],
    runtime: RuntimeConfig,
) -> Stage:
    """Return the stage for one trained captioner or an ensemble.

    inputs: `features`, `captions`, `model`, `model.2` and so on for an ensemble; optionally
    `baseline`, `instances` to measure the grounding of attention, and `word_groups`.
    images: for the report only, so they are not inputs.
    """
    attention = () if config.attention == "none" else (ATTENTION,)
    return Stage(
        name=EVALUATE,
        code_version=CODE_VERSION,
        params={
            "evaluate": config.model_dump(
                mode="json", by_alias=True, exclude={"baseline", "ensemble"}
            )
        },
        inputs=inputs,
        outputs=plain_outputs(RESULTS, METRICS, PER_IMAGE, REPORT, *attention),
        work=partial(_evaluate, config, inputs, images, runtime),
    )


def _evaluate(
    config: EvaluateConfig,
    inputs: Mapping[str, Input],
    images: Mapping[str, Path | None],
    runtime: RuntimeConfig,
    directory: Path,
    events: EventLog,
) -> Sequence[SkippedItem]:
    # imported late, with torch: `a2 status` builds stages too
    from a2cap.pipeline.evaluation.evaluate import evaluate_captioner

    return evaluate_captioner(config, inputs, images, runtime, directory=directory, events=events)
