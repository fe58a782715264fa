"""Checks before a run: everything that keeps stages from running, before a model is loaded.

Only certain failures are rejected: a feature store is estimated at its minimum size, and the files
of an unfinished run count as free space.
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from a2cap.data.annotations.read import check_skip_limit
from a2cap.data.errors import A2Error, ConfigError, InputError
from a2cap.data.files.paths import size_of
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.data.sources.open_source import image_source, open_source, require_image_folder
from a2cap.pipeline.config import Config
from a2cap.pipeline.engine.prepared_stage import PreparedStage, StagePaths
from a2cap.pipeline.engine.status import Status
from a2cap.pipeline.runtime.memory import available_memory
from a2cap.pipeline.stages.input_files import ExperimentFiles

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

Check = Callable[[], str]
"""Return what was found, or raise A2Error with a remedy."""


class UnknownRequirement(Exception):
    """A requirement that cannot be computed before another problem is fixed."""


@dataclass(frozen=True)
class Checked:
    """A checked requirement of a stage.

    state: "ok", "problem", or "unknown" if another problem has to be fixed first.
    found: what was found, or the text of the problem, which ends in its remedy.
    """

    stage: str
    need: str
    state: str
    found: str
    problem: A2Error | None = None


class CheckedStage(Protocol):
    """The checks of a stage."""

    def checks(self, plan: "Plan") -> dict[str, Check]:
        """Return what must hold whenever a command needs the stage, by need."""

    def work_checks(self, plan: "Plan") -> dict[str, Check]:
        """Return what must hold if the stage has to run, by need."""


class Stages(Protocol):
    """The stages of an experiment, and their results as far as they exist."""

    config: Config
    files: ExperimentFiles

    def declared(self, name: str) -> CheckedStage:
        """Return the declaration of a stage."""

    def stage(self, name: str) -> PreparedStage:
        """Return a stage with its inputs; raise A2Error if it cannot run yet."""

    def status(self, name: str) -> Status:
        """Return the status of a stage."""

    def folder_of(self, stage: str) -> Path | None:
        """Return the folder of a stage's result, None if it does not exist."""


@dataclass
class Plan:
    """A run of stages that is about to begin.

    force: run them although their results exist; output: path of the result, if it is not in the
    artifacts folder.
    """

    stages: Stages
    force: bool = False
    output: Path | None = None
    _planned: dict[str, int] = field(default_factory=dict)
    _pending: dict[str, bool] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """Configuration of the experiment."""
        return self.stages.config

    @property
    def files(self) -> ExperimentFiles:
        """Files of the experiment."""
        return self.stages.files

    def is_pending(self, stage: str) -> bool:
        """Return True if the stage has to run, or if that is not known yet."""
        if self.force:
            return True
        if self.output is not None:
            return not self.output.exists()
        if not any((self.files.artifacts / stage).glob("*/")):
            return True  # known without the digests of all images, which can take minutes
        if stage not in self._pending:
            try:
                self._pending[stage] = self.stages.status(stage).state != "done"
            except A2Error:  # reported by a check of the stage
                self._pending[stage] = True
        return self._pending[stage]

    def images(self) -> str:
        """Check that the folder exists and that no more images are missing than may be skipped."""
        if self.config.data.features is not None and self.config.data.images is None:
            return "none: the report shows no images"
        source = image_source(self.config.data.images)
        if source is not None:
            open_source(source)  # finds missing files; to list those inside takes long
            return f"those of {source}"
        images = self.files.images
        # a wrong folder deserves another message than eleven bad images of one that is right
        missing = [name for name in sorted(images) if images[name] is None]
        if len(missing) == len(images):
            folder = str(require_image_folder(self.config.data.images))
            raise InputError(
                f"none of the {len(images):,} images has a file in {folder!r}; check data.images"
            )
        skipped = [SkippedItem(name, "image file not found") for name in missing]
        check_skip_limit(skipped, len(images), "images")
        return f"{len(images):,}, {len(missing):,} of them missing"

    def device(self) -> str:
        """Check that torch has the device."""
        return str(self._prepare_device())

    def memory(self, needed: int, what: str, remedy: str) -> str:
        """Check that a model fits into the device's free memory."""
        import torch

        has_own = self.torch_device.type == "cuda"  # an Apple GPU shares the machine's memory
        available = torch.cuda.mem_get_info(self.torch_device)[0] if has_own else available_memory()
        if available is None:
            return f"{what} takes about {gigabytes(needed)}; the system hides its free memory"
        if needed > available:
            raise A2Error(
                f"memory too small for {what}: about {gigabytes(needed)} needed, "
                f"{gigabytes(available)} free; end other programs, or {remedy}"
            )
        return f"{what} takes about {gigabytes(needed)}, {gigabytes(available)} free"

    @cached_property
    def torch_device(self) -> "torch.device":
        """The device; UnknownRequirement if torch does not have it."""
        return known(self._prepare_device)

    def _prepare_device(self) -> "torch.device":
        from a2cap.pipeline.runtime.device import prepare_device

        return prepare_device(self.config.runtime)

    def disk(self, stage: str, needed: int, what: str) -> str:
        """Check that the output fits on the disk beside that of the stages before it."""
        free = shutil.disk_usage(self.folder(stage)).free - sum(self._planned.values())
        if needed > free:  # only then, because the key may need the digests of all images
            for name in (stage, *self._planned):
                free += self._unfinished_bytes(name)
        if self.is_pending(stage):
            self._planned[stage] = needed
        if needed > free:
            raise A2Error(
                f"disk too small for {what}: at least {gigabytes(needed)} needed, "
                f"{gigabytes(max(free, 0))} free after the earlier stages; free disk space"
            )
        return f"{what} take at least {gigabytes(needed)}, {gigabytes(free)} free"

    def _unfinished_bytes(self, stage: str) -> int:
        """Return the bytes that an unfinished run of a stage has written."""
        try:
            paths = (
                StagePaths(self.output)
                if self.output
                else StagePaths.in_artifacts(self.files.artifacts, self.stages.stage(stage))
            )
        except A2Error:
            return 0  # its key is not known yet, so no run of it can be unfinished
        # a run with --force resumes its own work and deletes the other
        return sum(size_of(one.partial) for one in (paths, replace(paths, forced=True)))

    def folder(self, stage: str) -> Path:
        """Return the nearest existing folder above a stage's result."""
        result = self.files.artifacts / stage / "key"
        path = result if self.output is None else self.output
        return next(folder for folder in path.absolute().parents if folder.is_dir())

    def writable_folder(self, stage: str) -> str:
        """Check that a file can be created where the result will be."""
        folder = self.folder(stage)
        # created, because permissions do not show a read-only mount, nor stop root
        try:
            with tempfile.TemporaryFile(dir=folder):
                return str(folder)
        except OSError as error:
            raise A2Error(
                f"cannot write in {str(folder)!r} ({error.strerror}); "
                "fix its permissions, or name another folder"
            ) from error


def check_stages(
    stages: Stages, names: Sequence[str], *, force: bool = False, output: Path | None = None
) -> list[Checked]:
    """Check every requirement of these stages, in the order in which they run."""
    plan = Plan(stages, force=force, output=output)
    found = []
    for name in names:
        stage = stages.declared(name)
        found += [_checked(name, need, check) for need, check in stage.checks(plan).items()]
        is_pending = plan.is_pending(name)
        for need, check in stage.work_checks(plan).items():
            found.append(
                _checked(name, need, check)
                if is_pending
                else Checked(name, need, "ok", "the result exists")
            )
    return found


def require_runnable(
    stages: Stages, names: Sequence[str], *, force: bool = False, output: Path | None = None
) -> None:
    """Raise everything that keeps the stages from running as one error.

    A single problem is raised as it is. Several are one ConfigError if all are ConfigErrors, else
    one A2Error.
    """
    checks = check_stages(stages, names, force=force, output=output)
    # keyed by text, because several stages have the same problem
    problems = {str(check.problem): check.problem for check in checks if check.problem}
    if len(problems) == 1:
        raise next(iter(problems.values()))
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        text = f"{len(problems)} problems, nothing was started:{lines}"
        all_config = all(isinstance(problem, ConfigError) for problem in problems.values())
        raise ConfigError(text) if all_config else A2Error(text)


def _checked(stage: str, need: str, check: Check) -> Checked:
    """Return the outcome of a check."""
    try:
        return Checked(stage, need, "ok", check())
    except UnknownRequirement as error:
        return Checked(stage, need, "unknown", str(error))
    except A2Error as error:
        return Checked(stage, need, "problem", str(error), error)
    except OSError as error:
        problem = f"{error.strerror}: {str(error.filename)!r}; check the path and its permissions"
        return Checked(stage, need, "problem", problem, InputError(problem))


def known(find: Callable[[], T]) -> T:
    """Call `find`; raise UnknownRequirement for a problem that another check reports."""
    try:
        return find()
    except A2Error as error:
        raise UnknownRequirement("unknown until the other problems are fixed") from error


def gigabytes(count: int) -> str:
    """Format bytes."""
    return f"{count / 1e9:.1f} GB"
