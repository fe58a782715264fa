"""The shards of an extraction as Ray tasks, which Ray starts again when a worker or node dies.

A task returns nothing: it publishes its shard in the folder that all nodes share.
"""

import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from a2cap.data.errors import A2Error, InputError
from a2cap.pipeline.engine.interruption import Interrupted, raise_interrupted
from a2cap.pipeline.engine.prepared_stage import EventLog
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.extraction.shard_worker import Extraction, fill_here

_RESTARTS = 5
"""Most restarts of a task whose worker or node died."""

AUTO = "auto"
"""Address of the cluster that RAY_ADDRESS names, or else of a new one on this machine."""


def fill_on_ray(
    extraction: Extraction, shards: Mapping[str, Sequence[str]], events: EventLog
) -> None:
    """Fill shards on the cluster `runtime.ray`, each with a GPU or `runtime.threads` CPUs.

    Raises A2Error, after all other tasks, if some failed.
    """
    runtime = extraction.runtime
    address = None if runtime.ray == AUTO else runtime.ray
    tracked = track("extract: shards", total=len(shards), events=events)
    with _cluster(address) as ray, tracked as progress:
        on_gpu = runtime.device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
        start = ray.remote(
            num_cpus=runtime.threads or 1, num_gpus=int(on_gpu), max_retries=_RESTARTS
        )(_fill)
        left = {
            start.remote(Path.cwd(), extraction.part(ids), name): name
            for name, ids in shards.items()
        }
        failed: dict[str, str] = {}
        while left:
            [ended], _ = ray.wait(list(left))
            name = left.pop(ended)
            try:
                ray.get(ended)
                events.write("shard", shard=name, images=len(shards[name]))
            except ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None)  # of an error in the task itself
                failed[name] = str(cause or error).splitlines()[0]
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


def _fill(directory: Path, extraction: Extraction, name: str) -> None:
    """Fill one shard in a worker of Ray."""
    os.chdir(directory)  # paths are relative to it
    signal.signal(signal.SIGTERM, raise_interrupted)
    folder = extraction.folder / f"ray-{name}"
    folder.mkdir(exist_ok=True)
    try:
        fill_here(extraction, {name: extraction.images.ids}, EventLog(folder))
    except Interrupted as stop:
        sys.exit(128 + stop.signal_number)  # a lost worker to Ray, which starts the task again
