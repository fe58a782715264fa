"""Extraction in shards: the same store for any number of shards, also after crashes."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from a2cap.data.annotations.read import SkippedItem
from a2cap.data.errors import InputError, StoreError
from a2cap.data.features.shard import Shard, owner
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter
from a2cap.data.files.sealed_folder import read_manifest
from a2cap.extract.detector import precision
from a2cap.extract.extractor import Extractor
from a2cap.extract.record import ExtractorRecord
from a2cap.pipeline.cli.main import cli
from a2cap.pipeline.engine.artifacts import EXTRACTOR
from a2cap.pipeline.engine.lock import stage_lock
from a2cap.pipeline.engine.stage import StagePaths
from a2cap.pipeline.extraction import extract as extraction
from tests.data.messages import message_of
from tests.pipeline.extraction.conftest import DETECT, GIVEN, IDS
from tests.pipeline.training.runs import events


@pytest.mark.slow
@pytest.mark.parametrize("given", [True, False], ids=["given", "detect"])
def test_the_store_is_the_same_bit_for_bit_in_one_shard_in_three_and_without(new, scenes, given):
    """A batch, of up to 16 images with given boxes, is in the shard of its first image."""
    pytest.importorskip("pyarrow")
    images, _ = scenes
    images = images if given else {image_id: images[image_id] for image_id in IDS[:6]}
    whole = new("whole", images=images, given=given)
    assert whole.extract() == []
    made = {}
    for count, form in ((1, "tar"), (3, "parquet")):
        config = (GIVEN if given else DETECT).model_copy(update={"output": form})
        made[count] = new(f"in {count}", images=images, given=given, config=config)
        made[count].fill_all(count)
        assert made[count].join() == []
    digests = {found.store.digest for found in (whole, *made.values())}
    assert len(digests) == 1
    for name in ("extractor.json", "weights.safetensors"):
        contents = {(found.directory / name).read_bytes() for found in (whole, *made.values())}
        assert len(contents) == 1
    assert made[3].store.verify(data=True) == []
    size = 16 if given else 1
    for first in range(0, len(images), size):
        batch = sorted(images)[first : first + size]
        assert set(batch) <= set(FeatureStore(made[3].folder(owner(batch[0], 3), 3)))


@pytest.mark.slow
def test_a_killed_shard_is_resumed_and_the_store_is_the_same(new, monkeypatch, scenes):
    images, _ = scenes
    some = {image_id: images[image_id] for image_id in IDS[:8]}
    whole = new("whole", images=some, given=False)
    whole.extract()
    made = new(images=some, given=False)
    extracted = []

    def extract_and_die(self, images, boxes):
        extracted.append("an image")
        if len(extracted) == 3:
            raise KeyboardInterrupt
        return extract(self, images, boxes)

    extract = Extractor.extract_many
    monkeypatch.setattr(Extractor, "extract_many", extract_and_die)
    with pytest.raises(KeyboardInterrupt):
        made.fill(0, 2)
    with pytest.raises(StoreError, match=r"shards 1/2 of .* are missing"):
        made.join()
    made.fill(1, 2)
    assert message_of(made.join, error=StoreError) == (
        f'shards 0/2 of {str(made.path)!r} are unfinished; run "a2 extract --shard" for each'
    )
    made.fill(0, 2)
    assert len(extracted) == len(some) + 1  # the one at which it died, a second time
    made.join()
    assert made.store.digest == whole.store.digest


@pytest.mark.slow
def test_a_sealed_shard_returns_its_skipped_images_again(new, scenes, monkeypatch):
    images, _ = scenes
    images[IDS[0]].write_bytes(b"")
    made = new()
    number = owner(IDS[0], 3)
    skipped = made.fill(number, 3)
    assert [item.image_id for item in skipped] == [IDS[0]]
    monkeypatch.setattr(extraction, "read_image", None)
    assert made.fill(number, 3) == skipped


def test_the_joined_store_skips_the_images_that_any_shard_skipped(new, scenes):
    images, _ = scenes
    images[IDS[2]].write_bytes(b"")
    images[IDS[35]].write_bytes(b"")
    missing = {**images, IDS[9]: None}
    whole = new("whole", images=missing)
    expected = whole.extract()
    made = new(images=missing)
    made.fill_all(3)
    skipped = made.join()
    assert SkippedItem(IDS[9], "image file not found") in skipped
    assert sorted(skipped, key=str) == sorted(expected, key=str)
    assert made.store.digest == whole.store.digest
    joined = events(made.directory, "shard")
    assert [event["shard"] for event in joined] == ["0/3", "1/3", "2/3"]
    assert sum(event["skipped"] for event in joined) == 3


@pytest.mark.slow
def test_the_limit_of_bad_images_counts_all_shards(new, scenes):
    images, _ = scenes
    made = new(images={**images, **dict.fromkeys(IDS[24:36])})
    for number in range(3):
        assert len(made.fill(number, 3)) <= 10
    with pytest.raises(InputError, match=r"^12 of 40 images cannot be used, at most 10 may be"):
        made.join()


@pytest.mark.slow
def test_shards_without_a_usable_image_fail_to_join(new, scenes):
    images, _ = scenes
    images[IDS[0]].write_bytes(b"")
    made = new(images={IDS[0]: images[IDS[0]]})
    made.fill_all(2)
    with pytest.raises(InputError, match=f"^none of the 1 images can be used, first '{IDS[0]}'"):
        made.join()


@pytest.mark.slow
def test_an_image_in_no_shard_is_named(new, scenes):
    images, _ = scenes
    made = new(images={image_id: images[image_id] for image_id in IDS[:20]})
    made.fill_all(2)
    made = new(images={**made.inputs.images, IDS[30]: images[IDS[30]]})
    with pytest.raises(StoreError, match=rf"^no features for 1 images in .*: '{IDS[30]}'"):
        made.join()


@pytest.mark.slow
def test_an_overlapping_shard_of_another_extraction_is_named(new):
    made = new()
    made.fill_all(3)
    regions = FeatureStore(made.folder(owner(IDS[0], 3), 3))[IDS[0]]
    number = (owner(IDS[0], 3) + 1) % 3
    shutil.rmtree(made.folder(number, 3))
    with FeatureWriter(made.folder(number, 3)) as writer:
        writer.add(IDS[0], regions)
        writer.seal()
    first, second = sorted((number, owner(IDS[0], 3)))
    assert message_of(made.join, error=StoreError) == (
        f"shards {first}/3 and {second}/3 of {str(made.path)!r} overlap: both contain image "
        f"{IDS[0]!r}; remove the wrong shard"
    )


@pytest.fixture
def a2_extract(experiment, tmp_path):
    """Run `a2 extract` of the experiment into new artifacts."""

    def run(*arguments, environment=None):
        place = ["-c", str(experiment.config_file), "--artifacts", str(tmp_path / "artifacts")]
        return CliRunner(env=environment).invoke(cli, ["extract", *place, *arguments])

    return run


@pytest.mark.slow
def test_the_command_ends_with_the_same_stage_with_and_without_shards(
    a2_extract, experiment, tmp_path
):
    first = a2_extract("--shard", "0/2")
    assert first.exit_code == 0, first.stderr
    assert first.stdout == "extract: shard 0/2 finished, waiting for 1/2\n"
    refused = a2_extract()
    assert refused.exit_code == 1
    assert re.fullmatch(
        r"a2: shards 1/2 of '.*\.partial/features\.lmdb' are missing; copy them there, "
        r'or run "a2 extract --shard" for each\n',
        refused.stderr,
    )
    auto = {"RANK": "1", "WORLD_SIZE": "2", "SLURM_ARRAY_TASK_ID": None}
    last = a2_extract("--shard", "auto", environment=auto)
    assert last.exit_code == 0, last.stderr
    assert last.stdout.startswith("extract: done in ")
    [made] = (tmp_path / "artifacts" / "extract").glob("*/manifest.json")
    whole = read_manifest(experiment.directory("extract"))
    assert made.parent.name == experiment.directory("extract").name
    assert read_manifest(made.parent).digest == whole.digest
    again = a2_extract("--shard", "0/2")
    assert again.stdout == f"extract: up to date: {made.parent}\n"


def test_a_wrong_shard_is_a_usage_error(a2_extract):
    answer = a2_extract("--shard", "2/2")
    assert answer.exit_code == 2
    assert answer.stderr == ("a2: shard is '2/2'; write i/N with i from 0 to N - 1, such as 0/4\n")


@pytest.mark.slow
def test_a_shard_with_skipped_images_ends_with_exit_code_3(
    experiment, tmp_path, scenes, a2_extract
):
    images, _ = scenes
    images[IDS[0]].write_bytes(b"")
    number = owner(IDS[0], 2)
    (tmp_path / "scenes" / "images").rename(tmp_path / "images")
    moved = ["--set", f"data.images={json.dumps(str(tmp_path / 'images'))}"]
    answer = a2_extract("--shard", f"{number}/2", *moved)
    other = a2_extract("--shard", f"{1 - number}/2", *moved)
    assert (answer.exit_code, other.exit_code) == (3, 3)
    assert answer.stderr.splitlines()[-1] == f"extract: 1 skipped in shard {number}/2"
    assert other.stderr.splitlines()[-1].startswith(f"  {IDS[0]}: image '{IDS[0]}.jpg' is empty")


@pytest.mark.slow
def test_status_names_the_processes_that_extract_shards(a2_extract, experiment, tmp_path):
    assert a2_extract("--shard", "0/2").exit_code == 0
    key = experiment.directory("extract").name
    place = StagePaths(tmp_path / "artifacts" / "extract" / key)
    with stage_lock(place.shard_lock(Shard(1, 2)), what="a test"):
        options = ["-c", str(experiment.config_file), "--artifacts", str(tmp_path / "artifacts")]
        answer = CliRunner().invoke(cli, ["status", *options, "--explain"])
        locked = a2_extract("--shard", "1/2")
    assert "extract      running" in answer.stdout
    assert f"process {os.getpid()} on " in answer.stdout
    assert locked.exit_code == 75
    assert locked.stderr.startswith("a2: shard 1/2 of extract is already running: process ")


@pytest.mark.slow
def test_concurrent_shards_make_one_stage(experiment, tmp_path):
    command = [sys.executable, "-m", "a2cap.pipeline", "extract", "-c", str(experiment.config_file)]
    processes = [
        subprocess.Popen([*command, "--artifacts", tmp_path, "--shard", f"{number}/3"])
        for number in range(3)
    ]
    assert [process.wait() for process in processes] == [0, 0, 0]
    [made] = tmp_path.glob("extract/*/manifest.json")
    whole = read_manifest(experiment.directory("extract"))
    assert read_manifest(made.parent).digest == whole.digest


@pytest.mark.slow
def test_all_shards_have_the_precision_that_the_first_one_chose(new, scenes, monkeypatch):
    few = {image_id: scenes[0][image_id] for image_id in IDS[:6]}
    auto = DETECT.model_copy(update={"precision": "auto"})
    run = new(images=few, given=False, config=auto)
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: False)
    run.fill(0, 2)
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: True)
    monkeypatch.setattr("a2cap.extract.extractor.MixedPrecision", None)  # mixed would fail
    run.fill(1, 2)
    run.join()
    assert ExtractorRecord.read(run.directory / EXTRACTOR).config.precision == "exact"
