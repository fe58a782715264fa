"""Workers of one plan on real files: together they make what a single process makes."""

import errno
import json
import os
import shutil
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from a2cap.data.errors import ConfigError, StoreError
from a2cap.data.features.parts import failed_images, read_done
from a2cap.data.features.seal import logical_digest
from a2cap.data.features.shard import Shard
from a2cap.data.features.store import FeatureStore, merge_records
from a2cap.data.features.writer import FeatureWriter, StoreWriteError
from a2cap.data.regions import Regions
from a2cap.extract.config import ExtractConfig
from a2cap.pipeline.config import override
from a2cap.pipeline.doctor.verify import verify
from a2cap.pipeline.engine.interruption import Interrupted
from a2cap.pipeline.engine.stage import EventLog
from a2cap.pipeline.extraction.convert import convert
from a2cap.pipeline.extraction.imported import ImportedFeatures, import_features
from a2cap.pipeline.extraction.plan import extract_plan, shared_files
from a2cap.pipeline.extraction.plan.extract_plan import PlanWorker
from a2cap.pipeline.extraction.plan.inputs import PlanInputs
from a2cap.pipeline.extraction.plan.progress import plan_progress
from a2cap.pipeline.runtime.config import RuntimeConfig
from tests.data.messages import message_of
from tests.pipeline.experiments import a2, settings
from tests.pipeline.extraction.conftest import DETECT
from tests.pipeline.extraction.conftest import IDS as SCENES

IDS = [f"{number:012d}" for number in range(1, 11)]
RUNTIME = RuntimeConfig(device="cpu", threads=1)


class Means:
    """An extractor whose features are the mean colours of an image."""

    config = ExtractConfig(precision="exact")

    def extract_many(self, images, boxes):
        return [self._regions(image) for image in images]

    def _regions(self, image):
        return Regions(
            boxes=np.zeros((1, 4), np.float32),
            features=image.mean(axis=(0, 1), dtype=np.float32)[None],
            scores=np.ones(1, np.float32),
            class_ids=np.zeros(1, np.int32),
            attribute_ids=None,
            width=image.shape[1],
            height=image.shape[0],
        )


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """Ten small images, and weights that nobody reads."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number, image_id in enumerate(IDS):
        Image.new("RGB", (8, 8), (number, 2 * number, 200)).save(folder / f"{image_id}.png")
    (tmp_path / "weights").write_bytes(b"weights")
    monkeypatch.setattr(extract_plan, "load_extractor", lambda *_, **__: Means())
    monkeypatch.setattr(extract_plan, "save_extractor", lambda _, to: write_extractor(to))
    config = ExtractConfig(weights="w", precision="exact")
    # a short time-out, since waiting workers look again after a part of it
    return PlanInputs(folder, tmp_path / "weights", config, RUNTIME, shard_size=4, timeout=60)


def write_extractor(folder):
    for name in ("weights.safetensors", "extractor.json"):
        (folder / name).write_text("{}")


@pytest.fixture
def plan(tmp_path):
    return tmp_path / "plan"


def work(inputs, folder, **options):
    with PlanWorker.join(inputs, folder) as worker:
        worker.run(worker.tasks(**options))


def digest_of(folder):
    """Return the digest of all records of a plan, as of one store."""
    return logical_digest(merge_records(FeatureStore(folder)._files))


def test_workers_of_a_plan_make_the_features_of_a_single_process(
    new, scenes, weights, tmp_path, plan
):
    images, _ = scenes
    (tmp_path / "ten").mkdir()
    for image_id in SCENES[:10]:
        shutil.copy(images[image_id], tmp_path / "ten")
    inputs = PlanInputs(tmp_path / "ten", weights, DETECT, RUNTIME, shard_size=4)
    with PlanWorker.join(inputs, plan) as first:
        first.run(first.tasks(stripe=Shard(0, 2)))
        assert list(read_done(plan)) == ["00000", "00002"]
        work(inputs, plan)
    single = new(images={name: images[name] for name in SCENES[:10]}, given=False)
    single.extract()
    assert digest_of(plan) == single.store.digest
    assert (plan / "extractor.json").read_bytes() == (
        single.directory / "extractor.json"
    ).read_bytes()


def test_the_parts_are_read_where_they_are(inputs, plan, tmp_path):
    work(inputs, plan)
    assert [record.count for record in read_done(plan).values()] == [4, 4, 2]
    imported = ImportedFeatures(plan, None, IDS, ExtractConfig())
    assert {"plan.json", "00000.done.json"} < imported.files().keys()
    assert import_features(imported, tmp_path, EventLog(tmp_path)) == []
    store = FeatureStore(tmp_path / "features.lmdb")
    assert list(store) == IDS
    assert store.digest == FeatureStore(plan).digest
    assert store.feature_width == imported.feature_width() == 3
    assert store.verify(data=True) == []
    assert "000000000099" not in store
    assert [store.part_of(image_id) for image_id in IDS] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    convert(plan, tmp_path / "joined", form="a2")
    assert FeatureStore(tmp_path / "joined").digest == digest_of(plan)
    for number, image_id in enumerate(IDS):
        assert store[image_id].features[0].tolist() == [200, 2 * number, number]


def test_failed_images_are_listed_and_tried_again_alone(inputs, plan, caplog):
    bad = inputs.images / f"{IDS[5]}.png"
    good = bad.read_bytes()
    bad.write_bytes(b"")
    work(inputs, plan)
    reason = f"image '{IDS[5]}.png' is empty: 0 bytes; get the file again"
    assert failed_images(plan) == {IDS[5]: reason}
    assert caplog.messages == [f"failed image {IDS[5]}: {reason}"]
    assert (plan / "00001.failed.jsonl").read_text() == (
        json.dumps({"id": IDS[5], "reason": reason}) + "\n"
    )
    work(inputs, plan, retry_failed=True)
    assert failed_images(plan).keys() == {IDS[5]}
    bad.write_bytes(good)
    work(inputs, plan, retry_failed=True)
    assert failed_images(plan) == {}
    records = read_done(plan)
    assert [records[part].count for part in ("00001", "00001.r1", "00001.r2")] == [3, 0, 1]
    assert list(FeatureStore(plan)) == IDS
    work(inputs, plan, retry_failed=True)
    assert read_done(plan) == records


def test_sigterm_finishes_the_image_and_returns_the_shard(inputs, plan, monkeypatch):
    added = []

    def add(writer, image_id, regions, add=FeatureWriter.add):
        add(writer, image_id, regions)
        added.append(image_id)
        if len(added) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(FeatureWriter, "add", add)
    with pytest.raises(Interrupted) as stopped:
        work(inputs, plan)
    assert stopped.value.signal_number == signal.SIGTERM
    [partial] = plan.glob("*.partial")
    task = partial.name.split(".")[0]
    assert json.loads((plan / "leases" / f"{task}.1.json").read_text()) == {"worker": None}
    work(inputs, plan)
    # the next worker continued the store
    assert len(added) == len(IDS)
    assert list(FeatureStore(plan)) == IDS
    assert list(plan.glob("*.partial")) == []


def test_a_worker_without_disk_space_ends_and_the_others_go_on(inputs, plan, monkeypatch):
    def fail(writer):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(FeatureWriter, "_commit", fail_in_commit(fail))
        message = message_of(work, inputs, plan, error=StoreWriteError)
    assert message.endswith(
        "the disk is full; 0 images are kept, free disk space and run again to resume"
    )
    work(inputs, plan)
    assert list(FeatureStore(plan)) == IDS


def fail_in_commit(fail):
    def commit(writer):
        with writer._write_errors():
            fail(writer)

    return commit


def test_a_shard_of_a_worker_that_is_gone_is_taken_over(inputs, plan, monkeypatch, tmp_path):
    with PlanWorker.join(inputs, plan):
        pass
    # on a machine that does not answer any more
    (tmp_path / "boot_id").write_text("another")
    monkeypatch.setattr(shared_files, "_BOOT", tmp_path / "boot_id")
    other = shared_files.SharedFolder(plan)
    other.write(f"workers/{other.worker}.json", shared_files.json_bytes(other.description()))
    other.create("leases/00001.0.json", shared_files.json_bytes({"worker": other.worker}))
    other.close()
    monkeypatch.undo()
    monkeypatch.setattr(extract_plan, "load_extractor", lambda *_, **__: Means())
    work(replace(inputs, timeout=0.3), plan)
    assert list(FeatureStore(plan)) == IDS
    assert (plan / "leases" / "00001.1.json").exists()


def test_a_plan_of_other_images_or_weights_is_refused(inputs, plan, tmp_path):
    work(inputs, plan)
    other = shutil.copytree(inputs.images, tmp_path / "other" / "images")
    work(replace(inputs, images=other), plan)  # the same content elsewhere
    (other / f"{IDS[0]}.png").unlink()
    message = message_of(work, replace(inputs, images=other), plan)
    assert message.startswith(
        f"plan {str(plan)!r} was made for other images: {str(other)!r} has the digest "
    )
    assert message.endswith("; name those, or another folder")
    fewer = inputs.config.model_copy(update={"max_regions": 36})
    assert message_of(work, replace(inputs, config=fewer), plan, error=ConfigError) == (
        f"plan {str(plan)!r} was made with other weights or settings: max_regions is 36, in the "
        "plan 100; use those of the plan, or name another folder"
    )
    inputs.weights.write_bytes(b"others")
    message = message_of(work, inputs, plan, error=ConfigError)
    assert "other weights or settings: weights is " in message
    given = inputs.config.model_copy(update={"boxes": "given"})
    assert message_of(work, replace(inputs, config=given), plan, error=ConfigError) == (
        "--plan extracts detected regions or grids: extract.boxes is 'given'; use --shard"
    )


def test_parts_that_are_missing_or_changed_are_named(inputs, plan):
    work(inputs, plan, stripe=Shard(0, 2))
    again = 'run the same "a2 extract --plan" again'
    remedy = f"remove {str(plan / '00001')!r} and 00001.done.json, and {again}"
    assert message_of(FeatureStore, plan, error=StoreError) == (
        f"1 of 3 shards of {str(plan)!r} are not done: 00001; {again}"
    )
    work(inputs, plan)
    recorded, changed = (read_done(plan)[part].digest[:12] for part in ("00001", "00000"))
    shutil.rmtree(plan / "00001")
    shutil.copytree(plan / "00000", plan / "00001")
    assert message_of(FeatureStore, plan, error=StoreError) == (
        f"part {str(plan / '00001')!r} was changed after it was done: digest {changed}, recorded "
        f"{recorded}; {remedy}"
    )
    data = plan / "00001" / "data.mdb"
    data.write_bytes(bytes(data.stat().st_size))
    [verified] = verify(plan, data=True)
    assert verified.damages == (f"{str(data)!r} differs from its seal; {remedy}",)
    shutil.rmtree(plan / "00001")
    [verified] = verify(plan, data=False)
    assert verified.damages == (f"no feature store at {str(plan / '00001')!r}; {remedy}",)
    (plan / "00001.done.json").unlink()
    work(inputs, plan)
    assert list(FeatureStore(plan)) == IDS
    record = json.loads((plan / "00002.done.json").read_text())
    (plan / "00002.done.json").write_text(json.dumps(record | {"fingerprint": "f" * 64}))
    assert message_of(FeatureStore, plan, error=StoreError) == (
        f"parts 00001 and 00002 of {str(plan)!r} come from different weights or settings: "
        f"{record['fingerprint'][:12]} and {'f' * 12}; remove the wrong ones, and {again}"
    )


def test_progress_comes_from_the_records_alone(inputs, plan):
    plan.mkdir()
    assert message_of(plan_progress, plan) == (
        f'no plan in {str(plan)!r}; name the folder of "a2 extract --plan", or wait until its '
        "first worker has made it"
    )
    with PlanWorker.join(inputs, plan):
        assert plan_progress(plan).text == "0 of 3 shards done, 0 of 10 images, 0 failed"
    work(inputs, plan)
    for number, ended in enumerate((110.0, 120.0)):
        path = plan / f"0000{number}.done.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"ended": ended, "seconds": 10}))
    (plan / "00002.done.json").unlink()
    assert plan_progress(plan).text == (
        "2 of 3 shards done, 8 of 10 images, 0 failed, 0.4 images/s, 5 s left"
    )


def test_commands_work_on_a_plan_and_show_its_progress(inputs, plan, tmp_path, monkeypatch):
    (inputs.images / f"{IDS[5]}.png").write_bytes(b"")
    named = (
        override("data.images", inputs.images),
        override("extract.weights", inputs.weights),
        "extract.precision=exact",
    )
    options = ("--plan", plan, "--artifacts", tmp_path / "artifacts", *settings(*named))
    monkeypatch.setitem(sys.modules, "ray", None)
    assert a2("extract", *options, "--engine", "ray").stderr == (
        'a2: ray is not installed: --engine ray needs it; run pip install "a2cap[ray]"\n'
    )
    answer = a2("extract", *options, "--shard", "0/2")
    text = "1 of 1 shards done, 10 of 10 images, 1 failed, "
    assert answer.exit_code == 3  # some images failed
    assert answer.stdout.startswith(f"extract: {text}")
    assert a2("watch", plan, "--follow").stdout.startswith(text)
    assert a2("extract", *options, "--retry-failed").exit_code == 3
    assert list(read_done(plan)) == ["00000", "00000.r1"]
