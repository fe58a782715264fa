"""Annotation files in Karpathy's layout."""

from a2cap.data.annotations.caption import tokenize
from a2cap.data.annotations.read import read_annotations
from tests.data.messages import written


def sentence(raw):
    return {"raw": raw, "tokens": list(tokenize(raw))}


def karpathy(**changes):
    """One image; None removes a key."""
    image = {
        "cocoid": 42,
        "filepath": "val2014",
        "filename": "COCO_val2014_000000000042.jpg",
        "split": "test",
        "sentences": [sentence("A dog.")],
    }
    return {key: value for key, value in (image | changes).items() if value is not None}


GOOD = karpathy(filename="7.jpg", filepath="", split="train")
"""A second image: a file of bad images alone would be rejected as a whole."""


def read_karpathy(folder, *images):
    return read_annotations(written(folder, {"images": list(images)}))


def reasons(annotations):
    return [(item.image_id, item.reason) for item in annotations.skipped]
