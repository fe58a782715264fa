"""Demo: draw synthetic scenes, then run the same four stages as for COCO.

Two captioners are trained for equally many epochs, one of them blind, with all features zeroed. The
report compares them, because only their difference shows that the captioner uses the image.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from itertools import count
from pathlib import Path

from a2cap.data.scenes.generate import write_scenes
from a2cap.pipeline.config import Config, load_config, override
from a2cap.pipeline.doctor.preflight import require_runnable
from a2cap.pipeline.engine.artifacts import EVALUATE, EXTRACT, PREPROCESS, TRAIN_SCST, TRAIN_XE
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.engine.run import Outcome
from a2cap.pipeline.experiment import Experiment

logger = logging.getLogger(__name__)

CONFIG = "demo.yaml"
SCENES, SIDE, SEED = 1200, 224, 0

# Networks this small do too little work per step to share it between threads.
_ONE_THREAD = "runtime.threads=1"

Report = Callable[[str, Outcome], None]
"""Function that is called with each stage's name and outcome."""


def run_demo(
    folder: Path, overrides: Sequence[str], *, report: Report, scenes: int = SCENES
) -> Path:
    """Run the demo in `folder`, resuming earlier runs; return the evaluation's directory."""
    drawn = folder / "scenes"
    with track("draw scenes", total=scenes) as progress:
        write_scenes(drawn, count=scenes, seed=SEED, side=SIDE, progress=progress.advance)
    data = (
        override("data.images", drawn / "images"),
        override("data.annotations", drawn / "dataset_coco.json"),
        override("data.instances", drawn / "instances.json"),
        override("data.word_groups", drawn / "words.json"),
        override("data.scenes", drawn / "instances.json"),
    )
    fields = (*data, _ONE_THREAD, *overrides)
    trained = (
        (TRAIN_XE, TRAIN_SCST, EVALUATE) if _config(fields).scst.epochs else (TRAIN_XE, EVALUATE)
    )
    numbers, total = count(1), 2 + 2 * len(trained)

    def run(names: Sequence[str], *more: str, of: str = "") -> Path:
        announced = {name: f"stage {next(numbers)} of {total}: {name}{of}" for name in names}
        return _run(folder, (*fields, *more), announced, report=report)

    run((EXTRACT, PREPROCESS))  # which both captioners read
    blind = run(trained, "model.blind=true", "runtime.name=blind", of=" of the blind captioner")
    compared = (
        override("evaluate.baseline", blind / "metrics.json"),
        override("evaluate.baseline_name", "blind captioner"),
    )
    return run(trained, "runtime.name=seeing", *compared)


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
