"""Generated scenes: pictures with known things and true captions, in COCO's layout.

A scene is a pure function of (seed, index), so that a data set needs no download and every word's
place in the picture is known. `write_scenes` makes what a COCO user has on disk:

    images/000000000001.jpg ...
    dataset_coco.json   captions and splits as Karpathy distributes them
    instances.json      COCO instances (boxes without segmentations; area is the box's)
    captions.json       COCO captions
    grounding.json      {image id: per caption [[word, [indices of its things]], ...]}, where an
                        index counts the picture's instances in their order
    scenes.json         what the folder was generated from
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from a2.data.errors import InputError
from a2.data.scene_arrangement import arranged, one_of
from a2.data.scene_captions import Caption, captions_of
from a2.data.scene_drawing import PATTERNS, TINTS, Ground, Picture, draw_picture
from a2.data.scene_things import KINDS, Thing

SMALLEST_SIDE, LARGEST_SIDE = 96, 640
JPEG_QUALITY = 95

SCENES_VERSION = 1
"""Raised whenever the same seed would give other pictures or captions."""


@dataclass(frozen=True)
class Scene:
    """One picture's description.

    image_id: 12 decimal digits. side: width and height in pixels.
    things: back to front; captions: five, each a tuple of words with the indices of their things.
    """

    image_id: str
    side: int
    ground: Ground
    things: tuple[Thing, ...]
    captions: tuple[Caption, ...]

    @property
    def file_name(self) -> str:
        """Name of the picture in the folder of images."""
        return f"{self.image_id}.jpg"


def make_scene(index: int, *, seed: int, side: int) -> Scene:
    """The scene with this index, counted from 0; its image id is one more."""
    rng = np.random.default_rng((seed, index))
    ground = Ground(
        pattern=one_of(PATTERNS, rng),
        tint=one_of(tuple(TINTS), rng),
        seed=int(rng.integers(2**31)),
    )
    things = arranged(rng, side=side)
    return Scene(
        image_id=f"{index + 1:012d}",
        side=side,
        ground=ground,
        things=things,
        captions=captions_of(things, rng),
    )


def draw(scene: Scene) -> Picture:
    """The scene's picture: (side, side, 3) uint8, blue, green, red."""
    return draw_picture(scene.things, scene.ground, side=scene.side)


def write_scenes(
    folder: Path,
    *,
    count: int,
    seed: int = 0,
    side: int = 160,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Writes `count` scenes of `side` pixels into a new folder; the same arguments, the same bytes.

    Nothing is done where the folder holds just these scenes already. `progress` is called
    with 1 after each picture. Raises InputError where the arguments make no data set, where the
    folder holds something else, and where it cannot be written.
    """
    _check(count=count, seed=seed, side=side)
    description = {"version": SCENES_VERSION, "count": count, "seed": seed, "side": side}
    if _holds(folder, description):
        return
    scenes = [make_scene(index, seed=seed, side=side) for index in range(count)]
    target = folder.resolve()
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        (partial / "images").mkdir(parents=True)
        _write_pictures(partial / "images", scenes, progress)
        _write_annotations(partial, scenes, seed=seed)
        _write_json(partial / "scenes.json", description)
        partial.rename(target)
    except OSError as error:
        raise InputError(
            f"scenes cannot be written to {str(folder)!r}: {error.strerror}; "
            "free disk space or name another folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check(*, count: int, seed: int, side: int) -> None:
    if count < 1:
        raise InputError(f"number of scenes is {count}; ask for at least 1")
    if seed < 0:
        raise InputError(f"seed of the scenes is {seed}; give 0 or more")
    if not SMALLEST_SIDE <= side <= LARGEST_SIDE:
        raise InputError(
            f"side of the scenes is {side} pixels; give {SMALLEST_SIDE} to {LARGEST_SIDE}"
        )


def _holds(folder: Path, description: dict[str, int]) -> bool:
    """True where the folder holds these scenes, False where it can be made; else InputError."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        found = json.loads((folder / "scenes.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = "other files"
    if found != description:
        raise InputError(
            f"{str(folder)!r} already holds {found}, not the scenes {description}; "
            "delete it or name another folder"
        )
    return True


def _write_pictures(
    images: Path, scenes: Sequence[Scene], progress: Callable[[int], None] | None
) -> None:
    for scene in scenes:
        (images / scene.file_name).write_bytes(_jpeg(draw(scene)))
        if progress is not None:
            progress(1)


def _jpeg(picture: Picture) -> bytes:
    # Halved chroma, the default, smears the colours of things as small as these.
    options = [
        *(cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY),
        *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444),
    ]
    encoded, buffer = cv2.imencode(".jpg", picture, options)
    if not encoded:
        raise InputError(
            f"OpenCV {cv2.__version__} cannot encode a JPEG; reinstall opencv-python-headless"
        )
    return buffer.tobytes()


def _write_annotations(folder: Path, scenes: Sequence[Scene], *, seed: int) -> None:
    _write_json(folder / "dataset_coco.json", _karpathy(scenes, seed=seed))
    _write_json(folder / "instances.json", _instances(scenes))
    _write_json(folder / "captions.json", _coco_captions(scenes))
    _write_json(folder / "grounding.json", {scene.image_id: scene.captions for scene in scenes})


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, separators=(",", ":")) + "\n", encoding="utf-8")


def _karpathy(scenes: Sequence[Scene], *, seed: int) -> dict[str, object]:
    splits = _splits(len(scenes), seed=seed)
    return {
        "dataset": "scenes",
        "images": [
            _karpathy_image(scene, imgid=imgid, split=split)
            for imgid, (scene, split) in enumerate(zip(scenes, splits, strict=True))
        ],
    }


def _karpathy_image(scene: Scene, *, imgid: int, split: str) -> dict[str, object]:
    numbered = _numbered(scene, imgid)
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


def _numbered(scene: Scene, imgid: int) -> list[tuple[int, Caption]]:
    """The captions with ids that no other scene's have."""
    return list(enumerate(scene.captions, start=imgid * len(scene.captions)))


def raw_text(caption: Caption) -> str:
    """The caption as a person writes it: a capital, spaces and a full stop."""
    return " ".join(word.text for word in caption).capitalize() + "."


def _splits(count: int, *, seed: int) -> list[str]:
    """A tenth val, a tenth test, the rest train, at least one of each in three or more scenes."""
    held_out = max(round(count / 10), 1) if count >= 3 else 0
    splits = ["val"] * held_out + ["test"] * held_out
    splits += ["train"] * (count - len(splits))
    order = np.random.default_rng(seed).permutation(count)
    return [splits[i] for i in order]


def _coco_images(scenes: Sequence[Scene]) -> list[dict[str, object]]:
    return [
        {
            "id": int(scene.image_id),
            "file_name": scene.file_name,
            "width": scene.side,
            "height": scene.side,
        }
        for scene in scenes
    ]


def _instances(scenes: Sequence[Scene]) -> dict[str, object]:
    placed = [(scene, thing) for scene in scenes for thing in scene.things]
    return {
        "info": {"description": "generated scenes"},
        "licenses": [],
        "images": _coco_images(scenes),
        "annotations": [
            _instance(thing, number=number, image_id=int(scene.image_id))
            for number, (scene, thing) in enumerate(placed, start=1)
        ],
        "categories": [
            {"id": number, "name": kind, "supercategory": "thing"}
            for number, kind in enumerate(KINDS, start=1)
        ],
    }


def _instance(thing: Thing, *, number: int, image_id: int) -> dict[str, object]:
    x1, y1, x2, y2 = thing.box
    return {
        "id": number,
        "image_id": image_id,
        "category_id": KINDS.index(thing.kind) + 1,
        "bbox": [x1, y1, round(x2 - x1, 2), round(y2 - y1, 2)],
        "area": round(thing.area, 2),
        "iscrowd": 0,
        "segmentation": [],
    }


def _coco_captions(scenes: Sequence[Scene]) -> dict[str, object]:
    return {
        "info": {"description": "generated scenes"},
        "licenses": [],
        "images": _coco_images(scenes),
        "annotations": [
            {"id": sentid, "image_id": int(scene.image_id), "caption": raw_text(caption)}
            for imgid, scene in enumerate(scenes)
            for sentid, caption in _numbered(scene, imgid)
        ],
    }
