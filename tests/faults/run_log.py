"""Log of one run's progress, written outside its artifacts so that a kill cannot lose it.

An item is acknowledged when the program has made it safe: an image after its commit, a step after
its checkpoint, a stage after its manifest. An acknowledged item that a rerun does not find is lost.
"""

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2cap.data.errors import A2Error
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter
from a2cap.pipeline.training.checkpoints import Position
from tests.faults.fault_points import observe, wrap

OPEN = "a2cap.data.features.writer:FeatureWriter.__init__"
COMMIT = "a2cap.data.features.writer:FeatureWriter._commit"
EXTRACT = "a2cap.pipeline.extraction.shard_worker:ShardWorker._add"
RESUME = "a2cap.pipeline.training.checkpoints:SavedTraining.resume"
UPDATES = (
    "a2cap.pipeline.training.captioner.cross_entropy:CrossEntropyUpdater.step",
    "a2cap.pipeline.training.captioner.self_critical:SelfCriticalUpdater.step",
    "a2cap.pipeline.training.detector.train:DetectorUpdater.step",
)
SAVE = "a2cap.pipeline.training.checkpoints:Checkpoints.save"
WORK = "a2cap.pipeline.engine.events:EventLog.running"
SEAL = "a2cap.data.files.sealed_folder:write_manifest"
OBSERVED = (OPEN, COMMIT, EXTRACT, RESUME, *UPDATES, SAVE, WORK, SEAL)


@dataclass(frozen=True)
class Run:
    """Progress of one run of a stage.

    kept: images in the store that the run did not extract itself, None if it opened none.
    extracted: images whose extraction began; committed: those whose commit returned.
    resumed: the step at which training began, None where it did not begin.
    step: the last trained step; checkpoint: the last saved one; both 0 without any.
    worked: True if the stage's work began; sealed: True if its manifest was written.
    """

    kept: frozenset[str] | None = None
    extracted: frozenset[str] = frozenset()
    committed: frozenset[str] = frozenset()
    resumed: int | None = None
    step: int = 0
    checkpoint: int = 0
    worked: bool = False
    sealed: bool = False


def start_logging(path: Path) -> None:
    """Make this process write its progress to `path`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def log(event: str, value: object = True) -> None:
        os.write(descriptor, f"{json.dumps([event, value])}\n".encode())

    observe(OPEN, after=lambda _, self, *__: log("found", sorted(self.done() | _published(self))))
    observe(
        COMMIT,
        before=lambda self: [key.decode() for key in self._pending],
        after=lambda ids, _: log("committed", ids),
    )
    observe(EXTRACT, before=lambda _, batch, *__: log("extracted", list(batch)))
    wrap(RESUME, lambda resume: lambda saved: _logged(resume(saved), log))
    for update in UPDATES:
        observe(update, after=lambda _, __, ___, number: log("step", number))
    observe(SAVE, after=lambda _, __, step: log("checkpoint", step))
    observe(WORK, before=lambda *_: log("worked"))
    # shards and stores are sealed too, but are made from nothing by themselves
    observe(SEAL, after=lambda _, __, sealed: log("sealed") if sealed.made_from else None)


def _published(writer: FeatureWriter) -> set[str]:
    """Return the images of the sealed shards that exist when another one is opened."""
    published: set[str] = set()
    # A run that was killed between seal and publication left these; the other stripe may just
    # publish one, which the second loop finds.
    for manifest in writer.path.parent.glob("[0-9]*/manifest.json"):
        with suppress(A2Error, OSError):
            published.update(FeatureStore(manifest.parent))
    for shard in writer.path.parents[1].glob("features.lmdb/[0-9]*"):
        published.update(FeatureStore(shard))
    return published


def _logged(position: Position, log: Callable[[str, object], None]) -> Position:
    log("resumed", position.step)
    return position


def read_log(path: Path) -> Run:
    """Read a run's log; a run without a log has done nothing."""
    lines = path.read_text().splitlines() if path.exists() else []
    events = [json.loads(line) for line in lines]
    missing: set[str] | None = None
    extracted: set[str] = set()
    for name, value in events:
        if name == "found":  # by each process, and shard by shard
            missing = (missing or set()) | (set(value) - extracted)
        elif name == "extracted":
            extracted |= set(value)

    def values(event: str) -> list[Any]:
        return [value for name, value in events if name == event]

    return Run(
        kept=None if missing is None else frozenset(missing),
        extracted=frozenset(extracted),
        committed=_union(values("committed")),
        resumed=next(iter(values("resumed")), None),
        step=max(values("step"), default=0),
        checkpoint=max(values("checkpoint"), default=0),
        worked="worked" in dict(events),
        sealed="sealed" in dict(events),
    )


def lost(earlier: list[Run], rerun: Run) -> int:
    """Count the items that earlier runs acknowledged and the rerun did not find."""
    if any(run.sealed for run in earlier):
        return int(rerun.sealed)  # a stripe begins its work before it finds that nothing is left
    if rerun.kept is not None:
        return len(_union(run.committed for run in earlier) - rerun.kept)
    if rerun.resumed is not None:
        return max(0, max(run.checkpoint for run in earlier) - rerun.resumed)
    return 0


def repeated(earlier: list[Run], rerun: Run) -> int:
    """Count the images, steps or stages that both an earlier run and the rerun worked on."""
    if rerun.kept is not None:
        return len(_union(run.extracted for run in earlier) & rerun.extracted)
    if rerun.resumed is not None:
        return max(0, max(run.step for run in earlier) - rerun.resumed)
    return int(rerun.worked and any(run.worked for run in earlier))


def _union(ids: Iterable[Iterable[str]]) -> frozenset[str]:
    return frozenset[str]().union(*ids)
