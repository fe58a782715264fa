"""All captions of COCO 2014, which pycocoevalcap carries in the jar of SPICE."""

import zipfile
from pathlib import Path

import pycocoevalcap
import pytest

JAR = Path(pycocoevalcap.__path__[0]) / "spice/spice-1.0.jar"
SPLITS = Path(__file__).parents[2].parent / "shared/coco/splits"
FULL_SIZE = [
    pytest.mark.slow,
    pytest.mark.shared,
    pytest.mark.skipif(not JAR.is_file(), reason="pycocoevalcap has no SPICE"),
    pytest.mark.skipif(not SPLITS.is_dir(), reason="the COCO sample folder is missing"),
]
"""Marks of tests on all captions; they take seconds."""


def official_captions(folder):
    """Write captions_val2014.json and captions_train2014.json; return their paths."""
    paths = [folder / f"captions_{split}2014.json" for split in ("val", "train")]
    with zipfile.ZipFile(JAR) as archive:
        for path in paths:
            path.write_bytes(archive.read(f"coco/annotations/{path.name}"))
    return paths
