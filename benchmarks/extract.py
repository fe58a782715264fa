"""Extraction of an image in each precision, by stage, compared with a plain version.

ResNet-101 with random weights on a drawn image of 640 x 480 pixels, which scales to
800 x 600. The plain version is the same network, unfused and eager, with caffe's 1,600
suppressions; detectron2's modules are added if installed. Python's profiler times the stages.
"""

import copy
import cProfile
import pstats
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torchvision.ops import nms
from torchvision.ops import roi_pool as torchvisions_roi_pool

from a2cap.data.regions import Regions
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.pooled_cells import pool_from_tables
from a2cap.extract.detector.region_selection import (
    CLASS_OVERLAP,
    DetectedRegions,
    RegionSelection,
)
from a2cap.extract.detector.resnet import Architecture
from a2cap.extract.extract_config import ExtractConfig
from a2cap.extract.extractor import Extractor
from a2cap.extract.image import read_image
from benchmarks.measure import Form, Timing, interleaved
from tests.random_detector import random_detector

PLAIN = "plain: unfused, eager, 1,600 suppressions"
PRECISIONS = (("exact", 36), ("mixed", 36), ("mixed", 100))

FULL = ExtractConfig(precision="exact")
QUICK = FULL.model_copy(
    update={"min_side": 120, "max_side": 200, "roi_size": 7, "min_regions": 5, "max_regions": 20}
)


def draw_image(path: Path) -> Path:
    """Write a JPEG of 640 x 480: ellipses and rectangles on a colour gradient."""
    rng = np.random.default_rng(0)
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


def time_stages(detector: Detector, config: ExtractConfig, path: Path) -> dict[str, float]:
    """Return the seconds of each stage of an extraction, in order, by Python's profiler."""
    extractor = Extractor(detector, config=config)
    heads = type(detector.roi_heads)
    shares = detector.architecture.has_bottlenecks
    stages: dict[str, Callable[..., Any]] = {
        "decode": read_image,
        "scale": Extractor._scaled,
        "backbone": type(detector.backbone).forward,
        "RPN and proposals": type(detector.proposal_generator).forward,
        "RoIPool's tables": pool_from_tables,
        "res5": heads.of_cells if shares else heads.forward,
        "selection": RegionSelection.__call__,
    }
    _extract(extractor, path)
    with cProfile.Profile() as profile:
        _extract(extractor, path)
    # (file, line, name) -> calls, calls without recursion, own seconds, seconds in total, callers
    times = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    codes = {name: function.__code__ for name, function in stages.items()}
    keys = {name: (c.co_filename, c.co_firstlineno, c.co_name) for name, c in codes.items()}
    return {name: times[key][3] for name, key in keys.items() if key in times}


def plain_selection(rule: RegionSelection, regions: DetectedRegions) -> tuple[Tensor, Tensor]:
    """Select like `RegionSelection`, with one suppression per class as in generate_tsv.py."""
    boxes, probabilities = regions.boxes[0], regions.probabilities[0]
    # caffe's boxes include their last pixel: the overlap of continuous boxes one wider
    widened = boxes + boxes.new_tensor([0, 0, 1, 1])
    best = torch.zeros(len(boxes))
    for scores in probabilities.T:
        kept = nms(widened, scores, CLASS_OVERLAP)
        best[kept] = torch.maximum(best[kept], scores[kept])
    confident = (best >= rule.confidence).nonzero()[:, 0]
    if rule.min_regions <= len(confident) <= rule.max_regions:
        rows = confident
    else:
        count = rule.min_regions if len(confident) < rule.min_regions else rule.max_regions
        rows = best.argsort(descending=True, stable=True)[:count]
    return rows[None], torch.tensor([len(rows)])


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
    for part in torch.split(rois, chunk):
        yield torchvisions_roi_pool(maps, part, size, scale)


def plain_form(extractor: Extractor, path: Path) -> Regions:
    """Extract an image with the reference implementations' selection."""
    with patch.object(RegionSelection, "__call__", plain_selection):
        return _extract(extractor, path)


def time_precisions(
    detector: Detector, path: Path, base: ExtractConfig, *, rounds: int
) -> dict[str, Timing]:
    """Time all versions in alternation, including image decoding."""
    exact = fixed(base, 36, precision="exact")
    forms: dict[str, Form] = {PLAIN: partial(plain_form, plain_extractor(detector, exact), path)}
    if find_spec("detectron2") is not None and detector.architecture.has_bottlenecks:
        theirs = plain_extractor(detector, exact.model_copy(update={"backend": "detectron2"}))
        forms["detectron2 eager"] = partial(plain_form, theirs, path)
    for precision, count in PRECISIONS:
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
