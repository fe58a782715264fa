"""The shard protocol: every image in one done shard, whatever happens to workers and disk."""

from contextlib import closing

import pytest

from a2cap.data.features.seal import DONE
from a2cap.pipeline.extraction.plan.leases import Claim, Holder, Leases
from a2cap.pipeline.extraction.plan.shared_files import json_bytes
from a2cap.pipeline.extraction.plan.worker import Worker, done_file
from tests.pipeline.extraction.plan.simulation import Schedule, Sizes, Violation

QUICK = 100
MUTATION = 500
"""Schedules within which each mutation has to be found."""

FIRST = {"shows-nothing": 120, "replaces-results": 85, "renames-first": 30}
"""Seed from which the search for a mutation begins, where fewer than 1 of 30 schedules find it."""


class KeepsGoing(Leases):
    """Mutation: a worker does not check that it still holds the claim."""

    def holds(self, claim):
        yield 0.0
        return True


class ShowsNothing(Leases):
    """Mutation: no heartbeat while images are added."""

    def beat_if_due(self, claim):
        return (yield from self.holds(claim))


class DoesNotWait(Leases):
    """Mutation: a task is taken over as soon as it is seen."""

    def is_free(self, claim, holder):
        yield 0.0
        return True


class TrustsClocks(Leases):
    """Mutation: the time-out is measured from the holder's clock to the observer's."""

    def is_free(self, claim, holder):
        if not holder.worker:
            return holder.worker is None
        yield 0.0
        since = self._files.process.schedule.processes[holder.worker].view.now()
        return self._files.now() - since >= self._timeout


class Overwrites(Leases):
    """Mutation: a claim is written and not created."""

    def take(self, claim):
        if (yield from self.holder(claim)) is not None:
            return False
        yield 0.0
        self._files.write(claim.lease, json_bytes({"worker": self._worker}))
        return True


class TrustsLeases(Leases):
    """Mutation: every holder that loses its claim counts as ended."""

    def is_gone(self, holder):
        yield 0.0
        return holder != Holder(None)


class RenamesFirst(Worker):
    """Mutation: the folder gets its final name before its content is on disk."""

    def _publish(self, claim):
        yield 0.0
        self._work.seal(claim.task, claim.folder)
        yield 0.0
        is_first = self._files.rename(claim.folder, claim.task)
        yield 0.0
        if is_first:
            self._files.sync(claim.task)
        else:
            self._files.discard(claim.folder)


class Seals(Worker):
    """A worker whose mutations publish in another way, after sealing as they should."""

    def _seal(self, claim):
        yield 0.0
        self._work.seal(claim.task, claim.folder)
        yield 0.0
        self._files.sync(claim.folder)
        yield 0.0


class RecordsFirst(Seals):
    """Mutation: the record is written before the folder has its final name."""

    def _publish(self, claim):
        yield from self._seal(claim)
        self._files.write(done_file(claim.task), self._files.disk.folders[claim.folder].record)
        yield 0.0
        self._files.rename(claim.folder, claim.task)


class ReplacesResults(Seals):
    """Mutation: the last worker publishes, not the first."""

    def _publish(self, claim):
        yield from self._seal(claim)
        self._files.disk.folders.pop(claim.task, None)
        self._files.rename(claim.folder, claim.task)


class ReturnsOpenFiles(Worker):
    """Mutation: a claim is returned before its files are closed."""

    def _fill(self, claim):
        with closing(self._work.fill(claim.task, claim.folder)) as images:
            for _ in images:
                yield 0.0
                if self._stopping():
                    yield from self._leases.give_back(claim)
                    yield 30.0
                    return False
                if not (yield from self._leases.beat_if_due(claim)):
                    return False
        return True


class LeavesEarly(Worker):
    """Mutation: a worker ends once every task has a holder."""

    def _take_over(self, undone):
        yield 0.0


class ForgetsRecords(Worker):
    """Mutation: a task whose folder was published without a record is not recorded."""

    def _copy_record(self, task):
        yield 0.0
        record = self._files.read(f"{task}/{DONE}")
        if record is None or self._files.process.schedule.rng.random() < 0.5:
            return record is not None
        yield 0.0
        self._files.write(done_file(task), record)
        return True


def test_every_image_is_in_one_done_shard_whatever_happens():
    # benchmarks.lease_protocol runs 10,000; of these, two cover images added after a takeover
    schedules = [Schedule(seed) for seed in range(QUICK, 2 * QUICK)]
    for schedule in schedules:
        schedule.run()
    # the seeds cover what can happen
    assert sum(schedule.losses for schedule in schedules) > QUICK
    assert sum(schedule.disk.takeovers for schedule in schedules) > QUICK / 2
    assert any(schedule.disk.late for schedule in schedules)


def test_a_schedule_is_replayed_by_its_seed():
    first, second = Schedule(7), Schedule(7)
    assert first.run() == second.run()
    assert first.disk.files == second.disk.files


def test_many_workers_share_many_tasks():
    sizes = Sizes(workers=20, tasks=200, images=1, kills=10, stops=3, stalls=5)
    schedule = Schedule(1, sizes)
    # some forty steps per task, listings and refusals included
    assert schedule.run() < 60 * (sizes.tasks + sizes.workers)


MUTATIONS = {
    "keeps-going": (Worker, KeepsGoing),
    "shows-nothing": (Worker, ShowsNothing),
    "does-not-wait": (Worker, DoesNotWait),
    "trusts-clocks": (Worker, TrustsClocks),
    "overwrites": (Worker, Overwrites),
    "trusts-leases": (Worker, TrustsLeases),
    "renames-first": (RenamesFirst, Leases),
    "records-first": (RecordsFirst, Leases),
    "replaces-results": (ReplacesResults, Leases),
    "returns-open-files": (ReturnsOpenFiles, Leases),
    "leaves-early": (LeavesEarly, Leases),
    "forgets-records": (ForgetsRecords, Leases),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_of_the_protocol_is_found(name):
    worker_class, leases_class = MUTATIONS[name]
    with pytest.raises(Violation):
        for seed in range(FIRST.get(name, 0), MUTATION):
            Schedule(seed, worker_class=worker_class, leases_class=leases_class).run()


def test_claims_have_files_and_folders_of_their_own():
    claim = Claim("00017", 2)
    assert (claim.lease, claim.folder) == ("leases/00017.2.json", "00017.2.partial")
    assert (claim.previous.generation, claim.next.generation) == (1, 3)
