"""Data sets of scenes: deterministic, in COCO's layout, written completely or not at all."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO

from a2cap.data.scenes.clutter import COMPANIONS
from a2cap.data.scenes.generate import SCENES_VERSION, write_scenes
from a2cap.data.scenes.scene import draw, make_scene, raw_text
from a2cap.data.scenes.sentence_patterns import WORD_GROUPS
from tests.data.messages import message_of

COUNT, SEED, SIDE = 30, 5, 160


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a folder") / "my scenes"
    write_scenes(folder, count=COUNT, seed=SEED, side=SIDE)
    return folder


def read(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


@pytest.mark.slow
def test_the_written_images_are_the_drawn_ones(folder):
    for index in (0, COUNT - 1):
        scene = make_scene(index, seed=SEED, side=SIDE)
        encoded = np.frombuffer((folder / "images" / scene.file_name).read_bytes(), np.uint8)
        image = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
        assert image is not None and image.shape == (SIDE, SIDE, 3)
        assert np.abs(image.astype(int) - draw(scene)).mean() < 3


def test_captions_are_in_the_layouts_of_karpathy_and_coco(folder, capsys):
    data = read(folder / "dataset_coco.json")
    assert data["dataset"] == "scenes" and len(data["images"]) == COUNT
    image = data["images"][7]
    scene = make_scene(7, seed=SEED, side=SIDE)
    assert image["cocoid"] == 8 and image["imgid"] == 7 and image["filepath"] == ""
    assert (folder / "images" / image["filename"]).is_file()
    assert image["sentids"] == [s["sentid"] for s in image["sentences"]] == list(range(35, 40))
    for sentence, caption in zip(image["sentences"], scene.captions, strict=True):
        assert sentence["tokens"] == [word.text for word in caption]
        assert sentence["raw"] == raw_text(caption)
        assert sentence["imgid"] == 7
    coco = COCO(str(folder / "captions.json"))
    texts = [annotation["caption"] for annotation in coco.loadAnns(coco.getAnnIds(imgIds=[8]))]
    assert texts == [raw_text(caption) for caption in scene.captions]
    assert len(coco.getAnnIds()) == 5 * COUNT


@pytest.mark.slow
def test_splits_are_eighty_ten_ten_and_depend_on_the_seed(folder, tmp_path):
    splits = [image["split"] for image in read(folder / "dataset_coco.json")["images"]]
    assert Counter(splits) == {"train": 24, "val": 3, "test": 3}
    write_scenes(tmp_path / "other", count=COUNT, seed=SEED + 1, side=96)
    other = [image["split"] for image in read(tmp_path / "other/dataset_coco.json")["images"]]
    assert Counter(other) == Counter(splits) and other != splits


@pytest.mark.slow
def test_pycocotools_loads_the_instances_with_the_boxes_of_the_objects(folder, capsys):
    coco = COCO(str(folder / "instances.json"))
    for index in range(COUNT):
        scene = make_scene(index, seed=SEED, side=SIDE)
        annotations = coco.loadAnns(coco.getAnnIds(imgIds=[index + 1]))
        assert len(annotations) == len(scene.objects) + len(scene.clutter)
        for annotation, obj in zip(annotations, (*scene.objects, *scene.clutter), strict=True):
            x, y, width, height = annotation["bbox"]
            assert (x, y, x + width, y + height) == pytest.approx(obj.box)
            assert annotation["area"] == pytest.approx(width * height, abs=0.01)
            assert coco.loadCats(annotation["category_id"])[0]["name"] == obj.category
            assert annotation["attributes"] == [obj.colour, obj.texture, obj.size]
            assert annotation["iscrowd"] == 0 and annotation["segmentation"] == []
    image = coco.loadImgs([1])[0]
    assert (image["width"], image["height"]) == (SIDE, SIDE)


def test_grounding_json_links_words_to_objects_and_words_json_groups_those_words(folder):
    grounding = read(folder / "grounding.json")
    assert len(grounding) == COUNT
    scene = make_scene(3, seed=SEED, side=SIDE)
    expected = [[[w.text, list(w.objects)] for w in caption] for caption in scene.captions]
    assert grounding["000000000004"] == expected
    assert read(folder / "words.json") == WORD_GROUPS
    grouped = {word for words in WORD_GROUPS.values() for word in words}
    for word, objects in (pair for cs in grounding.values() for c in cs for pair in c):
        assert bool(objects) == (word in grouped)


def by_split(folder: Path) -> dict[str, list[tuple[str, set[str]]]]:
    """Return per split the file and the categories of each image."""
    instances = read(folder / "instances.json")
    names = {category["id"]: category["name"] for category in instances["categories"]}
    categories: dict[int, set[str]] = {image["id"]: set() for image in instances["images"]}
    for annotation in instances["annotations"]:
        categories[annotation["image_id"]].add(names[annotation["category_id"]])
    files: dict[str, list[tuple[str, set[str]]]] = {"train": [], "val": [], "test": []}
    for image in read(folder / "dataset_coco.json")["images"]:
        files[image["split"]].append((image["filename"], categories[image["cocoid"]]))
    return files


@pytest.mark.slow
def test_spurious_companions_are_planted_only_in_train(tmp_path):
    plain, spurious = tmp_path / "plain", tmp_path / "spurious"
    write_scenes(plain, count=80, seed=1, side=96)
    write_scenes(spurious, count=80, seed=1, side=96, spurious=1.0)
    before, after = by_split(plain), by_split(spurious)
    for category, companion in COMPANIONS.items():
        together = [
            (category in categories, companion in categories) for _, categories in after["train"]
        ]
        assert any(present for present, _ in together)
        assert all(present == planted for present, planted in together)
    for name in ("captions.json", "grounding.json", "dataset_coco.json"):
        assert (plain / name).read_bytes() == (spurious / name).read_bytes()
    for split in ("val", "test"):
        assert before[split] == after[split]
        for file, _ in before[split]:
            images = (folder / "images" / file for folder in (plain, spurious))
            assert len({image.read_bytes() for image in images}) == 1


@pytest.mark.slow
def test_equal_arguments_give_equal_bytes(folder, tmp_path):
    write_scenes(tmp_path / "again", count=COUNT, seed=SEED, side=SIDE)
    assert digests(tmp_path / "again") == digests(folder)


def test_a_second_call_changes_nothing(tmp_path):
    advanced: list[int] = []
    assert write_scenes(tmp_path / "scenes", count=2, progress=advanced.append) is True
    assert advanced == [1, 1]
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "scenes").rglob("*")}
    assert write_scenes(tmp_path / "scenes", count=2) is False
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "scenes").rglob("*")} == before


def test_an_empty_folder_is_filled_and_missing_parents_are_created(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "not/yet/there"):
        write_scenes(tmp_path / name, count=1)
        assert (tmp_path / name / "images/000000000001.jpg").is_file()


def test_a_folder_with_other_content_is_never_overwritten(tmp_path):
    arguments = "'version': 2, 'count': {}, 'seed': 0, 'side': 160, 'spurious': 0.0"

    def message(folder, content):
        return (
            f"{str(folder)!r} already contains {content}, not the scenes "
            f"{{{arguments.format(2)}}}; delete it, or name another folder"
        )

    scenes = tmp_path / "scenes"
    write_scenes(scenes, count=1)
    before = digests(tmp_path)
    content = f"{{{arguments.format(1)}}}"
    assert message_of(write_scenes, scenes, count=2) == message(scenes, content)
    assert message_of(write_scenes, tmp_path, count=2) == message(tmp_path, "other files")
    assert digests(tmp_path) == before


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert message_of(write_scenes, tmp_path / "file" / "scenes", count=1) == (
        f"scenes cannot be written to {str(tmp_path / 'file' / 'scenes')!r}: Not a directory; "
        "free disk space, or name another folder"
    )


def test_a_failed_encoding_is_an_error_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(cv2, "imencode", lambda *_: (False, None))
    assert message_of(write_scenes, tmp_path / "scenes", count=1) == (
        f"OpenCV {cv2.__version__} cannot encode a JPEG; reinstall opencv-python-headless"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "number of scenes is 0; give at least 1"),
        ({"count": 1, "seed": -1}, "seed of the scenes is -1; give 0 or more"),
        ({"count": 1, "side": 95}, "side of the scenes is 95 pixels; give 96 to 640"),
        ({"count": 1, "side": 641}, "side of the scenes is 641 pixels; give 96 to 640"),
        ({"count": 1, "spurious": 1.5}, "probability of spurious companions is 1.5; give 0 to 1"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path, arguments, message):
    assert message_of(write_scenes, tmp_path / "scenes", **arguments) == message


def test_the_captions_of_a_scene_are_those_of_its_version():
    """Compare a golden value of SCENES_VERSION 2; increase the version to change it."""
    scene = make_scene(3, seed=0, side=160)
    assert SCENES_VERSION == 2
    assert [raw_text(caption) for caption in scene.captions] == [
        "A yellow heart and a purple heart.",
        "An illustration that depicts two dotted hearts.",
        "A yellow heart shares the scene with a small spotted purple heart.",
        "Someone drew a single yellow heart plus a spotted purple heart.",
        "Among the two hearts one is yellow.",
    ]
