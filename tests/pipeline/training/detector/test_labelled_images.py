"""Tests of the data of a detector's training: the configured files, and what is rejected."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import ExifTags, Image

from a2cap.data.errors import ConfigError, InputError
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.training.detector.detector_config import (
    DetectorConfig,
    image_files,
    input_files,
)
from a2cap.pipeline.training.detector.labelled_images import (
    read_detector_data,
    read_validation_data,
)
from tests.data.messages import message_of

CONFIGS = Path(__file__).parents[4] / "configs"
TRAIN = [f"{number:012d}" for number in range(1, 13)]
VAL = TRAIN[:6]


def ids(data):
    return [image.image_id for image in data.images]


def refusal(config, error=InputError):
    return message_of(read_detector_data, config, error=error)


@pytest.fixture
def changed(labelled, tmp_path):
    """Copy the training images and labels, so that a test can change them."""
    return shutil.copytree(labelled.folder / "train", tmp_path / "changed")


def relabel(folder, change):
    """Change the labels of a folder."""
    path = folder / "instances.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return {"images": str(folder / "images"), "labels": str(path)}


def test_training_and_validation_are_read_from_their_own_files(labelled):
    data = read_detector_data(labelled.config())
    assert (ids(data.training), ids(data.validation)) == (TRAIN, VAL)
    assert data.training.images[0].file.parent == labelled.folder / "train" / "images"
    assert data.validation.images[0].file.parent == labelled.folder / "val" / "images"
    assert data.training.classes == data.validation.classes


def test_lists_can_split_one_folder_and_one_file_of_labels(labelled, tmp_path):
    (tmp_path / "ids").write_text("1\n2\n000000000005.jpg\n")
    (tmp_path / "validation_ids").write_text("3\n")
    lists = {name: str(tmp_path / name) for name in ("ids", "validation_ids")}
    config = labelled.config(validation_images=None, validation_labels=None, **lists)
    data = read_detector_data(config)
    assert ids(data.training) == [TRAIN[0], TRAIN[1], TRAIN[4]]
    assert ids(data.validation) == [TRAIN[2]]
    # all images of the folder that either list names
    assert {field: sorted(files) for field, files in image_files(config).items()} == {
        "images": [TRAIN[0], TRAIN[1], TRAIN[2], TRAIN[4]]
    }


def test_max_validation_images_keeps_the_first_by_id(labelled):
    config = labelled.config(max_validation_images=2)
    assert ids(read_validation_data(config)) == VAL[:2]
    assert ids(read_detector_data(config).validation) == VAL[:2]


FILE_NOT_SET = "detector.{0} is not set; name the file with --set detector.{0}=FILE"
FOLDER_NOT_SET = "detector.{0} is not set; name the folder with --set detector.{0}=DIR"
NO_FOLDER = "detector.{0} is not a folder: 'no/such'; check the path"
NO_FILE = "file of detector.{0} not found: 'no/such'; check the path"


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("labels", None, ConfigError, FILE_NOT_SET),
        ("attributes", None, ConfigError, FILE_NOT_SET),
        ("images", None, ConfigError, FOLDER_NOT_SET),
        ("images", "no/such", ConfigError, NO_FOLDER),
        ("validation_images", "no/such", ConfigError, NO_FOLDER),
        ("validation_labels", "no/such", InputError, NO_FILE),
        ("ids", "no/such", InputError, NO_FILE),
    ],
)
def test_a_missing_input_is_reported_by_its_field(labelled, field, value, error, message):
    layout = "visual-genome" if field == "attributes" else "coco"
    config = labelled.config(layout=layout, **{field: value})
    assert refusal(config, error) == message.format(field)


@pytest.mark.parametrize("through_a_link", [False, True])
def test_an_image_in_training_and_validation_is_rejected(labelled, tmp_path, through_a_link):
    folder = labelled.folder / "train" / "images"
    if through_a_link:
        folder = tmp_path / "linked"
        folder.symlink_to(labelled.folder / "train" / "images")
    config = labelled.config(
        validation_images=str(folder),
        validation_labels=str(labelled.folder / "train" / "instances.json"),
    )
    assert refusal(config) == (
        "12 images are in training and in validation: '000000000001' first; "
        "set detector.ids and detector.validation_ids, or detector.validation_labels"
    )


def test_different_classes_or_attributes_are_rejected(labelled, changed):
    def rename(document):
        document["categories"][0]["name"] = "other"

    labels = relabel(changed, rename)
    assert refusal(labelled.config(**labels)) == (
        "classes of training and validation labels differ: 'other' and 'ball'; "
        "use files of one data set"
    )

    def shorten(document):
        document["categories"][0]["name"] = "ball"
        document["attributes"].append({"id": 999, "name": "new"})

    labels = relabel(changed, shorten)
    count = len(read_validation_data(labelled.config()).attributes)
    assert refusal(labelled.config(**labels)) == (
        f"validation labels have {count} attributes, training labels {count + 1}; "
        "use files of one data set"
    )


@pytest.mark.usefixtures("tolerant")
def test_an_image_of_another_size_than_in_its_labels_is_skipped_with_the_reason(labelled, changed):
    images = changed / "images"
    Image.new("RGB", (90, 96)).save(images / f"{TRAIN[0]}.jpg")
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    Image.new("RGB", (60, 96)).save(images / f"{TRAIN[1]}.jpg", exif=turned)
    (images / f"{TRAIN[2]}.jpg").write_bytes(b"no image")

    def lay_down(document):
        document["images"][3] |= {"width": 60, "height": 96}

    labels = relabel(changed, lay_down)
    Image.new("RGB", (96, 60)).save(images / f"{TRAIN[3]}.jpg", exif=turned)
    data = read_detector_data(labelled.config(**labels)).training
    assert ids(data) == TRAIN[3:]
    assert {item.image_id: item.reason for item in data.skipped} == {
        TRAIN[0]: "90 x 96 pixels after EXIF rotation, its labels expect 96 x 96",
        TRAIN[1]: "96 x 60 pixels after EXIF rotation, its labels expect 96 x 96",
        TRAIN[2]: f"image '{TRAIN[2]}.jpg' has no readable header; get the file again, as JPEG, "
        "PNG, WebP, AVIF, HEIC, GIF, BMP, TIFF or MPO",
    }


@pytest.mark.usefixtures("tolerant")
def test_labels_that_fit_no_image_are_rejected(labelled, changed):
    for name in TRAIN[:2]:
        Image.new("RGB", (50, 40)).save(changed / "images" / f"{name}.jpg")

    def keep_two(document):
        document["images"] = document["images"][:2]
        kept = {image["id"] for image in document["images"]}
        document["annotations"] = [a for a in document["annotations"] if a["image_id"] in kept]

    labels = relabel(changed, keep_two)
    assert refusal(labelled.config(**labels)) == (
        f"none of 2 labelled images can be used: {TRAIN[0]!r} (50 x 40 pixels after EXIF "
        "rotation, its labels expect 96 x 96); use the images that were labelled"
    )


def test_too_many_misfits_are_rejected(labelled, changed):
    for name in TRAIN[:11]:
        Image.new("RGB", (50, 40)).save(changed / "images" / f"{name}.jpg")
    labels = relabel(changed, lambda document: None)
    assert refusal(labelled.config(**labels)).startswith(
        "11 of 12 labelled images cannot be used, at most 1 may be left out: "
    )


@pytest.fixture
def genome(tmp_path):
    """Write a Visual Genome of four images with a dog each, two of them for validation."""
    images = tmp_path / "images" / "VG_100K"
    images.mkdir(parents=True)
    numbers = (11, 12, 13, 14)
    for number in numbers:
        Image.new("RGB", (100, 50)).save(images / f"{number}.jpg")
    place = {"x": 10, "y": 20, "w": 30, "h": 10}
    things = [{"object_id": 1, "names": ["red dog"], **place}]
    described = [{"object_id": 1, "attributes": ["wet"]}]
    content = {
        "objects.json": json.dumps([{"image_id": n, "objects": things} for n in numbers]),
        "attributes.json": json.dumps([{"image_id": n, "attributes": described} for n in numbers]),
        "objects_vocab.txt": "cat\ndog,puppy\n",
        "attributes_vocab.txt": "red\nwet\n",
        "train.txt": "VG_100K/11.jpg xml/11.xml\nVG_100K/12.jpg xml/12.xml\n",
        "val.txt": "VG_100K/13.jpg xml/13.xml\nVG_100K/14.jpg xml/14.xml\n",
    }
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    return DetectorConfig(
        layout="visual-genome",
        images=tmp_path / "images",
        labels=tmp_path / "objects.json",
        attributes=tmp_path / "attributes.json",
        object_names=tmp_path / "objects_vocab.txt",
        attribute_names=tmp_path / "attributes_vocab.txt",
        ids=tmp_path / "train.txt",
        validation_ids=tmp_path / "val.txt",
    )


def test_the_bundled_configuration_reads_visual_genome(genome):
    """Its files are not available; those of the test replace them."""
    shipped = load_config(CONFIGS / "detector-visual-genome.yaml").detector
    assert shipped.norms == "frozen"
    assert shipped.start is not None
    assert len(shipped.anchor_sizes) * len(shipped.anchor_ratios) == 12
    named = {name for name, value in shipped if isinstance(value, Path)}
    assert named == {"start", *(name for name, value in genome if isinstance(value, Path))}
    places = {name: getattr(genome, name) for name in named - {"start"}}
    data = read_detector_data(shipped.model_copy(update=places))
    assert (len(data.training.images), len(data.validation.images)) == (2, 2)


def test_visual_genome_is_read_with_the_lists_of_bottom_up_attention(genome):
    data = read_detector_data(genome)
    assert (data.training.classes, data.training.attributes) == (("cat", "dog"), ("red", "wet"))
    assert ids(data.training) == ["000000000011", "000000000012"]
    assert ids(data.validation) == ["000000000013", "000000000014"]
    first = data.training.images[0]
    assert (first.class_ids.tolist(), first.attribute_ids) == ([1], ((0, 1),))
    assert [field for field, _ in input_files(genome)] == [
        *("labels", "ids", "validation_ids", "attributes", "object_names", "attribute_names")
    ]
    assert sorted(image_files(genome)["images"]) == [f"{number:012d}" for number in range(11, 15)]
