"""Promise P4: a changed field of the configuration reruns exactly the stages that read it.

Each field is changed once, and the stages whose keys change are compared with a table. A missed
stage would be a stale result, a superfluous one wasted work.
"""

import json
import shutil
from dataclasses import dataclass
from functools import cache

import pytest
import yaml

from a2cap.data.files.sealed_folder import Manifest, write_manifest
from a2cap.pipeline.configuration import load_config, override
from a2cap.pipeline.engine.artifact_names import CAPTIONER
from a2cap.pipeline.engine.explain import difference
from a2cap.pipeline.engine.run import Outcome
from a2cap.pipeline.experiment import Experiment
from tests.pipeline.config_fields import config_fields, plain_values

READERS = {
    "extract": ("train-xe", "train-scst", "evaluate"),
    "preprocess": ("train-xe", "train-scst", "evaluate", "train-encoder"),
    "train-xe": ("train-scst",),
    "train-scst": ("evaluate",),
    "evaluate": (),
    "train-detector": (),
    "train-encoder": (),
}
"""Stage -> the stages that read its output; what these two train is one more weights file."""

EXTRACT = ("extract",)
PREPROCESS, TRAIN, EVALUATE, NONE = ("preprocess",), ("train-xe",), ("evaluate",), ()
SCST, DETECTOR, ENCODER = ("train-scst",), ("train-detector",), ("train-encoder",)


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


@dataclass(frozen=True)
class Split:
    """Another random split of captions that name none."""

    split: str
    instead_of: str


@dataclass(frozen=True)
class Value:
    """A value that needs other fields, `field=value` each, before and after the change.

    "{folder}" in a field is the folder of the test's data.
    """

    value: str
    under: tuple[str, ...]


CHANGED_FILES = {
    "detector.images": (File("other images"), DETECTOR),
    "detector.labels": (File("other objects.json"), DETECTOR),
    "detector.ids": (File("ids.txt"), DETECTOR),
    "detector.validation_images": (File("other images"), DETECTOR),
    "detector.validation_labels": (File("other objects.json"), DETECTOR),
    "detector.validation_ids": (File("ids.txt"), DETECTOR),
    "detector.attributes": (File("other attributes.json"), DETECTOR),
    "detector.object_names": (File("other names.txt"), DETECTOR),
    "detector.attribute_names": (File("other names.txt"), DETECTOR),
    "detector.start": (File("other detector.safetensors"), DETECTOR),
    "encoder.start": (File("other detector.safetensors"), ENCODER),
    "data.images": (File("other images"), (*EXTRACT, *ENCODER)),
    "data.annotations": (File("other captions.jsonl"), PREPROCESS),
    "data.features": (File("other features.tsv", ("data.features=features.tsv",)), EXTRACT),
    "data.sizes": (
        File("other instances.json", ("data.features=features.tsv", "data.sizes=instances.json")),
        EXTRACT,
    ),
    "data.split_list": (
        File("other splits.txt", ("data.annotations=coco.json", "data.split_list=splits.txt")),
        PREPROCESS,
    ),
    "data.split": (Split("random(0.5/0.25/0.25, 2)", "random(0.5/0.25/0.25, 1)"), PREPROCESS),
    "data.ids": (Value("path", ("data.instances=null", "extract.boxes=detect")), PREPROCESS),
    "data.instances": (File("other instances.json"), ("extract", "evaluate")),
    "data.word_groups": (File("words.json"), ("evaluate",)),
    "data.scenes": (File("other instances.json"), ("evaluate",)),
    "extract.weights": (File("other detector.safetensors"), EXTRACT),
    "extract.precision": (Value("mixed", ("extract.boxes=detect",)), EXTRACT),
    "train.start": (File("captioner"), TRAIN),
    "evaluate.ensemble": (File("captioner", listed=True), EVALUATE),
    "evaluate.model": (File("pretrained"), EVALUATE),
    "evaluate.neighbours": (Value("5", ("evaluate.consensus=true",)), EVALUATE),
    "evaluate.erasure": (Value("3", ("evaluate.model={folder}/pretrained",)), EVALUATE),
    **{
        f"evaluate.{name}": (Value(value, ("evaluate.method=sampling",)), EVALUATE)
        for name, value in {"temperature": "0.5", "top_k": "5", "top_p": "0.5"}.items()
    },
    "evaluate.baseline": (File("metrics.json"), EVALUATE),
}
CHANGED_VALUES = yaml.safe_load(
    """
detector: {layout: coco, depth: 50, width: 16, norms: frozen, anchor_sizes: [32.0],
  anchor_ratios: [1.0], last_stage: strided, region_pooling: bilinear, proposal_width: 64,
  attribute_head: false, embedding_width: 64, attribute_width: 64, min_side: 90, max_side: 1200,
  flip: false, roi_size: 5, anchors: 128, anchor_positives: 0.25, proposals: 500, regions: 32,
  region_positives: 0.25, attribute_weight: 1.0, attribute_loss: sigmoid,
  attribute_families: [[red]], seed: 1, epochs: 3, patience: 2, batch_size: 4,
  accumulate: 2, precision: bf16, optimiser: adamw, lr: 0.5, warmup: 10, weight_decay: 0.5,
  clip_norm: null, checkpoint_every: 10, max_validation_images: 2, validation_proposals: 10,
  deterministic: true, dtype: float16}
encoder: {objective: captions, pooling: noisy-or, min_images: 2, captions_per_image: 3,
  trained: 0.5, side: 64, crop: 1.0, mirror: true, colour: 0.1, dropout: 0.1, epochs: 3,
  patience: 2, seed: 1, batch_size: 4, accumulate: 2, precision: bf16, deterministic: true,
  lr: 0.5, warmup: 10, weight_decay: 0.5, clip_norm: null, checkpoint_every: 10,
  max_validation_images: 2}
extract: {boxes: detect, min_regions: 11, max_regions: 90, proposals: 200,
  min_side: 90, max_side: 1200, procedure: detectron2, grid_backbone: vgg16,
  grid_layer: layer3, grid_size: 7, grid_crop: centre, backend: detectron2, roi_size: 5,
  confidence: 0.3, dtype: float32}
data.fields: {image: image, caption: captions, split: split, turn: 2}
preprocess: {vocabulary: m2, tokenizer: ptb, min_count: 2, max_length: 10, references: 3,
  eos_after_cut: false, clean: html, max_words: 30}
model: {width: 32, heads: 4, feed_forward: 16, encoder_layers: 2, decoder_layers: 2, dropout: 0.2,
  feature_dropout: 0.5, attention_dropout: 0.2, norm: pre, box_geometry: linear, blind: true,
  standardise: true, prophet: 1.0}
model.alignment: {fusion: max, mask_network: linear, mask_slots: 50, average: heads,
  renormalise_aligned: true, renormalise_perturbed: true, detach_mask: false, penalty_weight: 0.1,
  moving_rate: 0.2, decay_steps: 5.0, aligned_layers: [1]}
train: {seed: 1, epochs: 3, patience: 2, grouping: caption, batch_size: 4, accumulate: 2,
  deterministic: true, precision: bf16, captions_per_image: 2, max_regions: 2,
  schedule: constant, lr: 0.5, warmup: 10, betas: [0.8, 0.9], clip_norm: null, checkpoint_every: 10,
  validation_beam_size: 1, max_validation_images: 2, max_length: 10, ema: 0.9,
  select: loss, supervision: 1.0, label_smoothing: 0.1, scheduled_sampling: 0.5,
  scheduled_sampling_epochs: 2, decay: 0.5, frequency_bias: true,
  decay_every: 1, optim: modern, max_words: 5, optimiser: sgd, weight_decay: 0.1,
  shuffle_window: 4}
scst: {epochs: 3, patience: 2, seed: 1, batch_size: 4, accumulate: 2, precision: bf16,
  deterministic: true, lr: 1.0e-06, betas: [0.8, 0.9], clip_norm: null, samples: 3,
  baseline: greedy, idf: caption, eos: false, bleu_weight: 0.5, dropout: rescore, mask: continued,
  captions_per_image: 2, checkpoint_every: 10, validation_beam_size: 1, max_validation_images: 2,
  max_length: 10, ema: 0.9, shuffle_window: 4, select: loss, reward: "statistics:fmean"}
evaluate: {chair: true, method: sampling, min_length: 3, seed: 1,
  split: val, beam_size: 3, max_length: 10, length_penalty: 1.0, no_repeat_ngram: 3,
  groups: 5, diversity: 0.2, ensemble_average: log_probabilities, ensemble_weights: [1.0],
  collapse_repeats: true, consensus: true,
  batch_size: 3, precision: bf16, spice: false, baseline_name: other, report_images: 2, prompt: a,
  attention: none, metrics: ["statistics:fmean"]}
runtime: {device: cpu, workers: 1, threads: 2, name: other, ray: auto, compile: auto}
"""
)
READ_BY = {
    "detector": DETECTOR,
    "encoder": ENCODER,
    "data.fields": PREPROCESS,
    "extract": EXTRACT,
    "preprocess": PREPROCESS,
    "model": TRAIN,
    "model.alignment": TRAIN,
    "train": TRAIN,
    "scst": SCST,
    "evaluate": EVALUATE,
    "runtime": NONE,
}
"""Section -> the stages that read its fields."""

_TRAINED = ("detector", "encoder", "train", "scst")
READ_BY_OTHERS = {
    **dict.fromkeys((f"{name}.checkpoint_every" for name in _TRAINED), NONE),
    **dict.fromkeys(("extract.grid_backbone", "extract.grid_layer"), (*EXTRACT, *ENCODER)),
    "train.optim": NONE,  # the fields that it sets are in the key
}
"""Field -> the stages that read it, if they are not those of its section."""

MATRIX = CHANGED_FILES | {
    f"{section}.{name}": (value, READ_BY_OTHERS.get(f"{section}.{name}", stages))
    for section, stages in READ_BY.items()
    for name, value in CHANGED_VALUES[section].items()
}
"""Field -> (another value, the stages that read the field or the file that it names)."""


SPLITS = ["train"] * 10 + ["val", "test"]
WORDS = ["a", "red", "house", "on", "hill", "green", "tree"]


def _write_data(folder):
    """Write twelve image files, captions in two layouts, boxes, weights and scores.

    Each file also exists with other content.
    """
    (folder / "pretrained").mkdir(parents=True)
    (folder / "pretrained" / "config.json").write_text("{}")
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
        (folder / f"{prefix}features.tsv").write_text(f"{prefix}features")
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


def result_of(folder, digest):
    """Seal an empty folder of this digest, as if it was the result of a stage."""
    directory = folder / "made" / digest
    manifest = Manifest(outputs={}, facts={"digest": digest}, finished=0.0)
    if not directory.exists():
        directory.mkdir(parents=True)
        write_manifest(directory, manifest)
    return Outcome(directory, manifest, ran=False)


class Keys:
    """Pre-images of the keys of all stages under some overrides, without running a stage."""

    def __init__(self, folder):
        self.folder = folder
        self.config = cache(lambda *overrides: load_config(self.config_file, overrides))
        self._known = cache(self._made_froms)
        _write_data(folder)
        places = {
            "images": str(folder / "images"),
            "annotations": str(folder / "captions.jsonl"),
            "instances": str(folder / "instances.json"),
        }
        weights = str(folder / "detector.safetensors")
        extract = {"weights": weights, "boxes": "given", "precision": "exact"}
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
        encoder = {"start": weights}
        sections = {"data": places, "extract": extract, "scst": scst, "detector": detector}
        sections["encoder"] = encoder
        self.config_file.write_text(yaml.safe_dump(sections))

    def overrides(self, field, value):
        """Return the overrides before a field's change, and those that change it."""
        if isinstance(value, Split):
            captions = override("data.annotations", self.folder / "coco.json")
            under = [captions, f"{field}={value.instead_of}"]
            return under, [captions, f"{field}={value.split}"]
        if isinstance(value, Value):
            under = [text.format(folder=self.folder) for text in value.under]
            return under, [*under, f"{field}={value.value}"]
        if not isinstance(value, File):
            return [], [f"{field}={json.dumps(value)}"]
        before = [text.split("=") for text in value.instead_of]
        under = [override(name, self.folder / file) for name, file in before]
        return under, [*under, value.override(field, self.folder / value.name)]

    def values(self, overrides):
        """Map field -> value in JSON under some overrides."""
        return plain_values(self.config(*overrides))

    def __call__(self, overrides, *, propagate=False):
        """Map stage -> pre-image. propagate: a stage's output changes with its key, else never."""
        return self._known(*overrides)[propagate]

    def _made_froms(self, *overrides):
        with Experiment(self.config(*overrides), self.folder / "artifacts") as opened:
            return [self._built(opened, propagate=propagate) for propagate in (False, True)]

    def _built(self, opened, *, propagate):
        made, origins = {}, {}

        opened.result = lambda name, *, needed_by: result_of(self.folder, made[name])
        for name in (*opened.names, "train-detector", "train-encoder"):
            origins[name] = opened.stage(name).made_from
            made[name] = origins[name].key if propagate else f"made by {name}"
        return origins


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
    reached = set(stages)
    for name in stages:
        reached |= with_readers(READERS[name])
    return reached


def test_every_field_of_the_configuration_is_in_the_matrix():
    assert sorted(MATRIX) == sorted(config_fields())


@pytest.mark.slow
def test_the_matrix_changes_exactly_one_field_at_a_time(keys):
    for field, (value, _) in MATRIX.items():
        before, after = map(keys.values, keys.overrides(field, value))
        assert {name for name in before if before[name] != after[name]} == {field}


@pytest.mark.slow
def test_no_rerun_is_false_and_none_is_missed(keys):
    false, missed = [], []
    for field, (value, readers) in MATRIX.items():
        for propagate, expected in ((False, set(readers)), (True, with_readers(readers))):
            reran = changed(keys, field, value, propagate=propagate)
            false += [(field, stage) for stage in reran - expected]
            missed += [(field, stage) for stage in expected - reran]
    assert (false, missed) == ([], [])


def test_without_epochs_no_field_of_self_critical_training_is_in_any_key(keys):
    # a reward of one's own is rejected beside the settings of the built-in one
    others = ("scst.epochs", "scst.reward")
    fields = [field for field in MATRIX if field.startswith("scst.") and field not in others]
    changes = [f"{field}={json.dumps(MATRIX[field][0])}" for field in fields]
    origins = keys(["scst.epochs=0"])
    assert "train-scst" not in origins
    assert keys(["scst.epochs=0", *changes]) == origins


@pytest.mark.slow
def test_the_same_content_at_another_path_reruns_nothing(keys):
    for field, (file, _) in MATRIX.items():
        if not isinstance(file, File):
            continue
        path, moved = keys.folder / file.name, keys.folder / f"moved {field} {file.name}"
        copied = shutil.copytree if path.is_dir() else shutil.copyfile
        copied(path, moved)
        under, overrides = keys.overrides(field, file)
        moved_keys = keys([*under, file.override(field, moved)], propagate=True)
        assert moved_keys == keys(overrides, propagate=True), field


def test_the_table_of_readers_matches_the_inputs_of_the_stages(keys):
    opened = Experiment(load_config(keys.config_file), keys.folder / "artifacts")
    inputs = {"features": "extract", "captions": "preprocess"}
    readers_of = {name: set() for name in READERS}
    opened.result = lambda name, *, needed_by: (
        readers_of[name].add(needed_by) or result_of(keys.folder, "made")
    )
    with opened:
        for name in (*opened.names, "train-encoder"):
            stage = opened.stage(name)
            inputs["model"] = "train-scst" if name == "evaluate" else "train-xe"
            assert {inputs[key] for key in stage.inputs if key in inputs} == {
                made for made, readers in READERS.items() if name in readers
            }
    assert readers_of == {name: set(readers) for name, readers in READERS.items()}


@pytest.mark.slow
def test_the_reason_for_a_rerun_names_the_field_and_both_values(keys):
    for field, (value, readers) in MATRIX.items():
        if readers and not isinstance(value, File):
            chosen = keys.overrides(field, value)
            before, after = (keys.values(overrides)[field] for overrides in chosen)
            lines = difference(*(keys(overrides)[readers[0]] for overrides in chosen))
            # a function is followed or preceded by the digest of its code
            why = [line for line in lines if line.startswith(f"{field} ")] or lines
            assert why[0] == f"{field} {before!r} -> {after!r}"
