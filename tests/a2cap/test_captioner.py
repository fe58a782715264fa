"""A captioner loaded in Python captions as `a2 caption` does."""

import json

import numpy as np
import pytest
from PIL import Image

import a2cap
from a2cap.data.annotations.instances import read_instances
from a2cap.data.errors import A2Error, ConfigError, InputError
from a2cap.data.image_ids import image_id
from a2cap.pipeline.captioning.caption_images import caption_files
from a2cap.pipeline.captioning.config import CaptioningConfig
from a2cap.pipeline.captioning.given_boxes import NamedImage
from a2cap.pipeline.runtime.config import RuntimeConfig
from tests.data.messages import message_of


@pytest.fixture
def model(experiment):
    return experiment.directory("train-xe")


@pytest.fixture
def boxes(experiment, scene):
    return read_instances(experiment.scenes / "instances.json")[image_id(scene.name)].boxes


@pytest.fixture
def captioner(model):
    return a2cap.load(model, device="cpu", beam_size=2)


@pytest.mark.slow
def test_the_caption_is_that_of_the_command(experiment, captioner, model, scene, boxes):
    [(_, expected)] = caption_files(
        [NamedImage(scene)],
        models=[model],
        boxes=experiment.scenes / "instances.json",
        decoding=CaptioningConfig(beam_size=2),
        runtime=RuntimeConfig(device="cpu"),
        attention=True,
    )
    found = captioner(scene, boxes=boxes.tolist())
    assert found.beams == expected.beams
    assert len(found.beams) == 2
    assert (found.caption, found.score) == (found.beams[0].caption, found.beams[0].score)
    assert found.tokens == found.caption.split()
    assert (found.boxes == boxes).all()
    assert found.attention.original.shape == (len(found.tokens), len(boxes))
    assert (found.attention.aligned == expected.attention.aligned).all()


def test_an_array_is_captioned_as_its_file(captioner, scene, boxes, tmp_path):
    path = tmp_path / "same.png"
    Image.open(scene).save(path)
    with Image.open(path) as image:
        array = np.asarray(image.convert("RGB"))
    found = captioner(array, boxes=boxes)
    assert found.beams == captioner(path, boxes=boxes).beams
    assert (found.pixels == array).all()


@pytest.mark.slow
def test_many_images_are_captioned_in_their_order(model, experiment, monkeypatch):
    captioner = a2cap.load(model, device="cpu", beam_size=2)
    given = read_instances(experiment.scenes / "instances.json")
    paths = sorted((experiment.scenes / "images").iterdir())[:20]
    extract = captioner._captioner.extract
    boxes = iter([given[image_id(path.name)].boxes for path in paths])
    monkeypatch.setattr(captioner._captioner, "extract", lambda p: extract(p, next(boxes)))
    many = [caption.caption for caption in captioner.many(paths)]
    single = a2cap.load(model, device="cpu", beam_size=2)
    alone = [single(path, boxes=given[image_id(path.name)].boxes).caption for path in paths]
    assert many == alone


@pytest.mark.slow
def test_the_figure_has_two_panels_per_token(captioner, scene, boxes):
    found = captioner(scene, boxes=boxes)
    for chosen in ({}, {"layer": 1, "head": 2}):
        assert len(found.figure(**chosen).axes) == 1 + 2 * len(found.tokens)
    assert found.attention.layers[0].original.shape == (2, len(found.tokens), len(boxes))


def test_an_unusable_model_or_setting_is_refused(tmp_path, model):
    assert a2cap.A2Error is A2Error
    assert message_of(a2cap.load, tmp_path, error=A2Error).startswith(
        f"no trained model in {str(tmp_path)!r}"
    )
    assert message_of(a2cap.load, model, beams=2, error=ConfigError) == (
        "unknown setting of decoding: 'beams'; valid names: "
        + ", ".join(CaptioningConfig.model_fields)
    )
    assert message_of(a2cap.load, model, beam_size=0, error=ConfigError).startswith(
        "1 problem in the configuration:\n  evaluate.beam_size: "
    )


@pytest.mark.slow
def test_features_are_those_of_the_store(experiment, captioner, scene, boxes):
    store = a2cap.features(experiment.directory("extract") / "features.lmdb")
    stored = store[image_id(scene.name)]
    found = captioner(scene, boxes=boxes).regions
    assert (stored.features == found.features).all()
    assert (stored.boxes == found.boxes).all()


@pytest.mark.slow
def test_scores_are_those_of_the_evaluation(experiment):
    directory = experiment.directory("evaluate")
    expected = json.loads((directory / "metrics.json").read_text())
    images = json.loads((directory / "per_image.json").read_text())["images"]
    annotated = json.loads((experiment.scenes / "dataset_coco.json").read_text())["images"]
    references = {
        f"{image['cocoid']:012d}": [sentence["raw"] for sentence in image["sentences"]]
        for image in annotated
        if image["split"] == "test"
    }
    assert len(references) == expected["n"]
    captions = {image_id: images[image_id]["caption"] for image_id in references}
    found = a2cap.score(captions, references)
    assert found.metrics == pytest.approx(expected["metrics"], abs=1e-12)
    assert found.confidence.keys() == found.metrics.keys()
    by_order = a2cap.score(list(captions.values()), list(references.values()))
    assert by_order.metrics == found.metrics


@pytest.mark.parametrize(
    ("captions", "references", "message"),
    [
        (
            ["a", "b"],
            [["a"]],
            "captions and references differ in number: 2 and 1; "
            "give one list of references per caption",
        ),
        (
            {"1": "a"},
            [["a"]],
            "captions and references are of different kinds: a mapping and a sequence; "
            "give two mappings by image id, or two sequences",
        ),
        (
            ["a dog"],
            ["a dog"],
            "references of image '0' are not a list of texts: 'a dog'; "
            "give a list of one or more texts per caption",
        ),
        ([None], [["a"]], "caption of image '0' is not a text: None; give a text"),
    ],
)
def test_captions_and_references_that_do_not_match_are_refused(captions, references, message):
    assert message_of(a2cap.score, captions, references, error=InputError) == message
