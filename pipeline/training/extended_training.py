"""Going on from finished trainings of the same settings with fewer epochs.

No update depends on how long a training lasts, so a longer one begins with exactly the epochs of a
shorter one, whose last checkpoint holds all that the next epoch needs.
"""

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from a2cap.data.files.sealed_folder import MadeFrom
from a2cap.pipeline.engine.artifact_names import CHECKPOINTS, EPOCHS, TENSORBOARD, checkpoint_name
from a2cap.pipeline.engine.explain import finished_results
from a2cap.pipeline.engine.lock import read_lock
from a2cap.pipeline.engine.prepared_stage import PreparedStage
from a2cap.pipeline.training.selection import Selection, select
from a2cap.pipeline.training.training_config import TrainingConfig

LENGTH_FIELDS = ("epochs", "patience", "checkpoint_every")
"""Fields that no update depends on; the rate of a detector depends on `epochs`."""
_LENGTH = LENGTH_FIELDS[1:]


def continued(
    stage: PreparedStage,
    folder: Path,
    config: TrainingConfig,
    *,
    score: str,
    rate_falls: bool = False,
) -> PreparedStage:
    """Return the training stage with what the finished results in `folder` have done of it.

    A training that would end at the same epoch as a finished one gets that one's key; one that
    would last longer begins with its checkpoints.

    score: the figure that patience waits for.
    rate_falls: True if the learning rate depends on the number of epochs.
    """
    after = stage.made_from
    if (folder / after.key).is_dir():
        return stage
    stages = {0: stage}  # by epochs done
    for directory, manifest in finished_results(folder).items():
        before = manifest.origin
        if _without(LENGTH_FIELDS, before) != _without(LENGTH_FIELDS, after):
            continue
        lines = [line for line in read_epochs(directory) if line.get("epoch") != 0]
        is_whole = all(score in line and "epoch" in line for line in lines)
        selection, end = select(lines, config, score=score) if is_whole else (Selection(), None)
        if not is_whole or select(lines, _of_length(before, config), score=score)[1] != len(lines):
            stages[0] = replace(stage, note=f"starts over: {EPOCHS} of {directory.name} is damaged")
        elif rate_falls and _without(_LENGTH, before) != _without(_LENGTH, after):
            note = f"starts over: the rate of {directory.name} fell over other epochs"
            stages[0] = replace(stage, note=note)
        elif end == len(lines):
            return replace(stage, fields=before.fields)
        elif end is None and not _has_checkpoints(directory, lines, selection):
            stages[0] = replace(stage, note=f"starts over: {directory.name} lacks its checkpoints")
        elif end is None:
            note = f"continues from epoch {len(lines)} of {directory.name}"
            stages[len(lines)] = replace(stage, note=note, begin=partial(copy_training, directory))
    return stages[max(stages)]


def _has_checkpoints(
    directory: Path, lines: Sequence[Mapping[str, float]], selection: Selection
) -> bool:
    """Return True if the checkpoints of the last and of the best epoch exist."""
    steps = (int(lines[-1]["step"]), selection.step or 0)
    return all((directory / CHECKPOINTS / checkpoint_name(step)).is_dir() for step in steps)


def copy_training(directory: Path, to: Path) -> None:
    """Copy the state and the record of a finished training."""
    with read_lock(directory):
        for name in (CHECKPOINTS, TENSORBOARD):
            shutil.copytree(directory / name, to / name, dirs_exist_ok=True)
        shutil.copyfile(directory / EPOCHS, to / EPOCHS)


def _without(names: Collection[str], origin: MadeFrom) -> MadeFrom:
    sections = {
        section: {name: value for name, value in fields.items() if name not in names}
        for section, fields in origin.fields.items()
        if isinstance(fields, Mapping)
    }
    return origin.model_copy(update={"fields": sections})


def _of_length(origin: MadeFrom, config: TrainingConfig) -> TrainingConfig:
    """Return the settings with the length of a finished training."""
    sections = [fields for fields in origin.fields.values() if isinstance(fields, Mapping)]
    stated = {name: fields[name] for fields in sections for name in LENGTH_FIELDS if name in fields}
    return config.model_copy(update=stated)


def read_epochs(directory: Path) -> list[dict[str, float]]:
    """Read the line of each epoch, 0 for the start's own score; none if the file is damaged."""
    try:
        lines = [json.loads(line) for line in (directory / EPOCHS).read_text().splitlines()]
    except (OSError, ValueError):
        return []
    return lines if all(isinstance(line, dict) and "step" in line for line in lines) else []
