"""Stage calibrate: random detector weights with activations calibrated on eight images.

It runs only if `extract.weights` is `calibrated-random`, for smoke runs and benchmarks.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from a2cap.data.annotations.read import SkippedItem
from a2cap.data.errors import InputError
from a2cap.extract.config import ExtractConfig
from a2cap.pipeline.engine.artifacts import CALIBRATE, WEIGHTS
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.engine.stage import EventLog, Input, Stage, plain_outputs

CODE_VERSION = 2

_IMAGES = 8
_FIELDS = {"depth", "width", "seed", "roi_size", "min_side", "max_side"}


def chosen_images(images: Mapping[str, Path | None]) -> dict[str, Path]:
    """Choose the images with the eight lowest ids among those with a file."""
    found = ((image_id, path) for image_id, path in sorted(images.items()) if path is not None)
    return dict(list(found)[:_IMAGES])


def calibrate_stage(config: ExtractConfig, *, images: Mapping[str, Path], content: Input) -> Stage:
    """Build the stage; `content` carries the digest of the chosen images."""
    return Stage(
        name=CALIBRATE,
        code_version=CODE_VERSION,
        params={"extract": config.model_dump(mode="json", include=_FIELDS)},
        inputs={"pictures": content},  # earlier name of "images", kept in keys
        outputs=plain_outputs(WEIGHTS),
        work=partial(_calibrate, config, list(images.values())),
    )


def _calibrate(
    config: ExtractConfig, images: Sequence[Path], directory: Path, events: EventLog
) -> Sequence[SkippedItem]:
    from a2cap.extract.detector.resnet import BLOCKS, Architecture
    from a2cap.extract.image import read_image
    from a2cap.extract.weights.calibrated_random import calibrate
    from a2cap.extract.weights.load import save_detector

    readable = []
    for path in images:
        try:
            readable.append(read_image(path))
        except InputError as error:
            events.write("unreadable", image=path.name, reason=str(error))
    if not readable:
        raise InputError(f"none of the first {len(images)} images can be read; check data.images")
    with track(CALIBRATE, total=sum(BLOCKS[config.depth])) as progress:
        detector = calibrate(
            readable,
            Architecture(depth=config.depth, width=config.width),
            min_side=config.min_side,
            max_side=config.max_side,
            roi_size=config.roi_size,
            seed=config.seed,
            advance=progress.advance,
        )
    save_detector(detector, directory / WEIGHTS)
    return []
