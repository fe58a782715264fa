"""Bad images and captions: exit code 3, listed, and skipped in every later stage."""

import json

import pytest

from a2cap.data.files.sealed_folder import SkippedItem, read_manifest, seal
from a2cap.pipeline.cli.output import print_outcome
from a2cap.pipeline.engine.run import Outcome
from tests.experiments import a2, images_of, settings


@pytest.fixture
def damaged(copied_scenes):
    """Copy the scenes, which a test may damage; their path has spaces and other alphabets."""
    scenes, overrides = copied_scenes
    return scenes, scenes.with_name("artefäcts"), settings(*overrides, "train.epochs=1")


@pytest.mark.slow
@pytest.mark.usefixtures("tolerant")
def test_bad_images_are_listed_and_skipped_by_training_and_evaluation(
    experiment, damaged, without_meteor
):
    scenes, artifacts, overrides = damaged
    missing = [images_of(scenes, split)[0] for split in ("train", "val", "test")]
    broken, empty, cut = images_of(scenes, "train")[1:4]
    for name in missing:
        (scenes / "images" / f"{name}.jpg").unlink()
    (scenes / "images" / f"{broken}.jpg").write_bytes(b"<html>not found</html>")
    (scenes / "images" / f"{empty}.jpg").write_bytes(b"")
    whole = (scenes / "images" / f"{cut}.jpg").read_bytes()
    (scenes / "images" / f"{cut}.jpg").write_bytes(whole[: len(whole) // 2])
    answer = a2("run", "-c", experiment.config_file, "--artifacts", artifacts, *overrides, code=3)
    reasons = dict.fromkeys(missing, "image file not found")
    reasons[broken] = (
        f"image '{broken}.jpg' is not in a supported format: it is a web page; get the file again"
    )
    reasons[empty] = f"image '{empty}.jpg' is empty: 0 bytes; get the file again"
    [extracted] = (artifacts / "extract").glob("*/manifest.json")
    listed = read_manifest(extracted.parent).reasons
    reasons[cut] = listed[cut]
    assert listed == reasons
    assert listed[cut].startswith(f"image '{cut}.jpg' cannot be decoded: image file is truncated")
    stderr = answer.stderr.splitlines()
    assert f"extract: 6 skipped, listed in {extracted}" in stderr
    assert all(f"  {name}: {reason}" in stderr for name, reason in reasons.items())
    [evaluated] = (artifacts / "evaluate").glob("*/metrics.json")
    assert f"evaluate: 1 skipped, listed in {evaluated.parent / 'manifest.json'}" in stderr
    content = json.loads(evaluated.read_text())
    assert (content["n"], content["total"]) == (3, 4)
    assert len(json.loads(evaluated.with_name("captions.json").read_text())) == 3
    report = evaluated.with_name("report.html").read_text()
    assert "3 of 4 images, 1 skipped" in report
    assert "image file not found" in report
    again = a2("run", "-c", experiment.config_file, "--artifacts", artifacts, *overrides, code=3)
    assert "nothing to do: every result exists" in again.stdout


def test_too_many_bad_images_stop_extraction(experiment, damaged):
    scenes, artifacts, overrides = damaged
    lost = [f"{number:012d}" for number in range(20, 31)]
    for name in lost:
        (scenes / "images" / f"{name}.jpg").unlink()
    answer = a2("extract", "-c", experiment.config_file, "--artifacts", artifacts, *overrides)
    reasons = ", ".join(f"{name!r} (image file not found)" for name in lost[:5])
    assert answer.exit_code == 1
    assert answer.stderr == (
        "a2: 11 of 40 images cannot be used, at most 2 may be left out: "
        f"{reasons}, …; fix or remove them\n"
    )
    assert not (artifacts / "extract").exists()  # found before any work


def break_captions(scenes):
    """An unknown split, and then five empty captions."""
    path = scenes / "dataset_coco.json"
    content = json.loads(path.read_text())
    content["images"][0]["split"] = "tset"
    sentences = [s for image in content["images"][1:] for s in image["sentences"][:4]]
    for sentence in sentences[:5]:
        sentence["tokens"] = []
    path.write_text(json.dumps(content))


def test_bad_captions_are_listed(experiment, damaged):
    scenes, artifacts, overrides = damaged
    break_captions(scenes)
    answer = a2("preprocess", "-c", experiment.config_file, "--artifacts", artifacts, *overrides)
    [listed] = artifacts.glob("preprocess/*/manifest.json")
    assert answer.exit_code == 3
    assert answer.stderr.splitlines() == [
        f"preprocess: 6 skipped, listed in {listed}",
        *[f"  000000000002: caption {number}: empty" for number in range(4)],
        "  000000000003: caption 0: empty",
        "  000000000001: unknown split: 'tset'",
    ]


def test_of_many_skipped_items_ten_are_printed(tmp_path, capsys):
    manifest = seal(tmp_path, [], skipped=[SkippedItem("7", "odd")] * 12, seconds=61.0)
    print_outcome("extract", Outcome(tmp_path, manifest, ran=True))
    printed = capsys.readouterr()
    assert printed.out == f"extract: done in 1 min 1 s: {tmp_path}\n"
    assert printed.err.splitlines() == [
        f"extract: 12 skipped, listed in {tmp_path / 'manifest.json'}",
        *["  7: odd"] * 10,
        "  and 2 more",
    ]
