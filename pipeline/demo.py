"""The demo: scenes that are drawn on the spot, then the same four stages as for COCO.

The captioner is trained twice, equally long: once blind, its features zeroed, and once as it is.
The report prints both, because only their difference shows that the captioner sees.
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

_ONE_THREAD = "runtime.threads=1"
"""What networks this small compute is too little to be shared: two threads mostly wait."""

Say = Callable[[str, Outcome], None]


def run_demo(folder: Path, overrides: Sequence[str], *, say: Say, scenes: int = SCENES) -> Path:
    """Runs everything below `folder`, skipping what is there; returns the evaluation's directory.

    say: called with each stage's name and outcome.
    """
    drawn = folder / "scenes"
    with track("draw scenes", total=scenes) as progress:
        write_scenes(drawn, count=scenes, seed=SEED, side=SIDE, progress=progress.advance)
    places = (
        override("data.images", drawn / "images"),
        override("data.annotations", drawn / "dataset_coco.json"),
        override("data.instances", drawn / "instances.json"),
        override("data.word_groups", drawn / "words.json"),
    )
    fields = (*places, _ONE_THREAD, *overrides)
    _run(folder, fields, (EXTRACT, PREPROCESS), say=say)
    trained = (TRAIN_XE, TRAIN_SCST, EVALUATE)
    blind = _run(folder, (*fields, "model.blind=true"), trained, say=say)
    compared = (
        override("evaluate.baseline", blind / "metrics.json"),
        override("evaluate.baseline_name", "blind captioner"),
    )
    return _run(folder, (*fields, *compared), trained, say=say)


def _run(folder: Path, overrides: Sequence[str], names: Sequence[str], *, say: Say) -> Path:
    """Runs those of these stages that there are; returns the directory of the last."""
    config = load_config(Path(str(files("a2cap.pipeline") / CONFIG)), overrides)
    with Experiment(config, folder) as experiment:
        own = [name for name in names if name in experiment.names]
        require_runnable(experiment, own)
        for name in own:
            outcome = experiment.run(name)
            say(name, outcome)
    return outcome.directory
