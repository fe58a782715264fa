"""Tests of going on: more epochs begin with those of a finished training."""

import json
import signal
from dataclasses import replace
from functools import partial

import pytest

from a2cap.data.files.sealed_folder import seal
from a2cap.pipeline.engine.artifact_names import EPOCHS, checkpoint_name
from a2cap.pipeline.engine.prepared_stage import PreparedStage, StagePaths
from a2cap.pipeline.engine.run import prepare
from a2cap.pipeline.training.captioner.train_config import TrainConfig
from a2cap.pipeline.training.detector.detector_config import DetectorConfig
from a2cap.pipeline.training.extended_training import continued, copy_training
from a2cap.pipeline.training.selection import select
from tests.pipeline.training.runs import assert_equal_results, events, outcome

trained = partial(TrainConfig, schedule="constant")  # no warm-up
SCORES = [0.1, 0.3, 0.2, 0.3, 0.4]


def stage_of(config):
    section = "train" if isinstance(config, TrainConfig) else "detector"
    return PreparedStage(section, 1, {section: config.model_dump(mode="json")}, {}, (), work=None)


def finish(folder, config, *, checkpoints=True):
    """Write what the finished training of a configuration leaves; return the name of its folder."""
    image = stage_of(config).made_from
    directory = folder / image.key
    every = [
        {"epoch": n, "step": 2 * n, "CIDEr": score, "AP50": score}
        for n, score in enumerate(SCORES, start=1)
    ]
    _, end = select(every, config, score="CIDEr")
    lines = [json.dumps(line) for line in every[:end]]
    for number in range(1, len(lines) + 1):
        name = checkpoint_name(2 * number) if checkpoints else f"deleted {number}"
        (directory / "checkpoints" / name).mkdir(parents=True)
    (directory / EPOCHS).write_text("\n".join(lines))
    seal(directory, [], made_from=image)
    return directory.name


def after(folder, before, now, **options):
    """Return the stage of a configuration after the training of another, and that one's name."""
    name = finish(folder, before, **options)
    score = "CIDEr" if isinstance(now, TrainConfig) else "AP50"
    stage = continued(stage_of(now), folder, now, score=score, rate_falls=score == "AP50")
    return stage, name


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"epochs": 3}, {"epochs": 3, "patience": 9}),  # not used up
        ({"epochs": 9, "patience": 2}, {"epochs": 4, "patience": 2}),  # ended after 4 epochs
        ({"epochs": 9, "patience": 2}, {"epochs": 99, "patience": 2}),
        ({"epochs": 3, "patience": 2}, {"epochs": 3, "checkpoint_every": 7}),
    ],
)
def test_a_training_that_would_end_at_the_same_epoch_is_not_made_again(tmp_path, before, now):
    stage, name = after(tmp_path, trained(**before), trained(**now))
    assert (stage.made_from.key, stage.note) == (name, "")


@pytest.mark.parametrize(
    ("before", "now", "epoch"),
    [
        ({"epochs": 3}, {"epochs": 4}, 3),
        ({"epochs": 3, "checkpoint_every": 7}, {"epochs": 4, "patience": 8}, 3),
        ({"epochs": 9, "patience": 2}, {"epochs": 9, "patience": 3}, 4),
        ({"epochs": 3}, {"epochs": 4, "lr": 2.0}, None),
        ({"epochs": 3}, {"epochs": 2}, None),
        ({"epochs": 4, "patience": 9}, {"epochs": 9, "patience": 1}, None),  # would end after 3
    ],
)
def test_only_a_longer_training_continues_and_from_the_last_epoch(tmp_path, before, now, epoch):
    stage, name = after(tmp_path, trained(**before), trained(**now))
    assert stage.note == (f"continues from epoch {epoch} of {name}" if epoch else "")
    assert stage.made_from == stage_of(trained(**now)).made_from
    assert (stage.begin is None) == (epoch is None)


def test_a_training_that_cannot_continue_says_why(tmp_path):
    deleted, name = after(tmp_path / "a", trained(epochs=3), trained(epochs=4), checkpoints=False)
    assert (deleted.note, deleted.begin) == (f"starts over: {name} lacks its checkpoints", None)
    falling, name = after(tmp_path / "b", DetectorConfig(epochs=3), DetectorConfig(epochs=4))
    assert falling.note == f"starts over: the rate of {name} fell over other epochs"
    assert falling.begin is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"epoch": 1, "step": 2}', None])
def test_a_record_that_is_not_whole_is_no_training_to_go_on_from(tmp_path, content):
    name = finish(tmp_path, trained(epochs=2))
    path = tmp_path / name / EPOCHS
    path.write_text(path.read_text().split("\n")[0] if content is None else content)
    for epochs in (1, 3):
        config = trained(epochs=epochs)
        stage = continued(stage_of(config), tmp_path, config, score="CIDEr")
        assert stage.made_from == stage_of(config).made_from
        assert stage.note == f"starts over: metrics.jsonl of {name} is damaged"


def test_the_longest_of_several_trainings_continues(tmp_path):
    finish(tmp_path, trained(epochs=2))
    finish(tmp_path, trained(epochs=1))
    (tmp_path / "0123456789ab").mkdir()
    (tmp_path / "0123456789ab" / "manifest.json").write_text("damaged")
    stage, name = after(tmp_path, trained(epochs=3), trained(epochs=4))
    assert stage.note == f"continues from epoch 3 of {name}"


def test_a_killed_copy_is_made_again_and_force_starts_over(tmp_path):
    copied = []

    def begin(partial):
        copied.append(partial.name)
        if len(copied) == 1:
            raise KeyboardInterrupt

    stage = replace(stage_of(trained()), note="continues", begin=begin)
    paths = StagePaths.in_artifacts(tmp_path, stage)
    with pytest.raises(KeyboardInterrupt):
        prepare(stage, paths)
    for _ in range(2):
        prepare(stage, paths)
    prepare(stage, replace(paths, forced=True))
    assert copied == 2 * [paths.partial.name]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cross-entropy", "self-critical"])
def test_a_continued_training_ends_as_one_long_run_even_if_it_is_stopped(
    training, tmp_path, signals, kind
):
    train, uninterrupted = training(kind)
    first = train(tmp_path / "first", "train.epochs=1", "scst.epochs=1", "train.checkpoint_every=5")
    result = tmp_path / "continued"
    result.mkdir()
    copy_training(first, result)
    signals[0, 9] = [signal.SIGTERM]
    assert outcome(lambda: train(result)) == signal.SIGTERM
    signals.clear()
    train(result)
    assert [event["step"] for event in events(result, "resume")] == [6, 9]
    assert_equal_results(result, uninterrupted)


def test_the_stage_continues_from_the_finished_result(copy, caplog):
    name = copy.directory("train-xe").name
    with copy.experiment.open("train.epochs=9", artifacts=copy.artifacts) as opened:
        assert opened.status("train-xe").why == [
            "train.epochs 8 -> 9",
            f"continues from epoch 8 of {name}",
        ]
        caplog.set_level("INFO")
        result = opened.run("train-xe")
        assert opened.status("train-xe").state == "done"
    assert f"train-xe: continues from epoch 8 of {name}" in caplog.messages
    lines = (result.directory / EPOCHS).read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(1, 10))
    with copy.experiment.open("train.checkpoint_every=3", artifacts=copy.artifacts) as opened:
        assert opened.result("train-xe", needed_by="a test").directory.name == name
