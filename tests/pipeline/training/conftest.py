"""Fixtures of the trainings: each of them ready to start, and one uninterrupted run of each."""

import signal

import pytest

from a2cap.pipeline.runtime.distributed import Ranks
from a2cap.pipeline.training.captioner.cross_entropy import CrossEntropyUpdater
from a2cap.pipeline.training.captioner.self_critical import SelfCriticalUpdater
from a2cap.pipeline.training.detector.train import DetectorUpdater
from tests.pipeline.training.runs import CaptionerTraining, DetectorTraining


@pytest.fixture(scope="session")
def train(experiment):
    stages = ("extract", "preprocess")
    return CaptionerTraining(experiment.config_file, *map(experiment.directory, stages))


@pytest.fixture(scope="session")
def refine(experiment):
    stages = ("extract", "preprocess", "train-xe")
    return CaptionerTraining(experiment.config_file, *map(experiment.directory, stages))


@pytest.fixture(scope="session")
def train_detector(labelled):
    return DetectorTraining(labelled)


@pytest.fixture(scope="session")
def uninterrupted(train, tmp_path_factory):
    return train(tmp_path_factory.mktemp("cross-entropy") / "uninterrupted")


@pytest.fixture(scope="session")
def uninterrupted_refinement(refine, tmp_path_factory):
    return refine(tmp_path_factory.mktemp("self-critical") / "uninterrupted")


@pytest.fixture(scope="session")
def uninterrupted_detector(train_detector, tmp_path_factory):
    return train_detector(tmp_path_factory.mktemp("detector") / "uninterrupted")


TRAININGS = {
    "cross-entropy": ("train", "uninterrupted"),
    "self-critical": ("refine", "uninterrupted_refinement"),
    "detector": ("train_detector", "uninterrupted_detector"),
}


@pytest.fixture
def training(request):
    """Return a function from a kind of training to how to start it and its uninterrupted run."""
    return lambda kind: tuple(map(request.getfixturevalue, TRAININGS[kind]))


@pytest.fixture
def signals(monkeypatch):
    """Raise real signals at the end of updates; maps (rank, step) to the signals."""
    at = {}

    def signal_after(step):
        def step_and_signal(self, parts, number):
            updates = step(self, parts, number)
            for sent in at.get((Ranks.current().rank, number), ()):
                signal.raise_signal(sent)
            return updates

        return step_and_signal

    for updater in (CrossEntropyUpdater, SelfCriticalUpdater, DetectorUpdater):
        monkeypatch.setattr(updater, "step", signal_after(updater.step))
    return at
