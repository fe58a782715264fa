"""Extraction in shards as Ray tasks, which Ray starts again when their worker or node dies.

A task returns nothing: its shard is on the disk that all nodes share, where a restarted task
continues it.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from a2cap.data.errors import A2Error, InputError, LockedError
from a2cap.data.features.shard import Shard
from a2cap.pipeline.config import Config
from a2cap.pipeline.engine.progress import track

if TYPE_CHECKING:
    from a2cap.pipeline.experiment import Experiment

_RESTARTS = 5
"""Most restarts of a task whose worker or node died."""

_SECONDS_OF_A_LOST_LOCK = 300
"""Time after which a file system has released the lock of a node that is gone."""


def extract_with_ray(
    experiment: "Experiment", shards: Sequence[Shard], *, address: str | None, output: Path | None
) -> None:
    """Extract the shards as tasks of one GPU each, or of `runtime.threads` CPUs without GPUs.

    address: of the Ray cluster; None is that of RAY_ADDRESS, or a new one on this machine. Raises
    A2Error, after all other shards, if some failed.
    """
    work = partial(_extract_shard, Path.cwd(), experiment.config, experiment.artifacts, output)
    runtime = experiment.config.runtime
    run_tasks(
        work,
        shards,
        address=address,
        cpus=runtime.threads or 1,
        gpu=runtime.device != "cpu",
    )


def run_tasks(
    work: Callable[[Shard], None],
    shards: Sequence[Shard],
    *,
    address: str | None,
    cpus: int,
    gpu: bool,
) -> None:
    """Run a task per shard on a Ray cluster; raise A2Error in the end if some failed."""
    with _cluster(address) as ray:
        on_gpu = gpu and ray.cluster_resources().get("GPU", 0) > 0
        task = ray.remote(num_cpus=cpus, num_gpus=int(on_gpu), max_retries=_RESTARTS)(work)
        left = {task.remote(shard): shard for shard in shards}
        failed: dict[Shard, str] = {}
        with track("extract: shards", total=len(shards)) as progress:
            while left:
                [done], _ = ray.wait(list(left))
                shard = left.pop(done)
                try:
                    ray.get(done)
                except ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None)  # of an error in the task itself
                    failed[shard] = str(cause or error).splitlines()[0]
                progress.advance(1)
    if failed:
        first, reason = min(failed.items())
        raise A2Error(
            f"{len(failed)} of {len(shards)} shards failed, first {first}: {reason}; "
            "fix it and run again, which keeps the other shards"
        )


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Connect to a Ray cluster for the block."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a2 sends nothing to anybody
    try:
        import ray
    except ImportError as error:
        raise InputError(
            'ray is not installed: --engine ray needs it; run pip install "a2cap[ray]"'
        ) from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(
            f"no Ray cluster at {address or os.environ.get('RAY_ADDRESS')!r}: "
            f"{str(error).splitlines()[0]}; start one with ray start --head, or leave out --address"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _extract_shard(
    folder: Path, config: Config, artifacts: Path, output: Path | None, shard: Shard
) -> None:
    """Extract one shard in a worker of Ray."""
    from a2cap.pipeline.experiment import Experiment

    os.chdir(folder)  # paths are relative to it
    deadline = time.monotonic() + _SECONDS_OF_A_LOST_LOCK
    while True:
        try:
            with Experiment(config, artifacts) as experiment:
                experiment.run_shard(shard, output=output)
            return
        except LockedError:
            # the worker of a lost node may live a little longer than its node
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
