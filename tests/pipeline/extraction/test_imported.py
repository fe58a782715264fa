"""`data.features`: features of another program take the place of extraction."""

import json
import shutil

import numpy as np
import pytest

from a2cap.data.features.formats.feature_source import ImageFeatures
from a2cap.data.features.formats.layouts import CAFFE
from a2cap.data.features.formats.writers import write_tsv
from a2cap.data.features.store import FeatureStore
from a2cap.extract.extractor_record import ExtractorRecord
from a2cap.pipeline.configuration import override
from a2cap.pipeline.extraction.convert import convert
from tests.data.messages import message_of
from tests.experiments import a2, problems, settings

WITHOUT_IMAGES = ("data.images=null", "data.instances=null", "extract.weights=null")


@pytest.fixture
def store(experiment):
    return experiment.directory("extract") / "features.lmdb"


@pytest.fixture
def features(store, tmp_path):
    """Return a function that converts the experiment's features to a format."""

    def make(form):
        convert(store, tmp_path / form, form=form)
        return tmp_path / form

    return make


@pytest.fixture
def opened(experiment, tmp_path):
    """Return a function that opens the experiment over features, in its own artifacts folder."""

    def start(features, *overrides):
        sizes = override("data.sizes", experiment.scenes / "instances.json")
        changes = (override("data.features", features), sizes, *WITHOUT_IMAGES, *overrides)
        return experiment.open(*changes, artifacts=tmp_path / "artifacts")

    return start


@pytest.fixture
def lines(store, tmp_path):
    """Return a function that writes images as TSV, each under an id, with changed regions."""

    def write(changes, ids=None):
        original, images = FeatureStore(store), []
        for image_id in original if ids is None else ids:
            change = changes.get(image_id, lambda regions: None)
            regions = original[image_id]
            change(regions)
            images.append(ImageFeatures(image_id, regions))
        write_tsv(tmp_path / "x.tsv", images, layout=CAFFE)
        return tmp_path / "x.tsv"

    return write


@pytest.mark.slow
@pytest.mark.parametrize("form", ["caffe", "a2"])
def test_features_of_every_format_become_the_result_of_extract(opened, features, store, form):
    outcome = opened(features(form)).run("extract")
    assert outcome.manifest.skipped == ()
    original, imported = FeatureStore(store), FeatureStore(outcome.directory / "features.lmdb")
    assert list(imported) == list(original)
    for image_id in original:
        assert np.array_equal(imported[image_id].features, original[image_id].features)
        assert np.array_equal(imported[image_id].boxes, original[image_id].boxes)
    record = ExtractorRecord.read(outcome.directory / "extractor.json")
    assert (record.source, record.feature_width) == (form, original.feature_width)


@pytest.mark.slow
def test_a_captioner_is_trained_and_evaluated_without_images(
    opened, features, tmp_path, without_meteor
):
    experiment = opened(features("caffe"), "train.epochs=1", "evaluate.beam_size=1")
    assert problems(experiment) == []
    for stage in experiment.names:
        outcome = experiment.run(stage)
    assert experiment.names == ["extract", "preprocess", "train-xe", "evaluate"]
    metrics = json.loads((outcome.directory / "metrics.json").read_text())
    assert metrics["provenance"]["extractor"] == "imported region features, caffe"
    assert "image not available" in (outcome.directory / "report.html").read_text()
    model = experiment.result("train-xe", needed_by="a test").directory
    assert sorted(path.name for path in model.glob("*.safetensors")) == ["model.safetensors"]
    a2("verify", "--artifacts", tmp_path / "artifacts", "--data", code=0)
    image = next(iter((tmp_path / "caffe").parent.glob("*")))
    assert a2("caption", image, "--model", model, code=1).stderr == (
        f"a2: the captioner in {str(model)!r} was trained on imported features ('caffe'), which "
        'a2 cannot extract from images; train one on features of "a2 extract"\n'
    )


def test_the_result_of_extract_is_linked_with_its_extractor(opened, experiment, tmp_path):
    made = experiment.directory("extract")
    for path in (made, made / "features.lmdb"):
        folder = opened(path).run("extract").directory
        for name in ("features.lmdb/00000/data.mdb", "extractor.json", "weights.safetensors"):
            assert (folder / name).samefile(made / name)
        shutil.rmtree(folder.parent)


def test_images_without_features_are_refused_by_name(opened, lines, store):
    ids = list(FeatureStore(store))
    path = lines({}, ids[2:])
    assert message_of(opened(path).run, "extract") == (
        f"no features for 2 of 40 images in {str(path)!r}: {ids[0]}, {ids[1]}; add them, or remove "
        "these images from data.annotations"
    )


def test_bad_features_and_a_damaged_line_lose_only_their_images(opened, lines, store):
    [bad, *others, cut] = FeatureStore(store)

    def spoil(regions):
        regions.features[0, 0] = np.nan

    path = lines({bad: spoil})
    path.write_bytes(path.read_bytes()[:-200])  # a download that was cut
    outcome = opened(path).run("extract")
    assert list(FeatureStore(outcome.directory / "features.lmdb")) == others
    reason = f"feature of image {bad!r} is not finite: nan; check the extractor's weights and the"
    reasons = outcome.manifest.reasons
    assert (reasons.keys(), reasons[bad]) == ({bad, cut}, f"{reason} image")
    assert reasons[cut].startswith("line 40: ")


def test_images_without_captions_are_imported_and_counted(opened, lines, store, caplog):
    caplog.set_level("INFO")
    ids = list(FeatureStore(store))
    convert(lines({}), store_path := lines({}).with_name("all"), form="a2")
    experiment = opened(store_path)
    experiment.files.imported.image_ids.difference_update(ids[:3])
    folder = experiment.run("extract").directory
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    [counts] = (event for event in events if event["event"] == "imported")
    assert (counts["images"], counts["without_captions"]) == (40, 3)
    assert f"3 images of {store_path} have no captions and are not used" in caplog.messages


def test_an_interrupted_import_is_resumed(opened, features, monkeypatch):
    experiment = opened(features("caffe"))
    write = ExtractorRecord.write
    monkeypatch.setattr(ExtractorRecord, "write", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        experiment.run("extract")  # the store is sealed already
    monkeypatch.setattr(ExtractorRecord, "write", write)
    assert experiment.run("extract").manifest.skipped == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no region features at {path!r}; name a store, a TSV or HDF5 file, a folder of"),
        (
            "1\t9\t9\t1\tAA\tAA\n",
            "no readable features in {path!r} (data.features): '000000000001': line 1: Incorrect",
        ),
    ],
)
def test_unusable_features_are_named_before_any_work(opened, tmp_path, content, message):
    if content is not None:
        (tmp_path / "x").write_text(content)
    lines_of_problems = problems(opened(tmp_path / "x"), "extract")
    assert lines_of_problems[0].startswith(message.format(path=str(tmp_path / "x")))


def test_imported_features_are_not_extracted_in_shards(experiment, features, tmp_path):
    import_options = settings(override("data.features", features("caffe")), *WITHOUT_IMAGES)
    options = ("-c", experiment.config_file, "--artifacts", tmp_path / "artifacts")
    answer = a2("extract", *options, *import_options, "--shard", "0/2")
    assert answer.stderr == "a2: stage extract cannot run in shards; run it without --shard\n"


def test_a_pattern_of_several_files_is_one_set_of_features(opened, lines, store, tmp_path):
    ids = list(FeatureStore(store))
    for number, part in enumerate((ids[:15], ids[15:])):
        lines({}, part).rename(tmp_path / f"train.tsv.{number}")
    experiment = opened(tmp_path / "train.tsv.*")
    outcome = experiment.run("extract")
    assert list(FeatureStore(outcome.directory / "features.lmdb")) == ids
    key = experiment.stage("extract").made_from.key
    (tmp_path / "moved").mkdir()
    for number in range(2):
        (tmp_path / f"train.tsv.{number}").rename(tmp_path / "moved" / f"train.tsv.{number}")
    moved = opened(tmp_path / "moved" / "train.tsv.*")
    assert moved.stage("extract").made_from.key == key


def test_the_key_depends_on_content_and_annotated_images_alone(opened, features, tmp_path):
    first = features("caffe")
    key = opened(first).stage("extract").made_from.key
    assert opened(first, "extract.max_side=99").stage("extract").made_from.key == key
    (tmp_path / "folder").mkdir()
    moved = first.rename(tmp_path / "folder" / "caffe")
    assert opened(moved).stage("extract").made_from.key == key
    with moved.open("ab") as file:
        file.write(b"1\t2\n")
    assert opened(moved).stage("extract").made_from.key != key


@pytest.mark.slow
def test_sizes_are_requested_for_formats_without_them(experiment, features, tmp_path):
    features_file = override("data.features", features("milvlg"))
    opened = experiment.open(features_file, *WITHOUT_IMAGES, artifacts=tmp_path / "artifacts")
    assert opened.run("extract").manifest.skipped == ()
    without = override("data.features", features("m2"))
    [problem] = problems(experiment.open(without, *WITHOUT_IMAGES), "extract")
    assert problem == (
        f"no readable features in {str(tmp_path / 'm2')!r} (data.features): '000000000028': size "
        "of image '000000000028' is unknown; name the folder of the images, or a COCO file that "
        "lists it, with --sizes or data.sizes"
    )
