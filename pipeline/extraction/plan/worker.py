"""One worker of a plan: it takes undone tasks, works on them and publishes the results.

A claim has a folder of its own, `TASK.GENERATION.partial`. The first worker that renames its folder
to `TASK` publishes it; then it writes `TASK.done.json`. So two workers that both believe to hold a
task waste time and nothing else.
"""

import random
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import closing, suppress
from typing import Protocol

from a2cap.data.errors import A2Error
from a2cap.data.features.seal import DONE, FAILED
from a2cap.pipeline.extraction.plan.leases import Claim, Leases, Steps
from a2cap.pipeline.extraction.plan.shared_files import SharedFiles

_LISTED, _REFUSALS = 1024, 32
"""Tasks to try, and tasks found taken one after the other, before the leases are listed again."""


class TaskWork(Protocol):
    """The work of a task, in a folder that no other worker writes into."""

    def fill(self, task: str, folder: str) -> Generator[None, None, None]:
        """Add an image that the folder lacks per step; close its files in the end."""

    def seal(self, task: str, folder: str) -> None:
        """Write FAILED and DONE into the filled folder."""


def done_file(task: str) -> str:
    """Return the path of the record that a task is done."""
    return f"{task}.{DONE}"


class Worker:
    """A worker on some tasks of a plan.

    stopping: tells after each image if the worker has to stop.
    """

    def __init__(
        self,
        files: SharedFiles,
        leases: Leases,
        work: TaskWork,
        *,
        order: random.Random,
        stopping: Callable[[], bool],
    ) -> None:
        self._files = files
        self._leases = leases
        self._work = work
        self._order = order
        self._stopping = stopping

    def run(self, tasks: Collection[str]) -> Steps[None]:
        """Work until all tasks are done, by this worker or others."""
        yield from self._leases.beat()
        undone = tasks
        while not self._stopping():
            undone = yield from self._undone(undone)
            new = yield from self._leases.never_taken(undone)
            if not new:
                yield from self._take_over({task: Claim(task, 0) for task in undone})
                return
            # in random order, so that workers that begin together do not meet
            yield from self._work_on_new(self._order.sample(new, min(len(new), _LISTED)))

    def _undone(self, tasks: Collection[str]) -> Steps[list[str]]:
        yield 0.0
        names = set(self._files.names(""))
        return [task for task in tasks if done_file(task) not in names]

    def _work_on_new(self, tasks: Iterable[str]) -> Steps[None]:
        refused = 0
        for task in tasks:
            if self._stopping() or refused == _REFUSALS:
                return
            claim = Claim(task, 0)
            is_mine = yield from self._leases.take(claim)
            refused = 0 if is_mine else refused + 1
            if is_mine:
                yield from self.work_on(claim)

    def _take_over(self, undone: dict[str, Claim]) -> Steps[None]:
        """Work on returned and abandoned tasks until all are done."""
        wait = shortest = self._leases.beat_every / 64
        while undone:
            before = dict(undone)
            for task, claim in before.items():
                if self._stopping():
                    return
                yield 0.0
                if self._files.read(done_file(task)) is not None:
                    del undone[task]
                    continue
                undone[task] = yield from self._follow(claim)
            wait = shortest if undone != before else min(2 * wait, self._leases.beat_every)
            yield wait

    def _follow(self, claim: Claim) -> Steps[Claim]:
        """Work on a task if it is free; return its newest claim."""
        newer = yield from self._leases.holder(claim.next)
        if newer is not None:
            return claim.next
        holder = yield from self._leases.holder(claim)
        if holder is None or not (yield from self._leases.is_free(claim, holder)):
            return claim
        if (yield from self._leases.take(claim.next)):
            yield from self.work_on(claim.next)
        return claim.next

    def work_on(self, claim: Claim) -> Steps[bool]:
        """Work on a taken task; return False if it is not done, and not this worker's any more."""
        try:
            if not (yield from self._copy_record(claim.task)):
                yield from self._adopt(claim)
                if not (yield from self._fill(claim)):
                    return False
                yield from self._publish(claim)
                if not (yield from self._copy_record(claim.task)):
                    yield from self._leases.give_back(claim)
                    return False
        except (A2Error, OSError):
            if (yield from self._leases.holds(claim)):
                with suppress(OSError):  # the disk may be full: the first error is the cause
                    yield from self._leases.give_back(claim)
                raise
            return False  # whoever took the task over removed the folder
        for generation in range(claim.generation):
            yield 0.0
            self._files.discard(Claim(claim.task, generation).folder)
        return True

    def _adopt(self, claim: Claim) -> Steps[None]:
        """Continue the folder of the previous holder if it certainly does not write any more."""
        if claim.generation == 0:
            return
        earlier = claim.previous
        holder = yield from self._leases.holder(earlier)
        if holder is None:
            return
        if holder.worker is None:  # returned by the holder before
            earlier = earlier.previous
        elif not (yield from self._leases.is_gone(holder)):
            return
        yield 0.0
        self._files.rename(earlier.folder, claim.folder)

    def _fill(self, claim: Claim) -> Steps[bool]:
        """Add all images; return False after losing or returning the claim."""
        with closing(self._work.fill(claim.task, claim.folder)) as images:
            while True:
                yield 0.0
                if self._stopping():
                    is_held = True
                    break
                try:
                    next(images)
                except StopIteration:
                    return True
                is_held = yield from self._leases.beat_if_due(claim)
                if not is_held:
                    break
        yield 0.0
        if is_held:
            yield from self._leases.give_back(claim)  # its files are closed now
        else:
            self._files.discard(claim.folder)
        return False

    def _publish(self, claim: Claim) -> Steps[None]:
        """Give the folder its final name, unless another worker was first."""
        yield 0.0
        self._work.seal(claim.task, claim.folder)
        yield 0.0
        self._files.sync(claim.folder)  # what has its final name is whole, also after a power cut
        yield 0.0
        if not self._files.rename(claim.folder, claim.task):
            yield 0.0
            self._files.discard(claim.folder)

    def _copy_record(self, task: str) -> Steps[bool]:
        """Write what was published beside the folder; return False if nothing was."""
        # equal bytes, whoever writes them
        yield 0.0
        record = self._files.read(f"{task}/{DONE}")
        if record is None:
            return False
        yield 0.0
        failed = self._files.read(f"{task}/{FAILED}")
        if failed:
            yield 0.0
            self._files.write(f"{task}.{FAILED}", failed)
        yield 0.0
        self._files.write(done_file(task), record)
        return True
