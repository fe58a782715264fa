"""Inputs that are damaged or replaced never become part of a result."""

import os

import pytest

from a2cap.data.errors import A2Error, InputError
from a2cap.data.files import image_file
from a2cap.data.files.sealed_folder import read_manifest
from a2cap.pipeline.training.checkpoints import Checkpoints
from tests.data.messages import message_of
from tests.experiments import a2

FEATURES = ["extractor.json", "weights.safetensors"]
CAPTIONS = ["vocabulary.json", "captions.h5", "references.json", "document_frequencies.npz"]
MODEL = ["model.safetensors", "model.json", "vocabulary.json", "extractor.json"]
READ_BY_TRAINING = {"extract": FEATURES, "preprocess": CAPTIONS}
INPUTS = {
    "train-xe": READ_BY_TRAINING,
    "train-scst": {**READ_BY_TRAINING, "train-xe": MODEL},
    "evaluate": {**READ_BY_TRAINING, "train-xe": MODEL},
}
"""Stage -> the small files that it reads of each earlier stage."""


def flip_a_bit(path):
    """Flip a bit in the middle of a file and set back its modification time; return the content."""
    before, content = path.stat(), path.read_bytes()
    changed = bytearray(content or b"{}")
    changed[len(changed) // 2] ^= 4
    path.write_bytes(changed)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return content


@pytest.mark.slow
@pytest.mark.parametrize("stage", INPUTS)
def test_a_flipped_bit_in_a_small_input_stops_the_stage_before_its_work(copy, stage):
    copy.delete(*{stage, "evaluate"} - {"train-scst"})
    overrides = ["scst.epochs=1"] if stage == "train-scst" else []
    files = [copy.directory(made) / name for made in INPUTS[stage] for name in INPUTS[stage][made]]
    for path in files:
        content = flip_a_bit(path)
        with copy.experiment.open(*overrides, artifacts=copy.artifacts) as opened:
            message = message_of(opened.run, stage, error=A2Error)
        assert message.startswith(f"{str(path)!r} differs from its digest in the manifest; ")
        path.write_bytes(content)
    assert not list((copy.artifacts / stage).glob("*/manifest.json"))
    assert not list((copy.artifacts / stage).glob("*/checkpoints/step*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODEL, "weights.safetensors"])
def test_a_flipped_bit_in_a_captioner_is_named_by_a2_caption(copy, experiment, name):
    model = copy.directory("train-xe")
    flip_a_bit(model / name)
    image = experiment.scenes / "images" / f"{1:012d}.jpg"
    answer = a2(
        "caption", image, "--model", model, "--boxes", experiment.scenes / "instances.json", code=1
    )
    assert answer.stdout == ""
    assert name in answer.stderr


@pytest.fixture
def replaced_while(monkeypatch, copied_scenes):
    """Return a function that replaces two images while the one with a given number is read."""
    scenes, _ = copied_scenes
    read = image_file.read_image_file
    images = [scenes / "images" / f"{number:012d}.jpg" for number in (2, 39)]
    kept = {path: path.read_bytes() for path in images}

    def restore():
        monkeypatch.setattr(image_file, "read_image_file", read)
        for path, content in kept.items():
            path.write_bytes(content)

    def replace_while(number):
        def read_and_replace(path):
            if path.stem == f"{number:012d}":
                for image in kept:
                    image.write_bytes((scenes / "images" / f"{7:012d}.jpg").read_bytes())
            return read(path)

        monkeypatch.setattr(image_file, "read_image_file", read_and_replace)
        return restore

    return replace_while


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 20, 40])
def test_images_replaced_during_extraction_are_never_part_of_a_result(
    experiment, copied_scenes, replaced_while, new, number
):
    _, overrides = copied_scenes
    with new(*overrides) as opened:
        key = opened.stage("extract").made_from.key
        restore = replaced_while(number)
        with pytest.raises(InputError, match="input files changed during the run: "):
            opened.run("extract")
        restore()
    with new(*overrides) as opened:
        made = opened.run("extract")
    assert made.directory.name == key
    assert made.manifest.digest == read_manifest(experiment.directory("extract")).digest


def test_captions_replaced_during_training_are_in_no_checkpoint(copy, monkeypatch):
    copy.delete("train-xe", "evaluate")
    captions, save, steps = copy.directory("preprocess") / "captions.h5", Checkpoints.save, []

    def save_and_replace(self, step, **state):
        save(self, step, **state)
        if not steps:
            flip_a_bit(captions)
        steps.append(step)

    monkeypatch.setattr(Checkpoints, "save", save_and_replace)
    with copy.experiment.open("train.checkpoint_every=2", artifacts=copy.artifacts) as opened:
        message = message_of(opened.run, "train-xe")
    assert message.endswith(
        f"changed during the run: {str(captions)!r}; run the same command again"
    )
    [checkpoint] = (copy.artifacts / "train-xe").glob("*/checkpoints/step*")
    assert checkpoint.name == f"step-{steps[0]:08d}"
