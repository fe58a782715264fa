"""The declaration of a stage: its key, its inputs, its checks, its outputs and its work."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Input, Inputs
from a2cap.pipeline.engine.prepared_stage import PreparedStage
from a2cap.pipeline.stages.checks import Check
from a2cap.pipeline.stages.input_files import ExperimentFiles

if TYPE_CHECKING:
    from a2cap.pipeline.stages.plan import Plan


class Stage(ABC):
    """A stage with the sections of the configuration that it reads as attributes, and no others.

    A setting outside `fields` and outside the inputs must not change the result: it is in no key.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    """Raised by the author of a change to the stage's output."""
    is_distributed: ClassVar[bool] = False
    """True if all ranks of torchrun enter the work; the others have nothing to do."""

    @property
    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """The configuration fields in the key, by section."""

    @property
    def reads(self) -> Mapping[str, str]:
        """Input name -> the stage whose result it is."""
        return {}

    def files(self, files: ExperimentFiles) -> dict[str, Input]:
        """Return the inputs that are files."""
        return {}

    @abstractmethod
    def outputs(self, inputs: Mapping[str, Input]) -> tuple[str, ...]:
        """Return the files and sealed folders that the work leaves."""

    def checks(self, plan: "Plan") -> dict[str, Check]:
        """Return what must hold whenever a command needs the stage, by need."""
        return {}

    def work_checks(self, plan: "Plan") -> dict[str, Check]:
        """Return what must hold if the stage has to run, by need."""
        return {"folder": lambda: plan.writable_folder(self.name)}

    def remarks(self, result: Path) -> list[str]:
        """Return what `a2 status` adds to a result, or to the work in a partial directory."""
        return []

    @abstractmethod
    def work(self, folder: Path, inputs: Inputs, events: EventLog) -> Sequence[SkippedItem]:
        """Fill the folder, resuming the work found there; return the skipped items."""

    def prepare(self, inputs: Mapping[str, Input], results: Path) -> PreparedStage:
        """Return the stage with its inputs, ready to run; results: folder of its results."""
        return PreparedStage(
            self.name, self.version, self.fields, inputs, self.outputs(inputs), self.work
        )
