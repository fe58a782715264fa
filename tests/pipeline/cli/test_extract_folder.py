"""`a2 extract --images` of any folder."""

import json
import shutil
import tarfile

import pytest

from a2cap.data.features.store import FeatureStore
from a2cap.data.files.sealed_folder import read_manifest
from a2cap.pipeline.configuration import override
from tests.experiments import a2, settings

SMALL_DETECTION = (
    "extract.min_regions=4",
    "extract.max_regions=8",
    "extract.proposals=20",
    "extract.min_side=96",
    "extract.max_side=96",
    "extract.roi_size=7",
    "extract.precision=exact",  # mixed is compiled, for seconds
    "runtime.device=cpu",
    "runtime.threads=1",
)


@pytest.fixture
def images_and_weights(experiment, tmp_path):
    """Options to extract the regions of six scenes with weights of our own."""
    images = tmp_path / "my images"
    images.mkdir()
    for number in range(1, 7):
        shutil.copyfile(
            experiment.scenes / "images" / f"{number:012d}.jpg", images / f"scene {number}.jpg"
        )
    weights = experiment.weights
    weights_options = settings(override("extract.weights", weights), *SMALL_DETECTION)
    return ["--images", images, "--artifacts", tmp_path / "artifacts", *weights_options]


@pytest.mark.slow
def test_a_folder_of_images_becomes_a_store(images_and_weights, tmp_path):
    store = tmp_path / "my features"
    answer = a2("extract", *images_and_weights, "--output", store, code=0)
    assert answer.stdout.startswith("extract: done in ")
    assert {path.name for path in store.iterdir()} == {
        "features.lmdb",
        "extractor.json",
        "weights.safetensors",
        "manifest.json",
        "config.yaml",
        "events.jsonl",
    }
    features = FeatureStore(store / "features.lmdb")
    assert list(features) == [f"scene {number}" for number in range(1, 7)]
    assert 4 <= len(features["scene 3"]) <= 8
    assert features.verify(data=True) == []


@pytest.mark.slow
def test_boxes_of_any_detector_become_regions_of_the_encoder(experiment, tmp_path, caplog):
    images, store, path = tmp_path / "images", tmp_path / "features", tmp_path / "boxes.json"
    images.mkdir()
    for n in (1, 2):
        shutil.copyfile(experiment.scenes / "images" / f"{n:012d}.jpg", images / f"scene {n}.jpg")
    content = {"images": [{"id": 1, "file_name": "scene 1.jpg"}], "annotations": []}
    content["categories"] = [{"id": 18, "name": "dog"}]
    for score, category in ((0.75, 18), (0.25, 0)):
        box = {"id": category, "image_id": 1, "bbox": [5, category, 30, 20], "score": score}
        content["annotations"].append({**box, "category_id": category})
    path.write_text(json.dumps(content))
    options = ["--images", images, "--artifacts", tmp_path / "artifacts", "--output", store]
    options += settings("extract.weights=efficientnet-lite2", "extract.boxes=given")
    options += settings("runtime.device=cpu", override("data.instances", path))
    a2("extract", *options, code=0)
    assert caplog.messages == ["1 of 2 images have no box: one region each"]
    features = FeatureStore(store / "features.lmdb")
    first, last = features["scene 1"], features["scene 2"]
    assert first.features.shape == (2, 1280)
    assert first.boxes.tolist() == [[5, 0, 35, 20], [5, 18, 35, 38]]
    assert (first.scores.tolist(), first.class_ids.tolist()) == ([0.25, 0.75], [-1, 18])
    assert last.boxes.tolist() == [[0, 0, last.width, last.height]]
    record = json.loads((store / "extractor.json").read_text())
    assert record["summary"] == "efficientnet-lite2, given boxes"
    assert "up to date" in a2("extract", *options).stdout
    options[5] = tmp_path / "other"
    path.write_text(json.dumps({**content, "annotations": []}))
    assert a2("extract", *options).stderr.endswith(
        "no boxes for 2 of 2 images: scene 1, scene 2; "
        "add them to data.instances, or set extract.boxes=grid\n"
    )


@pytest.mark.slow
def test_a_tar_of_images_becomes_the_same_store_in_two_stripes(images_and_weights, tmp_path):
    a2("extract", *images_and_weights, "--output", tmp_path / "whole", code=0)
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for file in sorted((tmp_path / "my images").iterdir()):
            tar.add(file, file.name)
    options = ["--images", tmp_path / "x.tar", *images_and_weights[2:]]
    options += ["--output", tmp_path / "store"]
    answer = a2("extract", *options, "--shard", "1/2")
    assert answer.stdout == "extract: stripe 1/2 done, 1 shards of others are missing\n"
    assert a2("extract", *options, "--shard", "0/2", code=0).stdout.startswith("extract: done in ")
    stores = [FeatureStore(tmp_path / name / "features.lmdb") for name in ("whole", "store")]
    assert stores[0].digest == stores[1].digest
    assert not (tmp_path / "store" / "images.jsonl").exists()
    again = a2("extract", *options, "--shard", "1/2")
    assert again.stdout.startswith("extract: up to date: ")


@pytest.mark.slow
@pytest.mark.usefixtures("tolerant")
def test_files_that_cannot_be_read_as_images_are_named(images_and_weights, tmp_path):
    folder = tmp_path / "my images"
    (folder / "scan.jp2").write_bytes(b"\0\0\0\x0cjP  \r\n")
    (folder / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (folder / "itself.jpg").symlink_to("itself.jpg")
    (folder / "disk.jpg").symlink_to("/proc/self/mem")  # the system answers a read with EIO
    store = tmp_path / "store"
    a2("extract", *images_and_weights, "--output", store, code=3)
    reasons = read_manifest(store).reasons
    assert {image_id: reason.partition(";")[0] for image_id, reason in reasons.items()} == {
        "disk": "cannot read image 'disk.jpg': Input/output error",
        "gone": "cannot read image 'gone.jpg': No such file or directory",
        "itself": "cannot read image 'itself.jpg': Too many levels of symbolic links",
        "scan": "image 'scan.jp2' is not in a supported format: it is JPEG 2000",
    }
    again = a2("extract", *images_and_weights, "--output", store, code=3)
    assert again.stdout.splitlines()[0] == f"extract: up to date: {store}"
    (folder / "disk.jpg").unlink()
    shutil.copyfile(folder / "scene 1.jpg", folder / "disk.jpg")
    changed = a2("extract", *images_and_weights, "--output", store)
    assert "inputs.images changed" in changed.stderr  # the key shows that it can be read now
