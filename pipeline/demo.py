"""The demo: scenes that are drawn on the spot, then the same four stages as for COCO.

The captioner is trained twice, equally long: once blind, its features zeroed, and once as it is.
The report prints both, because only their difference shows that the captioner sees.
"""

from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from a2.data.scenes import write_scenes
from a2.pipeline.config import load_config, override
from a2.pipeline.engine.run import Outcome
from a2.pipeline.plan import Plan
from a2.pipeline.progress import track

CONFIG = "demo.yaml"
SCENES, SIDE, SEED = 1400, 160, 0

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
    )
    blind = _run(folder, (*places, *overrides, "model.blind=true"), say=say)
    compared = (
        override("evaluate.baseline", blind / "metrics.json"),
        override("evaluate.baseline_name", "blind captioner"),
    )
    return _run(folder, (*places, *overrides, *compared), say=say)


def _run(folder: Path, overrides: Sequence[str], *, say: Say) -> Path:
    config = load_config(Path(str(files("a2.pipeline") / CONFIG)), overrides)
    with Plan(config, folder) as plan:
        plan.check(plan.names)
        for name in plan.names:
            outcome = plan.run(name)
            say(name, outcome)
    return outcome.directory
