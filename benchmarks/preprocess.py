"""Time and peak memory of `a2 preprocess` on all 616,767 captions of COCO 2014.

The captions are those in the jar of SPICE, which pycocoevalcap installs. Their splits are not
Karpathy's: 5,000 images of val2014 each are val and test.
`--stages` runs every stage of `configs/a2-from-features.yaml` with a small captioner. CPU time is
that of all processes, JVM included; it depends less on other programs than the time on the clock.
"""

import json
import tempfile
import zipfile
from pathlib import Path

import click
import numpy as np

from a2cap.data.annotations.karpathy_writer import write_karpathy
from a2cap.data.annotations.read import read_annotations
from a2cap.data.features.writer import FeatureWriter
from a2cap.data.image_ids import image_id
from a2cap.data.regions import Regions
from a2cap.pipeline.metrics.pycocoevalcap import pycocoevalcap_folder
from benchmarks.measure import Cost, cost_of, print_machine, print_table

HELD_OUT = 5_000
"""Images of val and of test."""

REGIONS, WIDTH = 36, 64

SMALL = (
    *("model.width=64", "model.feed_forward=256", "model.encoder_layers=1"),
    *("model.decoder_layers=1", "preprocess.min_count=100", "train.batch_size=50"),
    *("train.epochs=1", "train.max_validation_images=500", "scst.epochs=0"),
    *("evaluate.beam_size=3", "evaluate.spice=false"),
)
"""A captioner of one layer each and of frequent words, trained for one epoch."""


def write_annotations(folder: Path, *, count: int | None) -> Path:
    """Write dataset_coco.json of `count` images, all if None, and return its path."""
    files, ids = [], []
    with zipfile.ZipFile(pycocoevalcap_folder() / "spice" / "spice-1.0.jar") as archive:
        for name in ("captions_val2014.json", "captions_train2014.json")[
            : 2 if count is None else 1
        ]:
            document = json.loads(archive.read(f"coco/annotations/{name}"))
            images = document["images"][:count]
            numbers = {image["id"] for image in images}
            texts = [item for item in document["annotations"] if item["image_id"] in numbers]
            files.append(folder / name)
            files[-1].write_text(json.dumps({"images": images, "annotations": texts}))
            ids += [image_id(image["file_name"]) for image in images]
    size = min(HELD_OUT, len(ids) // 4)
    path = folder / "dataset_coco.json"
    write_karpathy(files, path, val=ids[:size], test=ids[size : 2 * size])
    return path


def write_features(path: Path, annotations: Path) -> None:
    """Write a store of random features for every image of the annotations."""
    rng = np.random.default_rng(0)
    with FeatureWriter(path, commit_every=4096) as writer:
        for image in read_annotations(annotations).images:
            writer.add(image.image_id, random_regions(rng, REGIONS, WIDTH))
        writer.seal()


def random_regions(rng: np.random.Generator, count: int, width: int) -> Regions:
    """Return regions of random features of `width` numbers, float16, in valid boxes."""
    corners = rng.random((2, count, 2), dtype=np.float32) * 200
    return Regions(
        boxes=np.concatenate([corners[0], 200 + corners[1]], axis=1),
        features=rng.random((count, width), dtype=np.float32).astype(np.float16),
        scores=np.ones(count, np.float32),
        class_ids=np.zeros(count, np.int32),
        attribute_ids=None,
        width=400,
        height=400,
    )


@click.command()
@click.option("--quick", is_flag=True, help="2,000 images.")
@click.option("--stages", is_flag=True, help="Run all stages, on random features.")
def main(quick: bool, stages: bool) -> None:
    """Preprocess all captions of COCO 2014 once."""
    print_machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        annotations = write_annotations(folder, count=2_000 if quick else None)
        options = ["--artifacts", f"{folder}/artifacts", "--set", f"data.annotations={annotations}"]
        if stages:
            write_features(folder / "features.lmdb", annotations)
            options += ["-c", "a2-from-features", "--set", f"data.features={folder}/features.lmdb"]
            options += [part for setting in SMALL for part in ("--set", setting)]
        names = ("extract", "preprocess", "train", "evaluate") if stages else ("preprocess",)
        for stage in names:
            rows = [["all processes", *cost_of(stage, *options).cells]]
            print_table(f"a2 {stage}", ["", *Cost.HEADER], rows)


if __name__ == "__main__":
    main()
