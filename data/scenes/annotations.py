"""Annotations of generated scenes in the layouts of COCO and Karpathy."""

from collections.abc import Sequence

from a2cap.data.scenes.captions import Caption
from a2cap.data.scenes.objects import (
    CLUTTER,
    COLOURS,
    MUTED,
    OBJECT_CATEGORIES,
    SIZES,
    TEXTURES,
    SceneObject,
)
from a2cap.data.scenes.scene import Scene, raw_text

CATEGORIES = (*OBJECT_CATEGORIES, *CLUTTER)
"""Names of the categories; their ids count from 1."""

ATTRIBUTES = (*COLOURS, *MUTED, *TEXTURES, *SIZES)
"""Names of the attributes; their ids count from 1."""


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


def _captions_with_ids(scene: Scene, imgid: int) -> list[tuple[int, Caption]]:
    """Return the captions with ids that are unique among all scenes."""
    return list(enumerate(scene.captions, start=imgid * len(scene.captions)))


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


def instances(scenes: Sequence[Scene]) -> dict[str, object]:
    """Return COCO instances: the objects of each image in their order, then its clutter."""
    placed = [(scene, one) for scene in scenes for one in (*scene.objects, *scene.clutter)]
    return {
        "info": {"description": "generated scenes"},
        "licenses": [],
        "images": _coco_images(scenes),
        "annotations": [
            _instance(one, number=number, image_id=int(scene.image_id))
            for number, (scene, one) in enumerate(placed, start=1)
        ],
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


def _instance(one: SceneObject, *, number: int, image_id: int) -> dict[str, object]:
    x1, y1, x2, y2 = one.box
    return {
        "id": number,
        "image_id": image_id,
        "category_id": CATEGORIES.index(one.category) + 1,
        # the corners have two decimals, but their difference is not exact
        "bbox": [x1, y1, round(x2 - x1, 2), round(y2 - y1, 2)],
        "area": round(one.area, 2),
        "iscrowd": 0,
        "segmentation": [],
        "attributes": [one.colour, one.texture, one.size],
    }


def coco_captions(scenes: Sequence[Scene]) -> dict[str, object]:
    """Return COCO captions."""
    return {
        "info": {"description": "generated scenes"},
        "licenses": [],
        "images": _coco_images(scenes),
        "annotations": [
            {"id": sentid, "image_id": int(scene.image_id), "caption": raw_text(caption)}
            for imgid, scene in enumerate(scenes)
            for sentid, caption in _captions_with_ids(scene, imgid)
        ],
    }
