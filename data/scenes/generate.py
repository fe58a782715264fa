"""Generated scenes: images with known things and true captions, in COCO's layout.

A scene is a pure function of (seed, index), so that a data set needs no download and every word's
place in the image is known. `write_scenes` makes what a COCO user has on disk:

    images/000000000001.jpg ...
    dataset_coco.json   captions and splits as Karpathy distributes them
    instances.json      COCO instances (boxes without segmentations; area is the box's), each with
                        its "attributes": colour, texture and size; things first, then clutter
    captions.json       COCO captions
    grounding.json      {image id: per caption [[word, [indices of its things]], ...]}, where an
                        index counts the image's instances in their order
    words.json          the words that are about things, by group: kinds, colours, sizes ...
    scenes.json         what the folder was generated from, and which clutter goes with which kind
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from a2cap.data.errors import InputError
from a2cap.data.scenes.annotations import coco_captions, instances, karpathy
from a2cap.data.scenes.clutter import COMPANIONS
from a2cap.data.scenes.grammar import WORD_GROUPS
from a2cap.data.scenes.render import write_images
from a2cap.data.scenes.scene import Scene, draw, make_scene, raw_text

__all__ = ["SCENES_VERSION", "Scene", "draw", "make_scene", "raw_text", "write_scenes"]

SMALLEST_SIDE, LARGEST_SIDE = 96, 640

SCENES_VERSION = 2
"""Raised whenever the same arguments would give other images or captions."""


def write_scenes(
    folder: Path,
    *,
    count: int,
    seed: int = 0,
    side: int = 160,
    spurious: float = 0.0,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> bool:
    """Writes `count` scenes of `side` pixels into a new folder; the same arguments, the same bytes.

    spurious: probability that a kind's companion out of COMPANIONS stands beside it in images
    for training, in which it stands nowhere else; in val and test, and at 0, it stands by chance.
    workers: processes that draw, as many as there are cores where None; the bytes are the same.
    Nothing is done where the folder holds just these scenes already; returns whether anything was.
    `progress` is called with 1 after each image. Raises InputError where the arguments make no
    data set, where the folder holds something else, and where it cannot be written.
    """
    _check(count=count, seed=seed, side=side, spurious=spurious)
    description = {
        **{"version": SCENES_VERSION, "count": count, "seed": seed},
        **{"side": side, "spurious": float(spurious)},
    }
    if _holds(folder, description):
        return False
    splits = _splits(count, seed=seed)
    planted = [spurious if split == "train" else 0.0 for split in splits]
    target = folder.resolve()
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        (partial / "images").mkdir(parents=True)
        scenes = write_images(
            *(partial / "images", planted),
            seed=seed,
            side=side,
            workers=workers,
            progress=progress,
        )
        _write_json(partial / "dataset_coco.json", karpathy(scenes, splits))
        _write_json(partial / "instances.json", instances(scenes))
        _write_json(partial / "captions.json", coco_captions(scenes))
        _write_json(
            partial / "grounding.json", {scene.image_id: scene.captions for scene in scenes}
        )
        _write_json(partial / "words.json", WORD_GROUPS)
        _write_json(partial / "scenes.json", {**description, "companions": COMPANIONS})
        partial.rename(target)
    except OSError as error:
        raise InputError(
            f"scenes cannot be written to {str(folder)!r}: {error.strerror}; "
            "free disk space or name another folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True


def _check(*, count: int, seed: int, side: int, spurious: float) -> None:
    if count < 1:
        raise InputError(f"number of scenes is {count}; ask for at least 1")
    if seed < 0:
        raise InputError(f"seed of the scenes is {seed}; give 0 or more")
    if not SMALLEST_SIDE <= side <= LARGEST_SIDE:
        raise InputError(
            f"side of the scenes is {side} pixels; give {SMALLEST_SIDE} to {LARGEST_SIDE}"
        )
    if not 0 <= spurious <= 1:
        raise InputError(f"probability of spurious companions is {spurious}; give 0 to 1")


def _holds(folder: Path, description: dict[str, float]) -> bool:
    """True where the folder holds these scenes, False where it can be made; else InputError."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        found = json.loads((folder / "scenes.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = "other files"
    if isinstance(found, dict):
        found.pop("companions", None)
    if found != description:
        raise InputError(
            f"{str(folder)!r} already holds {found}, not the scenes {description}; "
            "delete it or name another folder"
        )
    return True


def _splits(count: int, *, seed: int) -> list[str]:
    """A tenth val, a tenth test, the rest train, at least one of each in three or more scenes."""
    held_out = max(round(count / 10), 1) if count >= 3 else 0
    splits = ["val"] * held_out + ["test"] * held_out
    splits += ["train"] * (count - len(splits))
    order = np.random.default_rng(seed).permutation(count)
    return [splits[i] for i in order]


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, separators=(",", ":")) + "\n", encoding="utf-8")
