"""Worlds of the study: generated scenes and COCO's text, with known groundings.

A planted world differs from the plain one only in its training images: there a piece of clutter is
beside every object of its paired category, and nowhere else. The held-out images are the same.
The world of COCO's text has no images: benchmarks/coco_world.py simulates its features.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from a2cap.data.annotations.split_list import SPLITS
from a2cap.data.files.json_file import read_json, write_json
from a2cap.data.scenes.generate import write_scenes
from a2cap.pipeline.config import override
from a2cap.pipeline.engine.progress import track
from benchmarks.coco_world import write_world

PLAIN, PLANTED, TEXT = "plain", "planted", "text"

PLANTED_SHARE = 0.95
"""Share of the training images with a paired category that show its companion, if planted."""

SIDE = 224
"""Pixels; the size that the bundled detector was trained on."""

_HELD_OUT = ("val", "test")


@dataclass(frozen=True)
class Images:
    """Numbers of images to draw, and of them to train, validate and test with.

    A fifth of the drawn scenes is held out and has no planted clutter; the rest can train.
    """

    drawn: int
    train: int
    validate: int
    test: int


@dataclass(frozen=True)
class World:
    """One drawn data set on disk."""

    name: str
    folder: Path

    @property
    def has_scenes(self) -> bool:
        """False if its images are captions and simulated features only."""
        return self.name != TEXT

    @property
    def annotations(self) -> Path:
        """Captions and splits of the chosen images."""
        return self.folder.with_suffix(".json")

    def overrides(self, weights: str) -> list[str]:
        """Return the fields of an experiment on this world."""
        if not self.has_scenes:
            return [
                override("data.features", self.folder / "features.lmdb"),
                override("data.annotations", self.annotations),
                "preprocess.min_count=5",
                "model.box_geometry=none",  # regions are in random cells
            ]
        return [
            override("data.images", self.folder / "images"),
            override("data.instances", self.folder / "instances.json"),
            override("data.annotations", self.annotations),
            override("extract.weights", weights),
        ]

    @cached_property
    def captions(self) -> dict[str, list[list[tuple[str, list[int]]]]]:
        """Image id -> captions as words with the indices of their objects."""
        found: Any = read_json(self.folder / "grounding.json")
        return dict(found)

    @cached_property
    def word_groups(self) -> dict[str, list[str]]:
        """Group -> its words."""
        found: Any = read_json(self.folder / "words.json")
        return dict(found)

    @cached_property
    def companions(self) -> dict[str, str]:
        """Category of objects -> category of clutter that a planted world puts beside it."""
        if not self.has_scenes:
            return {}
        found: Any = read_json(self.folder / "scenes.json")
        return dict(found["companions"])


def draw_world(world: World, images: Images) -> None:
    """Draw a world unless it exists, and choose its images."""
    if not world.has_scenes:
        _write_text(world, images)
        return
    with track(f"draw {world.name} scenes", total=images.drawn) as progress:
        write_scenes(
            world.folder,
            count=images.drawn,
            seed=0,
            side=SIDE,
            spurious=PLANTED_SHARE if world.name == PLANTED else 0.0,
            progress=progress.advance,
        )
    document: Any = read_json(world.folder / "dataset_coco.json")
    chosen = {**document, "images": chosen_images(document["images"], images)}
    write_json(world.annotations, chosen)


def _write_text(world: World, images: Images) -> None:
    """Write the world of COCO's text; its first images train, as their order is random."""
    if not world.folder.is_dir():
        unfinished = world.folder.with_suffix(".partial")
        shutil.rmtree(unfinished, ignore_errors=True)  # of an interrupted run
        write_world(unfinished, count=images.drawn)
        unfinished.rename(world.folder)
    document: Any = read_json(world.folder / "dataset_coco.json")
    splits = ["train"] * images.train + ["val"] * images.validate + ["test"] * images.test
    if len(document["images"]) < len(splits):
        raise ValueError(f"too few images: {len(document['images'])} of {len(splits)}; draw more")
    pairs = zip(document["images"], splits, strict=False)
    chosen = [{**image, "split": split} for image, split in pairs]
    write_json(world.annotations, {**document, "images": chosen})


def chosen_images(images: Sequence[Mapping[str, Any]], counts: Images) -> list[dict[str, Any]]:
    """Return the first images of each split, held-out images being split again.

    Raises ValueError if too few were drawn.
    """
    held_out = [image for image in images if SPLITS[image["split"]] in _HELD_OUT]
    training = [image for image in images if SPLITS[image["split"]] not in _HELD_OUT]
    wanted = {
        "train": (training, 0, counts.train),
        "val": (held_out, 0, counts.validate),
        "test": (held_out, counts.validate, counts.test),
    }
    found = []
    for split, (source, first, count) in wanted.items():
        part = source[first : first + count]
        if len(part) < count:
            raise ValueError(f"too few images for {split}: {len(part)} of {count}; draw more")
        found += [{**image, "split": split} for image in part]
    return found
