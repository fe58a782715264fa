"""Demo: draw synthetic scenes, then run the same four stages as for COCO.

Two captioners are trained for equally many epochs, one of them blind, with all features zeroed. The
report compares them, because only their difference shows that the captioner uses the image.
"""

from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from a2cap.data.scenes.generate import write_scenes
from a2cap.pipeline.config import load_config, override
from a2cap.pipeline.doctor.preflight import require_runnable
from a2cap.pipeline.engine.artifacts import EVALUATE, EXTRACT, PREPROCESS, TRAIN_SCST, TRAIN_XE
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.engine.run import Outcome
from a2cap.pipeline.experiment import Experiment

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
    # both captioners read the same features and captions
    _run(folder, fields, (EXTRACT, PREPROCESS), report=report)
    trained = (TRAIN_XE, TRAIN_SCST, EVALUATE)
    blind = _run(folder, (*fields, "model.blind=true"), trained, report=report)
    compared = (
        override("evaluate.baseline", blind / "metrics.json"),
        override("evaluate.baseline_name", "blind captioner"),
    )
    return _run(folder, (*fields, *compared), trained, report=report)


def _run(folder: Path, overrides: Sequence[str], names: Sequence[str], *, report: Report) -> Path:
    """Run the stages that the experiment has; return the directory of the last one."""
    config = load_config(Path(str(files("a2cap.pipeline") / CONFIG)), overrides)
    with Experiment(config, folder) as experiment:
        own = [name for name in names if name in experiment.names]
        require_runnable(experiment, own)
        for name in own:
            outcome = experiment.run(name)
            report(name, outcome)
    return outcome.directory
