"""The declaration of a stage: its key, its inputs, its checks, its outputs and its work."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.prepared_stage import PreparedStage
from a2cap.pipeline.engine.run import Outcome
from a2cap.pipeline.stages.checks import Check

if TYPE_CHECKING:
    from a2cap.pipeline.stages.plan import Plan

OutcomeOf = Callable[[str], Outcome]
"""Returns the result of another stage; raises UnfinishedStageError if it has none."""


class Stage(ABC):
    """A stage with the sections of the configuration that it reads as attributes, and no others."""

    name: ClassVar[str]
    version: ClassVar[int]
    """Raised by the author of a change to the stage's output."""
    is_distributed: ClassVar[bool] = False
    """True if all ranks of torchrun enter the work; the others have nothing to do."""
    always: ClassVar[Collection[str]] = ()
    """Needs that are checked whenever a command needs the stage, although its result exists."""

    @abstractmethod
    def prepare(self, result: OutcomeOf, folder: Path) -> PreparedStage:
        """Return the stage ready to run: the fields and inputs of its key, and its outputs.

        folder: of its results. A setting that is neither in the fields nor in the inputs must not
        change the result: it is in no key.
        """

    @abstractmethod
    def checks(self, plan: "Plan") -> dict[str, Check]:
        """Return what must hold if the stage has to run, by need."""

    def remarks(self, result: Path) -> list[str]:
        """Return what `a2 status` adds to a result, or to the work in a partial directory."""
        return []

    @abstractmethod
    def work(self, folder: Path, inputs: Inputs, events: EventLog) -> Sequence[SkippedItem]:
        """Fill the folder, resuming the work found there; return the skipped items."""
