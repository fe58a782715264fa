"""One trial: kill a stage, perhaps again while it resumes, then let it finish and compare."""

import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import torch

from a2cap.data.errors import A2Error
from a2cap.data.features.writer import FeatureWriter
from a2cap.pipeline.configuration import Config, load_config, override
from a2cap.pipeline.engine.prepared_stage import StagePaths
from a2cap.pipeline.engine.shard_stripe import Stripe
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.extraction import extract_images, images
from a2cap.pipeline.extraction import shard_worker as extraction
from tests.experiments import DETECTOR, SECTIONS, TinyExperiment, make_experiment
from tests.faults import processes, run_log
from tests.faults.digests import Digests, differences, file_digests, result_digests
from tests.faults.fault_points import Fault, count_calls, die, install

READS: Mapping[str, tuple[str, ...]] = {
    "extract": (),
    "preprocess": (),
    "train-xe": ("extract", "preprocess"),
    "train-scst": ("extract", "preprocess", "train-xe"),
    "evaluate": ("extract", "preprocess", "train-xe", "train-scst"),
    "train-detector": (),
    "train-encoder": ("preprocess",),
    "stripes": (),
    "ray": (),
}
"""Stage -> stages whose results it needs."""

STAGES = tuple(name for name in READS if name != "ray" or find_spec("ray"))

ENGINE_STAGE = {"stripes": "extract", "ray": "extract"}
"""Extraction by two processes with --shard, and by tasks of Ray: other ways to the same result."""

IMAGES, TOGETHER, COMMIT_EVERY, SHARD = 40, 2, 8, 18
"""Scaled down from batches of 16 images, commits of 64 and shards of 1,024."""

CHECKPOINT_EVERY = 4

PROMISED: Mapping[str, tuple[str, int]] = {
    # one commit, and the batches that its first and its last image share
    "extract": ("images", COMMIT_EVERY + 2 * TOGETHER),
    **dict.fromkeys(ENGINE_STAGE, ("images", 2 * (COMMIT_EVERY + 2 * TOGETHER))),
    "train-xe": ("steps", CHECKPOINT_EVERY),
    "train-scst": ("steps", CHECKPOINT_EVERY),
    "train-detector": ("steps", CHECKPOINT_EVERY),
    "train-encoder": ("steps", CHECKPOINT_EVERY),
}
"""Stage -> unit and limit of the work that a kill may cost; other stages start from scratch."""

_EVERY: dict[str, Any] = {"checkpoint_every": CHECKPOINT_EVERY, "epochs": 2}
_SECTIONS = {
    **SECTIONS,
    "train": {**SECTIONS["train"], **_EVERY, "batch_size": 4},
    "scst": {
        **_EVERY,
        **{"batch_size": 4, "samples": 2, "lr": 0.001, "mask": "continued", "max_length": 8},
        "validation_beam_size": 2,
    },
    "detector": {**DETECTOR, **_EVERY, "batch_size": 2},
    "encoder": {
        **_EVERY,
        **{"batch_size": 4, "side": 32, "crop": 0.9},  # so small that images are kept smaller
        **{"trained": 0.1, "min_images": 4},
    },
}

_DAMAGED = 20
_DETECTOR_IDS = {"ids": range(1, 13), "validation_ids": range(31, 35)}
"""Images of detector training, without the damaged one, on which it would fail."""

_ORPHAN_TIMEOUT = 600.0  # a busy machine takes more than a minute to end a JVM
"""Seconds until every process that a killed run started must have ended."""

_EARLIER_RESULT = "0" * 12

_ONE_LINE = 3
"""Exit code of a run whose child was signalled and that ended with an error of one line."""

_SCENES = ("images/000000000003.jpg", "images/000000000039.jpg")
_CAPTIONS = ("preprocess/*/captions.h5", "preprocess/*/vocabulary.json")
REPLACED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("extract", *ENGINE_STAGE), (*_SCENES, "instances.json")),
    "preprocess": ("dataset_coco.json",),
    "train-xe": (*_CAPTIONS, "extract/*/extractor.json"),
    "train-scst": (*_CAPTIONS, "train-xe/*/model.safetensors"),
    "evaluate": (*_CAPTIONS, "train-scst/*/model.safetensors"),
    "train-detector": (*_SCENES, "instances.json"),
    "train-encoder": (*_CAPTIONS, *_SCENES),
}
"""Stage -> inputs that are replaced during its run, below the scenes or the artifacts."""


@dataclass(frozen=True)
class Uninterrupted:
    """An uninterrupted run: digests of its result, its duration, and calls of each point."""

    digests: Digests
    seconds: float
    calls: Counter[str]


@dataclass(frozen=True)
class Verdict:
    """Result of a trial. repeated: one number per kill; problems: empty if the trial passed."""

    kills: int
    replaced: bool
    signalled: bool
    lost: int
    repeated: list[int]
    problems: list[str]


@dataclass
class Workspace:
    """Scenes, configuration, and the results of uninterrupted runs."""

    folder: Path
    uninterrupted: dict[str, Uninterrupted] = field(default_factory=dict)

    @property
    def experiment(self) -> TinyExperiment:
        """Scenes, which no run may change, and the configuration of every run."""
        return TinyExperiment(self.folder)

    @property
    def scenes(self) -> Path:
        """Folder of the images and annotations."""
        return self.experiment.scenes

    @cached_property
    def config(self) -> Config:
        """Configuration of every run."""
        images, instances = self.scenes / "images", self.scenes / "instances.json"
        paths = {
            "detector.images": images,
            "detector.labels": instances,
            **{f"detector.{name}": self.folder / name for name in _DETECTOR_IDS},
        }
        overrides = [override(name, path) for name, path in paths.items()]
        return load_config(self.experiment.config_file, overrides)

    def artifacts(self, trial: str) -> Path:
        """Return the artifacts folder of a trial."""
        return self.folder / trial / "artifacts"

    def make(self, stages: Sequence[str]) -> None:
        """Draw the scenes, damage one image, and run the stages and those they need."""
        run_child(
            lambda: make_experiment(self.folder, count=IMAGES, sections=_SECTIONS), self.folder
        )
        damaged = self.scenes / "images" / f"{_DAMAGED:012d}.jpg"
        damaged.write_bytes(damaged.read_bytes()[:900])
        for name, numbers in _DETECTOR_IDS.items():
            (self.folder / name).write_text("".join(f"{number}\n" for number in numbers))
        plain = [ENGINE_STAGE.get(stage, stage) for stage in stages]
        needed = {name for stage in (*stages, *plain) for name in (*READS[stage], stage)}
        for stage in [name for name in STAGES if name in needed]:
            self.uninterrupted[stage] = self._run_uninterrupted(stage)

    def run(self, stage: str, trial: str, *, force: bool = False) -> bool:
        """Run a stage in this process; return False if its result existed."""
        # at the same time as the other stripe, which a child runs
        other = os.fork() if stage == "stripes" else None
        settings = {"workers": 1, "ray": "auto" if stage == "ray" else None}
        runtime = self.config.runtime.model_copy(update=settings)
        config = self.config.model_copy(update={"runtime": runtime})
        if stage == "train-encoder":  # the other stages read features of a detector
            grid = {"boxes": "grid", "grid_backbone": "efficientnet-lite2"}
            extract = config.extract.model_copy(update=grid)
            config = config.model_copy(update={"extract": extract})
        with Experiment(config, self.artifacts(trial)) as experiment:
            if other is None:
                return experiment.run(ENGINE_STAGE.get(stage, stage), force=force).ran
            experiment.run_stripe(Stripe(int(other == 0), 2))
        if other:
            code = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
            if code:
                os._exit(code) if code > 0 else die()
        return True

    def result(self, stage: str, trial: str) -> Path:
        """Return the path of the stage's result in a trial."""
        stage = ENGINE_STAGE.get(stage, stage)
        results = self.artifacts("uninterrupted") / stage
        finished = [path.parent.name for path in results.glob("*/manifest.json")]
        if len(finished) != 1:
            content = sorted(path.name for path in results.glob("*"))
            raise RuntimeError(f"{len(finished)} uninterrupted results of {stage}: {content}")
        return self.artifacts(trial) / stage / finished[0]

    def prepare(self, stage: str, trial: str, *, finished: bool) -> None:
        """Copy the results that a stage reads, and make an unrelated earlier one of its own."""
        source, copy = self.artifacts("uninterrupted"), self.artifacts(trial)
        for name in READS[stage]:
            shutil.copytree(source / name, copy / name)
        result = self.result(stage, trial)
        own = self.result(stage, "uninterrupted")
        for target in (result.with_name(_EARLIER_RESULT), *([result] if finished else [])):
            shutil.copytree(own, target)

    def _run_uninterrupted(self, stage: str) -> Uninterrupted:
        counted = self.folder / f"{stage}.calls.json"
        trial = "uninterrupted" + f"-{stage}" * (stage in ENGINE_STAGE)
        (self.folder / trial).mkdir(exist_ok=True)

        def run() -> None:
            calls = count_calls(stage)
            if stage == "ray":
                observe_tasks(self.folder / trial / "log")
            self.run(stage, trial)
            counted.write_text(json.dumps(calls))

        end = run_child(run, self.folder)
        calls = Counter(json.loads(counted.read_text()))
        if stage == "ray":  # counted there, not in the tasks, each of which has a part of them
            whole = self.uninterrupted["extract"].calls
            calls = Counter({target: -(-count // 4) for target, count in whole.items()})
        digests = digests_by_child(self.result(stage, "uninterrupted"))
        return Uninterrupted(digests, end.seconds, calls)


@dataclass
class Trial:
    """A stage that is killed in turn by each of `kills`.

    kills: a named fault, or seconds after which the process is killed.
    force: start each killed run with --force over a finished result.
    replace: replace inputs during the first run, at its fault, in place of killing it.
    child: the signal that a worker of Ray gets at the first fault, in place of killing the run.
    sent: SIGKILL, or a signal after which a run ends by itself and loses nothing.
    """

    workspace: Workspace
    name: str
    stage: str
    kills: Sequence[Fault | float]
    force: bool = False
    replace: bool = False
    child: signal.Signals | None = None
    sent: signal.Signals = signal.SIGKILL
    _runs: list[run_log.Run] = field(default_factory=list)
    _groups: list[int] = field(default_factory=list)
    _problems: list[str] = field(default_factory=list)
    _done: int = 0
    """Runs before the last time that a forced run was published or had not started."""

    def run(self) -> Verdict:
        """Kill the stage, let its last run finish, and compare with the uninterrupted run."""
        self.workspace.prepare(self.stage, self.name, finished=self.force)
        untouched = self._foreign_files()
        kills = self._kill()
        self._finish()
        changed = differences(untouched, self._foreign_files())
        self._problems += [f"{line}, which is not this stage's" for line in changed]
        self._problems += _kill_orphans(self._groups)
        repeated = self._repeated()[:kills]
        signalled = self._signalled.exists()
        return Verdict(kills, self.replace, signalled, self._lost(), repeated, self._problems)

    @property
    def folder(self) -> Path:
        """Folder of the trial's artifacts and logs."""
        return self.workspace.folder / self.name

    @property
    def _signalled(self) -> Path:
        return self.folder / "signalled"

    @property
    def _result(self) -> Path:
        return self.workspace.result(self.stage, self.name)

    @property
    def _partials(self) -> tuple[Path, Path]:
        """Folders of unfinished work, without --force and with it."""
        plain = StagePaths(self._result)
        return plain.partial, replace(plain, forced=True).partial

    def _kill(self) -> int:
        """Start and kill runs; return the number of kills, as a run may end before its kill."""
        killed = 0
        for number, kill in enumerate(self.kills):
            replaces = self.replace and number == 0
            if replaces:
                end = self._start_and_restore(kill)
            else:
                stop = (
                    None if self.sent == signal.SIGKILL else partial(signal.raise_signal, self.sent)
                )
                end = self._start(kill, act=stop)
            killed += end.killed
            self._problems += self._damage()
            if self.force and not self._partials[1].exists():
                self._done = len(self._runs)
            if not end.killed and not replaces and end.code != _ONE_LINE:
                self._problems += [f"a run {_format(end)}"] if end.code else []
                break
        return killed

    def _start_and_restore(self, fault: Fault | float | None) -> processes.ProcessExit:
        """Start a run during which inputs are replaced, and restore them after its end."""
        folders = (self.workspace.scenes, self.workspace.artifacts(self.name))
        names = REPLACED[self.stage]
        kept = {path: path.read_bytes() for f in folders for name in names for path in f.glob(name)}

        def replace_inputs() -> None:
            other = (self.workspace.scenes / "images" / f"{7:012d}.jpg").read_bytes()
            for path, content in kept.items():
                half = len(content) // 2
                flipped = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
                path.write_bytes(other if path.suffix == ".jpg" else flipped)

        end = self._start(fault, act=replace_inputs)
        for path, content in kept.items():
            path.write_bytes(content)
        return end

    def _start(
        self, kill: Fault | float | None, *, act: Callable[[], object] | None = None
    ) -> processes.ProcessExit:
        """Start one run, which logs its progress; the last one has no kill and no --force."""
        log = self.folder / f"run-{len(self._runs)}.jsonl"
        force = self.force and kill is not None

        def work() -> None:
            run_log.start_logging(log)
            if self.stage == "ray":
                fault = kill if isinstance(kill, Fault) else None
                observe_tasks(log, fault, self._signalled, self.child)
            elif isinstance(kill, Fault):
                install(kill, act)
            try:
                self.workspace.run(self.stage, self.name, force=force)
            except A2Error as error:
                if not self._signalled.exists() or "\n" in str(error):
                    raise
                os.write(sys.stderr.fileno(), f"{error}\n".encode())
                os._exit(_ONE_LINE)

        after = kill if isinstance(kill, float) else None
        end = processes.run(work, log=self.folder / "log", kill_after=after, sent=self.sent)
        if self.stage == "stripes":  # the other one goes on
            processes.orphans(end.process, timeout=_ORPHAN_TIMEOUT)
        self._runs.append(run_log.read_log(log))
        self._groups.append(end.process)
        return end

    def _finish(self) -> None:
        """Run the stage to its end and check its result."""
        end = self._start(None)
        if end.code:
            self._problems.append(f"the rerun {_format(end)}")
        elif not self._result.exists():
            self._problems.append("the rerun left no result")
        else:
            self._problems += self._damage()
            self._problems += self._forgotten() if self.force else self._leftovers()

    def _damage(self) -> list[str]:
        """Return the differences of a finished result from the uninterrupted one."""
        if not self._result.exists():
            return []
        both = self.workspace.uninterrupted[self.stage].digests, digests_by_child(self._result)
        lines = differences(*both)
        if self.sent == signal.SIGKILL:
            return lines
        # a stop saves a checkpoint of its own, which takes the place of an older one
        return [line for line in lines if not line.startswith("checkpoints/step-")]

    def _forgotten(self) -> list[str]:
        """Return the unfinished work of a forced run that the last run did not resume."""
        # the old result is whole, so no rerun cleans up what was left before the work began
        marks = [self._partials[1] / name for name in ("made_from.json", "manifest.json")]
        return [f"{mark.parent.name} was not resumed" for mark in marks if mark.exists()]

    def _leftovers(self) -> list[str]:
        """List the files beside a finished result that are not a result."""
        kept = {self._result.name, _EARLIER_RESULT}
        beside = {path.name for path in self._result.parent.iterdir()}
        return [f"{name} is left beside the result" for name in sorted(beside - kept)]

    def _lost(self) -> int:
        """Count the acknowledged items that the last run had to make again."""
        *earlier, last = self._runs[self._done :]
        # without earlier runs of a forced trial, the result was whole and no work remained
        return run_log.lost(earlier, last) if earlier else int(last.worked)

    def _repeated(self) -> list[int]:
        """Count what each later run repeated."""
        runs = self._runs[self._done :]
        unit, limit = PROMISED.get(self.stage, ("stages", 1))
        # a training that ended before its first step repeated none
        repeated = [
            0 if unit == "steps" and run.resumed is None else run_log.repeated(runs[:n], run)
            for n, run in enumerate(runs)
            if n
        ]
        if unit == "steps" and self.sent != signal.SIGKILL:
            limit = 0
        if max(repeated, default=0) > limit:
            self._problems.append(f"{max(repeated)} {unit} were repeated, the limit is {limit}")
        return repeated

    def _foreign_files(self) -> Digests:
        """Return digests of all files that the stage must not touch: inputs and other results."""
        artifacts = self.workspace.artifacts(self.name)
        own = tuple(
            self._result.with_name(f"{self._result.name}{ending}") for ending in ("", ".replaced")
        )
        partials = tuple(path.with_name(f"{path.name}.removed") for path in self._partials)
        own = (*own, *self._partials, *partials, StagePaths(self._result, shared=True).lock.parent)
        hashes = tuple(artifacts / f"hashes.sqlite{ending}" for ending in ("", "-journal"))
        scenes = file_digests(self.workspace.scenes)
        return file_digests(artifacts, without=(*own, *hashes)) | scenes


def run_child(work: Callable[[], object], folder: Path) -> processes.ProcessExit:
    """Do work in a forked process; RuntimeError if it fails."""
    end = processes.run(work, log=folder / "log")
    if end.code:
        raise RuntimeError(
            f"an uninterrupted run failed with code {end.code}: see {folder / 'log'}"
        )
    return end


def digests_by_child(directory: Path) -> Digests:
    """Return a result's digests, read by a new process as by a user's next command."""
    answer = directory.parents[2] / f"digests-of-{directory.parent.name}.json"
    run_child(
        lambda: answer.write_text(json.dumps(result_digests(directory))), directory.parents[2]
    )
    return dict(json.loads(answer.read_text()))


def _format(end: processes.ProcessExit) -> str:
    return f"ended with code {end.code} after {end.seconds:.0f} s"


def _kill_orphans(groups: Sequence[int]) -> list[str]:
    problems = []
    for group in groups:
        for process in processes.orphans(group, timeout=_ORPHAN_TIMEOUT):
            problems.append(f"process {process} still ran {_ORPHAN_TIMEOUT:.0f} s after its run")
            os.kill(process, signal.SIGKILL)
    return problems


@cache  # a worker of Ray does several tasks
def _prepare_task(
    log: Path, fault: Fault | None, signalled: Path | None, sent: signal.Signals | None
) -> None:
    """Log the tasks of this worker, and signal the first worker that reaches the fault."""
    scale_down()
    run_log.start_logging(log)

    def end() -> None:
        assert signalled is not None and sent is not None
        with suppress(FileExistsError):
            signalled.touch(exist_ok=False)
            os.kill(os.getpid(), sent)

    if fault is not None:
        install(fault, end)


def observe_tasks(
    log: Path,
    fault: Fault | None = None,
    signalled: Path | None = None,
    sent: signal.Signals | None = None,
) -> None:
    """Prepare the workers to which Ray gives the shards."""
    fill = extract_images._fill_on_node

    def observed(*arguments: Any) -> None:
        _prepare_task(log, fault, signalled, sent)
        fill(*arguments)

    extract_images._fill_on_node = observed  # type: ignore[assignment]


def scale_down() -> None:
    """Lower the images per commit and batch, so that a small store has many; use one thread.

    Forked processes inherit all of it. A thread pool of torch would not survive a fork.
    """
    defaults = FeatureWriter.__init__.__kwdefaults__
    if defaults is None or "commit_every" not in defaults or not hasattr(extraction, "_BATCH_SIZE"):
        raise RuntimeError("the limits of extraction were renamed; update scale_down")
    defaults["commit_every"] = COMMIT_EVERY
    extraction._BATCH_SIZE = TOGETHER
    images.SHARD_SIZE = SHARD
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
