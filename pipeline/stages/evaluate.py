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
    FURTHER_MODEL,
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
    features: Input,
    captions: Input,
    model: Input,
    ensemble: Sequence[Input] = (),
    baseline: Input | None,
    instances: Input | None,
    word_groups: Input | None = None,
    images: Mapping[str, Path | None],
    runtime: RuntimeConfig,
) -> Stage:
    """Return the stage for one trained captioner or an ensemble.

    images: for the report only, so they are not inputs. instances: COCO instances, to measure the
    grounding of attention. word_groups: groups of words that are scored separately.
    """
    optional = {"baseline": baseline, "instances": instances, "word_groups": word_groups}
    inputs = {
        **{"features": features, "captions": captions, "model": model},
        **{name: found for name, found in optional.items() if found is not None},
    }
    inputs |= {f"{FURTHER_MODEL}{number}": found for number, found in enumerate(ensemble, start=2)}
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
    inputs: dict[str, Input],
    images: Mapping[str, Path | None],
    runtime: RuntimeConfig,
    directory: Path,
    events: EventLog,
) -> Sequence[SkippedItem]:
    from a2cap.pipeline.evaluation.evaluate import evaluate_captioner

    return evaluate_captioner(config, inputs, images, runtime, directory=directory, events=events)
