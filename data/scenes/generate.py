"""Data sets of generated scenes: images with known objects and true captions, in COCO's layout.

A scene is a pure function of (seed, index). `write_scenes` writes the files of a COCO user:

    images/000000000001.jpg ...
    dataset_coco.json   captions and splits in the layout of Karpathy
    instances.json      COCO instances (boxes without segmentations; area is that of the box), with
                        "attributes" colour, texture and size; objects first, then clutter
    captions.json       COCO captions
    grounding.json      {image id: per caption [[word, [indices of its objects]], ...]}, where an
                        index counts the instances of the image in their order
    words.json          the words that refer to objects, by group: kinds, colours, sizes ...
    scenes.json         the arguments of the generation, and the companions of the categories
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from a2cap.data.errors import InputError
from a2cap.data.files.system import locked
from a2cap.data.scenes.captions import SceneCaption
from a2cap.data.scenes.clutter import COMPANIONS
from a2cap.data.scenes.drawing import encode_jpeg
from a2cap.data.scenes.objects import (
    CLUTTER,
    COLOURS,
    MUTED,
    OBJECT_CATEGORIES,
    SIZES,
    TEXTURES,
    SceneObject,
)
from a2cap.data.scenes.scene import Scene, draw, make_scene, raw_text
from a2cap.data.scenes.sentence_patterns import WORD_GROUPS

SMALLEST_SIDE, LARGEST_SIDE = 96, 640

SCENES_VERSION = 2
"""Version of the images and captions that the same arguments generate."""

CATEGORIES = (*OBJECT_CATEGORIES, *CLUTTER)
"""Names of the categories; their ids count from 1."""

ATTRIBUTES = (*COLOURS, *MUTED, *TEXTURES, *SIZES)
"""Names of the attributes; their ids count from 1."""


def write_scenes(
    folder: Path,
    *,
    count: int,
    seed: int = 0,
    side: int = 160,
    spurious: float = 0.0,
    progress: Callable[[int], None] | None = None,
) -> bool:
    """Write `count` scenes of `side` pixels to a new folder; equal arguments give equal bytes.

    spurious: probability of the companion of a category (COMPANIONS) in training images with that
    category; then it appears in no other training image. In val and test, and at 0, companions
    appear by chance. `progress` is called with 1 after each image. Returns False if the folder
    already contains these scenes. Raises InputError for bad arguments, and if the folder contains
    something else or cannot be written.
    """
    _check_arguments(count=count, seed=seed, side=side, spurious=spurious)
    arguments = {"count": count, "seed": seed, "side": side, "spurious": float(spurious)}
    description = {"version": SCENES_VERSION, **arguments}
    if _contains_scenes(folder, description):
        return False
    splits = _splits(count, seed=seed)
    # held-out images show if a captioner learned to attend to the companion
    planted = [spurious if split == "train" else 0.0 for split in splits]
    target = folder.resolve()
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        _remove_leftovers(target)
        (partial / "images").mkdir(parents=True)
        with locked(partial, exclusive=True):
            scenes = []
            for index, share in enumerate(planted):
                scene = make_scene(index, seed=seed, side=side, planted=share)
                (partial / "images" / scene.file_name).write_bytes(encode_jpeg(draw(scene)))
                scenes.append(scene)
                if progress is not None:
                    progress(1)
        contents = {
            "dataset_coco": karpathy(scenes, splits),
            "instances": instances(scenes),
            "captions": coco_captions(scenes),
            "grounding": {scene.image_id: scene.captions for scene in scenes},
            "words": WORD_GROUPS,
            "scenes": {**description, "companions": COMPANIONS},
        }
        for name, content in contents.items():
            text = json.dumps(content, separators=(",", ":")) + "\n"
            (partial / f"{name}.json").write_text(text, encoding="utf-8")
        partial.rename(target)  # all files appear at once
    except OSError as error:
        raise InputError(
            f"scenes cannot be written to {str(folder)!r}: {error.strerror}; "
            "free disk space, or name another folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True


def _check_arguments(*, count: int, seed: int, side: int, spurious: float) -> None:
    if count < 1:
        raise InputError(f"number of scenes is {count}; give at least 1")
    if seed < 0:
        raise InputError(f"seed of the scenes is {seed}; give 0 or more")
    if not SMALLEST_SIDE <= side <= LARGEST_SIDE:
        raise InputError(
            f"side of the scenes is {side} pixels; give {SMALLEST_SIDE} to {LARGEST_SIDE}"
        )
    if not 0 <= spurious <= 1:
        raise InputError(f"probability of spurious companions is {spurious}; give 0 to 1")


def _contains_scenes(folder: Path, description: dict[str, float]) -> bool:
    """Return False if the folder is missing or empty; raise InputError for other content."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        content = json.loads((folder / "scenes.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = "other files"
    if isinstance(content, dict):
        content.pop("companions", None)  # follow from the version
    if content != description:
        raise InputError(
            f"{str(folder)!r} already contains {content}, not the scenes {description}; "
            "delete it, or name another folder"
        )
    return True


def _remove_leftovers(target: Path) -> None:
    """Delete what killed runs left beside the target; a run that is still drawing keeps its own."""
    for path in target.parent.glob(".*.partial-*") if target.parent.is_dir() else ():
        if path.name.startswith(f".{target.name}.partial-"):
            with suppress(OSError), locked(path, exclusive=True):
                shutil.rmtree(path)


def _splits(count: int, *, seed: int) -> list[str]:
    """Assign a tenth of the scenes to val and test each, at least one if there are three."""
    held_out = max(round(count / 10), 1) if count >= 3 else 0
    splits = ["val"] * held_out + ["test"] * held_out
    splits += ["train"] * (count - len(splits))
    order = np.random.default_rng(seed).permutation(count)
    return [splits[i] for i in order]


def karpathy(scenes: Sequence[Scene], splits: Sequence[str]) -> dict[str, object]:
    """Return captions and splits in the layout of Karpathy's dataset_coco.json."""
    return {
        "dataset": "scenes",
        "images": [
            _karpathy_image(scene, imgid=imgid, split=split)
            for imgid, (scene, split) in enumerate(zip(scenes, splits, strict=True))
        ],
    }


def _karpathy_image(scene: Scene, *, imgid: int, split: str) -> dict[str, object]:
    numbered = _captions_with_ids(scene, imgid)
    return {
        "cocoid": int(scene.image_id),
        "filename": scene.file_name,
        "filepath": "",
        "split": split,
        "sentids": [sentid for sentid, _ in numbered],
        "imgid": imgid,
        "sentences": [
            {
                "raw": raw_text(caption),
                "tokens": [word.text for word in caption],
                "sentid": sentid,
                "imgid": imgid,
            }
            for sentid, caption in numbered
        ],
    }


def _captions_with_ids(scene: Scene, imgid: int) -> list[tuple[int, SceneCaption]]:
    """Return the captions with ids that are unique among all scenes."""
    return list(enumerate(scene.captions, start=imgid * len(scene.captions)))


def _coco(scenes: Sequence[Scene], annotations: list[dict[str, object]]) -> dict[str, object]:
    """Return a document of COCO about the images of scenes."""
    images = [
        {
            "id": int(scene.image_id),
            "file_name": scene.file_name,
            "width": scene.side,
            "height": scene.side,
        }
        for scene in scenes
    ]
    info = {"description": "generated scenes"}
    return {"info": info, "licenses": [], "images": images, "annotations": annotations}


def instances(scenes: Sequence[Scene]) -> dict[str, object]:
    """Return COCO instances: the objects of each image in their order, then its clutter."""
    placed = [(scene, obj) for scene in scenes for obj in (*scene.objects, *scene.clutter)]
    annotations = [
        _instance(obj, number=number, image_id=int(scene.image_id))
        for number, (scene, obj) in enumerate(placed, start=1)
    ]
    return {
        **_coco(scenes, annotations),
        "categories": [
            {
                "id": number,
                "name": category,
                "supercategory": "clutter" if category in CLUTTER else "thing",
            }
            for number, category in enumerate(CATEGORIES, start=1)
        ],
        "attributes": [
            {"id": number, "name": name} for number, name in enumerate(ATTRIBUTES, start=1)
        ],
    }


def _instance(obj: SceneObject, *, number: int, image_id: int) -> dict[str, object]:
    x1, y1, x2, y2 = obj.box
    return {
        "id": number,
        "image_id": image_id,
        "category_id": CATEGORIES.index(obj.category) + 1,
        # the corners have two decimals, but their difference is not exact
        "bbox": [x1, y1, round(x2 - x1, 2), round(y2 - y1, 2)],
        "area": round(obj.area, 2),
        "iscrowd": 0,
        "segmentation": [],
        "attributes": [obj.colour, obj.texture, obj.size],
    }


def coco_captions(scenes: Sequence[Scene]) -> dict[str, object]:
    """Return COCO captions."""
    annotations: list[dict[str, object]] = [
        {"id": sentid, "image_id": int(scene.image_id), "caption": raw_text(caption)}
        for imgid, scene in enumerate(scenes)
        for sentid, caption in _captions_with_ids(scene, imgid)
    ]
    return _coco(scenes, annotations)
