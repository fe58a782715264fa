"""Entry of `a2 extract --plan`: make or join the plan in a folder, and work until it is done."""

import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from a2cap.data.errors import ConfigError
from a2cap.data.features.parts import read_done
from a2cap.data.features.shard import Shard
from a2cap.data.files.checksum import sha256_of
from a2cap.data.sources.opening import open_source
from a2cap.data.sources.source import ImageSource
from a2cap.extract.extractor import AnyExtractor, load_extractor
from a2cap.pipeline.engine.artifacts import EXTRACTOR, WEIGHTS
from a2cap.pipeline.engine.interruption import stop_between_steps
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.extraction.extract import save_extractor
from a2cap.pipeline.extraction.plan.inputs import PlanInputs
from a2cap.pipeline.extraction.plan.leases import Leases, Steps
from a2cap.pipeline.extraction.plan.plan import (
    Plan,
    location_of,
    make_plan,
    read_plan,
    require_images,
    require_settings,
    retries,
    settings_of,
)
from a2cap.pipeline.extraction.plan.shard_work import ShardWork
from a2cap.pipeline.extraction.plan.shared_files import SharedFolder
from a2cap.pipeline.extraction.plan.worker import Worker
from a2cap.pipeline.runtime.device import prepare_device

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NAP = 0.2


@dataclass
class PlanWorker:
    """This process as a worker of the plan in a folder."""

    inputs: PlanInputs
    files: SharedFolder
    source: ImageSource
    plan: Plan
    loaded: AnyExtractor | None = None

    @classmethod
    @contextmanager
    def join(cls, inputs: PlanInputs, folder: Path) -> Iterator["PlanWorker"]:
        """Join the plan in a folder, or make it.

        Raises ConfigError for other weights or settings than the plan's, InputError for other
        images.
        """
        config = inputs.config
        if config.boxes == "given":
            raise ConfigError(
                "--plan extracts detected regions or grids: extract.boxes is 'given'; use --shard"
            )
        source = open_source(location_of(inputs.images))
        settings = settings_of(config, sha256_of(inputs.weights))
        plan, loaded = read_plan(folder), None
        if plan is not None:
            require_settings(plan, settings, folder)
            require_images(plan, source, folder)
        files = SharedFolder(folder)
        try:
            if plan is None:
                loaded = _load(inputs, config.precision)
                plan = make_plan(
                    files,
                    source,
                    settings=settings,
                    precision=loaded.config.precision,
                    size=inputs.shard_size,
                )
                require_settings(plan, settings, folder)
                require_images(plan, source, folder)
            worker = cls(inputs, files, source, plan, loaded)
            worker._save_extractor()
            yield worker
        finally:
            files.close()

    def tasks(self, *, stripe: Shard | None = None, retry_failed: bool = False) -> list[str]:
        """Return the tasks: the shards, or another attempt at failed images.

        stripe: leave all but these shards to others.
        """
        tasks = retries(self.files.root) if retry_failed else self.plan.tasks()
        if stripe is not None:
            tasks = [task for task in tasks if int(task[:5]) % stripe.count == stripe.number]
        return tasks

    def run(self, tasks: list[str]) -> None:
        """Work until these tasks are done, by this worker or others.

        Raises Interrupted after SIGTERM, once the image is finished and the shard returned.
        """
        records = read_done(self.files.root)
        done = sum(records[task].count + records[task].failed for task in tasks if task in records)
        total = done + self.plan.size * sum(task not in records for task in tasks)
        with (
            stop_between_steps() as request,
            track("extract", total=min(total, self.plan.count), done=done) as progress,
        ):
            leases = Leases(
                self.files,
                self.files.worker,
                timeout=self.inputs.timeout,
                description=self.files.description(),
            )
            work = ShardWork(
                self.plan,
                self.files.root,
                self.source,
                config=self.inputs.config,
                extractor=self._extractor,
                advance=progress.advance,
            )
            order = random.Random(self.files.worker)
            stopping = partial(getattr, request, "pending")
            worker = Worker(self.files, leases, work, order=order, stopping=stopping)
            _run(worker.run(tasks), stopping)
            request.raise_if_pending()

    def _extractor(self) -> AnyExtractor:
        precision = self.plan.precision
        # another worker may have made the plan, with another precision
        if self.loaded is None or self.loaded.config.precision != precision:
            self.loaded = _load(self.inputs, precision)
        return self.loaded

    def _save_extractor(self) -> None:
        """Write the extractor's weights and record, which are the same for all workers."""
        folder = self.files.root
        if (folder / EXTRACTOR).exists():
            return
        saved = folder / f".extractor.{uuid4().hex}"
        saved.mkdir()
        save_extractor(self._extractor(), saved)
        for name in (WEIGHTS, EXTRACTOR):
            os.replace(saved / name, folder / name)  # noqa: PTH105
        saved.rmdir()


def _load(inputs: PlanInputs, precision: str) -> AnyExtractor:
    config = inputs.config.model_copy(update={"precision": precision})
    device = str(prepare_device(inputs.runtime))
    return load_extractor(inputs.weights, config=config, device=device, strict=True)


def _run(steps: Steps[T], stopping: Callable[[], bool]) -> T:
    """Run steps to their end; a pause between them ends when the worker has to stop."""
    while True:
        try:
            until = time.monotonic() + next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        while not stopping() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _NAP))
