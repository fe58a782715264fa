"""A simulated disk, clocks and workers, on which the shard protocol runs as in reality.

Everything is drawn from one seed: sizes, speeds of clocks, delays after which other hosts see a
change, kills of processes and hosts, SIGTERM, and stalls longer than the time-out. After each
operation another worker may act. `simulate` checks what has to hold at the end and on the way.
"""

import heapq
import json
import random
from dataclasses import dataclass, field

from a2cap.data.features.seal import DONE, FAILED
from a2cap.pipeline.extraction.plan.leases import LEASES, Leases
from a2cap.pipeline.extraction.plan.shared_files import json_bytes
from a2cap.pipeline.extraction.plan.worker import Worker

TIMEOUT = 100.0
BEAT = TIMEOUT / 10
MOST_DELAY = 0.3 * BEAT
CLOCK_RATES = (0.8, 1.25)
IMAGE_SECONDS = (0.5 * BEAT, 0.8 * BEAT)
# in the slowest beat and the longest delay, and one in progress
MOST_LATE_IMAGES = 1 + int((CLOCK_RATES[1] * BEAT + MOST_DELAY) / IMAGE_SECONDS[0])


class Violation(AssertionError):
    """An invariant that does not hold."""


class Killed(BaseException):
    """The end of a simulated process, within an operation."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a schedule; kills also counts crashes of hosts, and stalls the long ones."""

    workers: int
    tasks: int
    images: int  # per task, at most
    kills: int
    stops: int
    stalls: int

    @classmethod
    def draw(cls, rng):
        """Draw small sizes, in which collisions are frequent."""
        return cls(
            workers=rng.randint(1, 6),
            tasks=rng.randint(1, 6),
            images=rng.choice((2, 4, 8, 20)),  # the last takes longer than the time-out
            kills=rng.randint(0, 6),
            stops=rng.randint(0, 3),
            stalls=rng.randint(0, 4),
        )


class Folder:
    """The folder of a claim or of a published task."""

    def __init__(self, host):
        self.host = host
        self.images, self.synced = [], []
        self.record, self.synced_record = None, None
        self.writers = set()
        self.damaged = self.is_gone = False

    def crash(self):
        """Lose what was not synced."""
        self.images, self.record = list(self.synced), self.synced_record


@dataclass
class Disk:
    """The truth of the shared disk, and the counts of what happened."""

    rng: random.Random
    tasks: dict[str, int]
    has_links: bool
    most_delay: float
    now: float = 0.0
    files: dict[str, list[tuple[float, object, bytes]]] = field(default_factory=dict)
    folders: dict[str, Folder] = field(default_factory=dict)
    shown: dict[str, tuple[float, object]] = field(default_factory=dict)
    names: dict[str, dict[str, tuple[float, object]]] = field(
        default_factory=lambda: {"": {}, LEASES: {}, "workers": {}}
    )
    added: int = 0
    late: dict[str, int] = field(default_factory=dict)
    takeovers: int = 0
    done: dict[str, bytes] = field(default_factory=dict)

    def put(self, path, content, host):
        """Write a file that other hosts see after a delay."""
        seen_at = self.now + self.rng.random() * self.most_delay
        self.files.setdefault(path, []).append((seen_at, host, content))
        folder, _, name = path.rpartition("/")
        self.names[folder].setdefault(name, (seen_at, host))
        if path.endswith(f".{DONE}"):
            self._check_done(path.removesuffix(f".{DONE}"), content)

    def _check_done(self, task, content):
        folder = self.folders.get(task)
        require(folder is not None, f"{task} is done without a folder")
        require(folder.record == content, f"{task} is done with another record than its folder")
        require(self.done.setdefault(task, content) == content, f"{task} is done twice, unequally")

    def is_lost(self, task, generation):
        """Return True if the claim of a task was taken over."""
        return f"{LEASES}/{task}.{generation + 1}.json" in self.files


def require(holds, what):
    """Raise Violation unless an invariant holds."""
    if not holds:
        raise Violation(what)


class View:
    """The disk and a clock as one worker sees them; also its work."""

    def __init__(self, disk, process):
        self.disk, self.process, self.rng = disk, process, disk.rng
        self.rate = self.rng.uniform(*CLOCK_RATES)
        self.offset = self.rng.uniform(-1e6, 1e6)
        self.operations = 0
        self.cost = 0.0

    def _begin(self):
        self.operations += 1
        require(self.operations == 1, "two operations in one step")
        self.cost = self.rng.random() * BEAT / 20
        if self.process.dies_within and self.rng.random() < 0.7:
            raise Killed

    def now(self):
        return self.disk.now * self.rate + self.offset

    def create(self, path, content):
        self._begin()
        if self.disk.files.get(path):
            return False
        if self.process.dies_within and not self.disk.has_links:
            self.disk.put(path, content[: len(content) // 2], self.process.host)
        if self.process.dies_within:
            raise Killed
        task, generation = path.removeprefix(f"{LEASES}/").removesuffix(".json").rsplit(".", 1)
        before = self.disk.files.get(f"{LEASES}/{task}.{int(generation) - 1}.json")
        is_held = bool(before) and b"null" not in before[-1][2]
        # its holder may have recorded the task and ended since this worker looked: no work is lost
        if is_held and b"null" not in content and task not in self.disk.done:
            self.disk.takeovers += 1
        self.disk.put(path, content, self.process.host)
        return True

    def write(self, path, content):
        self._begin()
        self.disk.put(path, content, self.process.host)

    def read(self, path):
        self._begin()
        folder, _, name = path.rpartition("/")
        if name in (DONE, FAILED):
            seen_at, host = self.disk.shown.get(folder, (float("inf"), None))
            is_shown = host == self.process.host or seen_at <= self.disk.now
            if not is_shown or folder not in self.disk.folders:
                return None
            return self.disk.folders[folder].record if name == DONE else None
        for seen_at, host, content in reversed(self.disk.files.get(path, ())):
            if host == self.process.host or seen_at <= self.disk.now:
                return content
        return None

    def rename(self, folder, target):
        self._begin()
        if folder not in self.disk.folders or target in self.disk.folders:
            return False
        self.disk.folders[target] = self.disk.folders.pop(folder)
        seen_at = self.disk.now + self.rng.random() * self.disk.most_delay
        self.disk.shown[target] = seen_at, self.process.host
        return True

    def sync(self, folder):
        self._begin()
        found = self._folder(folder)
        found.synced, found.synced_record = list(found.images), found.record

    def names(self, folder):
        self._begin()
        host, now = self.process.host, self.disk.now
        if not self.disk.most_delay:
            return list(self.disk.names[folder])
        entries = self.disk.names[folder].items()
        return [name for name, (seen, by) in entries if seen <= now or by == host]

    def discard(self, folder):
        self._begin()
        if folder in self.disk.folders:
            self.disk.folders.pop(folder).is_gone = True

    def is_gone(self, worker):
        self._begin()
        other = self.process.schedule.processes.get(worker)
        return other is not None and other.host == self.process.host and not other.lives

    # the work

    def _folder(self, name):
        found = self.disk.folders.get(name)
        if found is None or found.is_gone:
            raise OSError(f"no folder {name}")
        return found

    def fill(self, task, name):
        folder = self.disk.folders.setdefault(name, Folder(self.process.host))
        folder.host = self.process.host
        folder.damaged |= bool(folder.writers)
        folder.writers.add(self.process)
        self.process.open = folder
        try:
            while len(folder.images) < self.disk.tasks[task]:
                if folder.is_gone:
                    raise OSError(f"no folder {name}")
                folder.images.append(len(folder.images))
                if self.rng.random() < 0.5:  # a commit
                    folder.synced = list(folder.images)
                self._count(task, int(name.split(".")[-2]))
                self.cost = self.rng.uniform(*IMAGE_SECONDS)
                yield
        finally:
            folder.writers.discard(self.process)

    def _count(self, task, generation):
        self.disk.added += 1
        if self.disk.is_lost(task, generation):
            late = self.disk.late
            claim = f"{task}.{generation}"
            late[claim] = late.get(claim, 0) + 1
            require(late[claim] <= MOST_LATE_IMAGES, f"{claim} goes on after it was taken over")

    def seal(self, task, name):
        folder = self._folder(name)
        self.cost = self.rng.random() * BEAT
        folder.record = json_bytes({"count": len(folder.images), "by": self.process.name})


class Process:
    """A worker process on a host."""

    def __init__(self, schedule, host, worker_class, leases_class):
        self.schedule, self.host = schedule, host
        self.name = f"w{len(schedule.processes)}"
        self.lives, self.stopping, self.dies_within, self.open = True, False, False, None
        self.view = View(schedule.disk, self)
        leases = leases_class(
            self.view, self.name, timeout=TIMEOUT, description={"time": self.view.now()}
        )
        order = random.Random(schedule.rng.random())
        worker = worker_class(
            self.view, leases, self.view, order=order, stopping=lambda: self.stopping
        )
        self.steps = worker.run(schedule.disk.tasks)

    def step(self):
        """Run one step; return the seconds until the next one, None at the end."""
        self.view.operations, self.view.cost = 0, 0.0
        try:
            wait = next(self.steps)
        except (StopIteration, Killed):
            self.end()
            return None
        except OSError as error:
            raise Violation(f"{self.name} fails: {error}") from error
        return self.view.cost + wait / self.view.rate

    def kill(self):
        """End the process in the middle of its next operation, if it has one."""
        self.dies_within = True
        self.step()
        self.end()

    def end(self):
        """End the process, and with it what only the process knows."""
        self.lives = False
        # dropped and not closed: a killed process runs no code
        self.schedule.dead.append(self.steps)
        if self.open is not None:
            self.open.writers.discard(self)


class Schedule:
    """One run of all workers until every task is done, replayable by its seed."""

    def __init__(
        self,
        seed: int,
        sizes: Sizes | None = None,
        *,
        worker_class: type[Worker] = Worker,
        leases_class: type[Leases] = Leases,
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.sizes = sizes or Sizes.draw(rng)
        tasks = {f"{n:05}": rng.randint(1, self.sizes.images) for n in range(self.sizes.tasks)}
        delay = rng.choice((0.0, MOST_DELAY))
        self.disk = Disk(rng, tasks, has_links=rng.random() < 0.7, most_delay=delay)
        self.classes = worker_class, leases_class
        self.processes: dict[str, Process] = {}
        self.queue: list[tuple[float, float, str]] = []
        self.dead: list[object] = []
        self.hosts = max(1, self.sizes.workers // 2)
        self.losses = 0
        for _ in range(self.sizes.workers):
            self.start()
        images = sum(tasks.values())
        # while there is work; the rest of the events find nobody
        self.span = 1.5 * images * IMAGE_SECONDS[1] / self.sizes.workers + BEAT
        for event in ("kill", "stop", "stall"):
            for _ in range(getattr(self.sizes, f"{event}s")):
                self.push(rng.random() * self.span, event)

    def push(self, time, what):
        heapq.heappush(self.queue, (time, self.rng.random(), what))

    def start(self):
        process = Process(self, self.rng.randrange(self.hosts), *self.classes)
        self.processes[process.name] = process
        self.push(self.disk.now + self.rng.random() * BEAT, process.name)

    def run(self) -> int:
        """Run to the end and check it; return the number of steps."""
        steps, limit = 0, 5 * (self.span + TIMEOUT * (2 + self.sizes.kills + self.sizes.stalls))
        while self.queue:
            self.disk.now, _, what = heapq.heappop(self.queue)
            require(self.disk.now < limit, "the work does not end")
            if what in self.processes:
                steps += self._step(self.processes[what])
            else:
                self._happen(what)
        self._check()
        return steps

    def _step(self, process):
        if not process.lives:
            return 0
        wait = process.step()
        if wait is not None:
            self.push(self.disk.now + wait, process.name)
        return 1

    def _happen(self, event):
        living = [process for process in self.processes.values() if process.lives]
        if not living:
            return
        process = self.rng.choice(living)
        if event == "stop":
            process.stopping = True
        elif event == "stall":
            self.losses += 1
            self._delay(process, TIMEOUT * self.rng.uniform(1.0, 4.0))
        elif self.rng.random() < 0.3:
            self._crash(process.host)
        else:
            self.losses += 1
            process.kill()
        if event != "stall":  # another worker comes, so that somebody is left
            self.start()

    def _crash(self, host):
        for process in self.processes.values():
            if process.lives and process.host == host:
                self.losses += 1
                process.kill()
                process.host = None  # as a new start is another machine to the others
        for folder in self.disk.folders.values():
            if folder.host == host:
                folder.crash()
                folder.host = None

    def _delay(self, process, seconds):
        self.queue = [
            (time + seconds if what == process.name else time, order, what)
            for time, order, what in self.queue
        ]
        heapq.heapify(self.queue)

    def _check(self):
        disk = self.disk
        require(set(disk.done) == set(disk.tasks), "a task is not done")
        for task, count in disk.tasks.items():
            folder = disk.folders.get(task)
            require(folder is not None, f"{task} has lost its folder")
            require(not folder.damaged, f"two workers wrote the folder of {task}")
            require(folder.images == list(range(count)), f"{task} has not all its images")
            require(folder.record == disk.done[task], f"{task} has lost its record")
            require(json.loads(folder.record)["count"] == count, f"{task} has a wrong count")
        require(disk.takeovers <= self.losses, "more takeovers than workers that stopped")
        most = sum(disk.tasks.values()) + self.losses * (self.sizes.images + MOST_LATE_IMAGES)
        require(disk.added <= most, "more work is done twice than was lost")
