"""Stage calibrate: random detector weights whose activations are set by eight of the pictures.

For smoke runs and benchmarks only, and only when `extract.weights` asks for `calibrated-random`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from a2cap.data.annotations.read import Skipped
from a2cap.data.errors import InputError
from a2cap.extract.config import ExtractConfig
from a2cap.pipeline.engine.stage import EventLog, Input, Stage, plain_outputs

NAME = "calibrate"
CODE_VERSION = 2

WEIGHTS = "weights.safetensors"
_PICTURES = 8
_FIELDS = {"depth", "width", "seed", "roi_size", "min_side", "max_side"}


def chosen_pictures(pictures: Mapping[str, Path | None]) -> dict[str, Path]:
    """The pictures with the eight lowest ids among those that have a file."""
    found = ((image_id, path) for image_id, path in sorted(pictures.items()) if path is not None)
    return dict(list(found)[:_PICTURES])


def calibrate_stage(
    config: ExtractConfig, *, pictures: Mapping[str, Path], content: Input
) -> Stage:
    """The stage over the chosen pictures."""
    return Stage(
        name=NAME,
        code_version=CODE_VERSION,
        params={"extract": config.model_dump(mode="json", include=_FIELDS)},
        inputs={"pictures": content},
        outputs=plain_outputs(WEIGHTS),
        work=partial(_calibrate, config, list(pictures.values())),
    )


def _calibrate(
    config: ExtractConfig, pictures: Sequence[Path], directory: Path, events: EventLog
) -> Sequence[Skipped]:
    from a2cap.extract.detector.resnet import Architecture
    from a2cap.extract.image import read_picture
    from a2cap.extract.weights.calibrated_random import calibrate
    from a2cap.extract.weights.load import save_detector

    readable = []
    for path in pictures:
        try:
            readable.append(read_picture(path))
        except InputError as error:
            events.write("unreadable", picture=path.name, reason=str(error))
    if not readable:
        raise InputError(
            f"none of the first {len(pictures)} pictures can be read; check data.images"
        )
    detector = calibrate(
        readable,
        Architecture(depth=config.depth, width=config.width),
        min_side=config.min_side,
        max_side=config.max_side,
        roi_size=config.roi_size,
        seed=config.seed,
    )
    save_detector(detector, directory / WEIGHTS)
    return []
