"""Runs in an artifacts folder: trainings with their evaluations, under labels for people.

Only manifests, metrics.json and the names in config.yaml are read, so that hundreds of results take
a second or two.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from a2cap.data.errors import A2Error, InputError
from a2cap.data.files.json_file import read_json
from a2cap.data.files.paths import size_of
from a2cap.data.files.yaml_file import parse_yaml
from a2cap.model.config import MODEL_KINDS
from a2cap.pipeline.config import Config
from a2cap.pipeline.engine.artifacts import (
    CAPTIONER,
    EVALUATE,
    FURTHER_MODEL,
    MANIFEST,
    METRICS,
    RESOLVED_CONFIG,
    TRAIN_DETECTOR,
    TRAIN_SCST,
    TRAIN_XE,
)
from a2cap.pipeline.engine.explain import RENAMED_FIELDS, leaves
from a2cap.pipeline.engine.key import PreImage
from a2cap.pipeline.engine.lock import is_locked
from a2cap.pipeline.engine.manifest import read_manifest
from a2cap.pipeline.engine.run import unfinished
from a2cap.pipeline.engine.stage import StagePaths
from a2cap.pipeline.weights.captioners import BUNDLED

LATEST = "latest"
_TRAININGS = (TRAIN_XE, TRAIN_SCST, TRAIN_DETECTOR)
_IN_LABEL = 4  # settings; with more a label is unreadable
_LISTED = 20  # candidates in a message
_PHASE, _ENSEMBLE = "phase", "evaluate.ensemble"

Part = Literal["training", "evaluation"]
_FILES: Mapping[Part, str] = {"training": CAPTIONER[0], "evaluation": METRICS}


@dataclass(frozen=True)
class RunResult:
    """A training with one of its evaluations; either may be missing.

    label: unique in the artifacts folder. state: done, or running or unfinished for a training that
    has no result yet. date: seconds since the epoch, of the last result. values: every setting that
    the results depend on, by its dotted name; settings: those that differ from the default. scores:
    content of metrics.json. size: bytes of both folders.
    """

    label: str
    state: str
    date: float
    training: Path | None
    evaluation: Path | None
    values: Mapping[str, object]
    settings: Mapping[str, object]
    scores: Mapping[str, Any]
    size: int

    @property
    def folder(self) -> Path:
        """The evaluation's folder, or else the training's."""
        return cast("Path", self.evaluation or self.training)


@dataclass(frozen=True)
class _Result:
    """A result of a stage, or a training without one."""

    folder: Path
    made: PreImage
    date: float
    digest: str | None = None


def read_runs(artifacts: Path) -> list[RunResult]:
    """Read the evaluations of an artifacts folder and the trainings without one, newest first."""
    results = list(_finished(artifacts))
    by_digest = {result.digest: result for result in results}
    runs, evaluated = [], set()
    for result in results:
        if result.made.stage == EVALUATE:
            model = by_digest.get(result.made.inputs.get("model"))
            evaluated.add(model and model.folder)
            runs.append(_run(model, result, by_digest))
    for result in (*results, *_unfinished(artifacts)):
        if result.made.stage in _TRAININGS and result.folder not in evaluated:
            runs.append(_run(result, None, by_digest))
    return _labelled(sorted(runs, key=lambda run: (-run.date, run.folder)))


def find_result(named: Path, part: Part) -> Path:
    """Return the folder of the training or the evaluation that a user names.

    named: the folder, a folder above it, or a path that ends in a label or parts of it, the start
    of a key or "latest", in the folder `artifacts` unless it names another one. Without any runs
    there, returns `named` unchanged. Raises InputError, which lists the candidates, unless exactly
    one fits.
    """
    if (named / _FILES[part]).is_file():
        return named
    above = named.is_dir() and not (named / MANIFEST).is_file()
    folder = named if above else named.parent if named.parent != Path() else Path("artifacts")
    in_stage = folder.name in (*_TRAININGS, EVALUATE)
    runs = [
        run
        for run in read_runs(folder.parent if in_stage else folder)
        if (found := getattr(run, part)) and (found / _FILES[part]).is_file()
    ]
    if not runs:
        return named
    name = folder.name if above else named.name
    if above:
        fitting = [run for run in runs if not in_stage or folder in _parents(run)]
    elif name == LATEST:
        fitting = runs[:1]
    else:
        named_so = [run for run in runs if run.label == name]
        fitting = named_so or [run for run in runs if _fits(run, name)]
    found = list(dict.fromkeys(getattr(run, part) for run in fitting))
    if len(found) == 1:
        return Path(found[0])
    count = f"{len(found)} {part}s fit" if found else f"no {part} fits"
    lines = _candidates(fitting or runs, part)
    raise InputError(f"{count} {str(named)!r}; name the label or the key of one:{lines}")


def find_trainings(named: Iterable[Path]) -> tuple[Path, ...]:
    """Return the trainings that a user names, each a bundled one or by `find_result`."""
    return tuple(
        BUNDLED[str(path)]
        if str(path) in BUNDLED and not path.is_dir()
        else find_result(path, "training")
        for path in named
    )


def label_of(folder: Path) -> str:
    """Return the label of a training or an evaluation; of another folder its name."""
    own = folder.resolve()
    runs = read_runs(own.parent.parent) if own.parent.name in (*_TRAININGS, EVALUATE) else []
    return next((run.label for run in runs if own in _folders(run)), own.name)


def describe_setting(field: str, value: object) -> str:
    """Format a setting: `train.seed 5`."""
    return f"{field} {value if isinstance(value, str) else json.dumps(value)}"


def _fits(run: RunResult, name: str) -> bool:
    """Return True for parts of the run's label, in any order, and for the start of a key."""
    is_part = set(name.split(", ")) <= set(run.label.split(", "))
    return is_part or any(folder.name.startswith(name) for folder in _folders(run))


def _folders(run: RunResult) -> list[Path]:
    return [folder for folder in (run.evaluation, run.training) if folder]


def _parents(run: RunResult) -> list[Path]:
    return [folder.parent for folder in _folders(run)]


def _candidates(runs: Iterable[RunResult], part: Part) -> str:
    labels: dict[Path, str] = {}
    for run in runs:
        labels.setdefault(getattr(run, part), run.label)
    lines = [f"\n  {path.name}  {label}" for path, label in labels.items()]
    more = [f'\n  and {len(lines) - _LISTED} more; see "a2 runs"'] if len(lines) > _LISTED else []
    return "".join([*lines[:_LISTED], *more])


def _finished(artifacts: Path) -> Iterator[_Result]:
    for path in sorted(artifacts.glob(f"*/*/{MANIFEST}")):
        if path.parent.suffix:  # .partial, .replaced and .removed are not results
            continue
        with suppress(A2Error):  # "a2 verify" reports damaged results
            manifest = read_manifest(path.parent)
            yield _Result(path.parent, manifest.pre_image, manifest.finished, manifest.digest)


def _unfinished(artifacts: Path) -> Iterator[_Result]:
    for stage in _TRAININGS:
        for folder in sorted((artifacts / stage).glob("*.partial")):
            with suppress(A2Error, OSError):  # a running training may end at any moment
                if made := unfinished(folder):
                    yield _Result(folder, made, folder.stat().st_mtime)


def _run(
    training: _Result | None, evaluation: _Result | None, by_digest: Mapping[str | None, _Result]
) -> RunResult:
    last = cast("_Result", evaluation or training)
    folders = [result.folder for result in (evaluation, training) if result]
    sections: dict[str, dict[str, object]] = {}
    for made in _sources(last.made, by_digest):
        for section, fields in made.params.items():
            sections.setdefault(section, {}).update(cast("dict[str, object]", fields))
    values, settings = _settings(sections)
    if further := sum(name.startswith(FURTHER_MODEL) for name in last.made.inputs):
        values[_ENSEMBLE] = settings[_ENSEMBLE] = f"of {further + 1}"
    state, scores = "done", {}
    if last.digest is None:
        key = last.folder.name.partition(".")[0]
        lock = StagePaths.of_result(last.folder.with_name(key)).lock
        state = "running" if is_locked(lock) else "unfinished"
    if evaluation:
        with suppress(A2Error):
            scores = cast("dict[str, Any]", read_json(evaluation.folder / METRICS))
    return RunResult(
        label=next(filter(None, map(_name, folders)), ""),  # `_labelled` completes it
        state=state,
        date=last.date,
        training=training.folder if training else None,
        evaluation=evaluation.folder if evaluation else None,
        values=values,
        settings=settings,
        scores=scores,
        size=sum(map(size_of, folders)),
    )


def _sources(made: PreImage, by_digest: Mapping[str | None, _Result]) -> Iterator[PreImage]:
    """Yield the pre-images of all results that one was made from, and at last its own."""
    for digest in made.inputs.values():
        if digest in by_digest:
            yield from _sources(by_digest[digest].made, by_digest)
    yield made


def _settings(
    sections: Mapping[str, Mapping[str, object]],
) -> tuple[dict[str, object], dict[str, object]]:
    """Return all values, those of training first, and the values that are not the default."""
    kind = str(sections.get("model", {}).get("kind", Config().model.kind))
    default = Config().model_dump(mode="json", by_alias=True)
    model = {
        **MODEL_KINDS[kind]().model_dump(mode="json", by_alias=True),
        "kind": Config().model.kind,
    }
    found = dict(leaves(sections))
    values: dict[str, object] = {_PHASE: "scst" if "scst" in sections else "xe"}
    settings = {}
    first = {"model": model, **{name: default[name] for name in ("train", "scst", "evaluate")}}
    for path, usual in leaves(first | default | first):
        if path.partition(".")[0] in sections:
            field, value = RENAMED_FIELDS.get(path, path), found.get(path, usual)
            values[field] = value
            if value != usual:
                settings[field] = value
    return values, settings


def _name(folder: Path) -> str:
    """Return `runtime.name` in a result's configuration."""
    with suppress(OSError, yaml.YAMLError):
        text = (folder / RESOLVED_CONFIG).read_text(encoding="utf-8")
        # the last section; the others are a hundred times slower to parse
        runtime = parse_yaml(text.rpartition("\nruntime:\n")[2])
        if isinstance(runtime, dict) and runtime.get("name"):
            return str(runtime["name"])
    return ""


def _labelled(runs: Sequence[RunResult]) -> list[RunResult]:
    """Complete the names to labels: with the settings that differ between runs of one name.

    Runs that no setting distinguishes get the start of their key.
    """
    of_name: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        for field, value in run.values.items():
            of_name.setdefault(run.label, {}).setdefault(field, set()).add(repr(value))
    labels = []
    for run in runs:
        varying = [field for field in run.values if len(of_name[run.label][field]) > 1]
        chosen = varying if varying or run.label else list(run.settings)
        labels.append(", ".join(filter(None, [run.label, *_short(run, chosen)])) or "default")
    return [
        replace(run, label=f"{label} ({run.folder.name[:6]})" if labels.count(label) > 1 else label)
        for run, label in zip(runs, labels, strict=True)
    ]


def _short(run: RunResult, fields: Sequence[str]) -> list[str]:
    """Format the values of fields without their section, where that is clear."""
    last = [field.rpartition(".")[2] for field in fields]
    texts = [
        describe_setting(name if last.count(name) == 1 else field, run.values[field])
        for field, name in zip(fields, last, strict=True)
    ]
    return [*texts[:_IN_LABEL], *(["…"] if len(texts) > _IN_LABEL else [])]
