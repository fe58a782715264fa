"""Extraction: bad images are skipped, an interrupted run continues, inputs are never modified."""

import hashlib
import json

import numpy as np
import pytest
import torch
import torchvision
from PIL import ExifTags, Image

from a2cap.data.annotations.instances import read_instances
from a2cap.data.errors import UnreadableError
from a2cap.data.features.store import FeatureStore
from a2cap.data.files import image_file
from a2cap.data.files.sealed_folder import SkippedItem
from a2cap.extract.extractor import Extractor, load_extractor
from a2cap.extract.image import read_image
from a2cap.extract.weights.load import load_detector
from tests.data.messages import message_of
from tests.pipeline.extraction.conftest import GIVEN, IDS
from tests.pipeline.training.runs import events


@pytest.fixture
def run(new, scenes):
    """Extract images into one directory, as often as it is called."""

    def extract(images, boxes=None):
        return new("run.partial", images=images, given=boxes is not None).extract()

    extract.directory = new("run.partial").directory
    return extract


def store_of(run):
    return FeatureStore(run.directory / "features.lmdb")


def change_boxes(path, image_id, bbox):
    content = json.loads(path.read_text())
    for annotation in content["annotations"]:
        if annotation["image_id"] == int(image_id):
            annotation["bbox"] = bbox
    path.write_text(json.dumps(content))


@pytest.mark.slow
def test_the_store_contains_the_regions_of_the_extractor(run, scenes, weights):
    images, boxes = scenes
    assert run(images, boxes) == []
    store = store_of(run)
    assert list(store) == IDS
    extractor = Extractor(load_detector(weights), config=GIVEN)
    for image_id in IDS[:3]:
        alone = extractor(read_image(images[image_id]), read_instances(boxes)[image_id].boxes)
        np.testing.assert_array_equal(store[image_id].boxes, alone.boxes)
        np.testing.assert_allclose(store[image_id].features, alone.features, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_grid_extractor_fills_the_same_kind_of_store(new, scenes, tmp_path):
    images, _ = scenes
    torch.save(torchvision.models.resnet18(weights=None).state_dict(), tmp_path / "resnet18.pth")
    grid = {"boxes": "grid", "grid_backbone": "resnet18", "grid_size": 7, "grid_layer": "layer2"}
    config = GIVEN.model_copy(update=grid)
    chosen = {image_id: images[image_id] for image_id in IDS[:2]}
    options = {"given": False, "config": config, "weights": tmp_path / "resnet18.pth"}
    made = new("grid", images=chosen, **options)
    made.extract()
    store = made.store
    assert list(store) == IDS[:2]
    assert store[IDS[0]].features.shape == (49, 128)
    record = json.loads((tmp_path / "grid" / "extractor.json").read_text())
    assert record["summary"] == "7 x 7 grid of layer2 of torchvision's resnet18"
    again = load_extractor(tmp_path / "grid" / "weights.safetensors", config=config)
    alone = again(read_image(images[IDS[0]]))
    np.testing.assert_array_equal(store[IDS[0]].features, alone.features.astype(np.float16))


@pytest.mark.slow
def test_the_record_contains_the_config_and_the_digest_of_the_weights(run, scenes, weights):
    run(*scenes)
    made = json.loads((run.directory / "extractor.json").read_text())
    assert made["config"] == GIVEN.model_dump(mode="json", exclude={"weights"})
    copied = run.directory / "weights.safetensors"
    assert made["weights_sha256"] == hashlib.sha256(copied.read_bytes()).hexdigest()
    assert copied.read_bytes() == weights.read_bytes()


@pytest.mark.slow
def test_an_image_of_another_size_than_its_boxes_is_skipped(run, scenes):
    images, boxes = scenes
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    with Image.open(images[IDS[4]]) as image:
        image.crop((0, 0, 96, 64)).save(images[IDS[4]], exif=exif)
    content = json.loads(boxes.read_text())
    for entry in content["images"]:
        if entry["id"] == int(IDS[4]):
            entry["height"] = 64
    boxes.write_text(json.dumps(content))
    [skipped] = run(images, boxes)
    assert skipped == SkippedItem(
        IDS[4],
        "image of 64 x 96 pixels after EXIF rotation, its boxes expect 96 x 64; "
        "correct them and the size beside them",
    )
    assert list(store_of(run)) == [image_id for image_id in IDS if image_id != IDS[4]]


@pytest.mark.slow
def test_a_bad_box_skips_only_its_image_of_the_batch(run, scenes, caplog):
    images, boxes = scenes
    change_boxes(boxes, IDS[4], [500, 500, 10, 10])
    [skipped] = run(images, boxes)
    assert skipped.image_id == IDS[4]
    assert skipped.reason == (
        "box 0 is outside the image of 96 x 96 pixels: [500.0, 500.0, 10.0, 10.0]; "
        "check the sizes of the images"
    )
    assert list(store_of(run)) == [image_id for image_id in IDS if image_id != IDS[4]]
    assert caplog.messages == [f"skipped image {IDS[4]}: {skipped.reason}"]
    assert [event["id"] for event in events(run.directory, "skip")] == [IDS[4]]
    assert [event["images"] for event in events(run.directory, "checkpoint")] == [19]


@pytest.mark.slow
def test_a_disk_that_fails_during_a_run_ends_it_and_skips_nothing(run, scenes, monkeypatch):
    """The key promises the content of the image, which is not known to be bad."""
    images, boxes = scenes
    with monkeypatch.context() as patch:

        def fail(path, read=image_file.read_image_file):
            if path.stem == IDS[17]:
                raise UnreadableError("cannot read it: Input/output error")
            return read(path)

        patch.setattr(image_file, "read_image_file", fail)
        with pytest.raises(UnreadableError):
            run(images, boxes)
    assert run(images, boxes) == []
    assert list(store_of(run)) == IDS


@pytest.mark.usefixtures("tolerant")
def test_an_extraction_without_a_usable_image_fails(run, scenes):
    images, boxes = scenes
    images[IDS[0]].write_bytes(b"")
    assert message_of(run, {IDS[0]: images[IDS[0]], IDS[1]: None}, boxes) == (
        f"none of the 2 images can be used, first {IDS[0]!r}: "
        f"image '{IDS[0]}.jpg' is empty: 0 bytes; get the file again; fix or replace them"
    )


def tree(folder):
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
def test_inputs_are_never_modified(run, scenes, weights, tmp_path):
    images, boxes = scenes
    images[IDS[2]].write_bytes(b"")
    before = tree(tmp_path / "scenes"), tree(weights.parent)
    run(images, boxes)
    assert (tree(tmp_path / "scenes"), tree(weights.parent)) == before
