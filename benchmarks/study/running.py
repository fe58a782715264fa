"""Trains and measures trials, several at a time; what is there already is not done again."""

import hashlib
import json
import logging
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2cap.data.files.json_file import read_json, write_json
from a2cap.pipeline.config import Config, load_config
from a2cap.pipeline.engine.artifacts import CALIBRATE, EXTRACT, PREPROCESS, TRAIN_XE
from a2cap.pipeline.engine.manifest import read_manifest
from a2cap.pipeline.engine.run import Outcome
from a2cap.pipeline.experiment import Experiment

from .grid import Trial
from .measuring import Subject, measure
from .worlds import Images, World, draw_world

CONFIG = Path(__file__).with_name("study.yaml")

MEASURING_VERSION = 1
"""Raised when something else is measured, so that kept figures are not taken for it."""

CROSS_ENTROPY, SELF_CRITICAL = "XE", "SCST"

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Study:
    """What all trials share.

    folder: of everything that is made; weights: of the detector; overrides: of the common
    configuration; analysed: images whose gradients are taken.
    """

    folder: Path
    weights: str
    images: Images
    analysed: int
    overrides: tuple[str, ...] = ()

    @property
    def artifacts(self) -> Path:
        """Results of the stages."""
        return self.folder / "artifacts"

    def config(self, world: World, *fields: str) -> Config:
        """The configuration of an experiment on a world."""
        return load_config(CONFIG, [*world.overrides(self.weights), *self.overrides, *fields])

    def world(self, name: str) -> World:
        """A world, whether it is drawn yet or not."""
        return World(name, self.folder / f"{name}-scenes")


@dataclass(frozen=True)
class Finding:
    """What was measured of a captioner after one phase of training.

    training: of each epoch, what it reported; seconds: of the training, by the wall.
    """

    phase: str
    measured: dict[str, Any]
    training: list[dict[str, float]]
    seconds: float


@dataclass(frozen=True)
class Job:
    """One captioner to train, for one trial or several that ask for the same.

    config: of its experiment, without self-critical training where no trial asks for that.
    """

    world: World
    config: Config
    trials: tuple[Trial, ...]


def prepare(study: Study, names: Sequence[str]) -> None:
    """Draws these worlds, extracts their features and preprocesses their captions."""
    for name in names:
        world = study.world(name)
        draw_world(world, study.images)
        with Experiment(study.config(world), study.artifacts) as opened:
            own = [CALIBRATE, EXTRACT, PREPROCESS]
            for stage in filter(opened.names.__contains__, own):
                opened.run(stage)


def jobs(study: Study, trials: Sequence[Trial]) -> list[Job]:
    """What has to be trained, each captioner once, in the order of the trials."""
    alike: dict[str, list[Trial]] = {}
    configs: dict[str, Config] = {}
    for trial in trials:
        config = study.config(study.world(trial.world), *trial.fields)
        alike.setdefault(config.to_yaml(), []).append(trial)
        configs[config.to_yaml()] = config
    return [
        Job(
            study.world(asking[0].world),
            configs[key] if any(trial.refined for trial in asking) else _unrefined(configs[key]),
            tuple(asking),
        )
        for key, asking in alike.items()
    ]


def _unrefined(config: Config) -> Config:
    return config.model_copy(update={"scst": config.scst.model_copy(update={"epochs": 0})})


def run_jobs(
    study: Study, wanted: Sequence[Job], *, processes: int, until: float
) -> Iterator[tuple[Job, list[Finding]]]:
    """Yields each job as it is done, with its findings after each phase.

    None is trained after `until`, seconds since 1970: such jobs have no findings.
    """
    spawning = multiprocessing.get_context("spawn")
    with _one_thread_each(), ProcessPoolExecutor(processes, mp_context=spawning) as pool:
        running = {pool.submit(run_job, study, job, until): job for job in wanted}
        for future in as_completed(running):
            yield running[future], future.result()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Libraries read their number of threads when a process begins."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def run_job(study: Study, job: Job, until: float) -> list[Finding]:
    """Trains a captioner and measures it after each phase; nothing where it is too late for it."""
    logging.disable(logging.WARNING)
    found = []
    with Experiment(job.config, study.artifacts) as opened:
        if time.time() > until and not _trained(opened):
            return []
        features = opened.result(EXTRACT, needed_by=TRAIN_XE).directory
        captions = opened.result(PREPROCESS, needed_by=TRAIN_XE).directory
        for stage, phase in zip(opened.training, (CROSS_ENTROPY, SELF_CRITICAL), strict=False):
            outcome = opened.run(stage)
            subject = Subject(outcome.directory, features, captions, job.world, study.analysed)
            found.append(_finding(study, phase, outcome, subject))
    return found


def _trained(opened: Experiment) -> bool:
    return all(opened.status(stage).state == "done" for stage in opened.training)


def _finding(study: Study, phase: str, outcome: Outcome, subject: Subject) -> Finding:
    lines = (outcome.directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return Finding(
        phase,
        _measured_once(study, subject),
        [json.loads(line) for line in lines],
        outcome.manifest.seconds,
    )


def _measured_once(study: Study, subject: Subject) -> dict[str, Any]:
    """What was measured of this captioner on these images, now or before."""
    about = (
        MEASURING_VERSION,
        read_manifest(subject.model).digest,
        read_manifest(subject.features).digest,
        read_manifest(subject.captions).digest,
        subject.world.name,
        subject.analysed,
    )
    key = hashlib.sha256(repr(about).encode()).hexdigest()[:12]
    path = study.folder / "measured" / f"{key}.json"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, measure(subject, artifacts=study.artifacts))
    found: Any = read_json(path)
    return dict(found)
