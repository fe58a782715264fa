"""Extraction time per image in each precision, by stage, compared with a plain version.

ResNet-101 with random weights on drawn images of 640 x 480 pixels, which scale to
800 x 600. The plain version is the same network, unfused and eager, with caffe's 1,600
suppressions; detectron2's modules are added if installed. Stages are timed inside `Extractor`,
alternating two numbers of proposals. RoIPool is also timed beside torchvision's operator.
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
from a2cap.extract.config import ExtractConfig, stated_settings
from a2cap.extract.detector.detector import CHUNK, Detector, Pooling
from a2cap.extract.detector.operators import roi_pool
from a2cap.extract.detector.proposals import batch_rois
from a2cap.extract.detector.resnet import STRIDE, Architecture
from a2cap.extract.detector.selection import CLASS_OVERLAP, select_regions
from a2cap.extract.extractor import Boxes, Extractor
from a2cap.extract.image import read_image
from a2cap.extract.weights.load import load_detector
from a2cap.pipeline.weights.detectors import BUNDLED
from benchmarks.measure import (
    Form,
    Timing,
    interleaved,
    peak_memory,
    print_machine,
    print_table,
    print_timings,
    ratio,
)
from tests.random_detector import random_detector

PLAIN = "plain: unfused, eager, 1,600 suppressions"
TOTAL, TORCHVISION = "total", "torchvision's operator"
PRECISIONS = (("exact", 36), ("mixed", 36), ("mixed", 100))

FULL = ExtractConfig(precision="exact")
QUICK = FULL.model_copy(
    update={"min_side": 120, "max_side": 200, "roi_size": 7, "min_regions": 5, "max_regions": 20}
)

Selection = dict[str, Any]
"""The arguments of a call of `select_regions`."""


BATCHES = (1, 2, 4, 8)
"""Images that pass the backbone together."""


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
        ("scale", extractor, "_blob"),
        ("backbone", network.backbone, "forward"),
        ("RPN and proposals", network.proposal_generator, "forward"),
        ("res5", network.roi_heads, "forward"),
        ("res5", network.roi_heads, "of_cells"),
        ("selection", extractor, "_choose"),
    ):
        setattr(owner, name, laps.timed(stage, getattr(owner, name)))
    pooling = "cells" if detector.architecture.has_bottlenecks else "pool"
    setattr(network, pooling, laps.timed_parts("RoIPool", getattr(network, pooling)))
    return extractor


def time_stages(
    detector: Detector, path: Path, configs: list[ExtractConfig], *, rounds: int
) -> tuple[list[dict[str, Timing]], list[Selection]]:
    """Time the configurations in alternation, after one round that does not count.

    Returns the timings and the last selection of each.
    """
    laps = [Laps() for _ in configs]
    forms = [
        timed_extractor(detector, config, own) for config, own in zip(configs, laps, strict=True)
    ]
    selections: list[Selection] = []

    def recorded(boxes: Boxes, probabilities: Boxes, **limits: Any) -> NDArray[np.int64]:
        selections.append({"boxes": boxes, "probabilities": probabilities, **limits})
        return select_regions(boxes, probabilities, **limits)

    with patch("a2cap.extract.extractor.select_regions", recorded):
        for number in range(rounds + 1):
            for extractor, own in zip(forms, laps, strict=True):
                with own.image(counts=number > 0), own.lap(TOTAL):
                    _extract(extractor, path)
    return [own.timings() for own in laps], selections[-len(configs) :]


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
    scale = extractor._blob
    network = copy.copy(extractor._network if config.backend == "detectron2" else detector)
    if config.backend == "native":
        network.pool = torchvisions_pool
    replaced = {
        "_network": network,
        "_blob": lambda images: (scale(images)[0].contiguous(), scale(images)[1]),
    }
    vars(extractor).update(replaced)
    return extractor


def torchvisions_pool(
    maps: Tensor, rois: Tensor, *, size: int, scale: float, chunk: int
) -> Iterator[Tensor]:
    """Pool as `roi_pool` does, with torchvision's operator."""
    for some in torch.split(rois, chunk):
        yield torchvisions_roi_pool(maps, some, size, scale)


def pooling_forms(extractor: Extractor, path: Path) -> dict[str, Form]:
    """Return both RoIPools of an image's proposals, each on a map in its own layout."""
    blob, sizes = extractor._blob([read_image(path)])
    maps, config = extractor._network(blob), extractor.config
    boxes = extractor._network.proposal_generator(
        maps, sizes=sizes, count=config.proposals, meta=extractor.meta
    )
    rois = batch_rois(boxes)

    def run(pool: Pooling, own: Tensor) -> None:
        for _ in pool(own, rois, size=config.roi_size, scale=1 / STRIDE, chunk=CHUNK):
            pass

    return {
        TORCHVISION: partial(run, torchvisions_pool, maps.contiguous()),
        "tables of maxima": partial(run, roi_pool, maps),
    }


def plain_form(extractor: Extractor, path: Path) -> Regions:
    """Extract an image with the reference implementations' selection."""
    with patch("a2cap.extract.extractor.select_regions", plain_selection):
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


def bundled_extractor() -> Extractor:
    """Return the extractor of the bundled detector, which takes a fifth of a second an image."""
    detector = load_detector(BUNDLED["scenes"].path)
    stated = stated_settings(detector.meta.model_dump())
    config = ExtractConfig.model_validate(
        {"precision": "exact", **BUNDLED["scenes"].settings, **stated}
    )
    return Extractor(detector, config=config)


def time_batches(extractor: Extractor, paths: list[Path], *, rounds: int) -> dict[str, Timing]:
    """Time the extraction of image files in batches of each size, image decoding included."""

    def run(size: int) -> None:
        extractor.batch = size
        extractor.extract_many([read_image(path) for path in paths], [None] * len(paths))

    return interleaved({str(size): partial(run, size) for size in BATCHES}, rounds=rounds)


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


def selection_forms(selection: Selection) -> dict[str, Callable[[], NDArray[np.int64]]]:
    """Return plain and pruned selection on the same probabilities."""
    return {
        "plain": partial(plain_selection, **selection),
        "pruned": partial(select_regions, **selection),
    }


def print_selection(configs: list[ExtractConfig], selections: list[Selection]) -> None:
    """Print pruned and plain selection on the same probabilities."""
    rows = []
    for config, selection in zip(configs, selections, strict=True):
        forms = selection_forms(selection)
        plain, pruned = interleaved(forms, rounds=3).values()
        expected, found = (form() for form in forms.values())
        rows.append(
            [
                f"{config.proposals} proposals",
                f"{plain.median:.4f}",
                f"{pruned.median:.4f}",
                ratio(plain.median, pruned.median),
                f"{len(np.intersect1d(expected, found))} of {len(expected)}",
            ]
        )
    header = ["", "NMS per class, s", "pruned, s", "faster by", "same regions"]
    print_table("selection, pruned against one NMS per class", header, rows)


def print_memory(detector: Detector, path: Path, configs: list[ExtractConfig]) -> None:
    """Print the peak memory of the process, including weights, while extracting one image."""
    image = read_image(path)
    rows = []
    for config in configs:
        extractor = Extractor(detector, config=config)
        peak = peak_memory(partial(extractor, image))
        rows.append([f"{config.proposals} proposals", f"{peak:,.0f}"])
    print_table("peak memory of the process", ["", "MiB"], rows)


@click.command()
@click.option("--quick", is_flag=True, help="Use a tiny network, only to check that it runs.")
def main(quick: bool) -> None:
    """Time the extractor stage by stage."""
    print_machine()
    base, depth, width, rounds, images = (QUICK, 18, 8, 1, 2) if quick else (FULL, 101, 64, 3, 8)
    configs = [base.model_copy(update={"proposals": count}) for count in (100, 300)]
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        path = Path(folder) / "image.jpg"
        draw_image(path)
        detector = make_detector(path, base, depth=depth, width=width)
        many = configs[-1]
        timings = time_precisions(detector, path, many, rounds=rounds)
        title = f"one image, {many.proposals} proposals"
        print_timings(title, timings, reference=PLAIN, count=1)
        paths = [draw_image(Path(folder) / f"{seed}.jpg", seed=seed) for seed in range(images)]
        print_agreement(detector, paths, many)
        stages, selections = time_stages(detector, path, configs, rounds=rounds)
        for config, measured in zip(configs, stages, strict=True):
            print_stages(config, measured)
        pooled = interleaved(pooling_forms(Extractor(detector, config=many), path), rounds=3)
        title = f"RoIPool of {many.proposals} proposals"
        print_timings(title, pooled, reference=TORCHVISION, count=1)
        print_selection(configs, selections)
        batches = time_batches(bundled_extractor(), paths, rounds=rounds)
        title = f"{len(paths)} images by the size of a batch"
        print_timings(title, batches, reference="1", count=len(paths))
        print_memory(detector, path, configs)


if __name__ == "__main__":
    main()
