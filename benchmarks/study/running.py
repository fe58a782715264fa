"""Training and measuring of trials in parallel; finished work is not repeated."""

import hashlib
import json
import logging
import multiprocessing
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from a2cap.data.errors import A2Error
from a2cap.data.files.json_file import read_json, write_json
from a2cap.data.files.sealed_folder import read_manifest
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.pipeline.captioning.saved_captioner import load_model, new_captioner, save_model
from a2cap.pipeline.configuration import Config, load_config, override
from a2cap.pipeline.engine.artifact_names import EXTRACT, PREPROCESS, TRAIN_XE
from a2cap.pipeline.engine.run import Outcome
from a2cap.pipeline.experiment import Experiment
from benchmarks.study.grid import FURTHER, STARTS, Trial
from benchmarks.study.measuring import Subject, measure
from benchmarks.study.worlds import PHOTOGRAPHED, Images, World, draw_world

CONFIG = Path(__file__).with_name("study.yaml")

MEASURING_VERSION = 4
"""Increment when the measures change, so that cached figures are not reused."""

PLAIN_ATTENTION = AlignmentConfig(fusion="none")

CROSS_ENTROPY, SELF_CRITICAL = "XE", "SCST"

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Study:
    """Settings of all trials.

    folder: output of the study; weights: of the detector; images: of each world; analysed: number
    of images whose gradients and erasure are computed; overrides: of the common configuration;
    start: captioner that those of STARTS continue, None to train them from the beginning;
    photographs: captions of photographs, beside the folder `images`, if trials have any; erased:
    images of erasure if these are fewer.
    """

    folder: Path
    weights: str
    images: Images
    analysed: int
    overrides: tuple[str, ...] = ()
    start: Path | None = None
    photographs: Path | None = None
    erased: int | None = None

    @property
    def artifacts(self) -> Path:
        """Folder of the results of stages."""
        return self.folder / "artifacts"

    def config(self, world: World, *fields: str) -> Config:
        """Return the configuration of an experiment on a world."""
        return load_config(CONFIG, [*world.overrides(self.weights), *fields, *self.overrides])

    def world(self, name: str) -> World:
        """Return a world, drawn or not."""
        if name == PHOTOGRAPHED:
            return World(name, self.folder / name, self.photographs)
        return World(name, self.folder / f"{name}-scenes")


@dataclass(frozen=True)
class Finding:
    """Measures of a captioner after one training task.

    training: values that training reported per epoch; seconds: wall-clock time of training.
    """

    phase: str
    measured: dict[str, Any]
    training: list[dict[str, float]]
    seconds: float


@dataclass(frozen=True)
class Job:
    """One captioner to train, for all trials with the same configuration.

    config: its experiment, without self-critical training if no trial needs it. start: that of the
    captioner that it starts from, if any.
    """

    world: World
    config: Config
    start: Config | None
    trials: tuple[Trial, ...]


def prepare(study: Study, names: Sequence[str]) -> None:
    """Draw these worlds, extract their features and preprocess their captions."""
    for name in names:
        world = study.world(name)
        draw_world(world, study.images)
        with Experiment(study.config(world), study.artifacts) as opened:
            for stage in (EXTRACT, PREPROCESS):
                opened.run(stage)


def plain_start(path: Path, folder: Path) -> Path:
    """Write a copy of a captioner without its alignment into a folder unless it exists."""
    if not folder.exists():
        saved = load_model(path, device=torch.device("cpu"))
        plain = saved.description.model.model_copy(update={"alignment": PLAIN_ATTENTION})
        description = saved.description.model_copy(update={"model": plain})
        tensors = saved.captioner.state_dict()
        kept = {name: tensors[name] for name in new_captioner(description).state_dict()}
        shutil.copytree(path, folder)
        save_model(folder, tensors=kept, description=description, vocabulary=saved.vocabulary)
    return folder


def jobs(study: Study, trials: Sequence[Trial]) -> list[Job]:
    """Return the captioners to train, each once, in the order of the trials."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(_config(study, trial).to_yaml(), []).append(trial)
    listed = []
    for first, *others in groups.values():
        config = _config(study, first)
        if not any(trial.self_critical for trial in (first, *others)):
            config = _without_self_critical(config)
        start = None
        if first.start is not None:
            start = _without_self_critical(_config(study, first.start))
        listed.append(Job(study.world(first.world), config, start, (first, *others)))
    return listed


def _config(study: Study, trial: Trial) -> Config:
    fields = trial.fields
    if trial.part == STARTS and study.start is not None:
        fields = [*fields, *FURTHER, override("train.start", study.start)]
    return study.config(study.world(trial.world), *fields)


def _without_self_critical(config: Config) -> Config:
    return config.model_copy(update={"scst": config.scst.model_copy(update={"epochs": 0})})


def run_jobs(
    study: Study, planned: Sequence[Job], *, processes: int
) -> Iterator[tuple[Job, list[Finding] | A2Error | RuntimeError]]:
    """Yield each job with its findings after each training task, or its error.

    Captioners that others start from are first. Raises BrokenProcessPool if a process is killed,
    and errors that are not the captioner's, such as that of a full disk.
    """
    spawning = multiprocessing.get_context("spawn")
    # libraries read the number of threads when a process starts
    one_thread = mock.patch.dict(os.environ, dict.fromkeys(THREADS, "1"))
    with one_thread, ProcessPoolExecutor(processes, mp_context=spawning) as pool:
        for wave in (
            [job for job in planned if job.start is None],
            [job for job in planned if job.start is not None],
        ):
            running = {pool.submit(run_job, study, job): job for job in wave}
            for future in as_completed(running):
                try:
                    yield running[future], future.result()
                except BrokenProcessPool:  # after a killed process all jobs fail
                    raise
                except (A2Error, RuntimeError) as error:  # RuntimeError: such as torch's
                    yield running[future], error


def run_job(study: Study, job: Job) -> list[Finding]:
    """Train a captioner and measure it after each training task."""
    logging.disable(logging.WARNING)
    findings = []
    config = job.config
    if job.start is not None:
        with Experiment(job.start, study.artifacts) as started:
            start = started.result(TRAIN_XE, needed_by=TRAIN_XE).directory
        further = config.train.model_copy(update={"start": start})
        config = config.model_copy(update={"train": further})
    with Experiment(config, study.artifacts) as opened:
        features = opened.result(EXTRACT, needed_by=TRAIN_XE).directory
        captions = opened.result(PREPROCESS, needed_by=TRAIN_XE).directory
        for stage, phase in zip(opened.training, (CROSS_ENTROPY, SELF_CRITICAL), strict=False):
            outcome = opened.run(stage)
            erased = study.analysed if study.erased is None else study.erased
            measured = (outcome.directory, features, captions, job.world, study.analysed, erased)
            subject = Subject(*measured)
            findings.append(_finding(study, phase, outcome, subject))
    return findings


def _finding(study: Study, phase: str, outcome: Outcome, subject: Subject) -> Finding:
    lines = (outcome.directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return Finding(
        phase,
        _measured_once(study, subject),
        [json.loads(line) for line in lines],
        outcome.manifest.seconds,
    )


def _measured_once(study: Study, subject: Subject) -> dict[str, Any]:
    """Return the measures of this captioner on these images, from the cache if possible."""
    identity = (
        MEASURING_VERSION,
        read_manifest(subject.model).digest,
        read_manifest(subject.features).digest,
        read_manifest(subject.captions).digest,
        subject.world.name,
        subject.analysed,
        subject.erased,
    )
    key = hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
    path = study.folder / "measured" / f"{key}.json"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, measure(subject, artifacts=study.artifacts))
    measures: Any = read_json(path)
    return dict(measures)
