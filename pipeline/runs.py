"""Runs in an artifacts folder: trainings with their evaluations.

Only manifests, metrics.json and the names in config.yaml are read, so that hundreds of results take
a second or two.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.paths import size_of
from a2cap.data.files.sealed_folder import (
    KEY_LENGTH,
    MANIFEST,
    MadeFrom,
    digest_of,
    read_manifest,
    read_output,
)
from a2cap.data.files.yaml_file import parse_yaml
from a2cap.model.captioners.kinds import KINDS
from a2cap.pipeline.configuration import Config
from a2cap.pipeline.engine.artifact_names import (
    CAPTIONER,
    EVALUATE,
    FURTHER_MODEL,
    METRICS,
    RESOLVED_CONFIG,
    TRAIN_DETECTOR,
    TRAIN_ENCODER,
    TRAIN_SCST,
    TRAIN_XE,
)
from a2cap.pipeline.engine.explain import finished_results, leaves
from a2cap.pipeline.engine.lock import is_locked
from a2cap.pipeline.engine.prepared_stage import StagePaths
from a2cap.pipeline.engine.run import unfinished
from a2cap.pipeline.metrics.metric_table import MAIN
from a2cap.pipeline.training.learning_curve import LearningCurve
from a2cap.pipeline.training.summary import TrainingSummary
from a2cap.pipeline.weights.captioners import bundled_folder

logger = logging.getLogger(__name__)

LATEST = "latest"
_TRAININGS = (TRAIN_XE, TRAIN_SCST, TRAIN_DETECTOR, TRAIN_ENCODER)
_LISTED = 20  # candidates in a message
_ENSEMBLE = "evaluate.ensemble"
_UNREADABLE = "unreadable"

Part = Literal["training", "evaluation"]
_FILES: Mapping[Part, str] = {"training": CAPTIONER[0], "evaluation": METRICS}


@dataclass(frozen=True)
class RunResult:
    """A training with one of its evaluations; either may be missing.

    name: `runtime.name`, "" for none.
    state: done; running or unfinished for a training that has no result yet; damaged if
        metrics.json differs from its manifest; unreadable without a manifest that can be read.
    date: seconds since the epoch, of the last result.
    fields: all settings by their dotted names, "phase", "trained on", and "data of STAGE", the
        digest of what a stage reads from outside.
    changed: names of the settings that differ from the default.
    scores: content of metrics.json.
    size: bytes of both folders.
    """

    name: str
    state: str
    date: float
    training: Path | None
    evaluation: Path | None
    fields: Mapping[str, object]
    changed: Sequence[str]
    scores: Mapping[str, Any]
    size: int

    @property
    def settings(self) -> dict[str, object]:
        """The settings that differ from the default, by their dotted names."""
        return {name: self.fields[name] for name in self.changed}

    @property
    def score(self) -> float | None:
        """CIDEr of the evaluation, None without it."""
        return cast("float | None", self.scores.get("metrics", {}).get(MAIN))

    def format(self, name: str) -> str:
        """Return a setting as text, "–" for a run without it."""
        value = self.fields.get(name)
        text = value if isinstance(value, str) else json.dumps(value)
        return f"{name} {text if name in self.fields else '–'}"

    @property
    def curve(self) -> LearningCurve | None:
        """The figures of the training's epochs, None without any."""
        return LearningCurve.read(self.training) if self.training else None

    @property
    def folders(self) -> list[Path]:
        """The evaluation's folder and the training's, without a missing one."""
        return [folder for folder in (self.evaluation, self.training) if folder]

    @property
    def folder(self) -> Path:
        """The evaluation's folder, or else the training's."""
        return self.folders[0]

    def is_named(self, name: str) -> bool:
        """Return True for the run's name, a pattern of it with wildcards, or the start of a key."""
        return fnmatchcase(self.name, name) or any(
            path.name.startswith(name) for path in self.folders
        )

    @property
    def title(self) -> str:
        """Name and start of the key, or the key."""
        return _title(self.name, self.folder)


@dataclass(frozen=True)
class _Result:
    """A result of a stage, or a training without one."""

    folder: Path
    made: MadeFrom
    date: float
    digest: str | None = None


def read_runs(artifacts: Path) -> list[RunResult]:
    """Read the evaluations of an artifacts folder and the trainings without one, newest first."""
    results = list(_finished(artifacts))
    # the newest first: of equal results, the newest counts
    by_digest = {result.digest: result for result in reversed(results)}
    runs, evaluated = [], set()
    for result in results:
        if result.made.stage == EVALUATE:
            model = by_digest.get(result.made.inputs.get("model"))
            evaluated.add(model and model.folder)
            runs.append(_run(model, result, by_digest))
    for result in (*results, *_unfinished(artifacts)):
        if result.made.stage in _TRAININGS and result.folder not in evaluated:
            runs.append(_run(result, None, by_digest))
    runs += _unreadable(artifacts)
    return sorted(runs, key=lambda run: (-run.date, run.folder))


def find_result(place: Path, part: Part) -> Path:
    """Return the folder of the training or the evaluation that a user names.

    place: the folder, a folder above it, or a path that ends in a name, the start of a key or
    "latest", in the folder `artifacts` unless it names another one. Without any runs there, returns
    `place` unchanged, but for "latest". Raises InputError, which lists the candidates, unless
    exactly one fits.
    """
    if (place / _FILES[part]).is_file():
        return place
    above = place.is_dir() and not (place / MANIFEST).is_file()
    folder = place if above else place.parent if place.parent != Path() else Path("artifacts")
    in_stage = folder.name in (*_TRAININGS, EVALUATE)
    runs = [
        run
        for run in read_runs(folder.parent if in_stage else folder)
        if run.state != _UNREADABLE
        and (output := getattr(run, part))
        and (output / _FILES[part]).is_file()
    ]
    if not runs:
        if place.name == LATEST and not place.exists():
            raise InputError(
                f'no {part} in {str(folder)!r}: none is the latest; make one with "a2 run", or '
                "name a folder"
            )
        return place
    name = folder.name if above else place.name
    if above:
        fitting = [
            run for run in runs if not in_stage or folder in [path.parent for path in run.folders]
        ]
    elif name == LATEST:
        fitting = runs[:1]
    else:
        fitting = [run for run in runs if run.is_named(name)]
    folders = list(dict.fromkeys(getattr(run, part) for run in fitting))
    if len(folders) == 1:
        return Path(folders[0])
    count = f"{len(folders)} {part}s fit" if folders else f"no {part} fits"
    lines = _candidates(fitting or runs, part)
    raise InputError(f"{count} {str(place)!r}; name the key of one:{lines}")


def differing_fields(runs: Sequence[RunResult]) -> list[str]:
    """Return the names of the settings in which runs differ, those that any has changed first.

    A setting of a stage that only some runs have differs if one of them has changed it.
    """
    names = dict.fromkeys(name for run in runs for name in (*run.changed, *run.fields))
    differing = []
    for name in names:
        values = {json.dumps(run.fields[name]) for run in runs if name in run.fields}
        everywhere = all(name in run.fields for run in runs)
        if len(values) > 1 or (not everywhere and any(name in run.changed for run in runs)):
            differing.append(name)
    return differing


def curve_of(evaluation: Path) -> LearningCurve | None:
    """Return the learning curve of the captioner that was evaluated, None if it is not found."""
    folder = evaluation.resolve()
    if not (folder / MANIFEST).is_file():
        return None
    return next(
        (run.curve for run in read_runs(folder.parents[1]) if run.evaluation == folder), None
    )


def find_trainings(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return the trainings that a user names, each a bundled one or by `find_result`."""
    return tuple(bundled_folder(path) or find_result(path, "training") for path in paths)


def title_of(folder: Path) -> str:
    """Return the title of a result; the name of another folder."""
    return _title(_name(folder), folder.resolve())


def _title(name: str, folder: Path) -> str:
    return f"{name} {folder.name[:6]}" if name else folder.name


def _candidates(runs: Iterable[RunResult], part: Part) -> str:
    runs = [*{getattr(run, part): run for run in runs}.values()]
    differing = differing_fields(runs)
    lines = []
    for run in runs:
        score = [] if run.score is None else [f"{MAIN} {run.score:.3f}"]
        parts = [run.name, ", ".join([*score, *map(run.format, differing)])]
        lines.append(f"\n  {getattr(run, part).name}  {'  '.join(filter(None, parts))}".rstrip())
    more = [f'\n  and {len(lines) - _LISTED} more; see "a2 runs"'] if len(lines) > _LISTED else []
    return "".join([*lines[:_LISTED], *more])


def _finished(artifacts: Path) -> Iterator[_Result]:
    for stage in sorted(artifacts.glob("*/")):
        for folder, manifest in finished_results(stage).items():
            yield _Result(folder, manifest.origin, manifest.finished, manifest.digest)


def _unfinished(artifacts: Path) -> Iterator[_Result]:
    for stage in _TRAININGS:
        for folder in sorted((artifacts / stage).glob("*.partial")):
            with suppress(A2Error, OSError):  # a running training may end at any moment
                if made := unfinished(folder):
                    yield _Result(folder, made, folder.stat().st_mtime)


def _unreadable(artifacts: Path) -> Iterator[RunResult]:
    """Yield the trainings and evaluations whose manifest cannot be read, with a warning."""
    for stage in (EVALUATE, *_TRAININGS):
        for path in sorted((artifacts / stage).glob(f"*/{MANIFEST}")):
            folder = path.parent
            try:
                read_manifest(folder)
            except A2Error as error:
                if folder.suffix:  # .partial and .removed are no results
                    continue
                logger.warning("%s", error)
                training, evaluation = (None, folder) if stage == EVALUATE else (folder, None)
                date = path.stat().st_mtime
                yield RunResult(
                    "", _UNREADABLE, date, training, evaluation, {}, (), {}, size_of(folder)
                )


def _run(
    training: _Result | None, evaluation: _Result | None, by_digest: Mapping[str | None, _Result]
) -> RunResult:
    last = cast("_Result", evaluation or training)
    folders = [result.folder for result in (evaluation, training) if result]
    sections: dict[str, dict[str, object]] = {}
    data: dict[str, object] = {}
    for made in _sources(last.made, by_digest):
        for section, values in made.fields.items():
            if isinstance(values, Mapping):
                sections.setdefault(section, {}).update(values)
        if read := {n: d for n, d in made.inputs.items() if d not in by_digest}:
            data[f"data of {made.stage}"] = digest_of(read)[:KEY_LENGTH]
    if training:
        data["phase"] = training.made.stage
        if summary := TrainingSummary.read(training.folder):
            data["trained on"] = summary.data_text
    fields, changed = {**dict(leaves(sections)), **data}, _changed(sections)
    if further := sum(name.startswith(FURTHER_MODEL) for name in last.made.inputs):
        fields[_ENSEMBLE] = f"of {further + 1}"
        changed.append(_ENSEMBLE)
    state, scores = "done", {}
    if last.digest is None:
        key = last.folder.name.partition(".")[0]
        lock = StagePaths(last.folder.with_name(key), shared=True).lock
        state = "running" if is_locked(lock) else "unfinished"
    if evaluation:
        try:
            scores = read_output(evaluation.folder, METRICS)
        except A2Error as error:  # a flipped digit would be shown as the score
            logger.warning("%s", error)
            state = "damaged"
    return RunResult(
        name=next(filter(None, map(_name, folders)), ""),
        state=state,
        date=last.date,
        training=training.folder if training else None,
        evaluation=evaluation.folder if evaluation else None,
        fields=fields,
        changed=changed,
        scores=scores,
        size=sum(map(size_of, folders)),
    )


def _sources(made: MadeFrom, by_digest: Mapping[str | None, _Result]) -> Iterator[MadeFrom]:
    """Yield the pre-images of all results that one was made from, and at last its own."""
    for digest in made.inputs.values():
        if digest in by_digest:
            yield from _sources(by_digest[digest].made, by_digest)
    yield made


def _changed(sections: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Return the names of the settings that are not the default, the captioner's first."""
    default = Config().model_dump(mode="json")
    kind = str(sections.get("model", {}).get("kind", Config().model.kind))
    # a kind or section of a newer version has no defaults here
    model = KINDS[kind][0](kind=kind).model_dump(mode="json") if kind in KINDS else {}
    # the kind itself differs from the default kind
    usual = {"model": model | {"kind": Config().model.kind}} | {
        name: default.get(name, {}) for name in sections if name != "model"
    }
    values = dict(leaves(sections))
    return [name for name, value in leaves(usual) if name in values and values[name] != value]


def _name(folder: Path) -> str:
    """Return `runtime.name` in a result's configuration."""
    with suppress(OSError, ValueError, yaml.YAMLError):
        text = (folder / RESOLVED_CONFIG).read_text(encoding="utf-8")
        # the last section; the others are a hundred times slower to parse
        runtime = parse_yaml(text.rpartition("\nruntime:\n")[2])
        if isinstance(runtime, dict) and runtime.get("name"):
            return str(runtime["name"])
    return ""
