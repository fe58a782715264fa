"""Leases: which worker has which task of a plan, without clocks in common.

A task is taken by creating the next file of a chain, `leases/TASK.0.json`, `leases/TASK.1.json`
and so on, which succeeds for one worker. The newest file names the holder, or nobody after the
holder returned the task. No file is changed or removed, so that a slow worker can do no harm.

A worker shows that it works by rewriting one file of its own, its heartbeat. Others take its tasks
once that file has not changed for the time-out, measured by their own clocks.
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from a2cap.data.errors import InputError
from a2cap.data.files.json_file import parse_json
from a2cap.pipeline.extraction.plan.shared_files import SharedFiles, json_bytes

T = TypeVar("T")

Steps = Generator[float, None, T]
"""Work with at most one file operation per step, so that a test can interleave workers and kill
them anywhere. Yields the seconds to wait before the next step."""

LEASES = "leases"


@dataclass(frozen=True)
class Claim:
    """The right of one worker to work on a task; `generation` counts the claims of the task."""

    task: str
    generation: int

    @property
    def lease(self) -> str:
        """Path of the file that grants it."""
        return f"{LEASES}/{self.task}.{self.generation}.json"

    @property
    def folder(self) -> str:
        """Folder of the unfinished work, which no other claim has."""
        return f"{self.task}.{self.generation}.partial"

    @property
    def next(self) -> "Claim":
        """The claim that follows."""
        return replace(self, generation=self.generation + 1)

    @property
    def previous(self) -> "Claim":
        """The claim before this one."""
        return replace(self, generation=self.generation - 1)


@dataclass(frozen=True)
class Holder:
    """The holder of a lease: a worker, None if the task was returned, "" if it is unknown."""

    worker: str | None


class Leases:
    """The leases of a plan as one worker sees them.

    timeout: seconds without a heartbeat after which a task is taken over; beat_every: seconds
    between heartbeats.
    """

    def __init__(
        self, files: SharedFiles, worker: str, *, timeout: float, description: dict[str, object]
    ) -> None:
        self._files = files
        self._worker = worker
        self._description = description
        self._timeout = timeout
        self.beat_every = timeout / 10
        self._beats = 0
        self._beaten = 0.0
        self._seen: dict[str, tuple[bytes | None, float]] = {}

    def beat(self) -> Steps[None]:
        """Show that this worker works."""
        yield 0.0
        self._beats += 1
        content = {**self._description, "beat": self._beats}
        self._files.write(f"workers/{self._worker}.json", json_bytes(content))
        self._beaten = self._files.now()

    def beat_if_due(self, claim: Claim) -> Steps[bool]:
        """Show that this worker works, now and then; return False if it lost the claim."""
        if self._files.now() - self._beaten < self.beat_every:
            return True
        is_held = yield from self.holds(claim)
        if is_held:
            yield from self.beat()
        return is_held

    def never_taken(self, tasks: Iterable[str]) -> Steps[list[str]]:
        """Return the tasks that have no lease yet."""
        yield 0.0
        names = set(self._files.names(LEASES))
        return [task for task in tasks if f"{task}.0.json" not in names]

    def take(self, claim: Claim) -> Steps[bool]:
        """Take a task; return False if another worker was first."""
        yield 0.0
        return self._files.create(claim.lease, json_bytes({"worker": self._worker}))

    def give_back(self, claim: Claim) -> Steps[None]:
        """Return a task whose files are closed, unless it was taken over."""
        yield 0.0
        self._files.create(claim.next.lease, json_bytes({"worker": None}))

    def holds(self, claim: Claim) -> Steps[bool]:
        """Return False if another worker took the task over."""
        yield 0.0
        return self._files.read(claim.next.lease) is None

    def holder(self, claim: Claim) -> Steps[Holder | None]:
        """Return the holder of a claim, None if nobody ever had it."""
        yield 0.0
        content = self._files.read(claim.lease)
        if content is None:
            return None
        try:
            found = parse_json(content.decode(), where=claim.lease)
        except (InputError, ValueError):
            return Holder("")  # its writer was killed on a file system without hard links
        return Holder(found.get("worker", "") if isinstance(found, dict) else "")

    def is_free(self, claim: Claim, holder: Holder) -> Steps[bool]:
        """Return True if a task was returned, or its holder ended or showed nothing for long."""
        if holder.worker is None:
            return True
        if (yield from self.is_gone(holder)):
            return True
        yield 0.0
        beat = self._files.read(f"workers/{holder.worker}.json")
        now = self._files.now()
        shown, since = self._seen.setdefault(claim.lease, (beat, now))
        if shown != beat:
            self._seen[claim.lease] = (beat, now)
            return False
        return now - since >= self._timeout

    def is_gone(self, holder: Holder) -> Steps[bool]:
        """Return True if a holder has certainly ended."""
        yield 0.0
        return bool(holder.worker) and self._files.is_gone(str(holder.worker))
