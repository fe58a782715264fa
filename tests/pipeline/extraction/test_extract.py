"""Extraction: bad images stay out, a rerun goes on where the last one died, inputs stay as is."""

import hashlib
import json
import logging
import shutil

import numpy as np
import pytest
import torch
import torchvision

from a2cap.data.annotations.instances import read_boxes
from a2cap.data.annotations.read import SkippedItem
from a2cap.data.errors import InputError, StoreError
from a2cap.data.features.seal import SEAL_FILE
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter
from a2cap.extract.config import ExtractConfig
from a2cap.extract.extractor import Extractor, load_extractor
from a2cap.extract.image import read_image
from a2cap.extract.weights.load import load_detector
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.extraction import extract as extraction
from a2cap.pipeline.extraction.inputs import ExtractionInputs
from a2cap.pipeline.runtime.config import RuntimeConfig

GIVEN = ExtractConfig(weights="w", boxes="given", min_side=96, max_side=96, roi_size=7)
DETECT = GIVEN.model_copy(
    update={"boxes": "detect", "min_regions": 4, "max_regions": 8, "proposals": 20}
)
RUNTIME = RuntimeConfig(device="cpu", threads=1)
IDS = [f"{number:012d}" for number in range(1, 21)]


@pytest.fixture
def weights(experiment):
    return experiment.directory("calibrate") / "weights.safetensors"


@pytest.fixture
def scenes(experiment, tmp_path):
    """Twenty scenes of our own: images by id, and the file of their boxes."""
    folder = shutil.copytree(experiment.scenes, tmp_path / "scenes")
    images = {image_id: folder / "images" / f"{image_id}.jpg" for image_id in IDS}
    return images, folder / "instances.json"


@pytest.fixture
def run(weights, tmp_path):
    """Extracts into one directory, as often as it is called."""
    directory = tmp_path / "made.partial"
    directory.mkdir()

    def extract(images, boxes=None):
        return extraction.extract_features(
            ExtractionInputs(DETECT if boxes is None else GIVEN, weights, images, boxes, RUNTIME),
            directory=directory,
            events=EventLog(directory),
        )

    extract.directory = directory
    return extract


def store_of(run):
    return FeatureStore(run.directory / "features.lmdb")


def change_boxes(path, image_id, bbox):
    content = json.loads(path.read_text())
    for annotation in content["annotations"]:
        if annotation["image_id"] == int(image_id):
            annotation["bbox"] = bbox
    path.write_text(json.dumps(content))


def test_every_image_has_the_regions_that_the_extractor_gives_it(run, scenes, weights):
    images, boxes = scenes
    assert run(images, boxes) == []
    store = store_of(run)
    assert list(store) == IDS
    extractor = Extractor(load_detector(weights), config=GIVEN)
    for image_id in IDS[:3]:
        alone = extractor(read_image(images[image_id]), read_boxes(boxes)[image_id])
        np.testing.assert_array_equal(store[image_id].boxes, alone.boxes)
        np.testing.assert_allclose(store[image_id].features, alone.features, rtol=1e-3, atol=1e-3)


def test_a_grid_fills_the_same_store(scenes, tmp_path):
    images, _ = scenes
    torch.save(torchvision.models.resnet18(weights=None).state_dict(), tmp_path / "resnet18.pth")
    config = GIVEN.model_copy(
        update={
            "boxes": "grid",
            "grid_backbone": "resnet18",
            "grid_size": 7,
            "grid_layer": "layer2",
        }
    )
    chosen = {image_id: images[image_id] for image_id in IDS[:2]}
    (tmp_path / "grid").mkdir()
    made = {"directory": tmp_path / "grid", "events": EventLog(tmp_path / "grid")}
    inputs = ExtractionInputs(config, tmp_path / "resnet18.pth", chosen, None, RUNTIME)
    extraction.extract_features(inputs, **made)
    store = FeatureStore(tmp_path / "grid" / "features.lmdb")
    assert list(store) == IDS[:2]
    assert store[IDS[0]].features.shape == (49, 128)
    account = json.loads((tmp_path / "grid" / "extractor.json").read_text())
    assert account["summary"] == "7 x 7 grid of layer2 of torchvision's resnet18"
    again = load_extractor(tmp_path / "grid" / "weights.safetensors", config=config)
    alone = again(read_image(images[IDS[0]]))
    np.testing.assert_array_equal(store[IDS[0]].features, alone.features.astype(np.float16))


def test_detected_regions_are_as_many_as_the_configuration_says(run, scenes):
    images, _ = scenes
    assert run({image_id: images[image_id] for image_id in IDS[:4]}) == []
    assert all(4 <= len(store_of(run)[image_id]) <= 8 for image_id in IDS[:4])


def test_the_store_says_how_it_was_made(run, scenes, weights):
    run(*scenes)
    made = json.loads((run.directory / "extractor.json").read_text())
    assert made["config"] == GIVEN.model_dump(mode="json", exclude={"weights"})
    copied = run.directory / "weights.safetensors"
    assert made["weights_sha256"] == hashlib.sha256(copied.read_bytes()).hexdigest()
    assert copied.read_bytes() == weights.read_bytes()


def test_a_bad_box_skips_its_image_and_none_that_was_described_with_it(run, scenes, caplog):
    images, boxes = scenes
    change_boxes(boxes, IDS[4], [500, 500, 10, 10])
    [skipped] = run(images, boxes)
    assert skipped.image_id == IDS[4]
    assert skipped.reason == (
        "box 0 is not in the image of 96 x 96 pixels: [500.0, 500.0, 510.0, 510.0]; "
        "boxes are x1 y1 x2 y2 with x1 <= x2 and y1 <= y2"
    )
    assert list(store_of(run)) == [image_id for image_id in IDS if image_id != IDS[4]]
    assert caplog.messages == [f"skipped image {IDS[4]}: {skipped.reason}"]
    events = [
        json.loads(line) for line in (run.directory / "events.jsonl").read_text().splitlines()
    ]
    assert [event["id"] for event in events if event["event"] == "skip"] == [IDS[4]]
    assert [event["images"] for event in events if event["event"] == "checkpoint"] == [19]


def test_missing_and_broken_images_are_skipped_with_their_reasons(run, scenes):
    images, boxes = scenes
    images[IDS[7]].write_bytes(images[IDS[7]].read_bytes()[:900])
    images[IDS[2]].write_bytes(b"")
    skipped = run({**images, IDS[9]: None}, boxes)
    assert skipped[0] == SkippedItem(IDS[9], "image file not found")
    assert skipped[1] == SkippedItem(
        IDS[2], f"image '{IDS[2]}.jpg' is empty: 0 bytes; get the file again"
    )
    assert skipped[2].image_id == IDS[7]
    assert skipped[2].reason.startswith(f"image '{IDS[7]}.jpg' cannot be decoded: ")
    assert len(store_of(run)) == 17


def test_too_many_bad_images_stop_it_before_the_rest_is_described(run, scenes, monkeypatch):
    images, boxes = scenes
    monkeypatch.setattr(extraction, "read_image", unreachable)
    with pytest.raises(InputError) as raised:
        run({**images, **dict.fromkeys(IDS[9:])}, boxes)
    assert str(raised.value).startswith(
        "11 of 20 images cannot be used, at most 10 may be left out: "
        f"{IDS[9]!r} (image file not found), "
    )


def unreachable(path):
    raise AssertionError(f"{path} was read though extraction must fail")


def test_images_of_which_none_can_be_used_are_an_error(run, scenes):
    images, boxes = scenes
    images[IDS[0]].write_bytes(b"")
    with pytest.raises(InputError) as raised:
        run({IDS[0]: images[IDS[0]], IDS[1]: None}, boxes)
    assert str(raised.value) == (
        f"none of the 2 images can be used, first {IDS[1]!r}: image file not found; "
        "mend or replace them"
    )


def test_images_without_boxes_are_refused_by_name(run, scenes):
    images, boxes = scenes
    change_boxes(boxes, IDS[3], [5, 5, 0, 0])
    with pytest.raises(InputError) as raised:
        run({**images, "mine": images[IDS[0]]}, boxes)
    assert str(raised.value) == (
        f"no boxes for 2 of 21 images: {IDS[3]}, mine; "
        "add them to data.instances, or set extract.boxes=detect"
    )


class Killed(Exception):
    """Stands for a process that dies."""


def die_at(monkeypatch, image):
    seen = []

    def read_and_die(path):
        seen.append(path)
        if len(seen) == image:
            raise Killed
        return read_image(path)

    monkeypatch.setattr(extraction, "read_image", read_and_die)


def test_a_rerun_describes_only_what_is_left_and_ends_with_the_same_store(run, scenes, monkeypatch):
    images, boxes = scenes
    die_at(monkeypatch, 18)
    with pytest.raises(Killed):
        run(images, boxes)
    read = []
    monkeypatch.setattr(extraction, "read_image", lambda p: read.append(p) or read_image(p))
    run(images, boxes)
    assert [path.stem for path in read] == IDS[16:]
    resumed = store_of(run).digest
    shutil.rmtree(run.directory / "features.lmdb")
    run(images, boxes)
    assert store_of(run).digest == resumed


def test_a_crash_between_seal_and_manifest_is_resumed_without_reading_an_image(
    run, scenes, monkeypatch
):
    run(*scenes)
    digest = store_of(run).digest
    assert (run.directory / "features.lmdb" / SEAL_FILE).exists()
    monkeypatch.setattr(extraction, "read_image", unreachable)
    assert run(*scenes) == []
    assert store_of(run).digest == digest


def test_a_rerun_lists_again_what_the_first_run_skipped(run, scenes):
    images, boxes = scenes
    images[IDS[2]].write_bytes(b"")
    assert run(images, boxes) == run(images, boxes) != []


def tree(folder):
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_inputs_are_never_modified(run, scenes, weights, tmp_path):
    images, boxes = scenes
    images[IDS[2]].write_bytes(b"")
    before = tree(tmp_path / "scenes"), tree(weights.parent)
    run(images, boxes)
    assert (tree(tmp_path / "scenes"), tree(weights.parent)) == before


@pytest.fixture
def free(monkeypatch):
    """Sets the bytes that the disk has free."""

    def set_free(count):
        usage = shutil._ntuple_diskusage(10**12, 10**12, count)
        monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)

    return set_free


def test_a_disk_without_room_for_the_fewest_regions_is_refused(run, scenes, free, monkeypatch):
    images, _ = scenes
    monkeypatch.setattr(extraction, "read_image", unreachable)
    free(10_000)
    with pytest.raises(StoreError) as raised:
        run(images)
    assert str(raised.value) == (
        "disk too small for the features: at least 0.0 GB are needed, 0.0 GB are free; "
        "make room, or lower extract.min_regions"
    )


def test_a_disk_that_may_become_full_is_warned_of(run, scenes, free, caplog):
    images, _ = scenes
    # width 64, 2 bytes each: 4 to 8 regions of 20 images take 10,240 to 20,480 bytes
    free(12_000)
    with caplog.at_level(logging.WARNING):
        run(images)
    assert caplog.messages == [
        "the disk may become full: features take up to 0.0 GB, 0.0 GB are free"
    ]


def test_room_is_asked_for_what_is_left_only(run, scenes, free, monkeypatch):
    images, boxes = scenes
    die_at(monkeypatch, 18)
    with pytest.raises(Killed):
        run(images, boxes)
    monkeypatch.undo()
    left = sum(len(read_boxes(boxes)[image_id]) for image_id in IDS[16:])
    free(left * 64 * 2)
    assert run(images, boxes) == []
    assert len(store_of(run)) == 20


def test_records_that_another_run_left_are_kept(run, scenes, weights):
    images, boxes = scenes
    extractor = Extractor(load_detector(weights), config=GIVEN)
    kept = extractor(read_image(images[IDS[0]]), read_boxes(boxes)[IDS[1]])
    with FeatureWriter(run.directory / "features.lmdb") as writer:
        writer.add(IDS[0], kept)
    run(images, boxes)
    np.testing.assert_array_equal(store_of(run)[IDS[0]].boxes, kept.boxes)
