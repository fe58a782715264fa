"""One trial: a stage is killed, perhaps again while it resumes, then left alone and looked at."""

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import torch

from a2cap.data.features.writer import FeatureWriter
from a2cap.data.scenes.generate import write_scenes
from a2cap.pipeline.config import load_config
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.extraction import extract as extraction

if TYPE_CHECKING:
    from tests.faults import diary, processes
    from tests.faults.fault_points import Fault, count_calls, install
    from tests.faults.outcome import Outcome, contents, differences, outcome
else:
    import diary
    import processes
    from fault_points import Fault, count_calls, install
    from outcome import Outcome, contents, differences, outcome

STAGES = (
    "calibrate",
    "extract",
    "preprocess",
    "train-xe",
    "train-scst",
    "evaluate",
    "train-detector",
)
READS: Mapping[str, tuple[str, ...]] = {
    "calibrate": (),
    "extract": ("calibrate",),
    "preprocess": (),
    "train-xe": ("calibrate", "extract", "preprocess"),
    "train-scst": ("calibrate", "extract", "preprocess", "train-xe"),
    "evaluate": ("calibrate", "extract", "preprocess", "train-xe", "train-scst"),
    "train-detector": (),
}
"""Stage -> those whose results must be there before it runs."""

IMAGES, TOGETHER, COMMIT_EVERY = 40, 2, 8
"""The product describes 16 images together and commits 64: an eighth of both, for a few."""

CHECKPOINT_EVERY = 4

PROMISED: Mapping[str, tuple[str, int]] = {
    "extract": ("images", COMMIT_EVERY + 2 * TOGETHER),
    "train-xe": ("steps", CHECKPOINT_EVERY),
    "train-scst": ("steps", CHECKPOINT_EVERY),
    "train-detector": ("steps", CHECKPOINT_EVERY),
}
"""Stage -> what a kill may cost, and how many of it at most; the other stages begin anew.

Images: those of one commit, and those that share a group with its first and its last.
"""

_CONFIG = f"""
extract: {{weights: calibrated-random, boxes: given, depth: 18, width: 8, roi_size: 7,
          min_side: 96, max_side: 96}}
preprocess: {{min_count: 1}}
model: {{width: 16, heads: 2, feed_forward: 32, encoder_layers: 1, decoder_layers: 1,
        box_geometry: linear}}
train: {{epochs: 2, batch_size: 4, warmup: 20, validation_beam_size: 2,
        checkpoint_every: {CHECKPOINT_EVERY}}}
scst: {{epochs: 2, batch_size: 4, samples: 2, lr: 0.001, mask: continued, max_length: 8,
       validation_beam_size: 2, checkpoint_every: {CHECKPOINT_EVERY}}}
evaluate: {{beam_size: 2}}
detector: {{depth: 18, width: 8, anchor_sizes: [16, 28, 48], anchor_ratios: [1.0],
           last_stage: strided, region_pooling: bilinear, proposal_width: 16, embedding_width: 4,
           attribute_width: 8, min_side: 64, max_side: 64, roi_size: 7, anchors: 64,
           proposals: 40, regions: 16, epochs: 2, batch_size: 2, optimiser: adamw, lr: 0.002,
           warmup: 2, checkpoint_every: {CHECKPOINT_EVERY}, validation_proposals: 20,
           images: IMAGES, labels: LABELS, ids: LEARNT, validation_ids: VALIDATED}}
runtime: {{device: cpu, threads: 1}}
"""

_LISTS = {"LEARNT": range(1, 13), "VALIDATED": range(31, 35)}
"""Images of a detector's training; the damaged one would end it."""

_PATIENCE = 60.0
"""Seconds in which whatever a killed run had started must be gone."""

_EARLIER_RESULT = "0" * 12


@dataclass(frozen=True)
class Uninterrupted:
    """A stage that was left alone: what it made, how long it took, how often points were met."""

    outcome: Outcome
    seconds: float
    calls: Counter[str]


@dataclass(frozen=True)
class Verdict:
    """What a trial showed. done_again: one number per kill; problems: none where all is well."""

    kills: int
    lost: int
    done_again: list[int]
    problems: list[str]


@dataclass
class FaultExperiment:
    """Scenes, a configuration, and the results of all stages that were left alone."""

    folder: Path
    uninterrupted: dict[str, Uninterrupted] = field(default_factory=dict)

    @property
    def scenes(self) -> Path:
        """The images and annotations, which no run may change."""
        return self.folder / "scenes"

    def artifacts(self, trial: str) -> Path:
        """The artifacts folder of a trial."""
        return self.folder / trial / "artifacts"

    def make(self, stages: Sequence[str]) -> None:
        """Draws the scenes, damages one image, and runs the stages, and those they need."""
        self._draw()
        needed = {name for stage in stages for name in (*READS[stage], stage)}
        for stage in [name for name in STAGES if name in needed]:
            self.uninterrupted[stage] = self._run_alone(stage)

    def run(self, stage: str, trial: str, *, force: bool = False) -> bool:
        """Runs a stage in this process; returns whether it had to work."""
        with Experiment(load_config(self.folder / "config.yaml"), self.artifacts(trial)) as opened:
            return opened.run(stage, force=force).ran

    def result(self, stage: str, trial: str) -> Path:
        """Where the stage's result lies, once it is there."""
        [found] = (self.artifacts("alone") / stage).glob("*/manifest.json")
        return self.artifacts(trial) / stage / found.parent.name

    def prepare(self, stage: str, trial: str, *, finished: bool) -> None:
        """The results that a stage reads, and an earlier one of its own, of other settings."""
        alone, copy = self.artifacts("alone"), self.artifacts(trial)
        for name in READS[stage]:
            shutil.copytree(alone / name, copy / name)
        result = self.result(stage, trial)
        shutil.copytree(self.result(stage, "alone"), result.with_name(_EARLIER_RESULT))
        if finished:
            shutil.copytree(self.result(stage, "alone"), result)

    def _draw(self) -> None:
        in_a_child(lambda: write_scenes(self.scenes, count=IMAGES, seed=0, side=96), self.folder)
        damaged = self.scenes / "images" / f"{20:012d}.jpg"
        damaged.write_bytes(damaged.read_bytes()[:900])
        places = {
            "images": str(self.scenes / "images"),
            "annotations": str(self.scenes / "dataset_coco.json"),
            "instances": str(self.scenes / "instances.json"),
        }
        named = {"IMAGES": places["images"], "LABELS": places["instances"]}
        for name, numbers in _LISTS.items():
            (self.folder / name).write_text("".join(f"{number}\n" for number in numbers))
            named[name] = str(self.folder / name)
        config = f"data: {json.dumps(places)}\n{_CONFIG}"
        for name, path in named.items():
            config = config.replace(name, json.dumps(path))
        (self.folder / "config.yaml").write_text(config)

    def _run_alone(self, stage: str) -> Uninterrupted:
        counted = self.folder / f"{stage}.calls.json"

        def count() -> None:
            calls = count_calls(stage)
            self.run(stage, "alone")
            counted.write_text(json.dumps(calls))

        end = in_a_child(count, self.folder)
        calls = Counter(json.loads(counted.read_text()))
        return Uninterrupted(outcome_of(self.result(stage, "alone")), end.seconds, calls)


@dataclass
class Trial:
    """A stage of an experiment, to be killed in turn by each of `kills`.

    kills: a named fault, or seconds after which the process is killed.
    force: each killed run is started with --force over a finished result.
    """

    experiment: FaultExperiment
    name: str
    stage: str
    kills: Sequence[Fault | float]
    force: bool = False
    _runs: list[diary.Run] = field(default_factory=list)
    _groups: list[int] = field(default_factory=list)
    _problems: list[str] = field(default_factory=list)

    def run(self) -> Verdict:
        """Kills, lets the last run finish, and compares with what was left alone."""
        self.experiment.prepare(self.stage, self.name, finished=self.force)
        untouched = self._others()
        kills = self._kill()
        self._finish()
        changed = differences(untouched, self._others())
        self._problems += [f"{line}, which is not this stage's" for line in changed]
        self._problems += _left_running(self._groups)
        again = self._done_again()[:kills]
        return Verdict(kills, self._lost(), again, self._problems)

    @property
    def folder(self) -> Path:
        """Where the trial's artifacts, diaries and log lie."""
        return self.experiment.folder / self.name

    @property
    def _result(self) -> Path:
        return self.experiment.result(self.stage, self.name)

    def _kill(self) -> int:
        """Starts and kills runs; returns how many were killed: the last may end before that."""
        for killed, kill in enumerate(self.kills):
            end = self._start(kill, force=self.force)
            if not end.killed:
                self._problems += [f"a run ended with code {end.code}"] if end.code else []
                return killed
            self._problems += self._damages()
        return len(self.kills)

    def _start(self, kill: Fault | float | None, *, force: bool) -> processes.End:
        """One run, which writes its diary."""
        notes = self.folder / f"diary-{len(self._runs)}"

        def work() -> None:
            _shrink()
            diary.keep(notes)
            if isinstance(kill, Fault):
                install(kill)
            self.experiment.run(self.stage, self.name, force=force)

        after = kill if isinstance(kill, float) else None
        end = processes.run(work, log=self.folder / "log", kill_after=after)
        self._runs.append(diary.read(notes))
        self._groups.append(end.process)
        return end

    def _finish(self) -> None:
        """Runs to the end, and looks at what is there then."""
        end = self._start(None, force=False)
        if end.code:
            self._problems.append(f"the rerun ended with code {end.code}")
        elif not self._result.exists():
            self._problems.append("the rerun left no result")
        else:
            self._problems += self._damages()
            # where the old result of a forced run was whole, what that run left may stay
            self._problems += [] if self.force else self._litter()

    def _damages(self) -> list[str]:
        """How a finished result differs from the one that was left alone; none if it is absent."""
        if not self._result.exists():
            return []
        expected = self.experiment.uninterrupted[self.stage].outcome
        return differences(expected, outcome_of(self._result))

    def _litter(self) -> list[str]:
        """What lies beside a finished result that is neither a result nor its lock."""
        kept = {self._result.name, f"{self._result.name}.lock", _EARLIER_RESULT}
        beside = {path.name for path in self._result.parent.iterdir()}
        return [f"{name} is left beside the result" for name in sorted(beside - kept)]

    def _lost(self) -> int:
        """Items that were safe and had to be made again by the last run."""
        if self.force:  # the old result, or the new one, was whole: nothing remained to be done
            return int(self._runs[-1].worked)
        return diary.lost(self._runs[:-1], self._runs[-1])

    def _done_again(self) -> list[int]:
        """What each run after the first did again; a run with --force begins anew, as it should."""
        if self.force:
            return []
        again = [diary.done_again(self._runs[:n], run) for n, run in enumerate(self._runs) if n]
        unit, most = PROMISED.get(self.stage, ("stages", 1))
        if max(again) > most:
            self._problems.append(f"{max(again)} {unit} were done again, at most {most} may be")
        return again

    def _others(self) -> Outcome:
        """All that the stage must not touch: its inputs, and other results."""
        artifacts = self.experiment.artifacts(self.name)
        own = tuple(
            self._result.with_name(f"{self._result.name}{ending}")
            for ending in ("", ".partial", ".lock", ".holder.json", ".replaced", ".removed")
        )
        hashes = tuple(artifacts / f"hashes.sqlite{ending}" for ending in ("", "-journal"))
        return contents(artifacts, without=(*own, *hashes)) | contents(self.experiment.scenes)


def in_a_child(work: Callable[[], object], folder: Path) -> processes.End:
    """Does work in a forked process that is not to fail, with the product's numbers made small."""

    def small() -> None:
        _shrink()
        work()

    end = processes.run(small, log=folder / "log")
    if end.code:
        raise RuntimeError(f"a run that nobody killed failed: see {folder / 'log'}")
    return end


def outcome_of(directory: Path) -> Outcome:
    """The outcome in a directory, read by a process of its own, as a user's next command does."""
    answer = directory.parents[2] / f"outcome-of-{directory.parent.name}.json"
    in_a_child(lambda: answer.write_text(json.dumps(outcome(directory))), directory.parents[2])
    return dict(json.loads(answer.read_text()))


def _left_running(groups: Sequence[int]) -> list[str]:
    problems = []
    for group in groups:
        for process in processes.left_running(group, patience=_PATIENCE):
            problems.append(f"process {process} still ran {_PATIENCE:.0f} s after its run died")
            os.kill(process, signal.SIGKILL)
    return problems


def _shrink() -> None:
    """Fewer images per commit and group, so that a small store has many; one thread each."""
    defaults = FeatureWriter.__init__.__kwdefaults__
    if defaults is None or "commit_every" not in defaults or not hasattr(extraction, "_TOGETHER"):
        raise RuntimeError("the product's numbers have other names now; name them here too")
    defaults["commit_every"] = COMMIT_EVERY
    extraction._TOGETHER = TOGETHER
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
