"""Seconds per image: exact and mixed precision against the plain form, by stage, and what agrees.

ResNet-101 with calibrated-random weights on drawn images of 640 x 480 pixels, which scale to
800 x 600. Plain is the same network unfused and eager with caffe's 1,600 suppressions; where
detectron2 is installed, its own modules stand beside it. Stages are timed one after the other as
`Extractor` runs them, for two numbers of proposals in turn.
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
from typing import TYPE_CHECKING

import click
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from a2cap.data.regions import Regions
from a2cap.extract.config import ExtractConfig
from a2cap.extract.detector.detector import CHUNK, Detector
from a2cap.extract.detector.fused import FusedConvolution, fuse
from a2cap.extract.detector.input import ScaledSize, image_blob, image_scale
from a2cap.extract.detector.operators import nms, roi_pool
from a2cap.extract.detector.resnet import STRIDE, Architecture
from a2cap.extract.detector.selection import CLASS_OVERLAP, select_regions
from a2cap.extract.detectron2_backend import rebuild
from a2cap.extract.extractor import Extractor
from a2cap.extract.image import read_image
from a2cap.extract.weights.calibrated_random import calibrate

if TYPE_CHECKING:  # run as a file, a script finds its neighbours without the folder's name
    from benchmarks.measure import (
        Form,
        Timing,
        interleaved,
        peak_memory,
        print_machine,
        print_table,
        ratio,
    )
else:
    from measure import (
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
    """Seconds of each stage, one entry per image."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._pieces: dict[str, float] = {}

    @contextmanager
    def lap(self, stage: str) -> Iterator[None]:
        """Times what is done inside; a stage may come in several pieces of one image."""
        started = time.perf_counter()
        yield
        self._pieces[stage] += time.perf_counter() - started

    @contextmanager
    def image(self, *, counts: bool) -> Iterator[None]:
        """Sums up the pieces of one image, and forgets them unless it counts."""
        self._pieces = defaultdict(float)
        yield
        for stage, seconds in self._pieces.items() if counts else ():
            self._seconds[stage].append(seconds)

    def timings(self) -> dict[str, Timing]:
        """Each stage in the order in which it first ran."""
        return {stage: Timing(tuple(seconds)) for stage, seconds in self._seconds.items()}


@dataclass(frozen=True)
class Scored:
    """Proposals in pixels of the image, (N, 4), and their class probabilities, (N, classes)."""

    boxes: NDArray[np.float32]
    probabilities: NDArray[np.float32]


def draw_image(path: Path, *, seed: int = 0) -> Path:
    """A JPEG of 640 x 480: a colour gradient under some ellipses and rectangles."""
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
    """One image through all stages, as `Extractor` goes."""
    with laps.lap("decode and resize"):
        blob, size = _read(path, config=config, mean=detector.meta.mean)
    if isinstance(detector.backbone.stem.conv1, FusedConvolution):
        blob = blob.contiguous(memory_format=torch.channels_last)  # as ours runs; plain ones do not
    with laps.lap("backbone"):
        maps = detector(blob)
    with laps.lap("RPN and proposals"):
        proposals = detector.propose(maps, size=size, count=config.proposals, meta=detector.meta)
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
    """What `select_regions` does, with a suppression per class, as generate_tsv.py has it."""
    # Overlap of boxes that include their last pixel = overlap of continuous boxes one wider.
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
    """Rounds over the configurations in turn, after one round that does not count."""
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
    """An image's regions as the reference implementations go."""
    laps = Laps()
    with laps.image(counts=False):
        scored = run_stages(detector, path, config=config, laps=laps)
    return plain_selection(scored, config=config)


def time_precisions(
    detector: Detector, path: Path, base: ExtractConfig, *, rounds: int
) -> dict[str, Timing]:
    """The plain form and ours in turn, images decoded each time; by name."""
    forms: dict[str, Form] = {PLAIN: partial(plain_form, detector, path, config=base)}
    if find_spec("detectron2") is not None and detector.architecture.has_bottlenecks:
        forms["detectron2 eager"] = partial(plain_form, rebuild(detector), path, config=base)
    for precision, count in (("exact", 36), ("mixed", 36), ("mixed", 100)):
        extractor = Extractor(detector, config=fixed(base, count, precision=precision))
        forms[f"{precision}, {count} boxes"] = partial(_extract, extractor, path)
    return interleaved(forms, rounds=rounds)


def fixed(base: ExtractConfig, count: int, *, precision: str) -> ExtractConfig:
    """A fixed number of regions, or as many as there are proposals."""
    count = min(count, base.proposals)
    fields = {"min_regions": count, "max_regions": count, "precision": precision}
    return base.model_copy(update=fields)


def _extract(extractor: Extractor, path: Path) -> Regions:
    return extractor(read_image(path))


def print_precisions(timings: dict[str, Timing], *, proposals: int) -> None:
    """Each form, and by how much it is faster than the plain one."""
    plain = timings[PLAIN].median
    rows = [
        [name, f"{timing.median:.3f}", timing.spread, ratio(plain, timing.median)]
        for name, timing in timings.items()
    ]
    header = ["", "s per image", "s in each round", "faster by"]
    print_table(f"one image, {proposals} proposals, against the plain form", header, rows)


def print_agreement(detector: Detector, paths: list[Path], base: ExtractConfig) -> None:
    """Which regions mixed precision keeps of the exact ones, and how far their features are off."""
    rows = []
    for count in (36, 100):
        exact, mixed = (
            Extractor(detector, config=fixed(base, count, precision=precision))
            for precision in ("exact", "mixed")
        )
        same = total = 0
        errors = [0.0]
        for path in paths:
            ours, theirs = _extract(exact, path), _extract(mixed, path)
            where = {tuple(box): row for row, box in enumerate(ours.boxes.tolist())}
            pairs = [
                (where[tuple(box)], row)
                for row, box in enumerate(theirs.boxes.tolist())
                if tuple(box) in where
            ]
            same, total = same + len(pairs), total + len(ours.boxes)
            for a, b in pairs:
                norm = np.linalg.norm(ours.features[a])
                errors.append(float(np.linalg.norm(ours.features[a] - theirs.features[b]) / norm))
        rows.append(
            [f"{count} boxes", f"{same} of {total}", f"{same / total:.1%}", f"{max(errors):.1e}"]
        )
    header = ["", "regions kept", "overlap", "largest feature error"]
    print_table(f"mixed against exact, {len(paths)} images", header, rows)


def print_stages(config: ExtractConfig, timings: dict[str, Timing]) -> None:
    """Seconds and share of each stage; the plain selection stands outside the total."""
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
    """Pruned against plain selection on the same probabilities."""
    rows = []
    for config, measured, regions in zip(configs, timings, scored, strict=True):
        plain, ours = measured[PLAIN_SELECTION], measured[SELECTION]
        expected, found = plain_selection(regions, config=config), _select(regions, config=config)
        alike = len(np.intersect1d(expected, found))
        rows.append(
            [
                f"{config.proposals} proposals",
                f"{plain.median:.4f}",
                f"{ours.median:.4f}",
                ratio(plain.median, ours.median),
                f"{alike} of {len(expected)}",
            ]
        )
    header = ["", "NMS per class, s", "pruned, s", "faster by", "same regions"]
    print_table("selection, pruned against one NMS per class", header, rows)


def print_memory(detector: Detector, path: Path, configs: list[ExtractConfig]) -> None:
    """Peak of the whole process, weights included, over one image by `Extractor` itself."""
    image = read_image(path)
    rows = []
    for config in configs:
        extractor = Extractor(detector, config=config)
        peak = peak_memory(partial(extractor, image))
        rows.append([f"{config.proposals} proposals", f"{peak:,.0f}"])
    print_table("peak memory of the process", ["", "MiB"], rows)


@click.command()
@click.option("--quick", is_flag=True, help="A tiny network: shows that it runs, not how fast.")
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
