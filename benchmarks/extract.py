"""Extraction time per image in each precision, by stage, compared with a plain version.

ResNet-101 with random weights on drawn images of 640 x 480 pixels, which scale to
800 x 600. The plain version is the same network, unfused and eager, with caffe's 1,600
suppressions; detectron2's modules are added if installed. Stages are timed inside `Extractor`.
"""

import copy
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor
from torchvision.ops import nms
from torchvision.ops import roi_pool as torchvisions_roi_pool

from a2cap.data.regions import Regions
from a2cap.extract.config import ExtractConfig
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.regions import CLASS_OVERLAP, select_regions
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.extractor import Boxes, Extractor
from a2cap.extract.image import read_image
from benchmarks.measure import (
    Form,
    Timing,
    interleaved,
    peak_memory,
    print_machine,
    print_table,
    print_timings,
)
from tests.random_detector import random_detector

PLAIN = "plain: unfused, eager, 1,600 suppressions"
TOTAL, TORCHVISION = "total", "torchvision's operator"
PRECISIONS = (("exact", 36), ("mixed", 36), ("mixed", 100))

FULL = ExtractConfig(precision="exact")
QUICK = FULL.model_copy(
    update={"min_side": 120, "max_side": 200, "roi_size": 7, "min_regions": 5, "max_regions": 20}
)


class Laps:
    """Seconds of each stage, one value per image."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._pieces: dict[str, float] = {}

    @contextmanager
    def lap(self, stage: str) -> Iterator[None]:
        """Time the block; a stage may consist of several blocks per image."""
        started = time.perf_counter()
        yield
        self._pieces[stage] += time.perf_counter() - started

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose calls are blocks of a stage."""

        def call(*args: Any, **named: Any) -> Any:
            with self.lap(stage):
                return function(*args, **named)

        return call

    def timed_parts(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a generator function of which each step is a block of a stage."""

        def call(*args: Any, **named: Any) -> Iterator[Any]:
            step = self.timed(stage, partial(next, function(*args, **named), None))
            while (part := step()) is not None:
                yield part

        return call

    @contextmanager
    def image(self, *, counts: bool) -> Iterator[None]:
        """Sum the blocks of one image, and discard them unless it counts."""
        self._pieces = defaultdict(float)
        yield
        for stage, seconds in self._pieces.items() if counts else ():
            self._seconds[stage].append(seconds)

    def timings(self) -> dict[str, Timing]:
        """Return the timings of each stage in the order of execution."""
        return {stage: Timing(tuple(seconds)) for stage, seconds in self._seconds.items()}


def draw_image(path: Path, *, seed: int = 0) -> Path:
    """Write a JPEG of 640 x 480: ellipses and rectangles on a colour gradient."""
    rng = np.random.default_rng(seed)
    across, down = np.linspace(0, 255, 640), np.linspace(0, 255, 480)
    ground = np.stack(
        [np.tile(across, (480, 1)), np.tile(down[:, None], (1, 640)), np.full((480, 640), 90.0)],
        axis=2,
    )
    image = Image.fromarray(ground.astype(np.uint8))
    pen = ImageDraw.Draw(image)
    for number in range(24):
        x, y = (int(value) for value in rng.integers(0, (560, 400)))
        width, height = (int(value) for value in rng.integers(20, 160, 2))
        shape = pen.ellipse if number % 2 else pen.rectangle
        red, green, blue = (int(value) for value in rng.integers(0, 256, 3))
        shape((x, y, x + width, y + height), fill=(red, green, blue), outline="black")
    image.save(path, quality=90)
    return path


def make_detector(path: Path, config: ExtractConfig, *, depth: int, width: int) -> Detector:
    """Return a detector with random weights that are calibrated on an image."""
    return random_detector(
        [read_image(path)],
        Architecture(depth=depth, width=width),
        min_side=config.min_side,
        max_side=config.max_side,
        roi_size=config.roi_size,
    )


def timed_extractor(detector: Detector, config: ExtractConfig, laps: Laps) -> Extractor:
    """Return an extractor whose own parts are timed."""
    extractor = Extractor(detector, config=config)
    network = extractor._network
    for stage, owner, name in (
        ("scale", extractor, "_scaled"),
        ("backbone", network.backbone, "forward"),
        ("RPN and proposals", network.proposal_generator, "forward"),
        ("res5", network.roi_heads, "forward"),
        ("res5", network.roi_heads, "of_cells"),
    ):
        setattr(owner, name, laps.timed(stage, getattr(owner, name)))
    pooling = "cells" if detector.architecture.has_bottlenecks else "pool"
    setattr(network, pooling, laps.timed_parts("RoIPool", getattr(network, pooling)))
    return extractor


def time_stages(
    detector: Detector, path: Path, config: ExtractConfig, *, rounds: int
) -> dict[str, Timing]:
    """Time the stages of an image, after one round that does not count."""
    laps = Laps()
    extractor = timed_extractor(detector, config, laps)
    selection = laps.timed("selection", select_regions)
    with patch("a2cap.extract.detector.regions.select_regions", selection):
        for number in range(rounds + 1):
            with laps.image(counts=number > 0), laps.lap(TOTAL):
                _extract(extractor, path)
    return laps.timings()


def plain_selection(
    boxes: Boxes, probabilities: Boxes, *, confidence: float, min_regions: int, max_regions: int
) -> NDArray[np.int64]:
    """Select like `select_regions`, with one suppression per class as in generate_tsv.py."""
    # caffe's boxes include their last pixel: the overlap of continuous boxes one wider
    widened = torch.from_numpy(boxes + np.array([0, 0, 1, 1], np.float32))
    best = torch.zeros(len(boxes))
    for scores in torch.from_numpy(probabilities).T:
        kept = nms(widened, scores, CLASS_OVERLAP)
        best[kept] = torch.maximum(best[kept], scores[kept])
    confident = (best >= confidence).nonzero()[:, 0]
    if min_regions <= len(confident) <= max_regions:
        return confident.numpy()
    count = min_regions if len(confident) < min_regions else max_regions
    return best.argsort(descending=True, stable=True)[:count].numpy()


def plain_extractor(detector: Detector, config: ExtractConfig) -> Extractor:
    """Return an extractor that runs the network unfused, contiguous, with torchvision's RoIPool."""
    extractor = Extractor(detector, config=config)
    scale = extractor._scaled
    network = copy.copy(extractor._network if config.backend == "detectron2" else detector)
    if config.backend == "native":
        network.pool = torchvisions_pool
    replaced = {
        "_network": network,
        "_scaled": lambda images: (scale(images)[0].contiguous(), scale(images)[1]),
    }
    vars(extractor).update(replaced)
    return extractor


def torchvisions_pool(
    maps: Tensor, rois: Tensor, *, size: int, scale: float, chunk: int
) -> Iterator[Tensor]:
    """Pool as `roi_pool` does, with torchvision's operator."""
    for some in torch.split(rois, chunk):
        yield torchvisions_roi_pool(maps, some, size, scale)


def plain_form(extractor: Extractor, path: Path) -> Regions:
    """Extract an image with the reference implementations' selection."""
    with patch("a2cap.extract.detector.regions.select_regions", plain_selection):
        return _extract(extractor, path)


def time_precisions(
    detector: Detector,
    path: Path,
    base: ExtractConfig,
    *,
    rounds: int,
    precisions: tuple[tuple[str, int], ...] = PRECISIONS,
) -> dict[str, Timing]:
    """Time all versions in alternation, including image decoding.

    precisions: with the number of regions of each.
    """
    exact = fixed(base, 36, precision="exact")
    forms: dict[str, Form] = {PLAIN: partial(plain_form, plain_extractor(detector, exact), path)}
    if find_spec("detectron2") is not None and detector.architecture.has_bottlenecks:
        theirs = plain_extractor(detector, exact.model_copy(update={"backend": "detectron2"}))
        forms["detectron2 eager"] = partial(plain_form, theirs, path)
    for precision, count in precisions:
        config = fixed(base, count, precision=precision)
        forms[f"{precision}, {count} boxes"] = form_of(detector, config, path)
    return interleaved(forms, rounds=rounds)


def form_of(detector: Detector, config: ExtractConfig, path: Path) -> Form:
    """Return the extraction of an image file."""
    return partial(_extract, Extractor(detector, config=config), path)


def fixed(base: ExtractConfig, count: int, *, precision: str) -> ExtractConfig:
    """Return the configuration with a fixed number of regions, at most the proposals."""
    count = min(count, base.proposals)
    fields = {"min_regions": count, "max_regions": count, "precision": precision}
    return base.model_copy(update=fields)


def _extract(extractor: Extractor, path: Path) -> Regions:
    return extractor(read_image(path))


def print_agreement(detector: Detector, paths: list[Path], base: ExtractConfig) -> None:
    """Print the share of regions that rough selection keeps, and the error of their features."""
    rows = []
    for precision, count in PRECISIONS[1:]:
        exact, rough = (
            Extractor(detector, config=fixed(base, count, precision=each))
            for each in ("exact", precision)
        )
        same = total = 0
        errors = [0.0]
        for path in paths:
            expected, found = _extract(exact, path), _extract(rough, path)
            rows_of = {tuple(box): row for row, box in enumerate(expected.boxes.tolist())}
            pairs = [
                (rows_of[tuple(box)], row)
                for row, box in enumerate(found.boxes.tolist())
                if tuple(box) in rows_of
            ]
            same, total = same + len(pairs), total + len(expected.boxes)
            for a, b in pairs:
                norm = np.linalg.norm(expected.features[a])
                error = np.linalg.norm(expected.features[a] - found.features[b]) / norm
                errors.append(float(error))
        rows.append(
            [
                f"{precision}, {count} boxes",
                f"{same} of {total}",
                f"{same / total:.1%}",
                f"{max(errors):.1e}",
            ]
        )
    header = ["", "regions kept", "overlap", "largest feature error"]
    print_table(f"selection against exact, {len(paths)} images", header, rows)


def print_stages(config: ExtractConfig, timings: dict[str, Timing]) -> None:
    """Print seconds and share of each stage of one image."""
    total = timings[TOTAL].median
    rows = [
        [stage, f"{timing.median:.4f}", timing.spread, f"{timing.median / total:.1%}"]
        for stage, timing in timings.items()
    ]
    title = f"one image, {config.proposals} proposals"
    print_table(title, ["", "s", "s in each round", "share"], rows)


def print_memory(detector: Detector, path: Path, config: ExtractConfig) -> None:
    """Print the peak memory of the process, including weights, while extracting one image."""
    image, extractor = read_image(path), Extractor(detector, config=config)
    peak = peak_memory(partial(extractor, image))
    header = ["", "MiB"]
    print_table(
        "peak memory of the process", header, [[f"{config.proposals} proposals", f"{peak:,.0f}"]]
    )


@click.command()
@click.option("--quick", is_flag=True, help="Use a tiny network, only to check that it runs.")
def main(quick: bool) -> None:
    """Time the extractor stage by stage."""
    print_machine()
    base, depth, width, rounds, images = (QUICK, 18, 8, 1, 2) if quick else (FULL, 101, 64, 3, 8)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        paths = [draw_image(Path(folder) / f"{seed}.jpg", seed=seed) for seed in range(images)]
        detector = make_detector(paths[0], base, depth=depth, width=width)
        timings = time_precisions(detector, paths[0], base, rounds=rounds)
        print_timings(f"one image, {base.proposals} proposals", timings, reference=PLAIN, count=1)
        print_agreement(detector, paths, base)
        print_stages(base, time_stages(detector, paths[0], base, rounds=rounds))
        print_memory(detector, paths[0], base)


if __name__ == "__main__":
    main()
