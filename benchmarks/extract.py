"""Extraction time per image in exact and mixed precision, by stage, compared with a plain version.

ResNet-101 with calibrated-random weights on drawn images of 640 x 480 pixels, which scale to
800 x 600. The plain version is the same network, unfused and eager, with caffe's 1,600
suppressions; detectron2's modules are added if installed. Stages are timed as `Extractor` runs
them, alternating two numbers of proposals.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from a2cap.data.regions import Regions
from a2cap.extract.config import ExtractConfig
from a2cap.extract.detector.detector import CHUNK, Detector
from a2cap.extract.detector.fused import fuse
from a2cap.extract.detector.input import ScaledSize, image_blob, image_scale
from a2cap.extract.detector.operators import nms, roi_pool
from a2cap.extract.detector.resnet import STRIDE, Architecture
from a2cap.extract.detector.selection import CLASS_OVERLAP, select_regions
from a2cap.extract.detectron2_backend import rebuild
from a2cap.extract.extractor import Extractor
from a2cap.extract.image import read_image
from a2cap.extract.weights.calibrated_random import calibrate
from benchmarks.measure import (
    Form,
    Timing,
    interleaved,
    peak_memory,
    print_machine,
    print_table,
    ratio,
)

PLAIN = "plain: unfused, eager, 1,600 suppressions"
PLAIN_SELECTION = "selection, plain"
SELECTION = "selection"

FULL = ExtractConfig()
QUICK = ExtractConfig(min_side=120, max_side=200, roi_size=7, min_regions=5, max_regions=20)


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


@dataclass(frozen=True)
class Scored:
    """Proposals in pixels of the image, (N, 4), and their class probabilities, (N, classes)."""

    boxes: NDArray[np.float32]
    probabilities: NDArray[np.float32]


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


def run_stages(detector: Detector, path: Path, *, config: ExtractConfig, laps: Laps) -> Scored:
    """Run all stages on one image, as `Extractor` does."""
    with laps.lap("decode and resize"):
        blob, size = _read(path, config=config, mean=detector.meta.mean)
    if detector.backbone.stem.conv1.bias is not None:
        blob = blob.contiguous(memory_format=torch.channels_last)  # as Extractor runs
    with laps.lap("backbone"):
        maps = detector(blob)
    with laps.lap("RPN and proposals"):
        (proposals,) = detector.proposal_generator(
            maps, sizes=[size], count=config.proposals, meta=detector.meta
        )
    features = _region_features(detector, maps, proposals, roi_size=config.roi_size, laps=laps)
    with laps.lap("classes and attributes"):
        predictor = detector.roi_heads.box_predictor
        class_logits = predictor(features)
        predictor.attribute_logits(features, class_logits)
        probabilities = class_logits.softmax(dim=1)[:, :-1]
    scored = Scored((proposals / size.scale).numpy(), probabilities.numpy())
    with laps.lap(SELECTION):
        _select(scored, config=config)
    return scored


def _read(
    path: Path, *, config: ExtractConfig, mean: tuple[float, float, float]
) -> tuple[Tensor, ScaledSize]:
    image = read_image(path)
    height, width = image.shape[:2]
    scale = image_scale(
        height=height, width=width, min_side=config.min_side, max_side=config.max_side
    )
    blob = torch.from_numpy(image_blob(image, scale=scale, mean=mean))[None]
    size = ScaledSize(
        height=blob.shape[2], width=blob.shape[3], scale=scale, factors=(scale, scale)
    )
    return blob, size


def _region_features(
    detector: Detector, maps: Tensor, proposals: Tensor, *, roi_size: int, laps: Laps
) -> Tensor:
    features = []
    rois = torch.cat([torch.zeros(len(proposals), 1), proposals], dim=1)
    for chunk in torch.split(rois, CHUNK):
        with laps.lap("RoIPool"):
            pooled = roi_pool(maps, chunk, size=roi_size, scale=1 / STRIDE)
        with laps.lap("res5"):
            features.append(detector.roi_heads(pooled))
    return torch.cat(features)


def _select(scored: Scored, *, config: ExtractConfig) -> NDArray[np.int64]:
    return select_regions(
        scored.boxes,
        scored.probabilities,
        confidence=config.confidence,
        min_regions=config.min_regions,
        max_regions=config.max_regions,
    )


def plain_selection(scored: Scored, *, config: ExtractConfig) -> NDArray[np.int64]:
    """Select like `select_regions`, with one suppression per class as in generate_tsv.py."""
    # caffe's boxes include their last pixel: the overlap of continuous boxes one wider
    boxes = torch.from_numpy(scored.boxes + np.array([0, 0, 1, 1], np.float32))
    best = torch.zeros(len(boxes))
    for scores in torch.from_numpy(scored.probabilities).T:
        kept = nms(boxes, scores, threshold=CLASS_OVERLAP)
        best[kept] = torch.maximum(best[kept], scores[kept])
    confident = (best >= config.confidence).nonzero()[:, 0]
    if config.min_regions <= len(confident) <= config.max_regions:
        return confident.numpy()
    few = len(confident) < config.min_regions
    count = config.min_regions if few else config.max_regions
    return best.argsort(descending=True, stable=True)[:count].numpy()


def time_stages(
    detector: Detector, path: Path, configs: list[ExtractConfig], *, rounds: int
) -> tuple[list[dict[str, Timing]], list[Scored]]:
    """Time the configurations in alternation, after one round that does not count."""
    laps = [Laps() for _ in configs]
    last: list[Scored] = []
    for number in range(rounds + 1):
        last = []
        for config, measured in zip(configs, laps, strict=True):
            with measured.image(counts=number > 0):
                last.append(run_stages(detector, path, config=config, laps=measured))
                with measured.lap(PLAIN_SELECTION):
                    plain_selection(last[-1], config=config)
    return [measured.timings() for measured in laps], last


def plain_form(detector: Detector, path: Path, *, config: ExtractConfig) -> NDArray[np.int64]:
    """Select an image's regions as the reference implementations do."""
    laps = Laps()
    with laps.image(counts=False):
        scored = run_stages(detector, path, config=config, laps=laps)
    return plain_selection(scored, config=config)


def time_precisions(
    detector: Detector, path: Path, base: ExtractConfig, *, rounds: int
) -> dict[str, Timing]:
    """Time all versions in alternation, including image decoding."""
    forms: dict[str, Form] = {PLAIN: partial(plain_form, detector, path, config=base)}
    if find_spec("detectron2") is not None and detector.architecture.has_bottlenecks:
        forms["detectron2 eager"] = partial(plain_form, rebuild(detector), path, config=base)
    for precision, count in (("exact", 36), ("mixed", 36), ("mixed", 100)):
        extractor = Extractor(detector, config=fixed(base, count, precision=precision))
        forms[f"{precision}, {count} boxes"] = partial(_extract, extractor, path)
    return interleaved(forms, rounds=rounds)


def fixed(base: ExtractConfig, count: int, *, precision: str) -> ExtractConfig:
    """Return the configuration with a fixed number of regions, at most the proposals."""
    count = min(count, base.proposals)
    fields = {"min_regions": count, "max_regions": count, "precision": precision}
    return base.model_copy(update=fields)


def _extract(extractor: Extractor, path: Path) -> Regions:
    return extractor(read_image(path))


def print_precisions(timings: dict[str, Timing], *, proposals: int) -> None:
    """Print each version and its speed-up over the plain one."""
    plain = timings[PLAIN].median
    rows = [
        [name, f"{timing.median:.3f}", timing.spread, ratio(plain, timing.median)]
        for name, timing in timings.items()
    ]
    header = ["", "s per image", "s in each round", "faster by"]
    print_table(f"one image, {proposals} proposals, compared with the plain version", header, rows)


def print_agreement(detector: Detector, paths: list[Path], base: ExtractConfig) -> None:
    """Print the share of regions that mixed precision keeps, and the error of their features."""
    rows = []
    for count in (36, 100):
        exact, mixed = (
            Extractor(detector, config=fixed(base, count, precision=precision))
            for precision in ("exact", "mixed")
        )
        same = total = 0
        errors = [0.0]
        for path in paths:
            expected, found = _extract(exact, path), _extract(mixed, path)
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
            [f"{count} boxes", f"{same} of {total}", f"{same / total:.1%}", f"{max(errors):.1e}"]
        )
    header = ["", "regions kept", "overlap", "largest feature error"]
    print_table(f"mixed against exact, {len(paths)} images", header, rows)


def print_stages(config: ExtractConfig, timings: dict[str, Timing]) -> None:
    """Print seconds and share of each stage; the total excludes the plain selection."""
    total = sum(t.median for stage, t in timings.items() if stage != PLAIN_SELECTION)
    rows = [
        [stage, f"{timing.median:.4f}", timing.spread, f"{timing.median / total:.1%}"]
        for stage, timing in timings.items()
        if stage != PLAIN_SELECTION
    ]
    title = f"one image, {config.proposals} proposals"
    print_table(
        title, ["", "s", "s in each round", "share"], [*rows, ["total", f"{total:.4f}", "", ""]]
    )


def print_selection(
    configs: list[ExtractConfig], timings: list[dict[str, Timing]], scored: list[Scored]
) -> None:
    """Print pruned and plain selection on the same probabilities."""
    rows = []
    for config, measured, regions in zip(configs, timings, scored, strict=True):
        plain, pruned = measured[PLAIN_SELECTION], measured[SELECTION]
        expected, found = plain_selection(regions, config=config), _select(regions, config=config)
        same = len(np.intersect1d(expected, found))
        rows.append(
            [
                f"{config.proposals} proposals",
                f"{plain.median:.4f}",
                f"{pruned.median:.4f}",
                ratio(plain.median, pruned.median),
                f"{same} of {len(expected)}",
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
    base, depth, width, rounds, images = (QUICK, 18, 8, 1, 2) if quick else (FULL, 101, 64, 3, 5)
    configs = [base.model_copy(update={"proposals": count}) for count in (100, 300)]
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        path = Path(folder) / "image.jpg"
        draw_image(path)
        detector = calibrate(
            [read_image(path)],
            Architecture(depth=depth, width=width),
            min_side=base.min_side,
            max_side=base.max_side,
            roi_size=base.roi_size,
            seed=0,
        )
        many = configs[-1]
        print_precisions(
            time_precisions(detector, path, many, rounds=rounds), proposals=many.proposals
        )
        paths = [draw_image(Path(folder) / f"{seed}.jpg", seed=seed) for seed in range(images)]
        print_agreement(detector, paths, many)
        timings, scored = time_stages(fuse(detector), path, configs, rounds=rounds)
        for config, measured in zip(configs, timings, strict=True):
            print_stages(config, measured)
        print_selection(configs, timings, scored)
        print_memory(detector, path, configs)


if __name__ == "__main__":
    main()
