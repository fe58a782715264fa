"""The tasks of a plan as Ray tasks, which Ray starts again when their worker or node dies.

A Ray task returns nothing: its shard is on the disk that all nodes share, where a restarted one
continues it.
"""

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from a2cap.data.errors import A2Error, InputError
from a2cap.data.features.parts import read_done
from a2cap.pipeline.engine.interruption import Interrupted
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.extraction.plan.extract_plan import PlanWorker
from a2cap.pipeline.extraction.plan.inputs import PlanInputs

_RESTARTS = 5
"""Most restarts of a task whose worker or node died."""


def run_on_ray(
    inputs: PlanInputs, folder: Path, tasks: Sequence[str], *, address: str | None
) -> None:
    """Work on tasks of the plan in a folder until all are done.

    Each has one GPU, or `runtime.threads` CPUs without GPUs. address: of the Ray cluster; None is
    that of RAY_ADDRESS, or a new one on this machine. Raises A2Error, after all other tasks, if
    some failed.
    """
    records = read_done(folder)
    undone = [task for task in tasks if task not in records]
    if not undone:
        return
    runtime = inputs.runtime
    with _cluster(address) as ray:
        on_gpu = runtime.device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
        start = ray.remote(
            num_cpus=runtime.threads or 1, num_gpus=int(on_gpu), max_retries=_RESTARTS
        )(_work_on)
        left = {start.remote(Path.cwd(), inputs, folder, task): task for task in undone}
        failed: dict[str, str] = {}
        done = len(tasks) - len(undone)
        with track("extract: shards", total=len(tasks), done=done) as progress:
            while left:
                [ended], _ = ray.wait(list(left))
                task = left.pop(ended)
                try:
                    ray.get(ended)
                except ray.exceptions.RayError as error:
                    cause = getattr(error, "cause", None)  # of an error in the task itself
                    failed[task] = str(cause or error).splitlines()[0]
                progress.advance(1)
    if failed:
        first, reason = min(failed.items())
        raise A2Error(
            f"{len(failed)} of {len(tasks)} shards failed, first {first}: {reason}; "
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
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray's errors have no common base
        where = address or os.environ.get("RAY_ADDRESS", "this machine")
        raise InputError(
            f"no Ray cluster at {where!r}: {str(error).splitlines()[0]}; "
            "start one with ray start --head, or leave out --address"
        ) from error
    signal.signal(signal.SIGTERM, on_sigterm)  # Ray's handler exits with another code
    try:
        yield ray
    finally:
        ray.shutdown()


def _work_on(directory: Path, inputs: PlanInputs, folder: Path, task: str) -> None:
    """Work on one task in a worker of Ray."""
    os.chdir(directory)  # paths are relative to it
    try:
        with PlanWorker.join(inputs, folder) as worker:
            worker.run([task])
    except Interrupted as stop:
        sys.exit(128 + stop.signal_number)  # a lost worker to Ray, which starts the task again
