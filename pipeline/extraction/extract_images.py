"""The extraction engine: fixed shards of the images, filled in any order by any process.

The list of images alone decides the shards. One process fills them in order, `--shard i/N` a stripe
of them, and Ray those that are missing; each is published once, and the store is their list.
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
from a2cap.data.features.store import seal_shards
from a2cap.data.files.sealed_folder import SkippedItem, check_skip_limit
from a2cap.extract.extractor import load_extractor
from a2cap.pipeline.engine.artifact_names import EXTRACTOR, WEIGHTS
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.interruption import Interrupted, raise_interrupted
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.engine.shard_stripe import Stripe
from a2cap.pipeline.extraction.images import LISTING, ExtractionInputs
from a2cap.pipeline.extraction.shard_folder import remove_working_folder
from a2cap.pipeline.extraction.shard_worker import Extraction, fill_here

_RESTARTS = 5
"""Most restarts of a Ray task whose worker or node died."""

AUTO = "auto"
"""Address of the Ray cluster that RAY_ADDRESS names, or else of a new one on this machine."""


def extract_images(
    request: ExtractionInputs, folder: Path, inputs: Inputs, events: EventLog
) -> list[SkippedItem]:
    """Fill a folder with the store, the weights and the record of the extractor.

    Continues the work of earlier runs, here or on a Ray cluster. Returns the skipped images; raises
    InputError if too many are bad.
    """
    extraction = Extraction.begin(request, folder, inputs)
    missing = {name: extraction.shards[name] for name in extraction.missing()}
    extractor = None
    if missing and request.runtime.ray is not None:
        fill_on_ray(extraction, missing, events)
    elif missing:
        extractor = fill_here(extraction, missing, events)
    skipped = extraction.skipped()
    check_skip_limit(skipped, extraction.total, "images")  # each process has read all shards
    facts = seal_shards(extraction.store, len(extraction.shards))
    if not facts.count:
        first = skipped[0]
        raise InputError(
            f"none of the {extraction.total} images can be used, first {first.image_id!r}: "
            f"{first.reason}; fix or replace them"
        )
    # with these, a captioner can extract the same regions
    extractor = extractor or load_extractor(request.weights, config=request.config)
    extractor.save(folder / WEIGHTS)
    extractor.record(folder / WEIGHTS).write(folder / EXTRACTOR)
    remove_working_folder(extraction.store)
    (folder / LISTING).unlink(missing_ok=True)
    return skipped


def extract_stripe(
    request: ExtractionInputs, stripe: Stripe, folder: Path, inputs: Inputs, events: EventLog
) -> int:
    """Fill the shards of a stripe; return how many of all shards are then missing."""
    extraction = Extraction.begin(request, folder, inputs)
    shards = [name for name in stripe.of(list(extraction.shards)) if name in extraction.missing()]
    if shards:
        fill_here(extraction, {name: extraction.shards[name] for name in shards}, events)
    return len(extraction.missing())


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
        )(_fill_on_node)
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
    # without an address, Ray would join the cluster that anybody started here last
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray's errors have no common base
        raise InputError(
            f"no Ray cluster at {address!r}: {str(error).splitlines()[0]}; "
            "start one with ray start --head, or leave out --address"
        ) from error
    signal.signal(signal.SIGTERM, on_sigterm)  # Ray's handler exits with another code
    try:
        yield ray
    finally:
        ray.shutdown()


def _fill_on_node(directory: Path, extraction: Extraction, name: str) -> None:
    """Fill one shard in a worker of Ray."""
    os.chdir(directory)  # paths are relative to it
    signal.signal(signal.SIGTERM, raise_interrupted)
    folder = extraction.folder / f"ray-{name}"
    folder.mkdir(exist_ok=True)
    try:
        fill_here(extraction, {name: extraction.images.ids}, EventLog(folder))
    except Interrupted as stop:
        sys.exit(128 + stop.signal_number)  # a lost worker to Ray, which starts the task again
