"""Worlds of the study: generated scenes with known groundings, and photographs without them.

A planted world differs from the plain one only in its training images: there a piece of clutter is
beside every object of its paired category, and nowhere else. The held-out images are the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from a2cap.data.annotations.split_list import SPLITS
from a2cap.data.files.json_file import read_json, write_json
from a2cap.data.scenes.generate import write_scenes
from a2cap.pipeline.configuration import override
from a2cap.pipeline.engine.progress import track
from benchmarks.photos_data import karpathy_item, read_photos

PLAIN, PLANTED, PHOTOGRAPHED = "plain", "planted", "photographs"

PLANTED_SHARE = 0.95
"""Share of the training images with a paired category that show its companion, if planted."""

SIDE = 224
"""Pixels; the size that the bundled detector was trained on."""

_HELD_OUT = ("val", "test")

_CELLS = (
    *("extract.weights=photos", "extract.grid_size=7", "preprocess.min_count=3"),
    *("model.box_geometry=linear", "model.standardise=true"),
)
"""Fields of photographs, whose regions are the cells of the bundled image encoder."""


@dataclass(frozen=True)
class Images:
    """Numbers of images to draw, and of them to train, validate and test with.

    A fifth of the drawn scenes is held out and has no planted clutter; the rest can train. Of
    photographs none is drawn.
    """

    drawn: int
    train: int
    validate: int
    test: int


@dataclass(frozen=True)
class World:
    """One data set on disk: drawn scenes, or photographs, whose objects are not known.

    photographs: captions of photographs, beside the folder `images`; None for scenes.
    """

    name: str
    folder: Path
    photographs: Path | None = None

    @property
    def annotations(self) -> Path:
        """Captions and splits of the chosen images."""
        return self.folder.with_suffix(".json")

    def overrides(self, weights: str) -> list[str]:
        """Return the fields of an experiment on this world."""
        annotations = override("data.annotations", self.annotations)
        if self.photographs is not None:
            images = self.photographs.parent / "images"
            return [annotations, override("data.images", images), *_CELLS]
        return [
            override("data.images", self.folder / "images"),
            override("data.instances", self.folder / "instances.json"),
            annotations,
            override("extract.weights", weights),
        ]

    @cached_property
    def captions(self) -> dict[str, list[list[tuple[str, list[int]]]]]:
        """Image id -> captions as words with the indices of their objects."""
        captions: Any = read_json(self.folder / "grounding.json")
        return dict(captions)

    @cached_property
    def word_groups(self) -> dict[str, list[str]]:
        """Group -> its words."""
        groups: Any = read_json(self.folder / "words.json")
        return dict(groups)

    @cached_property
    def companions(self) -> dict[str, str]:
        """Category of objects -> category of clutter that a planted world puts beside it."""
        description: Any = read_json(self.folder / "scenes.json")
        return dict(description["companions"])


def draw_world(world: World, images: Images) -> None:
    """Draw a world unless it exists or has photographs, and choose its images."""
    if world.photographs is not None:
        entries = [karpathy_item(photo) for photo in read_photos(world.photographs)]
        world.folder.parent.mkdir(parents=True, exist_ok=True)
        write_json(world.annotations, {"images": chosen_images(entries, images)})
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
    content = {**document, "images": chosen_images(document["images"], images)}
    write_json(world.annotations, content)


def chosen_images(images: Sequence[Mapping[str, Any]], counts: Images) -> list[dict[str, Any]]:
    """Return the first images of each split, held-out images being split again.

    Raises ValueError if too few were drawn.
    """
    held_out = [image for image in images if SPLITS[image["split"]] in _HELD_OUT]
    training = [image for image in images if SPLITS[image["split"]] not in _HELD_OUT]
    ranges = {
        "train": (training, 0, counts.train),
        "val": (held_out, 0, counts.validate),
        "test": (held_out, counts.validate, counts.test),
    }
    entries = []
    for split, (source, first, count) in ranges.items():
        part = source[first : first + count]
        if len(part) < count:
            raise ValueError(f"too few images for {split}: {len(part)} of {count}; draw more")
        entries += [{**image, "split": split} for image in part]
    return entries
