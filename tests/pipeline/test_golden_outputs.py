"""Golden outputs: the output of each stage on fixed data for its current code version.

A stage's key contains a code version and not the code, so that a changed comment reruns nothing. A
change of the output must raise the version; these tests fail if that is forgotten. Text and
integers are compared exactly, floats with a tolerance, because they differ between machines.
`python -m tests.pipeline.test_golden_outputs` records the values again.
"""

import hashlib
import json
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import yaml
from PIL import Image
from safetensors.numpy import load_file

from a2cap.data.captions.attention_file import AttentionFile
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.features.store import FeatureStore
from a2cap.extract.extract_config import LITE
from a2cap.extract.weights.torch_files import load_safetensors
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.stages.evaluate import Evaluate
from a2cap.pipeline.stages.extract import Extract
from a2cap.pipeline.stages.preprocess import Preprocess
from a2cap.pipeline.stages.train_detector import TrainDetector
from a2cap.pipeline.stages.train_encoder import TrainEncoder
from a2cap.pipeline.stages.train_scst import TrainScst
from a2cap.pipeline.stages.train_xe import TrainXe
from tests.experiments import write_detector
from tests.faults.trial import READS

GOLDEN = Path(__file__).with_name("golden_outputs.json")
DECLARED = (Extract, Preprocess, TrainXe, TrainScst, Evaluate, TrainDetector, TrainEncoder)
STAGES = {stage.name: stage for stage in DECLARED}
COLOURS = {"red": (200, 30, 20), "green": (20, 180, 40), "blue": (30, 60, 220)}
SPLITS = ["train"] * 9 + ["val"] * 3 + ["test"] * 3
CONFIG = yaml.safe_load(
    """
extract: {boxes: given, roi_size: 7, min_side: 64, max_side: 64}
preprocess: {min_count: 1}
model: {width: 32, heads: 2, feed_forward: 32, encoder_layers: 1, decoder_layers: 1, dropout: 0.0}
train: {epochs: 12, batch_size: 3, schedule: constant, lr: 0.003, patience: 12}
scst: {epochs: 2, batch_size: 3, lr: 0.0001, mask: continued}
evaluate: {beam_size: 2, spice: false}
detector: {depth: 18, width: 8, anchor_sizes: [20, 30, 60], anchor_ratios: [1.0],
  last_stage: strided, region_pooling: bilinear, proposal_width: 16, embedding_width: 4,
  attribute_width: 8, min_side: 64, max_side: 64, roi_size: 7, anchors: 32, proposals: 40,
  regions: 16, epochs: 3, batch_size: 3, lr: 0.02, warmup: 3}
encoder: {side: 32, trained: 0.1, min_images: 2, epochs: 3, batch_size: 3, warmup: 2}
runtime: {device: cpu, threads: 1}
"""
)


def write_data(folder):
    """Write fifteen images in three colours, three boxes each, and captions; deterministic."""
    (folder / "images").mkdir(parents=True)
    rows, columns = np.mgrid[0:64, 0:64]
    lines, annotations = [], []
    for number, split in enumerate(SPLITS, start=1):
        name, colour = list(COLOURS.items())[number % 3]
        waves = 40 * np.sin(rows * number / 9.0) * np.cos(columns / (2.0 + number))
        pixels = np.clip(np.array(colour) + waves[..., None], 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
        captions = [f"a {name} picture", f"a picture that is {name}", f"the {name} one"]
        seen = [f"{text} here" for text in captions] if split == "test" else captions
        lines.append({"image": f"{number}.png", "captions": seen, "split": split})
        for side in (20, 30, 60):
            annotations.append(
                {
                    "id": 100 * number + side,
                    "image_id": number,
                    "category_id": 1,
                    "bbox": [1, 2, side, side],
                }
            )
    (folder / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    images = [{"id": n, "file_name": f"{n}.png"} for n in range(1, len(SPLITS) + 1)]
    instances = {"images": images, "annotations": annotations, "categories": []}
    (folder / "instances.json").write_text(json.dumps(instances))
    _write_labels(folder, annotations)


def _write_labels(folder, annotations):
    """Write the boxes with their side as class and their image's colour as attribute."""
    sides, colours = (20, 30, 60), list(COLOURS)
    labelled = [
        {
            **annotation,
            "category_id": sides.index(annotation["bbox"][2]),
            "attributes": [colours[annotation["image_id"] % 3]],
        }
        for annotation in annotations
    ]
    images = range(1, len(SPLITS) + 1)
    labels = {
        "images": [{"id": n, "file_name": f"{n}.png", "width": 64, "height": 64} for n in images],
        "annotations": labelled,
        "categories": [{"id": n, "name": f"{side} wide"} for n, side in enumerate(sides)],
        "attributes": [{"id": n, "name": name} for n, name in enumerate(colours)],
    }
    (folder / "labels.json").write_text(json.dumps(labels))
    for name, chosen in (("learnt.txt", images[:10]), ("validated.txt", images[10:])):
        (folder / name).write_text("".join(f"{number}\n" for number in chosen))


def make(folder):
    """Run all stages; return stage -> directory of its result."""
    write_data(folder)
    places = {
        "images": str(folder / "images"),
        "annotations": str(folder / "captions.jsonl"),
        "instances": str(folder / "instances.json"),
    }
    detector = {
        **CONFIG["detector"],
        "images": places["images"],
        "labels": str(folder / "labels.json"),
        "ids": str(folder / "learnt.txt"),
        "validation_ids": str(folder / "validated.txt"),
    }
    images = [folder / "images" / f"{number}.png" for number in range(1, 9)]
    weights = write_detector(folder / "weights.safetensors", images, side=64)
    extract = {**CONFIG["extract"], "weights": str(weights)}
    sections = {**CONFIG, "data": places, "detector": detector, "extract": extract}
    (folder / "config.yaml").write_text(yaml.safe_dump(sections))
    with Experiment(load_config(folder / "config.yaml"), folder / "artifacts") as opened:
        made = {name: opened.run(name).directory for name in opened.shown}
    # the other stages read features of a detector
    grid = ("weights=encoder", "boxes=grid", f"grid_backbone={LITE[-1]}")
    config = load_config(folder / "config.yaml", [f"extract.{field}" for field in grid])
    with Experiment(config, folder / "artifacts") as opened:
        return {**made, "train-encoder": opened.run("train-encoder").directory}


def of_extract(directory):
    store = FeatureStore(directory / "features.lmdb")
    values = {"pictures": len(store), "width": store.feature_width, "dtype": store.facts.dtype}
    for image_id in list(store)[::5]:
        regions = store[image_id]
        values[image_id] = {
            "boxes": regions.boxes.tolist(),
            "features": regions.features[:, ::16].astype(float).tolist(),
            "scores": regions.scores.astype(float).tolist(),
        }
    return values


def of_preprocess(directory):
    captions = CaptionFile(directory / "captions.h5")
    digest = hashlib.sha256()
    for name in ("vocabulary.json", "references.json"):
        digest.update((directory / name).read_bytes())
    for split in ("train", "val", "test"):
        for image_id in captions.image_ids(split):
            digest.update(f"{split} {image_id} {captions.captions(image_id).tolist()}".encode())
    with np.load(directory / "document_frequencies.npz") as arrays:
        for name in sorted(arrays.files):
            digest.update(f"{name} {arrays[name].tolist()}".encode())
    return {"sha256": digest.hexdigest()}


def of_train_encoder(directory):
    tensors, _ = load_safetensors(directory / "encoder.safetensors")
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    return {**of_epochs(directory, "loss"), "tensors": shapes}


def of_epochs(directory, *names):
    """Return these figures of each epoch of a training."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return {
        f"epoch {line['epoch']}": {name: line[name] for name in names}
        for line in lines
        if line["epoch"]
    }


def of_train(directory):
    losses = [epoch["loss"] for epoch in of_epochs(directory, "loss").values()]
    return {"loss of the first epoch": losses[0], "loss of the last": losses[-1]}


def of_train_scst(directory):
    return of_epochs(directory, "loss", "reward", "mask_loss", "CIDEr")


def of_evaluate(directory):
    attention = AttentionFile(directory / "attention.h5")
    first = attention[next(iter(attention))]
    return {
        **json.loads((directory / "metrics.json").read_text())["metrics"],
        "attention": [first.original[0].tolist(), first.keep[0].tolist(), first.gate.tolist()],
    }


def of_train_detector(directory):
    names = ("loss", "objectness", "proposal_boxes", "classes", "boxes", "attributes")
    tensors = load_file(directory / "detector.safetensors")
    chosen = sorted(name for name in tensors if tensors[name].ndim > 1)[::4]
    figures = json.loads((directory / "figures.json").read_text())
    return {
        **of_epochs(directory, *names),
        "names": json.loads((directory / "names.json").read_text()),
        "classes with figures": sorted(figures["AP50_of_class"]),
        "recall of 100 proposals": figures["proposal_recall"]["100"],
        "tensors": {
            name: {
                "shape": list(tensors[name].shape),
                "mean of magnitudes": float(np.abs(tensors[name]).mean()),
            }
            for name in chosen
        },
    }


MEASURED = {
    "extract": of_extract,
    "preprocess": of_preprocess,
    "train-xe": of_train,
    "train-scst": of_train_scst,
    "evaluate": of_evaluate,
    "train-detector": of_train_detector,
    "train-encoder": of_train_encoder,
}

HOW_TO_RECORD = "python -m tests.pipeline.test_golden_outputs"


def flat(values, path=""):
    """Map the dotted path of each leaf to its value."""
    if not isinstance(values, dict | list):
        return {path: values}
    items = values.items() if isinstance(values, dict) else enumerate(values)
    return {name: leaf for key, v in items for name, leaf in flat(v, f"{path}.{key}").items()}


def values_of(stage, directories):
    """Return the values of a stage's output."""
    return flat(MEASURED[stage](directories[stage]))


def golden(stage):
    """Return the recorded values of a stage, which equal others within a tolerance."""
    recorded = flat(json.loads(GOLDEN.read_text())[stage]["values"])
    return {
        name: pytest.approx(leaf, rel=2e-2, abs=2e-2) if isinstance(leaf, float) else leaf
        for name, leaf in recorded.items()
    }


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return make(tmp_path_factory.mktemp("golden") / "data")


@pytest.mark.slow
@pytest.mark.parametrize("stage", MEASURED)
def test_the_output_of_a_stage_matches_its_golden_values(directories, stage):
    changed = [name for name in READS[stage] if values_of(name, directories) != golden(name)]
    if changed:
        pytest.skip(f"the output of {', '.join(changed)}, an input of {stage}, has changed")
    assert values_of(stage, directories) == golden(stage), (
        f"if intended, raise the version in {module_of(stage)}, then record it: {HOW_TO_RECORD}"
    )


@pytest.mark.parametrize("stage", MEASURED)
def test_the_golden_values_have_the_current_code_version(stage):
    recorded = json.loads(GOLDEN.read_text())[stage]["version"]
    version = STAGES[stage].version
    assert recorded == version, (
        f"golden values of stage {stage} are of code version {recorded}, {module_of(stage)} has "
        f"{version}; record them: {HOW_TO_RECORD}"
    )


def module_of(stage):
    return f"pipeline/stages/{stage.replace('-', '_')}.py"


def record():
    """Write the golden values of the current code."""
    with TemporaryDirectory() as folder:
        directories = make(Path(folder) / "data")
        values = {
            stage: {"version": STAGES[stage].version, "values": measure(directories[stage])}
            for stage, measure in MEASURED.items()
        }
    text = json.dumps(values, indent=1, sort_keys=True)
    # one line for each value, however deep, so that a diff names it
    GOLDEN.write_text(re.sub(r"\s*\n {4,}|\n {3}(?=[]}])", " ", text) + "\n")


if __name__ == "__main__":
    sys.exit(record())
