"""Promise P4: a changed field of the configuration reruns exactly the stages that read it.

Each field is changed once, and the stages whose keys change are compared with a table. A missed
stage would be a stale result, a superfluous one wasted work.
"""

import json
import shutil
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import yaml
from pydantic import BaseModel

from a2cap.pipeline.config import Config, load_config, override
from a2cap.pipeline.engine.artifacts import CAPTIONER
from a2cap.pipeline.engine.explain import difference
from a2cap.pipeline.experiment import Experiment

READERS = {
    "calibrate": ("extract",),
    "extract": ("train-xe", "train-scst", "evaluate"),
    "preprocess": ("train-xe", "train-scst", "evaluate"),
    "train-xe": ("train-scst",),
    "train-scst": ("evaluate",),
    "evaluate": (),
    "train-detector": (),
}
"""Stage -> the stages that read its output; a trained detector is one more weights file."""

CALIBRATE, EXTRACT, BOTH = ("calibrate",), ("extract",), ("calibrate", "extract")
PREPROCESS, TRAIN, EVALUATE, NONE = ("preprocess",), ("train-xe",), ("evaluate",), ()
SCST, DETECTOR = ("train-scst",), ("train-detector",)


@dataclass(frozen=True)
class File:
    """A file or folder with other content, below the folder of the test's data."""

    name: str
    instead_of: tuple[str, ...] = ()
    """Fields with another file before and after the change, `field=name` each."""
    listed: bool = False
    """True if the field is a list of paths."""

    def override(self, field, path):
        """Format the override that sets the field to this file at `path`."""
        return override(field, (path,) if self.listed else path)


MATRIX = {
    "detector.layout": ("coco", DETECTOR),
    "detector.images": (File("other images"), DETECTOR),
    "detector.labels": (File("other objects.json"), DETECTOR),
    "detector.ids": (File("ids.txt"), DETECTOR),
    "detector.validation_images": (File("other images"), DETECTOR),
    "detector.validation_labels": (File("other objects.json"), DETECTOR),
    "detector.validation_ids": (File("ids.txt"), DETECTOR),
    "detector.attributes": (File("other attributes.json"), DETECTOR),
    "detector.object_names": (File("other names.txt"), DETECTOR),
    "detector.attribute_names": (File("other names.txt"), DETECTOR),
    "detector.depth": (50, DETECTOR),
    "detector.width": (16, DETECTOR),
    "detector.start": (File("other detector.safetensors"), DETECTOR),
    "detector.norms": ("frozen", DETECTOR),
    "detector.anchor_sizes": ([32.0], DETECTOR),
    "detector.anchor_ratios": ([1.0], DETECTOR),
    "detector.last_stage": ("strided", DETECTOR),
    "detector.region_pooling": ("bilinear", DETECTOR),
    "detector.proposal_width": (64, DETECTOR),
    "detector.attribute_head": (False, DETECTOR),
    "detector.embedding_width": (64, DETECTOR),
    "detector.attribute_width": (64, DETECTOR),
    "detector.min_side": (90, DETECTOR),
    "detector.max_side": (1200, DETECTOR),
    "detector.flip": (False, DETECTOR),
    "detector.roi_size": (5, DETECTOR),
    "detector.anchors": (128, DETECTOR),
    "detector.anchor_positives": (0.25, DETECTOR),
    "detector.proposals": (500, DETECTOR),
    "detector.regions": (32, DETECTOR),
    "detector.region_positives": (0.25, DETECTOR),
    "detector.attribute_weight": (1.0, DETECTOR),
    "detector.seed": (1, DETECTOR),
    "detector.epochs": (3, DETECTOR),
    "detector.patience": (2, DETECTOR),
    "detector.batch_size": (4, DETECTOR),
    "detector.accumulate": (2, DETECTOR),
    "detector.precision": ("bf16", DETECTOR),
    "detector.optimiser": ("adamw", DETECTOR),
    "detector.lr": (0.5, DETECTOR),
    "detector.warmup": (10, DETECTOR),
    "detector.weight_decay": (0.5, DETECTOR),
    "detector.clip_norm": (None, DETECTOR),
    "detector.checkpoint_every": (10, DETECTOR),
    "detector.max_validation_images": (2, DETECTOR),
    "detector.validation_proposals": (10, DETECTOR),
    "detector.dtype": ("float16", DETECTOR),
    "data.images": (File("other images"), BOTH),
    "data.annotations": (File("other captions.jsonl"), PREPROCESS),
    "data.split_list": (
        File("other splits.txt", ("data.annotations=coco.json", "data.split_list=splits.txt")),
        PREPROCESS,
    ),
    "data.instances": (File("other instances.json"), ("extract", "evaluate")),
    "data.word_groups": (File("words.json"), ("evaluate",)),
    "extract.weights": (File("detector.safetensors"), EXTRACT),
    "extract.depth": (50, CALIBRATE),
    "extract.width": (16, CALIBRATE),
    "extract.boxes": ("detect", EXTRACT),
    "extract.min_regions": (11, EXTRACT),
    "extract.max_regions": (90, EXTRACT),
    "extract.proposals": (200, EXTRACT),
    "extract.min_side": (90, BOTH),
    "extract.max_side": (1200, BOTH),
    "extract.procedure": ("detectron2", EXTRACT),
    "extract.precision": ("mixed", EXTRACT),
    "extract.grid_backbone": ("vgg16", EXTRACT),
    "extract.grid_layer": ("layer3", EXTRACT),
    "extract.grid_size": (7, EXTRACT),
    "extract.backend": ("detectron2", EXTRACT),
    "extract.roi_size": (5, BOTH),
    "extract.confidence": (0.3, EXTRACT),
    "extract.dtype": ("float32", EXTRACT),
    "extract.seed": (1, CALIBRATE),
    "preprocess.vocabulary": ("m2", PREPROCESS),
    "preprocess.min_count": (2, PREPROCESS),
    "preprocess.max_length": (10, PREPROCESS),
    "model.width": (32, TRAIN),
    "model.heads": (4, TRAIN),
    "model.feed_forward": (16, TRAIN),
    "model.encoder_layers": (2, TRAIN),
    "model.decoder_layers": (2, TRAIN),
    "model.dropout": (0.2, TRAIN),
    "model.box_geometry": ("linear", TRAIN),
    "model.blind": (True, TRAIN),
    "model.alignment.fusion": ("max", TRAIN),
    "model.alignment.mask_network": ("linear", TRAIN),
    "model.alignment.mask_slots": (50, TRAIN),
    "model.alignment.average": ("heads", TRAIN),
    "model.alignment.renormalise_aligned": (True, TRAIN),
    "model.alignment.renormalise_perturbed": (True, TRAIN),
    "model.alignment.detach_mask": (False, TRAIN),
    "model.alignment.penalty_weight": (0.1, TRAIN),
    "model.alignment.moving_rate": (0.2, TRAIN),
    "model.alignment.decay_steps": (5.0, TRAIN),
    "model.alignment.aligned_layers": ([1], TRAIN),
    "train.seed": (1, TRAIN),
    "train.epochs": (3, TRAIN),
    "train.patience": (2, TRAIN),
    "train.grouping": ("caption", TRAIN),
    "train.batch_size": (4, TRAIN),
    "train.accumulate": (2, TRAIN),
    "train.precision": ("bf16", TRAIN),
    "train.compile": (True, TRAIN),
    "train.captions_per_image": (2, TRAIN),
    "train.max_regions": (2, TRAIN),
    "train.schedule": ("constant", TRAIN),
    "train.lr": (0.5, TRAIN),
    "train.warmup": (10, TRAIN),
    "train.betas": ([0.8, 0.9], TRAIN),
    "train.clip_norm": (None, TRAIN),
    "train.checkpoint_every": (10, TRAIN),
    "train.validation_beam_size": (1, TRAIN),
    "train.max_validation_images": (2, TRAIN),
    "train.max_length": (10, TRAIN),
    "scst.epochs": (3, SCST),
    "scst.patience": (2, SCST),
    "scst.seed": (1, SCST),
    "scst.batch_size": (4, SCST),
    "scst.accumulate": (2, SCST),
    "scst.precision": ("bf16", SCST),
    "scst.lr": (1e-6, SCST),
    "scst.betas": ([0.8, 0.9], SCST),
    "scst.clip_norm": (None, SCST),
    "scst.samples": (3, SCST),
    "scst.baseline": ("greedy", SCST),
    "scst.idf": ("caption", SCST),
    "scst.eos": (False, SCST),
    "scst.bleu_weight": (0.5, SCST),
    "scst.dropout": ("rescore", SCST),
    "scst.mask": ("continued", SCST),
    "scst.captions_per_image": (2, SCST),
    "scst.checkpoint_every": (10, SCST),
    "scst.validation_beam_size": (1, SCST),
    "scst.max_validation_images": (2, SCST),
    "scst.max_length": (10, SCST),
    "evaluate.split": ("val", EVALUATE),
    "evaluate.beam_size": (3, EVALUATE),
    "evaluate.max_length": (10, EVALUATE),
    "evaluate.length_penalty": (1.0, EVALUATE),
    "evaluate.no_repeat_ngram": (3, EVALUATE),
    "evaluate.groups": (5, EVALUATE),
    "evaluate.diversity": (0.2, EVALUATE),
    "evaluate.ensemble": (File("captioner", listed=True), EVALUATE),
    "evaluate.ensemble_average": ("log_probabilities", EVALUATE),
    "evaluate.collapse_repeats": (True, EVALUATE),
    "evaluate.batch_size": (3, EVALUATE),
    "evaluate.spice": (False, EVALUATE),
    "evaluate.baseline": (File("metrics.json"), EVALUATE),
    "evaluate.baseline_name": ("other", EVALUATE),
    "evaluate.report_images": (2, EVALUATE),
    "evaluate.attention": ("none", EVALUATE),
    "runtime.device": ("cpu", NONE),
    "runtime.workers": (1, NONE),
    "runtime.threads": (2, NONE),
}
"""Field -> (another value, the stages that read the field or the file that it names)."""


def leaves(model=Config, prefix=""):
    """Yield the dotted names of all fields that are not sections."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def leaf_of(config, field):
    value = config.model_dump(mode="json")
    for part in field.split("."):
        value = value[part]
    return value


SPLITS = ["train"] * 10 + ["val", "test"]
WORDS = ["a", "red", "house", "on", "hill", "green", "tree"]


def _write_data(folder):
    """Write twelve image files, captions in two layouts, boxes, weights and scores.

    Each file also exists with other content.
    """
    for prefix, content in (("", b"image"), ("other ", b"another image")):
        images = folder / f"{prefix}images"
        images.mkdir(parents=True)
        for number in range(1, 13):
            (images / f"{number:012d}.jpg").write_bytes(content)
        words = WORDS[len(prefix) :: -1]
        (folder / f"{prefix}captions.jsonl").write_text("".join(_captions(words)))
        boxes = [_box(number, len(prefix)) for number in range(1, 13)]
        listed = [{"id": number, "width": 9, "height": 9} for number in range(1, 13)]
        instances = {"images": listed, "annotations": boxes, "categories": []}
        (folder / f"{prefix}instances.json").write_text(json.dumps(instances))
        splits = SPLITS if prefix == "" else SPLITS[::-1]
        lines = [f"{number} {split}\n" for number, split in enumerate(splits, start=1)]
        (folder / f"{prefix}splits.txt").write_text("".join(lines))
        for name in ("objects.json", "attributes.json", "names.txt", "detector.safetensors"):
            (folder / f"{prefix}{name}").write_text(f"{prefix}weights, labels or names")
    (folder / "ids.txt").write_text("1\n2\n")
    (folder / "coco.json").write_text(json.dumps(_coco()))
    (folder / "captioner").mkdir()
    for name in CAPTIONER:
        (folder / "captioner" / name).write_text(name)
    (folder / "words.json").write_text('{"colours": ["red", "green"]}')
    (folder / "metrics.json").write_text('{"metrics": {"CIDEr": 0.5}}')


def _captions(words):
    for number, split in enumerate(SPLITS, start=1):
        item = {"image": f"{number:012d}.jpg", "captions": [" ".join(words)], "split": split}
        yield json.dumps(item) + "\n"


def _box(number, left):
    return {"id": number, "image_id": number, "category_id": 1, "bbox": [left, 1, 5, 5]}


def _coco():
    images = [{"id": number, "file_name": f"{number:012d}.jpg"} for number in range(1, 13)]
    captions = [{"id": n, "image_id": n, "caption": "a red house"} for n in range(1, 13)]
    return {"images": images, "annotations": captions}


class Keys:
    """Pre-images of the keys of all stages under some overrides, without running a stage."""

    def __init__(self, folder):
        self.folder = folder
        self.known = {}
        _write_data(folder)
        places = {
            "images": str(folder / "images"),
            "annotations": str(folder / "captions.jsonl"),
            "instances": str(folder / "instances.json"),
        }
        extract = {"weights": "calibrated-random", "boxes": "given"}
        self.config_file = folder / "config.yaml"
        scst = {"epochs": 2}  # so that there is such a stage
        detector = {
            "layout": "visual-genome",  # which reads the most files
            "images": str(folder / "images"),
            "labels": str(folder / "objects.json"),
            "attributes": str(folder / "attributes.json"),
            "object_names": str(folder / "names.txt"),
            "attribute_names": str(folder / "names.txt"),
            "start": str(folder / "detector.safetensors"),
        }
        sections = {"data": places, "extract": extract, "scst": scst, "detector": detector}
        self.config_file.write_text(yaml.safe_dump(sections))

    def overrides(self, field, value):
        """Return the overrides before a field's change, and those that change it."""
        if not isinstance(value, File):
            return [], [f"{field}={json.dumps(value)}"]
        before = [text.split("=") for text in value.instead_of]
        under = [override(name, self.folder / file) for name, file in before]
        return under, [*under, value.override(field, self.folder / value.name)]

    def __call__(self, overrides, *, propagate=False):
        """Map stage -> pre-image. propagate: a stage's output changes with its key, else never."""
        asked = (*overrides, propagate)
        if asked not in self.known:
            self.known[asked] = self._pre_images(overrides, propagate=propagate)
        return self.known[asked]

    def _pre_images(self, overrides, *, propagate):
        opened = Experiment(load_config(self.config_file, overrides), self.folder / "artifacts")
        made = {}

        def result(name, *, needed_by):
            directory = self.folder / "made" / made[name]
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "weights.safetensors").write_text(made[name])
            return SimpleNamespace(directory=directory, manifest=SimpleNamespace(digest=made[name]))

        opened.result = result
        found = {}
        with opened:
            for name in (*opened.names, "train-detector"):
                found[name] = opened.stage(name).pre_image
                made[name] = found[name].key if propagate else f"made by {name}"
        return found


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return Keys(tmp_path_factory.mktemp("rerun matrix") / "data")


def changed(keys, field, value, *, propagate):
    """Return the stages whose keys change with a field."""
    under, overrides = keys.overrides(field, value)
    before = keys(under, propagate=propagate)
    after = keys(overrides, propagate=propagate)
    return {name for name in after if before[name].key != after[name].key}


def with_readers(stages):
    """Return the stages and all that depend on them."""
    found = set(stages)
    for name in stages:
        found |= with_readers(READERS[name])
    return found


def test_every_field_of_the_configuration_is_in_the_matrix():
    assert sorted(MATRIX) == sorted(leaves())


@pytest.mark.parametrize("field", MATRIX)
def test_the_matrix_changes_exactly_one_field_at_a_time(keys, field):
    under, overrides = keys.overrides(field, MATRIX[field][0])
    before, after = (load_config(keys.config_file, chosen) for chosen in (under, overrides))
    differing = {name for name in leaves() if leaf_of(before, name) != leaf_of(after, name)}
    assert differing == {field}


def test_no_rerun_is_false_and_none_is_missed(keys):
    false, missed = [], []
    for field, (value, readers) in MATRIX.items():
        for propagate, expected in ((False, set(readers)), (True, with_readers(readers))):
            found = changed(keys, field, value, propagate=propagate)
            false += [(field, stage) for stage in found - expected]
            missed += [(field, stage) for stage in expected - found]
    assert (false, missed) == ([], [])


def test_without_epochs_no_field_of_self_critical_training_is_in_any_key(keys):
    fields = [field for field in MATRIX if field.startswith("scst.") and field != "scst.epochs"]
    changes = [f"{field}={json.dumps(MATRIX[field][0])}" for field in fields]
    found = keys(["scst.epochs=0"])
    assert "train-scst" not in found
    assert keys(["scst.epochs=0", *changes]) == found


@pytest.mark.parametrize(
    "field", [name for name, (value, _) in MATRIX.items() if isinstance(value, File)]
)
def test_the_same_content_at_another_path_reruns_nothing(keys, field):
    file = MATRIX[field][0]
    place, moved = keys.folder / file.name, keys.folder / f"moved {field} {file.name}"
    copied = shutil.copytree if place.is_dir() else shutil.copyfile
    copied(place, moved)
    under, overrides = keys.overrides(field, file)
    assert keys([*under, file.override(field, moved)], propagate=True) == keys(
        overrides, propagate=True
    )


def test_the_table_of_readers_matches_the_inputs_of_the_stages(keys):
    opened = Experiment(load_config(keys.config_file), keys.folder / "artifacts")
    inputs = {"features": "extract", "captions": "preprocess"}
    found = {name: set() for name in READERS}
    opened.result = lambda name, *, needed_by: (
        found[name].add(needed_by)
        or SimpleNamespace(directory=keys.folder, manifest=SimpleNamespace(digest="made"))
    )
    (keys.folder / "weights.safetensors").write_bytes(b"calibrated")
    with opened:
        for name in opened.names:
            stage = opened.stage(name)
            inputs["model"] = "train-scst" if name == "evaluate" else "train-xe"
            assert {inputs[key] for key in stage.inputs if key in inputs} == {
                made for made, readers in READERS.items() if name in readers and made != "calibrate"
            }
    assert found == {name: set(readers) for name, readers in READERS.items()}


@pytest.mark.parametrize(
    "field",
    [name for name, (value, readers) in MATRIX.items() if readers and not isinstance(value, File)],
)
def test_the_reason_for_a_rerun_names_the_field_and_both_values(keys, field):
    value, (stage, *_) = MATRIX[field]
    _, overrides = keys.overrides(field, value)
    before, after = (load_config(keys.config_file, chosen) for chosen in ([], overrides))
    why = difference(keys([])[stage], keys(overrides)[stage])
    assert why[0] == f"{field} {leaf_of(before, field)!r} -> {leaf_of(after, field)!r}"
