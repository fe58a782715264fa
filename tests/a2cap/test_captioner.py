"""A captioner loaded in Python captions as `a2 caption` does."""

import base64
import copy
import io
import json
import pickle
import re
import shutil
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import a2cap
from a2cap import captioner as captioner_module
from a2cap.data.annotations.instances import read_instances
from a2cap.data.errors import A2Error, ConfigError
from a2cap.data.image_ids import image_id
from a2cap.pipeline.captioning.caption_images import caption_files
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.captioning.decoding import Beam
from a2cap.pipeline.captioning.named_images import NamedImage
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.runtime.runtime_config import RuntimeConfig
from tests.data.messages import message_of
from tests.experiments import detecting
from tests.quick import some_quick


@pytest.fixture(scope="module")
def model(experiment):
    return experiment.directory("train-xe")


@pytest.fixture
def boxes(experiment, scene):
    return read_instances(experiment.scenes / "instances.json")[image_id(scene.name)].boxes


@pytest.fixture(scope="module")
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
    caption = captioner(scene, boxes=boxes.tolist())
    assert caption.beams == expected.beams
    assert len(caption.beams) == 2
    assert (caption.caption, caption.score) == (caption.beams[0].caption, caption.beams[0].score)
    assert caption.tokens == caption.caption.split()
    assert (caption.boxes == boxes).all()
    assert caption.attention.original.shape == (len(caption.tokens), len(boxes))
    assert (caption.attention.aligned == expected.attention.aligned).all()


@pytest.fixture
def images(experiment):
    return sorted((experiment.scenes / "images").iterdir())[:7]


@pytest.fixture(scope="module")
def detector(model, tmp_path_factory):
    """Return the captioner with boxes that it detects itself."""
    folder = tmp_path_factory.mktemp("detecting") / "model"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("manifest.json"))
    detecting(folder)
    return a2cap.load(folder, device="cpu", beam_size=2)


@pytest.mark.parametrize("batch_size", some_quick((1, 3, 16), 3))
def test_batches_equal_single_images(captioner, experiment, images, batch_size):
    boxes_of_images = read_instances(experiment.scenes / "instances.json")
    boxes = [boxes_of_images[image_id(path.name)].boxes for path in images]
    many = list(captioner.many(images, boxes=boxes, batch_size=batch_size))
    for path, own, batched in zip(images, boxes, many, strict=True):
        single = captioner(path, boxes=own)
        assert [beam.caption for beam in batched.beams] == [beam.caption for beam in single.beams]
        assert batched.score == pytest.approx(single.score, abs=1e-4)
        assert batched.attention.aligned == pytest.approx(single.attention.aligned, abs=1e-5)
        assert (batched.path, batched.kept) == (path, None)
        assert (batched.pixels == single.pixels).all()


def test_many_images_of_a_file_are_refused_by_its_name(captioner, tmp_path):
    path = str(tmp_path / "photo.jpg")
    assert message_of(captioner.many, path) == (
        f"no folder: {path!r}; name a folder, or give a list of images"
    )


def test_each_kind_of_many_images_has_the_captions_of_single_ones(detector, images, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for path in images[:3]:
        Image.open(path).save(folder / f"{path.stem}.png")  # which every decoder reads alike
    paths = sorted(folder.iterdir())
    expected = [detector(path).caption for path in paths]
    arrays = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])
    tensors = torch.from_numpy(arrays).permute(0, 3, 1, 2)
    opened = tuple(Image.open(path) for path in paths)
    for many in (list(map(str, paths)), opened, arrays, tensors, list(tensors / 255)):
        assert [caption.caption for caption in detector(many)] == expected
    for many in (folder, str(folder), (path for path in paths)):
        shown = detector(many, batch_size=2)
        assert isinstance(shown, Iterator)
        assert [(c.path, c.caption) for c in shown] == list(zip(paths, expected, strict=True))


def test_a_bar_shows_the_progress_of_many_images(detector, images, monkeypatch):
    shown = []

    def watched(what, *, total, shown: bool, done=shown):
        done.append((what, total, shown))
        return track(what, total=total, shown=False)

    monkeypatch.setattr(captioner_module, "track", watched)
    detector(images[:2])
    list(detector(iter(images[:1])))
    detector(images[:1], progress=False)
    assert shown == [("caption", 2, True), ("caption", 0, True), ("caption", 1, False)]


def test_bad_images_stop_or_are_skipped(detector, images, tmp_path, caplog):
    (tmp_path / "empty.jpg").touch()
    mixed = [images[0], tmp_path / "empty.jpg", images[1]]
    reason = "image 1: image 'empty.jpg' is empty: 0 bytes; get the file again"
    assert message_of(detector, mixed) == reason
    first = []
    with pytest.raises(A2Error):
        first.extend(detector.many(mixed))
    assert [caption.path for caption in first] == [images[0]]  # what came before it is not lost
    captions = detector(mixed, on_error="skip")
    assert [caption.path for caption in captions] == [images[0], images[1]]
    assert caplog.messages[-1] == f"skipped {reason}"


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (
            "https://example.org/a.jpg",
            {},
            "'https://example.org/a.jpg' is a web address; download the image first",
        ),
        (
            [Path("s3://bucket/a.jpg")],
            {},
            "image 0: 's3://bucket/a.jpg' is a web address; download the image first",
        ),
        ("", {}, "no image has this name: ''; give a path"),
        ("a\0b", {}, "no image has this name: 'a\\x00b'; give a path"),
        (None, {}, "not an image: NoneType; give a path, a PIL image, a NumPy array or a tensor"),
        ({"a": 1}, {}, "not an image: dict; give a path, a PIL image, a NumPy array or a tensor"),
        (["a.jpg"], {"batch_size": 0}, "batch_size is 0; give 1 or more"),
        (["a.jpg"], {"on_error": "x"}, 'on_error is unknown: \'x\'; choose "raise" or "skip"'),
        (
            ["a.jpg"],
            {"boxes": [[0, 0, 9, 9]]},
            "boxes are of one image, but there are many; give them to `many`",
        ),
    ],
)
def test_what_cannot_be_captioned_is_refused(captioner, images, options, message):
    assert message_of(captioner, images, **options) == message


@pytest.mark.parametrize("extra", [-1, 1])
def test_boxes_of_another_number_of_images_are_refused(captioner, scene, boxes, extra):
    captions = captioner.many([scene] * 2, boxes=[boxes] * (2 + extra))
    assert message_of(list, captions) == (
        "images and boxes differ in number; give one entry of boxes for each image"
    )


def test_each_word_has_its_attention_and_its_figure(captioner, scene, boxes):
    caption = captioner(scene, boxes=boxes)
    assert [word.text for word in caption.words] == caption.tokens
    for word, original, aligned in zip(
        caption.words, caption.attention.original, caption.attention.aligned, strict=True
    ):
        assert (word.original == original).all() and (word.aligned == aligned).all()
    for chosen in ({}, {"layer": 1, "head": 2}):
        assert len(caption.figure(**chosen).axes) == 1 + 2 * len(caption.tokens)
        assert len(caption.words[-1].figure(**chosen).axes) == 2
    with Image.open(io.BytesIO(caption.words[0].figure()._repr_png_())) as shown:
        assert min(shown.size) > 100  # as a notebook shows it
    assert caption.attention.layers[0].original.shape == (2, len(caption.tokens), len(boxes))
    plain = replace(caption, attention=None)
    assert plain.words[0].original is None
    assert message_of(plain.words[0].figure) == (
        "nothing to draw: this captioner has no attention to regions"
    )


def test_a_notebook_shows_the_image_and_its_captions(captioner, scene, boxes):
    made = captioner(scene, boxes=boxes)
    shown = replace(made, beams=[Beam("a <b> cat", -1.5), Beam("", -2)])._repr_html_()
    assert "a &lt;b&gt; cat <small>-1.50</small>" in shown and "(no words)" in shown
    encoded = re.search('src="data:image/jpeg;base64,([^"]+)"', shown)[1]
    height, width, _ = made.pixels.shape
    assert Image.open(io.BytesIO(base64.b64decode(encoded))).size == (width, height)
    assert repr(made) == f"Caption({made.caption!r}, score={made.score:.3f}, path={str(scene)!r})"
    assert repr(made.words[0]) == f"Word({made.tokens[0]!r})"


def test_a_captioner_shows_what_is_known_of_it(captioner, model):
    entries = len(json.loads((model / "vocabulary.json").read_text())["words"])
    lines = [json.loads(line) for line in (model / "metrics.jsonl").read_text().splitlines()]
    best = json.loads((model / "training.json").read_text())
    assert repr(captioner) == (
        f"Captioner({str(model)!r}: model transformer, fusion gate; vocabulary {entries} entries; "
        f"decoding best of 2 beams; validation CIDEr {best['score']:.3f}, "
        f"best at epoch {best['best_epoch']} of {len(lines)})"
    )
    shown = captioner._repr_html_()
    assert f"<caption>Captioner {model}</caption>" in shown
    assert ">regions</th>" in shown and f">{entries} entries</td>" in shown
    bundled = a2cap.load(device="cpu")
    assert bundled.facts["validation"] == "CIDEr 0.895"
    assert bundled.facts["decoding"] == "best of 20 beams, by consensus"
    assert "do not rely on a caption" in bundled._repr_html_()


@pytest.mark.slow
def test_whatever_has_a_length_gives_a_list_and_the_rest_an_iterator(scene):
    captioner = a2cap.load(device="cpu", beam_size=1)
    column = deque([str(scene)] * 2)  # as a pandas.Series: sized, neither list nor tuple
    assert [caption.path for caption in captioner(column, progress=False)] == [scene] * 2
    assert isinstance(captioner(column, progress=False), list)
    for images in (scene.parent, str(scene.parent), iter(column)):
        assert isinstance(captioner(images, progress=False), Iterator)


def test_a_captioner_and_its_captions_are_pickled_and_copied(captioner, scene, boxes):
    caption = captioner(scene, boxes=boxes)
    for copied in (pickle.loads(pickle.dumps(captioner)), copy.deepcopy(captioner)):
        assert copied(scene, boxes=boxes).beams == caption.beams
    for same in (pickle.loads(pickle.dumps(caption)), copy.deepcopy(caption)):
        assert same.row() == caption.row()
        assert (same.attention.aligned == caption.attention.aligned).all()


def test_two_threads_get_the_captions_of_one(detector, images):
    images = images[:3]
    expected = [caption.beams for caption in detector(images, batch_size=1)]
    with ThreadPoolExecutor(2) as threads:
        in_threads = list(threads.map(lambda path: detector(path).beams, images * 3))
    assert in_threads == expected * 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of datasets and its dependencies
def test_rows_of_captions_are_a_data_set_of_datasets(detector, images, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="no datasets")
    rows = [caption.row() for caption in detector(images[:2])]
    path = tmp_path / "captions.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    loaded = datasets.load_dataset(
        "json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert loaded.to_list() == rows


def test_an_unusable_model_or_setting_is_refused(tmp_path, model):
    assert a2cap.A2Error is A2Error
    assert message_of(a2cap.load, tmp_path, error=A2Error).startswith(
        f"no trained model in {str(tmp_path)!r}"
    )
    valid = ", ".join(name for name in CaptioningConfig.model_fields if name != "batch_size")
    for name in ("beams", "batch_size"):
        assert message_of(a2cap.load, model, **{name: 2}, error=ConfigError) == (
            f"unknown setting of decoding: {name!r}; valid names: {valid}"
        )
    assert message_of(a2cap.load, model, beam_size=0, error=ConfigError).startswith(
        "1 problem in the configuration:\n  evaluate.beam_size: "
    )


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
    scores = a2cap.score(captions, references)
    assert scores.metrics == pytest.approx(expected["metrics"], abs=1e-12)
    assert scores.confidence.keys() == scores.metrics.keys()
    by_order = a2cap.score(list(captions.values()), list(references.values()))
    assert by_order.metrics == scores.metrics
