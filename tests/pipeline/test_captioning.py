"""Captions of single pictures: those of the evaluation, from the files alone."""

import json
import shutil

import pytest
from click.testing import CliRunner

from a2.data.batches import collate
from a2.data.errors import InputError, WeightsError
from a2.pipeline import captioning
from a2.pipeline.captioning import caption_files, extract_config
from a2.pipeline.cli import cli


@pytest.fixture
def boxes(experiment):
    return experiment.scenes / "instances.json"


@pytest.fixture
def model(experiment, tmp_path):
    """The trained directory, in a place where nothing else of the experiment lies."""
    return shutil.copytree(experiment.directory("train-xe"), tmp_path / "my model")


def caption(pictures, *, model, boxes, beam_size=2):
    return list(
        caption_files(pictures, model=model, boxes=boxes, beam_size=beam_size, device="cpu")
    )


def a2_caption(*arguments):
    return CliRunner().invoke(cli, ["caption", *map(str, arguments)], catch_exceptions=False)


def evaluated(experiment):
    entries = json.loads((experiment.directory("evaluate") / "captions.json").read_text())
    return {
        experiment.scenes / "images" / f"{entry['image_id']:012d}.jpg": entry["caption"]
        for entry in entries
    }


def test_a_picture_gets_the_caption_that_evaluation_gave_it(experiment, model, boxes):
    expected = evaluated(experiment)
    found = caption(list(expected), model=model, boxes=boxes)
    assert {path: beams[0].caption for path, beams in found} == expected


def test_the_command_prints_a_caption_per_picture(experiment, model, boxes):
    expected = evaluated(experiment)
    answer = a2_caption(*expected, "--model", model, "--boxes", boxes, "--beam-size", 2)
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.splitlines() == [f"{path}: {text}" for path, text in expected.items()]


def test_beams_come_best_first(experiment, model, boxes):
    picture = next(iter(evaluated(experiment)))
    [(_, beams)] = caption([picture], model=model, boxes=boxes, beam_size=4)
    scores = [beam.score for beam in beams]
    assert scores == sorted(scores, reverse=True)
    assert len(beams) > 1


def test_a_captioner_of_given_boxes_asks_for_them(experiment, model):
    answer = a2_caption("x.jpg", "--model", model)
    assert answer.exit_code == 2
    assert answer.stderr == (
        f"a2: the captioner in {str(model)!r} was trained on given boxes; "
        "name the pictures' boxes with --boxes FILE (COCO instances)\n"
    )


def detecting(model):
    """Says of a model that its regions were detected, few of them in small pictures."""
    path = model / "extractor.json"
    content = json.loads(path.read_text())
    few = {"boxes": "detect", "min_regions": 4, "max_regions": 8, "proposals": 20}
    content["config"].update(few)
    path.write_text(json.dumps(content))


def test_a_captioner_of_detected_boxes_wants_none(experiment, model, boxes):
    detecting(model)
    answer = a2_caption("x.jpg", "--model", model, "--boxes", boxes)
    assert answer.exit_code == 2
    assert answer.stderr == (
        f"a2: the captioner in {str(model)!r} was trained on detected boxes; leave --boxes out\n"
    )


def test_a_captioner_of_detected_boxes_captions_any_picture(experiment, model, tmp_path):
    detecting(model)
    picture = tmp_path / "Foto von Émile.jpg"
    shutil.copyfile(next(iter(evaluated(experiment))), picture)
    answer = a2_caption(picture, "--model", model)
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.startswith(f"{picture}: ")


def test_a_picture_that_cannot_be_read_is_named_and_the_others_are_captioned(
    experiment, model, boxes, tmp_path
):
    good, text = next(iter(evaluated(experiment).items()))
    broken, unknown = tmp_path / good.name, tmp_path / "unknown.jpg"
    broken.write_bytes(b"no picture")
    shutil.copyfile(good, unknown)
    missing = tmp_path / sorted((experiment.scenes / "images").iterdir())[-1].name
    assert missing.name != good.name
    arguments = (broken, missing, unknown, good, "--model", model, "--boxes", boxes)
    answer = a2_caption(*arguments, "--beam-size", 2)
    assert answer.exit_code == 3
    assert answer.stdout == f"{good}: {text}\n"
    assert answer.stderr.splitlines() == [
        f"a2: skipped {str(broken)!r}: {good.name!r} is not a picture: "
        "it begins with b'no picture'; get the file again",
        f"a2: skipped {str(missing)!r}: cannot read picture {missing.name!r}: "
        "No such file or directory; check the picture folder",
        f"a2: skipped {str(unknown)!r}: no boxes for image 'unknown'; "
        "add them to the file of --boxes",
    ]


def test_the_captioner_sees_as_many_regions_as_in_training(experiment, model, boxes, monkeypatch):
    description = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps({**description, "max_regions": 2}))
    seen = []
    monkeypatch.setattr(captioning, "collate", lambda items: seen.extend(items) or collate(items))
    pictures = sorted((experiment.scenes / "images").iterdir())[:8]
    caption(pictures, model=model, boxes=boxes)
    assert len(seen) == 8
    assert max(len(item.regions) for item in seen) == 2


def test_features_are_rounded_as_the_store_rounds_them(experiment, model, boxes, monkeypatch):
    seen = []
    monkeypatch.setattr(captioning, "collate", lambda items: seen.extend(items) or collate(items))
    caption(list(evaluated(experiment)), model=model, boxes=boxes)
    assert {str(item.regions.features.dtype) for item in seen} == {"float16"}


@pytest.mark.parametrize("content", ["[]", "{}", '{"config": {"depth": 5}}'])
def test_a_model_that_does_not_say_how_its_regions_are_made_is_refused(model, content):
    (model / "extractor.json").write_text(content)
    with pytest.raises(InputError) as raised:
        extract_config(model)
    assert str(raised.value) == (
        f"extractor.json does not say how regions are made: {str(model)!r}; "
        "copy the whole directory again, or train again"
    )


def test_a_model_without_its_extractor_is_refused(experiment, model, boxes):
    (model / "weights.safetensors").unlink()
    with pytest.raises(WeightsError) as raised:
        caption(list(evaluated(experiment)), model=model, boxes=boxes)
    assert str(raised.value) == (
        f"detector weights are missing: {str(model / 'weights.safetensors')!r} is no file; "
        "correct extract.weights"
    )


def test_a_folder_without_a_model_is_refused(tmp_path):
    answer = a2_caption("x.jpg", "--model", tmp_path)
    assert answer.exit_code == 1
    assert answer.stderr == (
        f"a2: no trained model in {str(tmp_path)!r}: model.safetensors is missing; "
        'name a directory that "a2 train" has finished\n'
    )


def test_a_file_of_boxes_that_is_not_there_is_named(model):
    answer = a2_caption("x.jpg", "--model", model, "--boxes", "none.json")
    assert (answer.exit_code, answer.stderr) == (1, "a2: no file 'none.json'; check the path\n")
