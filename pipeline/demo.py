"""Demo: draw synthetic scenes, then run the same four stages as for COCO.

The bundled captioner is trained further twice, for equally many epochs: as it is, and blind, with
all features zeroed. The report compares them, because only their difference shows that the
captioner uses the image.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import count
from pathlib import Path

from a2cap.data.scenes.generate import write_scenes
from a2cap.pipeline.configuration import Config, load_config, override
from a2cap.pipeline.engine.artifact_names import (
    EVALUATE,
    EXTRACT,
    METRICS,
    PREPROCESS,
    RESULTS,
    TRAIN_SCST,
    TRAIN_XE,
)
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.engine.run import Outcome
from a2cap.pipeline.evaluation.results import read_results
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.stages.plan import require_runnable
from a2cap.pipeline.weights.captioners import BUNDLED

logger = logging.getLogger(__name__)

CONFIG = "demo.yaml"
SCENES, SIDE, SEED = 1200, 224, 0

# Networks this small do too little work per step to share it between threads.
_ONE_THREAD = "runtime.threads=1"

Report = Callable[[str, Outcome], None]
"""Function that is called with each stage's name and outcome."""


@dataclass(frozen=True)
class Demo:
    """Results of the demo: directories of evaluation and captioner, a test scene, a photograph."""

    evaluation: Path
    captioner: Path
    image: Path
    photo: Path = Path(str(files("a2cap.pipeline") / "chelsea.jpg"))
    """Chelsea, by Stefan van der Walt, CC0 (from scikit-image)."""


def run_demo(
    folder: Path, overrides: Sequence[str], *, report: Report, scenes: int = SCENES
) -> Demo:
    """Run the demo in `folder`, resuming earlier runs."""
    drawn = folder / "scenes"
    with track("draw scenes", total=scenes) as progress:
        write_scenes(drawn, count=scenes, seed=SEED, side=SIDE, progress=progress.advance)
    inputs = (
        override("data.images", drawn / "images"),
        override("data.annotations", drawn / "dataset_coco.json"),
        override("data.instances", drawn / "instances.json"),
        override("data.word_groups", drawn / "words.json"),
        override("data.scenes", drawn / "instances.json"),
        override("train.start", BUNDLED["scenes"].folder),
    )
    fields = (*inputs, _ONE_THREAD, *overrides)
    training = (TRAIN_XE, TRAIN_SCST) if _config(fields).scst.epochs else (TRAIN_XE,)
    numbers, total = count(1), 4 + 2 * len(training)

    def run(names: Sequence[str], *more: str, of: str = "") -> Path:
        announced = {name: f"stage {next(numbers)} of {total}: {name}{of}" for name in names}
        return _run(folder, (*fields, *more), announced, report=report)

    run((EXTRACT, PREPROCESS))  # which both captioners read
    seeing = run(training, "runtime.name=seeing")
    blind = run(
        (*training, EVALUATE),
        *("model.blind=true", "runtime.name=blind"),
        of=" of the control, a blind captioner",
    )
    compared = (
        override("evaluate.baseline", blind / METRICS),
        override("evaluate.baseline_name", "captioner that sees nothing"),
    )
    evaluation = run((EVALUATE,), "runtime.name=seeing", *compared)
    image = min(read_results(evaluation / RESULTS))
    return Demo(evaluation, seeing, drawn / "images" / f"{image}.jpg")


def _config(overrides: Sequence[str]) -> Config:
    return load_config(Path(str(files("a2cap.pipeline") / CONFIG)), overrides)


def _run(
    folder: Path, overrides: Sequence[str], names: Mapping[str, str], *, report: Report
) -> Path:
    """Run stages, each after the line that announces it; return the directory of the last one."""
    with Experiment(_config(overrides), folder) as experiment:
        require_runnable(experiment, list(names))
        for name, line in names.items():
            logger.info("%s", line)
            outcome = experiment.run(name)
            report(name, outcome)
    return outcome.directory
