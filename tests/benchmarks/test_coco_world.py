"""The world of COCO's text: what captions name becomes regions, and every region is known."""

import json
import zipfile
from functools import partial

import numpy as np
import pytest

from a2cap.data.annotations.instances import read_instances
from a2cap.data.features.store import FeatureStore
from a2cap.pipeline.captioning.grounding import CategoryNames
from benchmarks import preprocess
from benchmarks.coco_world import COUNTS, NOUNS, Codes, Described, objects_in, write_world

CAPTIONS = {
    1: ["A group of people on a red bus.", "Three women near two small red buses"],
    2: ["A dog on a bench", "a black dog with a frisbee on the grass"],
    3: ["Quietly it rains"],
    4: ["A brown dog chases a kite", "dogs"],
}


@pytest.fixture
def jar(tmp_path, monkeypatch):
    """Put a small caption file in the place of that of pycocoevalcap."""
    names = {number: f"COCO_val2014_{number:012d}.jpg" for number in CAPTIONS}
    pairs = [(number, text) for number, texts in CAPTIONS.items() for text in texts]
    document = {
        "images": [{"id": number, "file_name": name} for number, name in names.items()],
        "annotations": [
            {"id": n, "image_id": image, "caption": text} for n, (image, text) in enumerate(pairs)
        ],
    }
    (tmp_path / "spice").mkdir()
    with zipfile.ZipFile(tmp_path / "spice" / "spice-1.0.jar", "w") as archive:
        archive.writestr("coco/annotations/captions_val2014.json", json.dumps(document))
    monkeypatch.setattr(preprocess, "pycocoevalcap_folder", lambda: tmp_path)


def test_things_have_the_largest_count_and_all_adjectives():
    found = objects_in(text.lower().rstrip(".").split() for text in CAPTIONS[1])
    assert found == {
        "person": Described(COUNTS["group"]),
        "woman": Described(3),
        "bus": Described(2, {"small", "red"}),
    }


def test_a_world_is_deterministic_and_names_every_region(jar, tmp_path):
    write = partial(write_world, count=4, width=64, noise=0.1, distractors=2)
    figures = write(tmp_path / "one", seed=0)
    write(tmp_path / "again", seed=0)
    write(tmp_path / "other", seed=1)
    digests = [
        FeatureStore(tmp_path / name / "features.lmdb").digest for name in ("one", "again", "other")
    ]
    assert digests[0] == digests[1] != digests[2]
    assert figures["images"] == 4 and figures["images without a known noun"] == 1

    store = FeatureStore(tmp_path / "one" / "features.lmdb")
    instances = json.loads((tmp_path / "one" / "instances.json").read_text())
    categories = [category["name"] for category in instances["categories"]]
    assert categories == list(NOUNS)
    names = CategoryNames(categories)
    assert [name for _, name in names.find(["three", "buses", "and", "a", "dog"])] == ["bus", "dog"]
    codes = Codes.create(64, 0.1, np.random.default_rng(0)).nouns
    for number, identity in enumerate(store, start=1):
        regions = store[identity]
        boxes = [b for b in instances["annotations"] if b["image_id"] == number]
        assert len(boxes) == len(regions) and len({tuple(b["bbox"]) for b in boxes}) == len(boxes)
        for box, own, vector in zip(boxes, regions.class_ids, regions.features, strict=True):
            assert box["category_id"] == own + 1
            assert (codes @ vector).argmax() == own
    counts = np.bincount(store[f"{1:012d}"].class_ids, minlength=len(NOUNS))
    assert [counts[NOUNS[noun]] for noun in ("person", "woman", "bus")] == [4, 3, 2]

    boxes = read_instances(tmp_path / "one" / "instances.json")[f"{1:012d}"]
    assert (boxes.boxes == store[f"{1:012d}"].boxes).all()  # so that indices name regions too
    captions = json.loads((tmp_path / "one" / "grounding.json").read_text())[f"{1:012d}"]
    named = {(word, boxes.names[i]) for words in captions for word, found in words for i in found}
    assert named == {
        *((word, "person") for word in ("a", "group", "people")),
        *((word, "woman") for word in ("three", "women")),
        *((word, "bus") for word in ("a", "two", "small", "red", "bus", "buses")),
    }
    assert len(dict(captions[0])["group"]) == COUNTS["group"]
    groups = json.loads((tmp_path / "one" / "words.json").read_text())
    grouped = [word for words in groups.values() for word in words]
    assert len(grouped) == len(set(grouped)) and {"women", "red", "three"} < set(grouped)
    assert not {"a", "of"} & set(grouped)
    # distractors share a noun with the image: beside the dog of 4 is what is beside that of 2
    others = {list(NOUNS)[i] for i in store[f"{4:012d}"].class_ids} - {"dog", "kite"}
    assert others and others <= {"bench", "frisbee", "grass"}
