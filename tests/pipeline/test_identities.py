"""Images keep one identity, whatever ids their annotations and files give them."""

import csv
import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocoevalcap.cider.cider import Cider
from pycocotools.coco import COCO

from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.features.formats.feature_source import ImageFeatures
from a2cap.data.features.formats.layouts import CAFFE, LXMERT
from a2cap.data.features.formats.writers import write_tsv
from a2cap.data.features.store import FeatureStore
from a2cap.data.identities import normal_key
from a2cap.data.image_ids import image_id
from a2cap.pipeline.configuration import override
from a2cap.pipeline.evaluation.score_captions import ScoredFiles
from a2cap.pipeline.extraction.convert import convert
from a2cap.pipeline.metrics.tokenization import tokenize
from tests.data.messages import message_of, written
from tests.experiments import a2, check_of, images_of, problems

NUMBERED, RENAMED, REPEATED = "{:012d}.jpg", "shots/photo-{}.jpg", "{}/{:03d}.jpg"
PERMUTED = ("permuted", NUMBERED, "data.ids=annotation")
KINDS = [
    PERMUTED,
    ("large", NUMBERED, "data.ids=null"),
    ("text", NUMBERED, "data.ids=null"),
    ("permuted", RENAMED, "data.ids=null"),
    ("text", RENAMED, "data.ids=null"),
    ("equal", NUMBERED, "data.ids=null"),
]


def own_ids(kind, numbers):
    """Return an id for each number, as an annotation tool gives them."""
    shuffled = random.Random(3).sample(numbers, len(numbers))
    ids_of_kind = {
        "equal": numbers,
        "permuted": shuffled,
        "large": [2**31 + number for number in shuffled],
        "text": [f"img_{number}" for number in shuffled],
    }
    return ids_of_kind[kind]


@dataclass(frozen=True)
class Data:
    """The scenes of the experiment under other ids and file names; keys: ids of the scenes."""

    folder: Path
    own: dict[str, int | str]
    files: dict[str, str]

    @property
    def annotations(self):
        return self.folder / "captions.json"

    @property
    def overrides(self):
        files = {
            "images": self.folder / "images",
            "annotations": self.annotations,
            "split_list": self.folder / "splits.json",
            "features": self.folder / "theirs.tsv",
            "instances": self.folder / "instances.json",
        }
        paths = [override(f"data.{name}", path) for name, path in files.items()]
        return [*paths, "extract.weights=null", "train.epochs=1", "evaluate.beam_size=1"]


@pytest.fixture
def make(experiment, tmp_path):
    """Return a function that writes the data of one kind."""
    return lambda kind, pattern: write_data(experiment, tmp_path / "data", kind, pattern)


def write_data(experiment, folder, kind, pattern):
    scenes, order = experiment.scenes, random.Random(5)
    karpathy = json.loads((scenes / "dataset_coco.json").read_text())["images"]
    names = [f"{image['cocoid']:012d}" for image in karpathy]
    numbers = [image["cocoid"] for image in karpathy]
    own = dict(zip(names, own_ids(kind, numbers), strict=True))
    parts = [divmod(n, 7) if pattern is REPEATED else (n,) for n in numbers]
    files = {name: pattern.format(*part) for name, part in zip(names, parts, strict=True)}
    for name, file in files.items():
        (folder / "images" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(scenes / "images" / f"{name}.jpg", folder / "images" / file)
    images = [
        {"id": own[name], "file_name": files[name]} for name in order.sample(names, len(names))
    ]
    captions = [
        {"id": 7 * number, "image_id": own[name], "caption": sentence["raw"]}
        for number, (name, sentence) in enumerate(
            (name, sentence)
            for name, image in zip(names, karpathy, strict=True)
            for sentence in image["sentences"]
        )
    ]
    content = {"images": images, "annotations": captions, "info": {}, "type": "captions"}
    (folder / "captions.json").write_text(json.dumps(content))
    splits = {s: [files[name] for name in images_of(scenes, s)] for s in ("train", "val", "test")}
    (folder / "splits.json").write_text(json.dumps(splits))
    boxes = json.loads((scenes / "instances.json").read_text())
    for image in boxes["images"]:
        image["file_name"] = files[f"{image['id']:012d}"]
        image["id"] = own[f"{image['id']:012d}"]
    for box in boxes["annotations"]:
        box["image_id"] = own[f"{box['image_id']:012d}"]
    for shuffled in (boxes["images"], boxes["annotations"]):
        random.Random(7).shuffle(shuffled)
    (folder / "instances.json").write_text(json.dumps(boxes))
    store = FeatureStore(experiment.directory("extract") / "features.lmdb")
    theirs = (ImageFeatures(str(own[name]), store[name]) for name in order.sample(names, 40))
    write_tsv(folder / "theirs.tsv", theirs, layout=LXMERT)
    return Data(folder, own, files)


def assert_together(opened, data, original, texts, rule="number"):
    """Check that the stages give each image the captions and features of its scene."""
    imported, captions = (opened.run(stage).directory for stage in ("extract", "preprocess"))
    store, read = FeatureStore(imported / "features.lmdb"), CaptionFile(captions / "captions.h5")
    vocabulary = Vocabulary.load(captions / "vocabulary.json")
    assert len(store) == len(data.own)
    for name, file in data.files.items():
        identity = image_id(file, rule)
        assert np.array_equal(store[identity].features, original[name].features)
        assert [vocabulary.decode(row) for row in read.captions(identity)] == texts[name]


@pytest.fixture
def original(experiment):
    return FeatureStore(experiment.directory("extract") / "features.lmdb")


@pytest.fixture
def texts(experiment):
    """Captions of the scenes as their tokens."""
    images = json.loads((experiment.scenes / "dataset_coco.json").read_text())["images"]
    return {
        f"{image['cocoid']:012d}": [" ".join(sentence["tokens"]) for sentence in image["sentences"]]
        for image in images
    }


@pytest.mark.parametrize(("kind", "pattern", "ids"), KINDS)
def test_captions_and_features_of_an_image_stay_together(
    make, experiment, original, texts, tmp_path, kind, pattern, ids
):
    data = make(kind, pattern)
    opened = experiment.open(*data.overrides, ids, artifacts=tmp_path / "artifacts")
    assert_together(opened, data, original, texts)


@pytest.mark.parametrize("named_by", ["own", "file"])
def test_images_of_folders_that_repeat_numbers_go_by_their_paths(
    make, experiment, original, texts, tmp_path, named_by
):
    data = make("large", REPEATED)
    if named_by == "file":
        theirs = [
            ImageFeatures(file.removesuffix(".jpg"), original[n]) for n, file in data.files.items()
        ]
        write_tsv(data.folder / "theirs.tsv", theirs, layout=LXMERT)
    overrides = [*data.overrides, "data.instances=null", "data.ids=path"]
    opened = experiment.open(*overrides, artifacts=tmp_path / "artifacts")
    assert not problems(opened, "extract")
    assert_together(opened, data, original, texts, rule="path")


def test_features_that_fit_two_images_are_rejected_unless_data_ids_decides(
    make, experiment, original, tmp_path, caplog
):
    data = make("permuted", NUMBERED)
    artifacts = tmp_path / "artifacts"
    message = message_of(experiment.open(*data.overrides, artifacts=artifacts).run, "extract")
    assert message.startswith(f"the features of {str(data.folder / 'theirs.tsv')!r} name an image ")
    assert message.endswith(
        "; set data.ids=annotation if these are ids of the annotations, data.ids=number if they "
        "are the numbers of files"
    )
    # the same file, whose numbers are then those of files
    opened = experiment.open(*data.overrides, "data.ids=number", artifacts=artifacts)
    store = FeatureStore(opened.run("extract").directory / "features.lmdb")
    for name, own in data.own.items():
        assert np.array_equal(store[normal_key(own)].features, original[name].features)


@pytest.mark.parametrize("form", ["a2", "tar", "lxmert", "m2"])
def test_a_conversion_of_such_features_is_read_as_the_file(
    make, experiment, original, texts, tmp_path, caplog, form
):
    caplog.set_level("INFO")
    data = make("large", NUMBERED)
    convert(data.folder / "theirs.tsv", tmp_path / "converted", form=form)
    features = override("data.features", tmp_path / "converted")
    listed = override("data.sizes", data.folder / "instances.json")
    sizes = listed if form == "m2" else "data.sizes=null"
    opened = experiment.open(*data.overrides, features, sizes, artifacts=tmp_path / "artifacts")
    assert not problems(opened, "extract")
    assert_together(opened, data, original, texts)
    assert any("name images by ids of the annotations, first " in text for text in caplog.messages)


def test_a_conversion_by_a_list_of_sizes_has_the_ids_of_its_files(make, original, tmp_path):
    data = make("large", NUMBERED)
    convert(data.folder / "theirs.tsv", tmp_path / "m2", form="m2")
    listed = data.folder / "instances.json"
    convert(tmp_path / "m2", tmp_path / "store", form="a2", dtype="float32", sizes=listed)
    store = FeatureStore(tmp_path / "store")
    for name, file in data.files.items():
        assert np.array_equal(store[image_id(file)].features, original[name].features)


def test_a_conversion_by_sizes_whose_ids_fit_two_images_is_rejected(make, tmp_path):
    data = make("permuted", NUMBERED)
    convert(data.folder / "theirs.tsv", tmp_path / "m2", form="m2")
    listed = data.folder / "instances.json"
    assert message_of(
        convert, tmp_path / "m2", tmp_path / "store", form="a2", sizes=listed
    ).endswith(
        "; name a folder of images in place of the COCO file, or read the features by "
        "data.features with data.ids"
    )


def test_a_look_draws_the_boxes_on_the_photograph_that_an_own_id_names(make, tmp_path):
    data = make("large", NUMBERED)
    convert(data.folder / "theirs.tsv", tmp_path / "m2", form="m2")
    words = ("convert", tmp_path / "m2", tmp_path / "x.png", "--look")
    words += ("--image", data.folder / "images", "--sizes", data.folder / "instances.json")
    answer = a2(*words, code=0)
    name = min(data.own, key=lambda name: str(data.own[name]))  # HDF5 has an order of its own
    photograph = data.folder / "images" / data.files[name]
    assert f"first image: {image_id(data.files[name])}\n" in answer.stdout
    assert f" on {str(photograph)!r} in " in answer.stdout


def test_an_import_without_annotations_is_linked_when_it_is_imported_again(
    make, experiment, original, texts, tmp_path
):
    data, artifacts = make("large", NUMBERED), tmp_path / "artifacts"
    alone = experiment.open(
        *data.overrides, "data.annotations=null", "data.split_list=null", artifacts=artifacts
    )
    features = override("data.features", alone.run("extract").directory)
    opened = experiment.open(*data.overrides, features, artifacts=artifacts)
    assert_together(opened, data, original, texts)
    again = override("data.features", opened.run("extract").directory)
    opened = experiment.open(*data.overrides, again, artifacts=tmp_path / "others")
    assert_together(opened, data, original, texts)


def test_features_extracted_from_the_files_need_no_setting(make, experiment, original, tmp_path):
    data = make("permuted", NUMBERED)
    features = override("data.features", experiment.directory("extract"))
    opened = experiment.open(*data.overrides, features, artifacts=tmp_path / "artifacts")
    store = FeatureStore(opened.run("extract").directory / "features.lmdb")
    assert all(np.array_equal(store[i].features, original[i].features) for i in original)


@pytest.mark.parametrize(
    ("kind", "pattern", "ids"),
    [PERMUTED, KINDS[4], *(pytest.param(*KINDS[i], marks=pytest.mark.slow) for i in (1, 2, 3, 5))],
)
def test_given_boxes_stay_with_the_file_of_their_image(
    make, experiment, original, tmp_path, kind, pattern, ids
):
    data = make(kind, pattern)
    weights = override("extract.weights", experiment.weights)
    overrides = [*data.overrides, weights, "data.features=null", ids]
    opened = experiment.open(*overrides, artifacts=tmp_path / "artifacts")
    store = FeatureStore(opened.run("extract").directory / "features.lmdb")
    assert len(store) == len(data.files)
    for name, file in data.files.items():
        extracted, expected = store[image_id(file)], original[name]
        assert np.array_equal(extracted.boxes, expected.boxes)
        assert np.allclose(extracted.features, expected.features, atol=1e-3)
    names = images_of(experiment.scenes, "test")[:3]
    model = ("--model", experiment.directory("train-xe"), "--beam-size", "1", "--json")
    ours, theirs = (
        a2("caption", *files, *model, "--boxes", boxes)
        for files, boxes in (
            (
                [data.folder / "images" / data.files[n] for n in names],
                data.folder / "instances.json",
            ),
            (
                [experiment.scenes / "images" / f"{n}.jpg" for n in names],
                experiment.scenes / "instances.json",
            ),
        )
    )
    assert (ours.exit_code, theirs.exit_code) == (0, 0), ours.output
    answers = ([json.loads(line) for line in run.stdout.splitlines()] for run in (ours, theirs))
    for mine, other in zip(*answers, strict=True):
        assert (mine["caption"], mine["boxes"]) == (other["caption"], other["boxes"])


def test_features_of_images_of_another_shape_are_rejected(make, experiment, tmp_path):
    data = make("large", NUMBERED)
    wide, tall, *_ = sorted(data.files.values())
    images = data.folder / "images"
    Image.new("RGB", (200, 100)).save(images / wide)
    opened = experiment.open(*data.overrides, artifacts=tmp_path / "artifacts")
    [skipped] = opened.run("extract").manifest.skipped
    assert (skipped.image_id, skipped.reason) == (
        image_id(wide),
        f"features are of an image of 96 x 96 pixels, {wide!r} has 200 x 100; check the ids of "
        "data.features",
    )
    Image.new("RGB", (48, 48)).save(images / tall)  # resized images fit
    for file in sorted(data.files.values())[2:4]:
        Image.new("RGB", (50, 100)).save(images / file)
    opened = experiment.open(*data.overrides, artifacts=tmp_path / "others")
    assert message_of(opened.run, "extract").startswith(
        "3 of 40 compared images of data.features cannot be used, at most 2 may be left out: "
        f"{image_id(wide)!r} (features are of an image of 96 x 96 pixels, "
    )


@pytest.mark.parametrize(
    ("kind", "pattern", "ids"),
    [PERMUTED, *(pytest.param(*kind, marks=pytest.mark.slow) for kind in KINDS[1:])],
)
def test_a_run_writes_results_that_others_score_equally(
    make, experiment, tmp_path, without_meteor, kind, pattern, ids
):
    data = make(kind, pattern)
    opened = experiment.open(*data.overrides, ids, artifacts=tmp_path / "artifacts")
    for stage in opened.names:
        result = opened.run(stage).directory
    written = json.loads((result / "captions.json").read_text())
    by_own = {own: name for name, own in data.own.items()}
    test = images_of(experiment.scenes, "test")
    assert sorted(by_own[entry["image_id"]] for entry in written) == test
    if kind != "equal":
        assert all(entry["image"] == data.files[by_own[entry["image_id"]]] for entry in written)
    own = json.loads((result / "metrics.json").read_text())
    # as pycocoevalcap joins results and references, but for its tokens in Java
    references = COCO(str(data.annotations))
    results = references.loadRes(written)
    gts, res = (
        tokenize(
            {str(i): [a["caption"] for a in loaded.imgToAnns[i]] for i in results.getImgIds()},
            "karpathy",
        )
        for loaded in (references, results)
    )
    cider, _ = Cider().compute_score(gts, res)
    assert own["metrics"]["CIDEr"] == pytest.approx(cider)
    a2(
        *("score", result / "captions.json", "--references", data.annotations),
        *("--allow-missing", "--output", tmp_path / "scores"),
        code=3,
    )
    scored = json.loads((tmp_path / "scores" / "metrics.json").read_text())
    assert scored["metrics"]["CIDEr"] == pytest.approx(cider)


def test_one_photograph_in_two_splits_is_named_and_counted(experiment, original, tmp_path, caplog):
    train, other, *_ = images_of(experiment.scenes, "train")
    val, test = (images_of(experiment.scenes, split)[0] for split in ("val", "test"))
    same = {val: train, test: train, other: train}  # of which the last is in one split
    images = (ImageFeatures(i, original[same.get(i, i)]) for i in original)
    write_tsv(tmp_path / "theirs.tsv", images, layout=CAFFE)
    features = override("data.features", tmp_path / "theirs.tsv")
    opened = experiment.open(features, "train.epochs=1", artifacts=tmp_path / "artifacts")
    for stage in ("extract", "preprocess", "train-xe"):
        opened.run(stage)
    warning = (
        f"2 images have the features of an image of another split: {val!r} (val) is {train!r} "
        f"(train), {test!r} (test) is {train!r} (train); scores on them are too high, keep each "
        "photograph in one split"
    )
    assert caplog.messages.count(warning) == 1
    check = check_of(opened, "train-xe", "splits", force=True)
    assert (check.state, check.text) == ("warning", warning)
    caplog.clear()
    opened.run_all(["train-xe"], lambda *_: None, force=True)
    assert caplog.messages.count(warning) == 1


def test_one_image_file_in_two_splits_is_named_before_any_work(experiment, tmp_path):
    images = shutil.copytree(experiment.scenes / "images", tmp_path / "images")
    train, other, alike, *_ = images_of(experiment.scenes, "train")
    val, test = (images_of(experiment.scenes, split)[0] for split in ("val", "test"))
    files = {path.stem: path for path in images.iterdir()}
    content = files[train].read_bytes() + bytes(9999)
    for copy in (train, val, test, other):  # of which the last is in one split
        files[copy].write_bytes(content)
    files[alike].write_bytes(content[:-1] + b"x")  # of equal size and middle
    opened = experiment.open(override("data.images", images), artifacts=tmp_path / "artifacts")
    warning = (
        f"2 images have the file of an image of another split: {val!r} (val) is {train!r} "
        f"(train), {test!r} (test) is {train!r} (train); scores on them are too high, keep each "
        "photograph in one split"
    )
    for stage in ("extract", "preprocess"):
        check = check_of(opened, stage, "splits")
        assert (check.state, check.text) == ("warning", warning)
    assert opened.files.repeated.keys() == {train, other, alike, val, test}


def test_splits_without_a_common_photograph_pass(experiment):
    check = check_of(experiment.open(), "train-xe", "splits", force=True)
    assert (check.state, check.text) == ("ok", "no image is in two")
    check = check_of(experiment.open(), "extract", "splits", force=True)
    assert (check.state, check.text) == ("ok", "no file is in two")
    unfinished = experiment.open("extract.roi_size=9")
    assert check_of(unfinished, "train-xe", "splits").text == "compared when the training begins"


class Scored:
    """A caption of each scene, and references under ids and file names of one kind."""

    def __init__(self, experiment, folder, data):
        content = json.loads((experiment.scenes / "dataset_coco.json").read_text())["images"]
        self.folder, self.data = folder, data
        self.captions = {
            f"{image['cocoid']:012d}": image["sentences"][1]["raw"] for image in content
        }

    def score(self, content, name="captions.json", references=None):
        path = written(self.folder, content, name)
        files = ScoredFiles(path, references or self.data.annotations)
        return files.score().scores.metrics["CIDEr"]


@pytest.fixture
def scored(experiment, make, tmp_path, without_meteor):
    return lambda kind, pattern: Scored(experiment, tmp_path, make(kind, pattern))


@pytest.mark.parametrize(("kind", "pattern"), [kind[:2] for kind in KINDS])
def test_captions_are_scored_by_the_key_that_they_state(scored, kind, pattern):
    of = scored(kind, pattern)
    own, files, captions = of.data.own, of.data.files, of.captions
    references = COCO(str(of.data.annotations))
    results = references.loadRes([{"image_id": own[n], "caption": captions[n]} for n in captions])
    gts, res = (
        tokenize({str(i): [a["caption"] for a in loaded.imgToAnns[i]] for i in own.values()})
        for loaded in (references, results)
    )
    expected = pytest.approx(Cider().compute_score(gts, res)[0])
    assert of.score([{"image_id": own[n], "caption": captions[n]} for n in captions]) == expected
    by_text = [{"image_id": str(own[n]), "caption": captions[n]} for n in captions]
    assert of.score(by_text) == expected
    by_file = [{"image": f"/photos/{files[n]}", "caption": captions[n]} for n in captions]
    assert of.score(by_file) == expected
    assert of.score({files[n]: captions[n] for n in reversed(captions)}) == expected
    both = [{"image_id": own[n], "image": files[n], "caption": captions[n]} for n in captions]
    assert of.score(both) == expected
    rows = [f"{files[n]},{captions[n].replace(',', ' ')}" for n in captions]
    assert of.score("\n".join(["image,caption", *rows]), "captions.csv") == expected


def test_captions_with_bare_numbers_that_fit_two_images_are_rejected(scored):
    of = scored("permuted", NUMBERED)
    numbers = {str(int(name)): caption for name, caption in of.captions.items()}
    assert message_of(of.score, numbers).endswith(
        '; name the files with their suffix, as "image", or the ids of the references, as '
        '"image_id"'
    )


def test_captions_are_scored_against_the_references_that_preprocess_writes(
    scored, experiment, tmp_path
):
    of = scored("permuted", NUMBERED)
    opened = experiment.open(*of.data.overrides, "data.ids=annotation", artifacts=tmp_path / "a")
    references = opened.run("preprocess").directory / "references.json"
    by_own = [{"image_id": of.data.own[n], "caption": c} for n, c in of.captions.items()]
    expected = of.score({of.data.files[n]: c for n, c in of.captions.items()})
    assert of.score(by_own, references=references) == pytest.approx(expected)


def test_references_in_folders_that_repeat_numbers_go_by_their_paths(tmp_path, without_meteor):
    images = [{"id": 7, "file_name": "a/1.jpg"}, {"id": 1, "file_name": "b/1.jpg"}]
    captions = [{"image_id": 7, "caption": "a dog"}, {"image_id": 1, "caption": "two cats"}]
    references = written(tmp_path, {"images": images, "annotations": captions}, "references.json")
    by_path = {"x/a/1.jpg": "a dog", "x/b/1.jpg": "two cats"}
    for content in (captions, by_path):
        evaluated = ScoredFiles(written(tmp_path, content), references).score()
        assert evaluated.scores.metrics["ROUGE_L"] == 1


def test_people_see_the_captions_of_the_image_that_both_files_mean(scored, experiment, tmp_path):
    of = scored("permuted", NUMBERED)
    own, files, captions = of.data.own, of.data.files, of.captions
    ours = [
        {"image_id": own[n], "image": files[n], "caption": f"1 {c}"} for n, c in captions.items()
    ]
    theirs = [{"image_id": own[n], "caption": f"2 {c}"} for n, c in captions.items()]
    paths = [written(tmp_path, ours, "ours.json"), written(tmp_path, theirs, "theirs.json")]
    for references in ([], ["--references", of.data.annotations]):
        sheet = tmp_path / f"sheet {len(references)}"
        options = ("--images", of.data.folder / "images", "--output", sheet, "--count", 8)
        a2("human", "sheet", *paths, *options, *references, code=0)
        with (sheet / "sheet.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["left"][0] in "12"]
        assert len(rows) >= 8
        by_file = {files[n]: caption for n, caption in captions.items()}
        assert all(row["left"][2:] == by_file[row["image"]] for row in rows)
