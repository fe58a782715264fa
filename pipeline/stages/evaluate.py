"""Stage evaluate: captions of a split, their scores, and the report.

Outputs are `captions.json` (COCO results), `metrics.json`, `per_picture.json`, `report.html`, and
unless `evaluate.attention` is none `attention.h5`: the attention at each token of the captions.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.pipeline.engine.artifacts import (
    ATTENTION,
    EVALUATE,
    METRICS,
    PER_IMAGE,
    REPORT,
    RESULTS,
)
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.key import key_fields
from a2cap.pipeline.engine.stage import EventLog, Input, PreparedStage
from a2cap.pipeline.evaluation.config import EvaluateConfig
from a2cap.pipeline.runtime.config import RuntimeConfig

CODE_VERSION = 7


def evaluate_stage(
    config: EvaluateConfig,
    *,
    inputs: Mapping[str, Input],
    images: Mapping[str, Path | None],
    runtime: RuntimeConfig,
) -> PreparedStage:
    """Return the stage for one trained captioner or an ensemble.

    inputs: `features`, `captions`, `model`, `model.2` and so on for an ensemble; optionally
    `baseline`, `instances` to measure the grounding of attention, `word_groups`, and `scenes` to
    judge the truth of captions.
    images: for the report only, so they are not inputs.
    """
    # Imported late, with NumPy: the commands of other stages load this module too.
    from a2cap.pipeline.metrics.score import spice_obstacle

    no_spice = spice_obstacle(requested=config.spice)
    # Without this field a result that lacks SPICE would stay the result once SPICE is installed;
    # absent without SPICE, it leaves the keys of such results as they were.
    spice = {} if no_spice else {"spice_installed": True}
    attention = () if config.attention == "none" else (ATTENTION,)
    return PreparedStage(
        name=EVALUATE,
        version=CODE_VERSION,
        fields={"evaluate": key_fields(config, exclude={"baseline", "ensemble"}) | spice},
        inputs=inputs,
        outputs=(RESULTS, METRICS, PER_IMAGE, REPORT, *attention),
        work=partial(_evaluate, config, images, runtime, no_spice),
    )


def _evaluate(
    config: EvaluateConfig,
    images: Mapping[str, Path | None],
    runtime: RuntimeConfig,
    no_spice: str | None,
    directory: Path,
    inputs: Inputs,
    events: EventLog,
) -> Sequence[SkippedItem]:
    # imported late, with torch: `a2 status` builds stages too
    from a2cap.pipeline.evaluation.evaluate import evaluate_captioner

    return evaluate_captioner(
        config, inputs, images, runtime, directory=directory, events=events, no_spice=no_spice
    )
