"""Commands `a2 detector`: training, evaluation, and extraction with the weights."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from a2cap.data.features.store import FeatureStore
from a2cap.pipeline.training.checkpoints import Checkpoints
from a2cap.pipeline.upkeep.verify import verify
from tests.experiments import a2, settings


@dataclass(frozen=True)
class Trained:
    """Result and output of `a2 detector train`."""

    config_file: Path
    artifacts: Path
    output: str

    @property
    def place(self):
        """Options of the experiment."""
        return "-c", self.config_file, "--artifacts", self.artifacts

    @property
    def directory(self):
        """Directory of the result."""
        [folder] = (path for path in (self.artifacts / "train-detector").iterdir() if path.is_dir())
        return folder

    @property
    def weights(self):
        """Weights file of the detector."""
        return self.directory / "detector.safetensors"


@pytest.fixture(scope="module")
def trained(labelled, tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    sections = {
        "detector": labelled.fields(dtype="float16", epochs=1),
        "runtime": {"device": "cpu", "threads": 1},
    }
    config_file = folder / "detector.yaml"
    config_file.write_text(json.dumps(sections))
    artifacts = folder / "artifacts"
    answer = a2("detector", "train", "-c", config_file, "--artifacts", artifacts, code=0)
    return Trained(config_file, artifacts, answer.stdout)


def figures_of(trained):
    return json.loads((trained.directory / "figures.json").read_text())


@pytest.mark.slow
def test_training_prints_the_metrics_and_the_path_of_the_weights(trained):
    figures = figures_of(trained)
    first, *lines, last = trained.output.splitlines()
    assert first.startswith("train-detector: done in ")
    assert first.endswith(f": {trained.directory}")
    assert lines[:3] == [f"{name:<8} {figures[name]:.4f}" for name in ("AP", "AP50", "AP75")]
    recall = figures["proposal_recall"]
    assert lines[3:6] == [
        f"recall of 10 proposals   {recall['10']:.4f}",
        f"recall of 36 proposals   {recall['36']:.4f}",
        f"recall of 100 proposals  {recall['100']:.4f}",
    ]
    worst = sorted((value, name) for name, value in figures["AP50_of_class"].items())
    classes = ", ".join(f"{name} {value:.3f}" for value, name in worst[:5])
    assert lines[6:] == [f"lowest AP50: {classes}", "on 6 images"]
    assert last == f"weights: {trained.weights}"


def test_a_second_training_does_nothing_and_prints_the_same(trained):
    before = trained.weights.stat().st_mtime_ns
    answer = a2("detector", "train", *trained.place, code=0)
    assert answer.stdout.splitlines()[0] == f"train-detector: up to date: {trained.directory}"
    assert answer.stdout.splitlines()[1:] == trained.output.splitlines()[1:]
    assert trained.weights.stat().st_mtime_ns == before


@pytest.mark.slow
def test_status_and_verify_find_the_result(trained):
    status = a2("status", *trained.place)
    assert status.stdout == f"train-detector done     {trained.directory}\n"
    changes = settings("detector.lr=0.5", "detector.ids=x")
    explained = a2("status", *trained.place, "--explain", *changes, code=1)
    assert explained.stdout.startswith("train-detector blocked\n")
    changed = a2("status", *trained.place, "--explain", "--set", "detector.lr=0.5")
    assert changed.stdout.splitlines()[1].strip() == "detector.lr 0.002 -> 0.5"
    items = list(verify(trained.artifacts, data=True))
    assert {item.kind for item in items} == {"train-detector", "checkpoint"}
    assert not any(item.damages for item in items)


def test_extraction_detects_regions_with_the_trained_weights(trained, labelled, tmp_path):
    output = tmp_path / "features"
    fields = {"weights": trained.weights, "boxes": "detect", "max_regions": 12}
    fields["precision"] = "exact"  # mixed is compiled, for seconds
    a2(
        *("extract", "--images", labelled.folder / "val" / "images", "--output", output),
        *settings(*(f"extract.{name}={value}" for name, value in fields.items())),
        *("--set", "runtime.device=cpu", "--artifacts", tmp_path / "artifacts"),
        code=0,
    )
    store = FeatureStore(output / "features.lmdb")
    assert len(store) == 6
    assert store.feature_width == 64
    assert all(10 <= len(store[image_id]) <= 12 for image_id in store)
    described = json.loads((output / "extractor.json").read_text())
    assert described["meta"]["origin"] == "trained by a2 detector train"
    followed = [described["config"][name] for name in ("min_side", "roi_size", "proposals")]
    assert followed == [64, 7, 20]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_under_torchrun_two_ranks_train_and_one_prints(labelled, two_ranks, tmp_path):
    fields = labelled.fields(epochs=1, batch_size=5, anchor_sizes=[400])
    runtime = {"device": "cpu", "threads": 1}
    (tmp_path / "detector.yaml").write_text(json.dumps({"detector": fields, "runtime": runtime}))
    place = ("-c", tmp_path / "detector.yaml", "--artifacts", tmp_path / "artifacts")
    main, other = two_ranks("detector", "train", *place)
    assert (main.exit_code, other.exit_code) == (0, 0), main.stderr + other.stderr
    assert other[1:] == ("", "")
    assert [line.split(":")[0] for line in main.stdout.splitlines()[::10]] == ["train-detector"]
    assert main.stderr.count("train on 12 images with ") == 1
    assert main.stderr.count("no labelled object is found yet") == 1
    [weights] = (tmp_path / "artifacts").glob("train-detector/*/detector.safetensors")
    assert main.stdout.endswith(f"weights: {weights}\n")
    state = Checkpoints(weights.parent / "checkpoints").latest().state
    assert state["environment"]["processes"] == "2"


# evaluation


def evaluate(trained, *options, weights=None):
    place = ("detector", "evaluate", *trained.place)
    return a2(*place, "--weights", weights or trained.weights, *options)


def test_the_evaluation_of_the_trained_weights_equals_the_training_output(trained):
    answer = evaluate(trained)
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.splitlines() == trained.output.splitlines()[1:-1]
    assert json.loads(evaluate(trained, "--json").stdout) == figures_of(trained)


def test_the_evaluation_uses_the_configured_images(trained):
    fewer = settings("detector.max_validation_images=2", "detector.validation_proposals=5")
    figures = json.loads(evaluate(trained, "--json", *fewer).stdout)
    assert (figures["images"], figures["proposals"]) == (2, 5)


def changed_labels(labelled, folder, change):
    """Write changed validation labels; return the option that names them."""
    document = json.loads((labelled.folder / "val" / "instances.json").read_text())
    change(document)
    path = folder / "labels.json"
    path.write_text(json.dumps(document))
    return "--set", f"detector.validation_labels={path}"


def test_weights_with_another_number_of_classes_are_rejected(trained, labelled, tmp_path):
    def add(document):
        document["categories"].append({"id": 99, "name": "dog"})

    answer = evaluate(trained, *changed_labels(labelled, tmp_path, add))
    assert answer.exit_code == 2
    assert answer.stderr == (
        f"a2: weights {str(trained.weights)!r} have 20 classes, the labels 21; "
        "use the labels they were trained with\n"
    )


def test_weights_with_other_class_names_beside_them_are_rejected(trained, labelled, tmp_path):
    def rename(document):
        document["categories"][0]["name"] = "dog"

    labels = changed_labels(labelled, tmp_path, rename)
    weights = shutil.copyfile(trained.weights, tmp_path / "copied.safetensors")
    answer = evaluate(trained, *labels)
    assert answer.exit_code == 2
    assert answer.stderr == (
        f"a2: classes of {str(trained.weights)!r} and of the labels differ: 'ball' and 'dog'; "
        "use the labels they were trained with\n"
    )
    assert evaluate(trained, *labels, weights=weights).exit_code == 0


REFUSED = {
    "train": (
        2,
        "2 problems, nothing was started:\n"
        "  detector.labels is not set; name the file with --set detector.labels=FILE\n"
        "  detector.images is not set; name the folder with --set detector.images=DIR",
    ),
    "train --set detector.norms=frozen --set detector.min_side=70 --set detector.max_side=60": (
        2,
        "1 problem in the configuration:\n"
        "  detector: norms is 'frozen' without detector.start, the weights that contain them; set "
        "detector.start, or set detector.norms to learnt; min_side is 70, above max_side 60; "
        "lower min_side or raise max_side",
    ),
    "evaluate --weights scenes": (
        2,
        "detector.images is not set; name the folder with --set detector.images=DIR",
    ),
    "evaluate --weights none.safetensors": (
        1,
        "file of --weights not found: 'none.safetensors'; check the path",
    ),
    "evaluate --weights airsplay": (
        1,
        "weights 'airsplay' have not been downloaded; run \"a2 weights fetch airsplay\"",
    ),
}
"""Arguments of `a2 detector` -> exit code and message."""


@pytest.mark.parametrize("arguments", REFUSED)
def test_unusable_arguments_are_refused(arguments):
    code, message = REFUSED[arguments]
    answer = a2("detector", *arguments.split(), code=code)
    assert answer.stderr == f"a2: {message}\n"


# --- skipped images and rejected fields ---


def train_again(trained, folder, **fields):
    """Train with changed fields into another artifacts folder."""
    changed = settings(*(f"detector.{name}={value}" for name, value in fields.items()))
    place = ("-c", trained.config_file, "--artifacts", folder / "artifacts")
    return a2("detector", "train", *place, *changed)


@pytest.mark.slow
def test_skipped_images_are_listed_and_set_the_exit_code(trained, labelled, tmp_path):
    folders = {}
    for name, broken in (("train", "000000000003"), ("val", "000000000002")):
        folder = shutil.copytree(labelled.folder / name, tmp_path / name)
        Image.new("RGB", (20, 10)).save(folder / "images" / f"{broken}.jpg")
        folders[name] = folder / "images"
    fields = {"images": folders["train"], "validation_images": folders["val"], "epochs": 1}
    answer = train_again(trained, tmp_path, **fields)
    assert answer.exit_code == 3, answer.output
    assert answer.stderr.count("20 x 10 pixels after EXIF rotation, its labels expect 96 x 96") == 2
    assert "train-detector: 2 skipped, listed in " in answer.stderr
    assert "on 5 images" in answer.stdout
