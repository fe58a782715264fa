"""What a run says of its work, written outside of its artifacts so that a kill loses none of it.

An item is acknowledged when the product has said that it is safe: an image after its commit, a
step after its checkpoint, a stage after its manifest. What a rerun does not find of that is lost.
"""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.faults.fault_points import Function, wrap
else:
    from fault_points import Function, wrap


@dataclass(frozen=True)
class Run:
    """One run of a stage, as its diary tells it.

    found: images that were in the store when it was opened, None where it was not opened.
    described: images whose description began; committed: those of which a commit returned.
    resumed: the step that training began at, None where it did not begin.
    step: the last step trained; checkpoint: the last one saved; both 0 where there is none.
    worked: whether the stage's work began; sealed: whether its manifest was written.
    """

    found: frozenset[str] | None = None
    described: frozenset[str] = frozenset()
    committed: frozenset[str] = frozenset()
    resumed: int | None = None
    step: int = 0
    checkpoint: int = 0
    worked: bool = False
    sealed: bool = False


def keep(path: Path) -> None:
    """From now on this process writes its diary to `path`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(what: str, value: object = True) -> None:
        os.write(descriptor, f"{json.dumps([what, value])}\n".encode())

    def noting(after: Callable[..., None], before: Callable[..., Any] = lambda *_: None) -> Any:
        def make(original: Function) -> Function:
            def call(*arguments: Any, **options: Any) -> Any:
                known = before(*arguments)
                result = original(*arguments, **options)
                after(known, *arguments)
                return result

            return call

        return make

    writer = "a2cap.data.features.writer:FeatureWriter"
    wrap(f"{writer}.__init__", noting(lambda _, self, *__: note("found", sorted(self.done()))))
    pending = lambda self: [key.decode() for key in self._pending]  # noqa: E731
    wrap(f"{writer}._commit", noting(lambda ids, _: note("committed", ids), before=pending))
    begun = lambda _, jobs, *__: note("described", [job.image_id for job in jobs])  # noqa: E731
    wrap("a2cap.pipeline.extraction.extract:_describe", noting(lambda *_: None, before=begun))
    training = "a2cap.pipeline.training.loop:Training"
    wrap(f"{training}.resume", noting(lambda _, self: note("resumed", self.position.step)))
    for update in (
        "a2cap.pipeline.training.captioner.optimization:CrossEntropyOptimisation.step",
        "a2cap.pipeline.training.captioner.self_critical:SelfCriticalOptimisation.step",
        "a2cap.pipeline.training.detector.optimization:DetectorOptimisation.step",
    ):
        wrap(update, noting(lambda _, __, ___, number: note("step", number)))
    save = "a2cap.pipeline.training.checkpoints:Checkpoints.save"
    wrap(save, noting(lambda _, __, step: note("checkpoint", step)))
    wrap(
        "a2cap.pipeline.engine.run:_work",
        noting(lambda *_: None, before=lambda *_: note("worked")),
    )
    wrap("a2cap.pipeline.engine.manifest:Manifest.write", noting(lambda *_: note("sealed")))


def read(path: Path) -> Run:
    """The run that wrote a diary; one that never came to write has done nothing."""
    lines = path.read_text().splitlines() if path.exists() else []
    notes = [json.loads(line) for line in lines]

    def all_of(what: str) -> list[Any]:
        return [value for noted, value in notes if noted == what]

    found = all_of("found")
    return Run(
        found=frozenset(found[0]) if found else None,
        described=_union(all_of("described")),
        committed=_union(all_of("committed")),
        resumed=next(iter(all_of("resumed")), None),
        step=max(all_of("step"), default=0),
        checkpoint=max(all_of("checkpoint"), default=0),
        worked="worked" in dict(notes),
        sealed="sealed" in dict(notes),
    )


def lost(earlier: list[Run], rerun: Run) -> int:
    """Items that earlier runs had acknowledged and the rerun did not find."""
    if any(run.sealed for run in earlier):
        return int(rerun.worked)
    if rerun.found is not None:
        return len(_union(run.committed for run in earlier) - rerun.found)
    if rerun.resumed is not None:
        return max(0, max(run.checkpoint for run in earlier) - rerun.resumed)
    return 0


def done_again(earlier: list[Run], rerun: Run) -> int:
    """Images, steps, or else stages that the rerun did although an earlier run had done them."""
    if rerun.found is not None:
        return len(_union(run.described for run in earlier) & rerun.described)
    if rerun.resumed is not None:
        return max(0, max(run.step for run in earlier) - rerun.resumed)
    return int(rerun.worked and any(run.worked for run in earlier))


def _union(ids: Iterable[Iterable[str]]) -> frozenset[str]:
    return frozenset[str]().union(*ids)
